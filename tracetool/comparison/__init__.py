"""Base against new: what changed, whether that is certain, and why.

Two gates. *Tool drift*: of the same traces every number must be the same, whatever version measured them. *Workload
drift*: steps of other traces vary; a change counts by a rank test and a least effect (``verdict.Rules``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from tracetool.comparison.attribution import attribute
from tracetool.comparison.awaited import awaited_changes
from tracetool.comparison.causes import ChangeCause, causes_of, subject
from tracetool.comparison.comparable import (
    are_of_same_steps,
    comparable,
    other_figures,
    other_microbatches,
    typical_sides,
)
from tracetool.comparison.job import (
    changed_ranks,
    outlying_ranks,
    places_of_others,
    typical_recordings,
    unrecorded_ranks,
)
from tracetool.comparison.limits import Check, Limit, check
from tracetool.comparison.replayed import asked_of_both
from tracetool.comparison.values import Key
from tracetool.comparison.verdict import Line, Rules, is_goal, is_headline, judge
from tracetool.errors import TraceToolError
from tracetool.model.notice import Notice, NoticeCode, Notices, SubjectKind
from tracetool.registry import Pictured
from tracetool.units import format_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tracetool.comparison.attribution import Attribution
    from tracetool.comparison.comparable import Sides
    from tracetool.comparison.job import ChangedRanks
    from tracetool.comparison.replayed import ReplayedOrder
    from tracetool.comparison.sides import Side

Gate = Literal["tool", "workload"]
_OF_ACTIONS = ("compute_ns", "bubble_ns", "bubble_ratio")
"""What is made up of times of actions."""
_FAR_OFF = 0.1
"""Share of the step by which replay may miss it before its causes are doubted; of recordings on GPUs it misses 1 %."""


@dataclass(frozen=True, slots=True)
class Comparison(Pictured):
    """Base against new.

    Attributes:
        base: The base.
        new: The new side.
        gate: ``tool`` where both are of the same traces, else ``workload``.
        rules: When a change counts.
        lines: Every value side by side.
        causes: By key, as text, the causes of its change, the largest first: of metrics of the step, of each rank's
            peak, and of times of what was replayed, where the recordings tell them.
        subjects: By key, as text, what an action, message or tail is of: a stage, a link, a rank.
        checks: How the limits fared.
        accepted: Whether tool drift was accepted.
        allow_inconclusive: Whether limits may be inconclusive.
        informational: Whether it is only told what would fail.
        notes: What could not be compared or told.
        apart: Of these, why the sides are no two versions of one thing.
        figures: Of the same traces, paths of figures that are not the same in both reports.
        is_of_two_orders: Whether the sides ran their actions, or issued their messages, in another order.
        is_of_other_ranks: Whether ranks of other pipelines, or at another place of one, set the new side's step.
    """

    base: Side
    new: Side
    gate: Gate
    rules: Rules
    lines: tuple[Line, ...]
    causes: Mapping[str, tuple[ChangeCause, ...]] = field(default_factory=dict)
    subjects: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    accepted: bool = False
    allow_inconclusive: bool = False
    informational: bool = False
    notes: tuple[Notice, ...] = ()
    apart: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    is_of_two_orders: bool = False
    is_of_other_ranks: bool = False

    @property
    def headlines(self) -> tuple[Line, ...]:
        """The lines about the whole step."""
        return tuple(line for line in self.lines if is_headline(line.key))

    @property
    def drifted(self) -> tuple[Line, ...]:
        """Of the same traces, what is not the same; schedules that one side alone was asked for are no difference."""
        if self.gate != "tool":
            return ()
        return tuple(
            line
            for line in self.lines
            if line.verdict != "unchanged" and not (line.key.is_of_replay and None in (line.base, line.new))
        )

    @property
    def passed(self) -> bool:
        """Whether the gate is open."""
        return not self.failures

    @property
    def regressed(self) -> tuple[Line, ...]:
        """The lines that close the gate of other traces without limits.

        All that regressed; but where the step got shorter, or the sides ran two orders, whose actions run beside other
        things, or other ranks set their steps, only the step and the peak.
        """
        is_shorter = any(line.key.text == "step_ns" and line.verdict == "improved" for line in self.lines)
        goals_alone = is_shorter or self.is_of_two_orders or self.is_of_other_ranks
        return tuple(
            line for line in self.lines if line.verdict == "regressed" and not (goals_alone and not is_goal(line.key))
        )

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the gate is closed, a sentence each; empty if it is open.

        Without limits, what regressed closes it (``regressed``). With limits, those that are exceeded or cannot be
        told. What is no question of more steps closes it either way: sides that have too little in common.
        """
        apart = [] if self.allow_inconclusive else list(self.apart)
        if self.gate == "tool":
            sentence = f"same traces, other results: {len(self.drifted)} of {len(self.lines)} values differ"
            if self.figures:
                first = ", ".join(self.figures[:3])
                sentence += (
                    f", {len(self.figures)} of the reports' own ({first}{' ...' if len(self.figures) > 3 else ''})"
                )
            drift = [sentence] if (self.drifted or self.figures) and not self.accepted else []
            return (*apart, *drift, *self._failed())
        if self.checks:
            return (*apart, *self._failed())
        worse = [line.key.text for line in self.regressed]
        return (*apart, *([f"regressed: {', '.join(worse)}"] if worse else []))

    @property
    def level(self) -> Literal["passes", "unsure", "would fail", "fails"]:
        """How it ended: unsure where it passes only because something could not be told."""
        if self.failures:
            return "would fail" if self.informational else "fails"
        return "unsure" if any(line.verdict == "inconclusive" for line in self.shown) else "passes"

    @property
    def shown(self) -> tuple[Line, ...]:
        """The lines worth showing: of the step, of parts that changed, and of limits that do not hold."""
        checked = [check.line for check in self.checks if check.outcome != "held"]
        return tuple(
            line
            for line in self.lines
            if is_headline(line.key) or line.verdict in ("regressed", "improved") or line in checked
        )

    def fails(self, of: Check) -> bool:
        """Whether a limit closes the gate."""
        return of.outcome == "exceeded" or (of.outcome == "inconclusive" and not self.allow_inconclusive)

    def _failed(self) -> tuple[str, ...]:
        return tuple(f"{c.limit.text} {c.outcome}: {c.detail}" for c in self.checks if self.fails(c))


