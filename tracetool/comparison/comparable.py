"""What two sides have in common: what only one has, or each of other work, is not compared, and said.

The typical step of a side: the median of every cost over the steps that ran its usual order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.comparison.awaited import awaited_by
from tracetool.comparison.job import as_the_first, typical_recordings
from tracetool.comparison.reported import differing
from tracetool.comparison.sides import differences, work_of
from tracetool.comparison.values import Key, Values
from tracetool.ingestion.recording import pipeline_of
from tracetool.model.action import ActionKind
from tracetool.model.notice import Notice, NoticeCode, Notices, SubjectKind
from tracetool.model.pipeline import ActionCost, Pipeline, StageProfile, TailPart
from tracetool.units import format_count, format_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracetool.comparison.awaited import AwaitedBy
    from tracetool.comparison.sides import ReportedReplay, Side
    from tracetool.ingestion.recording import Recording
    from tracetool.model.pipeline import RankProfile

_MOST_SAID = 2
"""Differences of work told in the first sentence; the note has all, with what follows from them."""
_OF_STAGES = frozenset(("action_ns", "transfer_ns", "payload_bytes", "activation_bytes"))


def are_of_same_steps(base: Side, new: Side) -> bool:
    """Whether both sides looked at the same steps of the same traces, so that their numbers must be the same."""
    steps = [set().union(*(source.each_step for source in side.sources)) for side in (base, new)]
    return all(base.digests) and steps[0] == steps[1]


def other_figures(base: Side, new: Side) -> list[str]:
    """Paths of what two reports of the same steps say otherwise, words aside; empty unless each side is one report."""
    if base.figures is None or new.figures is None:
        return []
    return [path for path, value in base.figures.items() if path in new.figures and new.figures[path] != value]


def comparable(base: Side, new: Side) -> tuple[Side, Side, Notices, list[str]]:
    """Both sides with what can be held against each other, notes on what cannot, and why they are no two of a kind."""
    apart = []
    told_of_sides = (_origins(base, new), _shared(base, new), _mixed("base", base), _mixed("new", new))
    notes = Notices(chain(base.notes, new.notes, *told_of_sides))
    if why := _other_replays(base, new):
        base, new = (_without(side, lambda key: key.is_of_replay) for side in (base, new))
        notes.add(NoticeCode.NOT_COMPARED, f"{why}: what was replayed is not compared")
        apart += [why] if base.replays and new.replays else []
    else:
        others = _other_choices(base, new)
        base, new = (_without(side, lambda key: key.is_of_replay and key.scope in others) for side in (base, new))
        asked = [f"{name} was asked for otherwise ({what}): it is not compared" for name, what in others.items()]
        notes += [Notice(NoticeCode.NOT_COMPARED, why) for why in asked]
        apart += asked
        if are_of_same_steps(base, new):
            base, new = _sampled_alike(base, new)
    if not (base.recordings and new.recordings):
        return base, new, notes, apart
    first, other = base.recordings[0], new.recordings[0]
    works = work_of(first), work_of(as_the_first(first, other))
    if works[1].global_ranks != tuple(other.global_ranks):
        new = _renamed(new, dict(zip(other.global_ranks, first.global_ranks, strict=True)))
        ranks = [
            " or ".join(dict.fromkeys(format_ranges(one.global_ranks) for one in side.recordings))
            for side in (new, base)
        ]
        notes.add(
            NoticeCode.PIPELINES_DIFFER,
            f"the new side's step is set by the pipeline of ranks {ranks[0]}, the base's by that of ranks {ranks[1]}: "
            f"each rank stands against that of the same place, by whose number in {format_ranges(first.global_ranks)} "
            "it goes",
        )
    differ = [*_devices(base, new), *differences(*works)]
    why = "; ".join(differ)
    if works[0].stages != works[1].stages:
        base, new = (_without(side, lambda key: key.metric in _OF_STAGES) for side in (base, new))
        why += "; a stage of one is none of the other's: actions and messages are not compared"
    if works[0].global_ranks != works[1].global_ranks and works[0].shape == works[1].shape:
        new = _renamed(new, dict(zip(works[1].global_ranks, works[0].global_ranks, strict=True)))
        why += "; each rank stands against that of the same place in the base's pipeline, by whose number it goes"
    elif works[0].global_ranks != works[1].global_ranks:
        base, new = (_without(side, lambda key: key.rank is not None) for side in (base, new))
        why += "; what single ranks hold and do at the end is not compared"
    if why:
        notes.add(NoticeCode.OTHER_WORK, f"the sides did other work: {why}")
    if not works[0].is_as_large(works[1]):
        more = len(differ) - _MOST_SAID
        among = f" (and {format_count(more, 'difference')} more)" if more > 0 else ""
        apart.append(f"the sides did other work: {'; '.join(differ[:_MOST_SAID])}{among}")
    return base, new, notes, apart


def other_microbatches(base: Side, new: Side, key: Key) -> str | None:
    """Why times of a step say nothing about each other: both steps have other numbers of microbatches."""
    if not key.metric.endswith(("step_ns", "window_ns", "compute_ns", "bubble_ns")):
        return None
    counts = [_microbatches(side, key.scope) for side in (base, new)]
    return None if None in counts or counts[0] == counts[1] else f"{counts[0]} microbatches against {counts[1]}"


def _microbatches(side: Side, scope: str) -> int | None:
    if scope:
        return side.replays[scope].result.microbatches if scope in side.replays else None
    return work_of(side.recordings[0]).microbatches if side.recordings else None


def _origins(base: Side, new: Side) -> list[Notice]:
    """Of which versions and steps the sides are, where that differs."""
    notes = Notices()
    tools = [sorted({source.tool_version for source in side.sources}) for side in (base, new)]
    if tools[0] != tools[1]:
        notes.add(NoticeCode.TOOLS_DIFFER, f"measured by tracetool {', '.join(tools[0])} and {', '.join(tools[1])}")
    if base.digests == new.digests and all(base.digests) and not are_of_same_steps(base, new):
        steps = [format_ranges(s for source in side.sources for s in source.steps) for side in (base, new)]
        notes.add(
            NoticeCode.STEPS_SHARED,
            f"the same traces, but steps {steps[0]} against {steps[1]}: compared as other traces are",
        )
    for schedule, before in base.replays.items():
        after = new.replays.get(schedule)
        if after is not None and after.result.variant != before.result.variant:
            notes.add(
                NoticeCode.REPLAYED_OTHERWISE,
                f"{schedule} was replayed as {before.result.variant}, then as {after.result.variant}",
                subject=SubjectKind.SCHEDULE(schedule),
            )
    return notes


def _shared(base: Side, new: Side) -> list[Notice]:
    """Steps on both sides say nothing about a change, and hide one."""
    steps = [set().union(*(source.each_step for source in side.sources)) for side in (base, new)]
    both = steps[0] & steps[1]
    if not both or steps[0] == steps[1]:
        return []
    return [
        Notice(
            NoticeCode.STEPS_SHARED,
            f"{format_count(len(both), 'step')} of the same traces on both sides: leave them out of one",
        )
    ]


def _mixed(name: str, side: Side) -> list[Notice]:
    """Steps of several orders make no typical step."""
    orders = Counter(tuple(r.orders[step.order]) for r in side.recordings for step in r.steps)
    if len(orders) < 2:
        return []
    usual = orders.most_common(1)[0][1]
    return [
        Notice(
            NoticeCode.CAUSES_UNKNOWN,
            f"the {name} side ran {len(orders)} orders; causes are of that of {usual} of {orders.total()} steps",
        )
    ]


def _other_replays(base: Side, new: Side) -> str | None:
    """Why what the sides replayed cannot be compared; None if it can, or neither replayed anything."""
    if (base.scenario is None) != (new.scenario is None):
        return "only one side replayed schedules"
    if base.scenario is None or new.scenario is None:
        return "a side replayed several scenarios" if base.replays or new.replays else None
    if other := differing(base.scenario, new.scenario):
        return f"the sides replayed different scenarios ({', '.join(other)})"
    if are_of_same_steps(base, new) and _steps(base.replays.values()) != _steps(new.replays.values()):
        return "the sides replayed other steps of the same traces"
    return None


def _other_choices(base: Side, new: Side) -> dict[str, str]:
    """Schedules that were told other things on the two sides, and what."""
    both = {
        name: (base.replays[name].result.asked, new.replays[name].result.asked)
        for name in base.replays.keys() & new.replays.keys()
    }
    return {name: ", ".join(other) for name, choices in both.items() if (other := differing(*choices))}


def _steps(replays: Iterable[ReportedReplay]) -> set[int]:
    return {replay.step for replay in replays}


def _sampled_alike(base: Side, new: Side) -> tuple[Side, Side]:
    """Where only one side replayed by each step, what both replayed by the step that was looked at."""
    uneven = [
        key
        for key, values in base.values.items()
        if key.is_of_replay and key in new.values and len(values.per_step) != len(new.values[key].per_step)
    ]

    def looked_at(side: Side) -> Side:
        own = {key: Values((getattr(side.replays[key.scope].result, key.metric),)) for key in uneven}
        return replace(side, values={**side.values, **own})

    return looked_at(base), looked_at(new)


def _devices(base: Side, new: Side) -> list[str]:
    names = [sorted({name for r in side.recordings for name in r.devices}) for side in (base, new)]
    return [" against ".join(" and ".join(each) for each in names)] if all(names) and names[0] != names[1] else []


def _without(side: Side, is_of: Callable[[Key], bool]) -> Side:
    return replace(side, values={key: values for key, values in side.values.items() if not is_of(key)})


def _renamed(side: Side, ranks: Mapping[int, int]) -> Side:
    """A side whose ranks go by other numbers."""
    values = {
        key if key.rank is None else Key.of_rank(key.metric, ranks.get(key.rank, key.rank)): values
        for key, values in side.values.items()
    }
    return replace(side, values=values)


def typical(recordings: Sequence[Recording]) -> Pipeline:
    """The pipeline whose costs are the medians over steps.

    Args:
        recordings: At least one, with a step. Steps of another order than the most usual one are left out.
    """
    each = [pipeline_of(recording, step) for recording in recordings for step in recording.steps]
    usual = Counter((p.observed.orders, p.p2p) for p in each).most_common(1)[0][0]
    alike = [p for p in each if (p.observed.orders, p.p2p) == usual]
    first = alike[0]
    return replace(
        first,
        stages=tuple(_stage([p.stages[s.stage] for p in alike]) for s in first.stages),
        ranks=tuple(_rank([p.ranks[place] for p in alike]) for place in range(len(first.ranks))),
    )


class Sides(NamedTuple):
    """What causes are told from.

    Attributes:
        base: Typical step of the base.
        new: Typical step of the new side.
        base_beside: Of the base, per stage and kind, the share of its actions' time beside communication kernels.
        new_beside: Of the new side.
        base_awaited: Of the base, the collectives that actions of a stage and kind wait for, as far as that is known.
        new_awaited: Of the new side.
        base_recordings: What the typical step of the base is of, which tells of the other ranks of a job.
        new_recordings: Of the new side.
    """

    base: Pipeline
    new: Pipeline
    base_beside: Mapping[tuple[int, str], float]
    new_beside: Mapping[tuple[int, str], float]
    base_awaited: AwaitedBy
    new_awaited: AwaitedBy
    base_recordings: Sequence[Recording] = ()
    new_recordings: Sequence[Recording] = ()

    def waits_ns(self, stage: int, action: str) -> tuple[float, float]:
        """What an action waits for collectives on each side, where both tell; else none is taken out."""
        of_sides = [side.get((stage, action)) for side in (self.base_awaited, self.new_awaited)]
        before, after = (0.0 if None in of_sides else sum(one.ns for one in (side or {}).values()) for side in of_sides)
        return before, after

    def change_ratio(self, stage: int, action: str) -> float:
        """By how much the middle action changed, but for what it waits for collectives."""
        waits = self.waits_ns(stage, action)
        old, now = (side.stages[stage].median_ns(ActionKind(action)) for side in (self.base, self.new))
        if not old or now is None or old <= waits[0]:
            return 0.0
        return (now - waits[1]) / (old - waits[0]) - 1


def typical_sides(base: Side, new: Side) -> Sides:
    """What causes are told from: of repeats in which other ranks are slow, those that are typical."""
    before, after = (typical_recordings(side.recordings, side.values[Key("step_ns")].typical) for side in (base, new))
    return Sides(
        base=typical(before),
        new=typical(after),
        base_beside=_beside_ratios(before),
        new_beside=_beside_ratios(after),
        base_awaited=awaited_by(before),
        new_awaited=awaited_by(after),
        base_recordings=before,
        new_recordings=after,
    )


def _beside_ratios(recordings: Sequence[Recording]) -> dict[tuple[int, str], float]:
    """Per stage and kind, for which share of its actions' time a communication kernel ran beside them.

    Args:
        recordings: At least one; kinds are left out that one of their steps does not tell it of.
    """
    shares: dict[tuple[int, str], list[float | None]] = {}
    for recording in recordings:
        for step in recording.steps:
            for name, action in step.actions.items():
                whole = sum(action.duration_ns)
                share = sum(action.beside_ns) / whole if action.beside_ns and whole else None
                shares.setdefault((int(name[:-1]), name[-1]), []).append(share)
    known = {key: [each for each in ratios if each is not None] for key, ratios in shares.items()}
    return {key: median(each) for key, each in known.items() if each and len(each) == len(shares[key])}


def _stage(alike: Sequence[StageProfile]) -> StageProfile:
    first = alike[0]
    costs: dict[ActionKind, tuple[ActionCost, ...]] = {}
    for kind in first.costs:
        rows = [stage.costs[kind] for stage in alike]
        costs[kind] = tuple(
            ActionCost(
                round(median(cost.duration_ns for cost in of_microbatch)),
                _median([cost.held_bytes for cost in of_microbatch]),
                _median([cost.peak_bytes for cost in of_microbatch]),
            )
            for of_microbatch in zip(*rows, strict=True)
        )
    return replace(
        first,
        costs=costs,
        forward_payload_bytes=_median([s.forward_payload_bytes for s in alike]),
        backward_payload_bytes=_median([s.backward_payload_bytes for s in alike]),
        forward_transfer_ns=round(median(s.forward_transfer_ns for s in alike)),
        backward_transfer_ns=round(median(s.backward_transfer_ns for s in alike)),
    )


def _rank(alike: Sequence[RankProfile]) -> RankProfile:
    first = alike[0]
    parts = [[(part.kind, part.meet is None) for part in rank.tail] for rank in alike]
    same = [rank for rank, shape in zip(alike, parts, strict=True) if shape == parts[0]]
    tail = tuple(
        TailPart(first.tail[place].kind, round(median(r.tail[place].duration_ns for r in same)), first.tail[place].meet)
        for place in range(len(first.tail))
    )
    return replace(
        first,
        static_bytes=_median([r.static_bytes for r in alike]),
        tail_peak_bytes=round(median(r.tail_peak_bytes for r in alike)),
        tail=tail,
    )


def _median(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(median(known)) if len(known) == len(values) else None
