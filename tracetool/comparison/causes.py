"""The causes of a change in words: parts that changed together, named as what they are."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal, NamedTuple

from tracetool.comparison.attribution import EVERYTHING, ORDER, Part
from tracetool.comparison.awaited import NOTHING, are_recorded, collective_name, from_to
from tracetool.comparison.job import changed_ranks, unrecorded_ranks
from tracetool.model.action import ActionKind
from tracetool.schedules.names import recognise
from tracetool.units import format_count, format_duration, format_ranges, format_ranks, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.comparison.attribution import Attribution
    from tracetool.comparison.awaited import CollectiveKey
    from tracetool.comparison.comparable import Sides
    from tracetool.comparison.job import ChangedRanks
    from tracetool.comparison.values import Key
    from tracetool.model.pipeline import Pipeline, StageProfile

CauseKind = Literal["rank", "stage", "collective", "link", "tail", "memory", "order", "everything", "not replayed"]
_ALIKE = 2.0
"""Kinds of action slow down alike if the most slowed one does so by no more than so many times the least slowed."""
_LEAST_RATIO = 0.01
"""A rank counts as slower if all its kinds are by that much, or all ranks after their last backwards."""
_LITTLE = 0.25
"""Kernels are not what changed if they did by less than that share of what they had to."""
_AS_WELL = 0.5
"""What ranks do after their last backwards changed on all of them if on each by that share of what one's did."""
_BESIDE = 0.1
"""Actions run beside communication more, or less, from that much of their time on."""
_MOVED = 0.5
"""A microbatch moved if it changed by that share of what the one did that changed most."""


@dataclass(frozen=True, slots=True)
class ChangeCause:
    """Parts of a change that belong together.

    Attributes:
        kind: What it is.
        name: Which one, as in ``stage 2 B`` or ``link 1→2``.
        value: What it contributes to the metric's change.
        detail: What it was and is.
        parts: The parts; empty for what is not replayed.
        ranks: Of computes in a job of several pipelines, the ranks whose kernels changed so; empty where none tell.
    """

    kind: CauseKind
    name: str
    value: Fraction
    detail: str
    parts: tuple[Part, ...] = ()
    ranks: tuple[int, ...] = ()


_BEYOND = {
    False: "observed beyond what replay of the typical steps gives: hosts, waits, steps that vary",
    True: "replayed beyond what costs as they were recorded give: other slowdown beside communication, steps that vary",
}


def causes_of(
    sides: Sides, attribution: Attribution, observed_change: Fraction | None, *, is_replay: bool = False
) -> tuple[ChangeCause, ...]:
    """The causes of a metric's change, the largest first; their values sum to the observed change.

    Args:
        sides: Both sides.
        attribution: The parts' contributions.
        observed_change: Change of the metric as it was observed; None if it was not: then there is no rest.
        is_replay: Whether it is a replay's metric, and the change that of the reports.
    """
    left = dict(attribution.contributions)
    causes = []
    for group in _groups(sides, list(left)):
        value = sum((left.pop(part) for part in group), Fraction(0))
        words = _change_words(sides, group)
        causes.append(ChangeCause(words.kind, words.name, value, words.detail, group, words.ranks))
    causes.sort(key=lambda cause: (-abs(cause.value), *_place(sides.base, cause)))
    if observed_change is not None:
        rest = observed_change - sum((cause.value for cause in causes), Fraction(0))
        causes.append(ChangeCause("not replayed", "not replayed", rest, _BEYOND[is_replay]))
    return tuple(causes)


def _place(base: Pipeline, cause: ChangeCause) -> tuple[int, str, str]:
    """Where a cause stands among those of equal value: by what it is, then by the digits of its rank or stage."""
    part = cause.parts[0]
    kind = f"static {cause.kind}" if cause.kind == "memory" and part.rank >= 0 else cause.kind
    rank = base.observed.shape.rank_of(part.stage) if kind in ("link", "rank") else part.rank
    return _PLACES.index(kind), str(base.ranks[rank].rank if rank >= 0 else part.stage), part.action


_PLACES = ("memory", "tail", "everything", "link", "order", "rank", "stage", "collective", "static memory")


def _groups(sides: Sides, parts: Sequence[Part]) -> Iterable[tuple[Part, ...]]:
    """Parts that changed together: what a rank waits for a collective, its computes, both directions of a link."""
    base, new, left = sides.base, sides.new, list(parts)
    shape = base.observed.shape
    if EVERYTHING not in left:
        for rank in range(shape.ranks):
            for group in (*_awaiting(shape.stages_of(rank), left), _slow_rank(sides, rank, left)):
                if group:
                    yield group
                    left = [part for part in left if part not in group]
        for stage in range(shape.stages - 1):
            both = tuple(p for p in (Part("link", stage, "F"), Part("link", stage + 1, "B")) if p in left)
            if len(both) == 2 and _alike_links(base, new, stage):
                yield both
                left = [part for part in left if part not in both]
    for part in left:
        yield (part,)