def compare(
    base: Side,
    new: Side,
    *,
    rules: Rules | None = None,
    limits: Sequence[Limit] = (),
    accept: bool = False,
    allow_inconclusive: bool = False,
    informational: bool = False,
) -> Comparison:
    """Compare two sides.

    Args:
        base: What is compared with.
        new: What is new.
        rules: When a change counts; by default those of ``Rules``.
        limits: What the new side is held to.
        accept: Whether results of the same traces may differ, for the tool has changed on purpose.
        allow_inconclusive: Whether limits hold that cannot be told.
        informational: Whether it is only told what would fail.

    Raises:
        UnknownName: If a limit is of a stage, rank, message or schedule that there is none of.
    """
    rules = rules or Rules()
    same = are_of_same_steps(base, new)
    base, new, notes, apart = comparable(base, new)
    judged = judge(base.values, new.values, rules, same_traces=same)
    lines = tuple(_doubted(line, other_microbatches(base, new, line.key)) for line in judged)
    causes: dict[str, tuple[ChangeCause, ...]] = {}
    subjects: dict[str, str] = {}
    two_orders = False
    other_places: Collection[int] = ()
    if base.recordings and new.recordings:
        sides = typical_sides(base, new)
        two_orders = len({(side.observed.orders, side.p2p) for side in (sides.base, sides.new)}) > 1
        other_places = places_of_others(base.recordings, new.recordings)
        notes += _slow_notes(base, new, is_judged=not other_places)
        ranks = base.recordings[0].global_ranks
        lines = tuple(_doubted(line, _other_ranks(sides, line, ranks, other_places)) for line in lines)
        lines = _without_waits(sides, lines)
        causes, why = _causes(sides, lines, asked_of_both(base, new, [sides.base, sides.new]))
        notes += why
        subjects = {line.key.text: name for line in lines if (name := subject(sides, line.key))}
    elif any(line.verdict != "unchanged" for line in lines):
        bare = [source.name for side in (base, new) if not side.recordings for source in side.sources]
        notes.add(
            NoticeCode.CAUSES_UNKNOWN,
            f"no causes: {', '.join(bare)} holds no costs (a report of copied ranks, or of an older version)",
        )
    return Comparison(
        base=base,
        new=new,
        gate="tool" if same else "workload",
        rules=rules,
        lines=lines,
        causes=causes,
        subjects=subjects,
        checks=tuple(check(limit, lines, rules.alpha) for limit in limits),
        accepted=accept,
        allow_inconclusive=allow_inconclusive,
        informational=informational,
        notes=tuple(notes),
        apart=tuple(apart),
        figures=tuple(other_figures(base, new)) if same and not apart else (),
        is_of_two_orders=two_orders,
        is_of_other_ranks=bool(other_places),
    )


