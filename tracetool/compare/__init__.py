"""Base against new: what changed, whether that is certain, and why.

Two gates. *Tool drift*: of the same traces every number must be the same, whatever version measured them. *Workload
drift*: steps of other traces vary; a change counts by a rank test and a least effect (``verdict.Rules``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from tracetool.compare.attribution import attribute
from tracetool.compare.causes import Cause, causes_of, subject
from tracetool.compare.limits import Check, Limit, check
from tracetool.compare.typical import typical
from tracetool.compare.verdict import Line, Rules, is_headline, judge
from tracetool.errors import TraceToolError
from tracetool.units import format_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracetool.compare.sides import Side
    from tracetool.compare.values import Key
    from tracetool.model.pipeline import Pipeline
    from tracetool.recording import Recording

Gate = Literal["tool", "workload"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Base against new.

    Attributes:
        base: The base.
        new: The new side.
        gate: ``tool`` where both are of the same traces, else ``workload``.
        rules: When a change counts.
        lines: Every value side by side.
        causes: By key, as text, the causes of its change, the largest first: of metrics of the step, and of each
            rank's peak.
        subjects: By key, as text, what an action, message or tail is of: a stage, a link, a rank.
        checks: How the limits fared.
        accepted: Whether tool drift was accepted.
        allow_inconclusive: Whether limits may be inconclusive.
        notes: What could not be compared or told.
    """

    base: Side
    new: Side
    gate: Gate
    rules: Rules
    lines: tuple[Line, ...]
    causes: Mapping[str, tuple[Cause, ...]] = field(default_factory=dict)
    subjects: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    accepted: bool = False
    allow_inconclusive: bool = False
    notes: tuple[str, ...] = ()

    @property
    def headlines(self) -> tuple[Line, ...]:
        """The lines about the whole step."""
        return tuple(line for line in self.lines if is_headline(line.key))

    @property
    def drifted(self) -> tuple[Line, ...]:
        """Of the same traces, what is not the same."""
        return tuple(line for line in self.lines if self.gate == "tool" and line.verdict != "unchanged")

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the gate is closed, a sentence each; empty if it is open.

        Without limits, anything that regressed closes it. With limits, those that are exceeded or cannot be told.
        """
        if self.gate == "tool":
            told = f"same traces, other results: {len(self.drifted)} of {len(self.lines)} values differ"
            drift = [told] if self.drifted and not self.accepted else []
            return (*drift, *self._failed())
        if self.checks:
            return self._failed()
        worse = [line.key.text for line in self.lines if line.verdict == "regressed"]
        return (f"regressed: {', '.join(worse)}",) if worse else ()

    def _failed(self) -> tuple[str, ...]:
        passing = {"held", "inconclusive"} if self.allow_inconclusive else {"held"}
        return tuple(f"{c.limit.text} {c.outcome}: {c.detail}" for c in self.checks if c.outcome not in passing)


def compare(
    base: Side,
    new: Side,
    *,
    rules: Rules | None = None,
    limits: Sequence[Limit] = (),
    accept: bool = False,
    allow_inconclusive: bool = False,
) -> Comparison:
    """Compare two sides.

    Args:
        base: What is compared with.
        new: What is new.
        rules: When a change counts; by default those of ``Rules``.
        limits: What the new side is held to.
        accept: Whether results of the same traces may differ, for the tool has changed on purpose.
        allow_inconclusive: Whether limits hold that cannot be told.
    """
    rules = rules or Rules()
    same = all(base.digests) and base.digests == new.digests and _same_steps(base, new)
    notes = _notes(base, new, same=same)
    if not _same_scenario(base, new):
        base, new = _without(base, _is_replay), _without(new, _is_replay)
    for differs, is_of, note in _SHAPES:
        found = [sorted({differs(recording) for recording in side.recordings}) for side in (base, new)]
        if all(found) and found[0] != found[1]:
            base, new = _without(base, is_of), _without(new, is_of)
            notes.append(note.format(*(" and ".join(map(str, each)) for each in found)))
    lines = judge(base.values, new.values, rules, same_traces=same)
    causes: dict[str, tuple[Cause, ...]] = {}
    subjects: dict[str, str] = {}
    if base.recordings and new.recordings:
        before, after = typical(base.recordings), typical(new.recordings)
        causes, why = _causes(before, after, lines)
        notes += why
        subjects = {line.key.text: name for line in lines if (name := subject(before, line.key))}
    elif any(line.verdict != "unchanged" for line in lines):
        bare = [source.name for side in (base, new) if not side.recordings for source in side.sources]
        notes.append(f"no causes: {', '.join(bare)} holds no costs (a report of an older version)")
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
        notes=tuple(notes),
    )


def _same_steps(base: Side, new: Side) -> bool:
    """Whether both sides looked at the same steps, so that their numbers must be the same."""
    steps = [sorted((source.digest, source.steps) for source in side.sources) for side in (base, new)]
    return steps[0] == steps[1]


def _same_scenario(base: Side, new: Side) -> bool:
    """Whether both sides replayed the same; what only one version of the tool knows of is as the other one does it."""
    if base.scenario is None or new.scenario is None:
        return base.scenario is new.scenario
    common = base.scenario.keys() & new.scenario.keys()
    return all(base.scenario[key] == new.scenario[key] for key in common)


def _without(side: Side, is_of: Callable[[Key], bool]) -> Side:
    return replace(side, values={key: found for key, found in side.values.items() if not is_of(key)})


def _stages(recording: Recording) -> int:
    return len({name.rstrip("FBIWR") for name in recording.steps[0].actions})


def _ranks(recording: Recording) -> str:
    return format_ranges(recording.global_ranks)


_SHAPES: tuple[tuple[Callable[[Recording], int | str], Callable[[Key], bool], str], ...] = (
    (
        _stages,
        lambda key: key.metric in ("action_ns", "transfer_ns", "payload_bytes", "activation_bytes"),
        "{} stages against {}: a stage of one is none of the other's, so actions and messages are not compared",
    ),
    (
        _ranks,
        lambda key: key.scope.startswith("rank"),
        "ranks {} against {}: what single ranks hold and do at the end is not compared",
    ),
)


def _is_replay(key: Key) -> bool:
    return bool(key.scope) and _is_of_whole(key)


def _is_of_whole(key: Key) -> bool:
    return key.metric.endswith(("step_ns", "window_ns", "bubble_ns", "bubble_ratio")) or (
        key.metric == "peak_hbm_bytes" and not key.scope.startswith("rank")
    )


def _notes(base: Side, new: Side, *, same: bool) -> list[str]:
    notes = [*base.notes, *new.notes]
    tools = [sorted({source.tool_version for source in side.sources}) for side in (base, new)]
    if tools[0] != tools[1]:
        notes.append(f"measured by tracetool {', '.join(tools[0])} and {', '.join(tools[1])}")
    if not same and base.digests == new.digests:
        steps = [format_ranges(s for source in side.sources for s in source.steps) for side in (base, new)]
        notes.append(f"the same traces, but steps {steps[0]} against {steps[1]}: compared as other traces are")
    if base.scenario is not None and new.scenario is not None and not _same_scenario(base, new):
        notes.append("the sides replayed different scenarios: what they replayed is not compared")
    elif base.scenario != new.scenario and None in (base.scenario, new.scenario):
        notes.append("only one side replayed schedules: what it replayed is not compared")
    return notes


def _causes(before: Pipeline, after: Pipeline, lines: Sequence[Line]) -> tuple[dict[str, tuple[Cause, ...]], list[str]]:
    try:
        found = attribute(before, after)
    except TraceToolError as error:
        return {}, [f"no causes: {error.message}"]
    changes = {line.key.text: line.change for line in lines}
    causes = {}
    for name, attribution in found.items():
        change = changes.get(name)
        causes[name] = causes_of(before, after, attribution, None if change is None else Fraction(change))
    return causes, []