def _awaiting(rank_stages: Sequence[int], left: Sequence[Part]) -> list[tuple[Part, ...]]:
    """What the actions of a rank wait for, by collective."""
    groups: dict[CollectiveKey, tuple[Part, ...]] = {}
    for part in left:
        if part.kind == "collective" and part.stage in rank_stages:
            groups[part.which] = (*groups.get(part.which, ()), part)
    return list(groups.values())


def _slow_rank(sides: Sides, rank: int, left: Sequence[Part]) -> tuple[Part, ...]:
    """The computes of a rank, if all kinds of all its stages changed alike."""
    base = sides.base
    stages = base.observed.shape.stages_of(rank)
    parts = tuple(part for part in left if part.kind == "compute" and part.stage in stages)
    kinds = sum(len(base.stages[stage].costs) for stage in stages)
    if len(parts) < max(2, kinds):
        return ()
    ratios = [sides.change_ratio(part.stage, part.action) for part in parts]
    same_sign = min(ratios) > _LEAST_RATIO or max(ratios) < -_LEAST_RATIO
    sizes = sorted(abs(ratio) for ratio in ratios)
    return parts if same_sign and sizes[-1] <= _ALIKE * sizes[0] else ()


def _alike_links(base: Pipeline, new: Pipeline, stage: int) -> bool:
    there = new.stages[stage].forward_transfer_ns - base.stages[stage].forward_transfer_ns
    back = new.stages[stage + 1].backward_transfer_ns - base.stages[stage + 1].backward_transfer_ns
    return there * back > 0 and max(abs(there), abs(back)) <= _ALIKE * min(abs(there), abs(back))


class _Words(NamedTuple):
    kind: CauseKind
    name: str
    detail: str
    ranks: tuple[int, ...] = ()


def _change_words(sides: Sides, group: tuple[Part, ...]) -> _Words:
    base, new, part = sides.base, sides.new, group[0]
    if part in (EVERYTHING, ORDER):
        kind: CauseKind = "order" if part == ORDER else "everything"
        return _Words(kind, kind if part == ORDER else "another pipeline", _order_words(base, new))
    if part.kind == "link":
        return _link_words(base, new, group)
    if part.kind == "collective":
        return _collective_words(sides, group)
    if part.kind == "memory":
        return _memory_words(base, new, part)
    if part.kind == "tail":
        tails = [[sum(p.duration_ns for p in rank.tail) for rank in side.ranks] for side in (base, new)]
        before, after = (of_ranks[part.rank] for of_ranks in tails)
        changes = [there - here for here, there in zip(*tails, strict=True)]
        name = f"after the last backward on {_rank_name(base, new, part.rank)}"
        is_change = abs(after - before) > _LEAST_RATIO * before
        unrecorded = unrecorded_ranks((*sides.base_recordings, *sides.new_recordings), part.rank)
        if is_change and all(change / (after - before) >= _AS_WELL for change in changes):
            name += f", as on all ranks{' that were recorded' if unrecorded else ''}"
        if unrecorded:
            name += ", or waits there for ranks that were not recorded"
        return _Words("tail", name, _from_to(before, after))
    return _compute_words(sides, group)


def _compute_words(sides: Sides, group: tuple[Part, ...]) -> _Words:
    base, new, part = sides.base, sides.new, group[0]
    beside, is_cause = _beside_words(sides, group)
    ratios = {p: sides.change_ratio(p.stage, p.action) for p in group}
    position = base.observed.shape.rank_of(part.stage)
    changed = changed_ranks(sides.base_recordings, sides.new_recordings, position, fmean(ratios.values()))
    if len(group) > 1:
        each = ", ".join(f"{p.stage}{p.action} {ratio:+.1%}" for p, ratio in ratios.items())
        kind, name, more = _holders_words(sides, position, changed)
        return _Words(kind, name, f"all its computes: {each}{beside}{more}", () if changed is None else changed.ranks)
    before_stage, after_stage = base.stages[part.stage], new.stages[part.stage]
    action = ActionKind(part.action)
    waits = sides.waits_ns(part.stage, part.action)
    means = (_mean_ns(before_stage, action) - waits[0], _mean_ns(after_stage, action) - waits[1])
    detail = f"mean{' without collectives' if any(waits) else ''} {_from_to(*means)}"
    name = f"stage {part.stage} {part.action}" + (" beside communication" if is_cause else "")
    ranks = changed.ranks if changed is not None and abs(ratios[part]) > _LEAST_RATIO else ()
    whose = f", {_listed(ranks, changed)}" if changed is not None and ranks else ""
    if changed is not None and not changed.ranks and changed.unrecorded_peers:
        whose = ", or waits for a peer that was not recorded"
    elif (
        changed is not None
        and abs(ratios[part]) > _LEAST_RATIO
        and abs(changed.kernels_ratio) < _LITTLE * abs(_due_ratio(sides, position))
    ):
        name += " (not its kernels: gaps between them, or waits for other ranks)"
    return _Words("stage", name, detail + _microbatches(before_stage, after_stage, action) + whose + beside, ranks)