def _slow_notes(base: Side, new: Side, *, is_judged: bool) -> list[Notice]:
    """That another rank is slow than before, or in one of several Runs than in others.

    Args:
        base: The base.
        new: The new side.
        is_judged: Whether parts of the step count all the same.
    """
    notes = Notices()
    slow = [outlying_ranks(side.recordings) for side in (base, new)]
    listed = [format_ranks(sorted(one.rank for one in of)) for of in slow]
    if all(slow) and slow[0] != slow[1]:
        notes.add(
            NoticeCode.RANK_SLOW_MOVED,
            f"what stands out as slow is another rank than before: {listed[1]} (base: {listed[0]})"
            + ("" if is_judged else "; of what comes with that only the step and the peak can fail"),
            subject=SubjectKind.RANK(min(one.rank for one in slow[1])),
        )
    for name, side, ranks, of in zip(("base", "new"), (base, new), listed, slow, strict=True):
        usual = typical_recordings(side.recordings, side.values[Key("step_ns")].typical)
        if len(of) > 1 and len(usual) < len(side.recordings):
            which = format_ranks(one.rank for one in outlying_ranks(usual))
            notes.add(
                NoticeCode.CAUSES_UNKNOWN,
                f"in Runs of the {name} side other ranks are slow ({ranks}): causes are of {len(usual)} of "
                f"{len(side.recordings)}, in which {which if outlying_ranks(usual) else 'none'} is",
            )
    return notes


def _other_ranks(sides: Sides, line: Line, ranks: Sequence[int], places: Collection[int]) -> str | None:
    """Why a change of a part tells nothing: it is of other ranks, or was measured against others, than in the base.

    Args:
        sides: Both sides.
        line: What changed.
        ranks: By whose numbers ranks go, in pipeline order.
        places: Where other ranks set the step; what changed on all ranks of a stage is no matter of them.
    """
    if line.verdict not in ("regressed", "improved"):
        return None
    if line.key.metric == "tail_ns":
        recordings = sides.base_recordings, sides.new_recordings
        own = [place for place, rank in enumerate(ranks) if rank == line.key.rank]
        missing = {unrecorded_ranks(of, place) for of in recordings for place in own}
        return "it may hold waits for ranks that one side alone has recorded" if len(missing) > 1 else None
    if line.key.metric != "action_ns":
        return None
    place, changed = _changed(sides, line)
    is_of_stage = changed is None or changed.are_all
    return None if place not in places or is_of_stage else "of other ranks than in the base, which set the step now"


def _changed(sides: Sides, line: Line) -> tuple[int, ChangedRanks | None]:
    """The place in the pipeline that runs an action, and whose kernels changed where it did."""
    place = sides.base.observed.shape.rank_of(int(line.key.scope[:-1]))
    recordings = sides.base_recordings, sides.new_recordings
    return place, changed_ranks(*recordings, place, line.change_ratio or 0.0)


def _without_waits(sides: Sides, lines: Sequence[Line]) -> tuple[Line, ...]:
    """Lines of which those tell nothing that may have changed by waits for peers that were not recorded."""
    waiting = set()
    for line in lines:
        if line.key.metric == "action_ns" and line.verdict in ("regressed", "improved"):
            _, changed = _changed(sides, line)
            if changed is not None and changed.unrecorded_peers and not changed.ranks:
                waiting.add(line.key)
    if waiting:
        waiting |= set(map(Key, _OF_ACTIONS))
    why = "it may hold waits for peers that were not recorded"
    return tuple(
        _doubted(line, why) if line.key in waiting and line.verdict in ("regressed", "improved") else line
        for line in lines
    )


def _doubted(line: Line, why: str | None) -> Line:
    return line if why is None else replace(line, verdict="inconclusive", why=why)


def _causes(
    sides: Sides, lines: Sequence[Line], replayed: Mapping[str, ReplayedOrder]
) -> tuple[dict[str, tuple[ChangeCause, ...]], list[Notice]]:
    changes = {line.key.text: line.change for line in lines}
    causes: dict[str, tuple[ChangeCause, ...]] = {}
    notes = Notices()
    awaited = awaited_changes(sides.base_awaited, sides.new_awaited)
    try:
        for schedule, asked in [("", None), *replayed.items()]:
            for name, attribution in attribute(sides.base, sides.new, asked, awaited).items():
                key = f"{name}/{schedule}" if schedule else name
                change = changes.get(key)
                if key in changes or not schedule:
                    observed = None if change is None else Fraction(change)
                    causes[key] = causes_of(sides, attribution, observed, is_replay=bool(schedule))
                if key == "step_ns":
                    notes += _far_off(attribution, lines)
    except TraceToolError as error:
        return causes, [Notice(NoticeCode.CAUSES_UNKNOWN, f"no causes: {error.message}")]
    return causes, notes


def _far_off(attribution: Attribution, lines: Sequence[Line]) -> list[Notice]:
    """That causes are told by a replay which misses what was recorded."""
    line = next((line for line in lines if line.key.text == "step_ns"), None)
    pairs = [] if line is None else [(attribution.base, line.base), (attribution.new, line.new)]
    errors = [float(replayed) / recorded - 1 for replayed, recorded in pairs if recorded]
    worst = max(errors, key=abs, default=0.0)
    if abs(worst) <= _FAR_OFF:
        return []
    return [
        Notice(
            NoticeCode.FIDELITY,
            f"causes are told by replay, which misses the recorded step by {worst:+.0%}: take them with care",
        )
    ]