def _due_ratio(sides: Sides, position: int) -> float:
    """By how much all kernels of a pipeline rank would have changed, had its actions changed by their kernels."""
    stages = [sides.base.stages[stage] for stage in sides.base.observed.shape.stages_of(position)]
    times = {(stage.stage, kind.value): _mean_ns(stage, kind) for stage in stages for kind in stage.costs}
    return sum(sides.change_ratio(*action) * ns for action, ns in times.items()) / (sum(times.values()) or 1.0)


def _collective_words(sides: Sides, group: tuple[Part, ...]) -> _Words:
    before, after = (
        [awaited[part.stage, part.action].get(part.which, NOTHING) for part in group]
        for awaited in (sides.base_awaited, sides.new_awaited)
    )
    ranks = next(use.group_ranks for use in (*after, *before) if use.number)
    name = f"{collective_name(group[0].which, ranks)} in {_stages_named(sorted({part.stage for part in group}))}"
    name += f" {group[0].action}" if len(group) == 1 else ""
    if not (are_recorded(before, sides.base_recordings) and are_recorded(after, sides.new_recordings)):
        name += ", or waits there for ranks that were not recorded"
    each = [f"in each {p.stage}{p.action} {from_to(*uses)}" for p, *uses in zip(group, before, after, strict=True)]
    return _Words("collective", name, ", ".join(each))


def _stages_named(stages: Sequence[int]) -> str:
    return f"stage{'' if len(stages) == 1 else 's'} {format_ranges(stages)}"


def _listed(ranks: Sequence[int], changed: ChangedRanks) -> str:
    if not changed.are_all:
        return format_ranks(ranks)
    return f"all {changed.recorded} " + (
        "ranks" if changed.recorded == changed.holders else f"recorded of {changed.holders} ranks"
    )


def _holders_words(sides: Sides, position: int, changed: ChangedRanks | None) -> tuple[CauseKind, str, str]:
    """What to call the ranks that hold the stages of a pipeline rank, as far as they changed; and what else to say."""
    name = _rank_name(sides.base, sides.new, position)
    if changed is None:
        return "rank", name, ""
    listed = sides.base.observed.shape.stages_of(position)
    stages = _stages_named(listed)
    if not changed.ranks and changed.unrecorded_peers:
        return "rank", f"{name} or a peer of it that was not recorded", ""
    if not changed.ranks and sides.base.ranks[position].rank != sides.new.ranks[position].rank:
        return "rank", name, "; it is waited for now, and neither is known to have changed"
    if not changed.ranks:
        return "stage", stages, f"; as {name} has them"
    if changed.are_all:
        most = "" if changed.most is None else f", rank {changed.most} most"
        return "stage", f"{stages} ({_listed(changed.ranks, changed)}{most})", ""
    others = changed.holders - changed.recorded
    more = f"; {format_count(others, 'other rank')} of {stages} not recorded" if others else ""
    return "rank", _listed(changed.ranks, changed), more


def _beside_words(sides: Sides, group: tuple[Part, ...]) -> tuple[str, bool]:
    """How much more or less computes run beside communication, which slows them down; and whether that is the cause.

    It is if what changed that much got slower beside more of it, or faster beside less.
    """
    changes = []
    for part in group:
        before, after = (shares.get((part.stage, part.action)) for shares in (sides.base_beside, sides.new_beside))
        if before is not None and after is not None and abs(after - before) >= _BESIDE:
            slower = sides.change_ratio(part.stage, part.action)
            changes.append((f"{part.stage}{part.action} {before:.0%} → {after:.0%}", slower * (after - before) > 0))
    if not changes:
        return "", False
    listed = ", ".join(words for words, _ in changes)
    return f"; beside communication for {listed} of the time", all(same for _, same in changes)


def _mean_ns(stage: StageProfile, kind: ActionKind) -> float:
    """As in the table of values: a step waits for all microbatches, not for the middle one."""
    costs = stage.costs.get(kind, ())
    return fmean(cost.duration_ns for cost in costs) if costs else 0.0


def _from_to(before: float, after: float) -> str:
    ratio = f" ({after / before - 1:+.1%})" if before else ""
    return f"{format_duration(before)} → {format_duration(after)}{ratio}"


def _microbatches(before: StageProfile, after: StageProfile, kind: ActionKind) -> str:
    """Which microbatches changed, if not all did alike."""
    pairs = zip(before.costs[kind], after.costs[kind], strict=False)
    changes = [new.duration_ns - old.duration_ns for old, new in pairs]
    largest = max(changes, key=abs)
    moved = [j for j, change in enumerate(changes) if change * largest > 0 and abs(change) >= _MOVED * abs(largest)]
    if not largest or len(moved) == len(changes) or abs(median(changes)) >= _MOVED * abs(largest):
        return ""
    words = f"microbatch{'' if len(moved) == 1 else 'es'} {format_ranges(moved)}"
    return f", {words} by {'+' if largest > 0 else ''}{format_duration(largest)}"


def subject(sides: Sides, key: Key) -> str:
    """What a value of an action, a message or a tail is of, named as causes are; empty for other values.

    Args:
        sides: Both sides, of the value's shape.
        key: The value's key.
    """
    base = sides.base
    if key.metric == "action_ns":
        part = Part("compute", int(key.scope[:-1]), key.scope[-1])
        known = part.stage < min(len(base.stages), len(sides.new.stages))
        _, is_cause = _beside_words(sides, (part,)) if known else ("", False)
        return f"stage {part.stage} {part.action}" + (" beside communication" if is_cause else "")
    if key.metric == "activation_bytes":
        return f"stage {key.scope}"
    if key.metric in ("transfer_ns", "payload_bytes"):
        part = Part("link", int(key.scope[:-1]), key.scope[-1])
        return _way(base, part, "→") if part.stage < len(base.stages) else ""
    return "" if key.rank is None else f"rank {key.rank}"


def _rank_name(base: Pipeline, new: Pipeline, position: int) -> str:
    """A rank of the new side; with that of the base where pipelines of other ranks are compared."""
    before, after = (side.ranks[position].rank for side in (base, new))
    return f"rank {after}" if before == after else f"rank {after} (base: {before})"


def _way(base: Pipeline, part: Part, arrow: str) -> str:
    """A link by the global ranks that it joins."""
    shape = base.observed.shape
    there = shape.next(part.stage) if part.action == "F" else shape.previous(part.stage)
    src, dst = (base.ranks[shape.rank_of(s)].rank for s in (part.stage, part.stage if there is None else there))
    # With several stages on a rank several ways lead between two ranks.
    of = f" of stage {part.stage}" if shape.chunks > 1 else ""
    return f"link {src}{arrow}{dst}{of}"


def _link_words(base: Pipeline, new: Pipeline, group: tuple[Part, ...]) -> _Words:
    details = []
    for part in group:
        forward = part.action == "F"
        sides = (base.stages[part.stage], new.stages[part.stage])
        times = [s.forward_transfer_ns if forward else s.backward_transfer_ns for s in sides]
        sizes = [s.forward_payload_bytes if forward else s.backward_payload_bytes for s in sides]
        words = f"a message {format_duration(times[0])} → {format_duration(times[1])}"
        if sizes[0] != sizes[1]:
            words += ", payload " + " → ".join("unknown" if size is None else format_size(size) for size in sizes)
        details.append(words)
    return _Words("link", _way(base, group[0], "↔" if len(group) > 1 else "→"), "; back: ".join(details))


def _memory_words(base: Pipeline, new: Pipeline, part: Part) -> _Words:
    if part.stage < 0:
        before, after = (side.ranks[part.rank].static_bytes for side in (base, new))
        name = f"static memory of {_rank_name(base, new, part.rank)}"
    else:
        before, after = (side.stages[part.stage].activation_bytes() for side in (base, new))
        name = f"activations of stage {part.stage}"
    known = ["unknown" if size is None else format_size(size) for size in (before, after)]
    return _Words("memory", name, f"{known[0]} → {known[1]}")


def _order_words(base: Pipeline, new: Pipeline) -> str:
    changes = []
    names = [known.name if (known := recognise(side.observed)) else "an order of its own" for side in (base, new)]
    shapes = [side.observed.shape for side in (base, new)]
    pairs = (
        ("", names), ("p2p ", [base.p2p, new.p2p]), ("microbatches ", [s.microbatches for s in shapes]),
        ("stages ", [s.stages for s in shapes]), ("ranks ", [s.ranks for s in shapes]),
    )  # fmt: skip
    for what, (before, after) in pairs:
        if before != after:
            changes.append(f"{what}{before} → {after}")
    return ", ".join(changes) or "actions in another order"
