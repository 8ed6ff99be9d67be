"""Plans that advice chooses among: schedules replayed over the same links, and what each prediction rests on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

from tracetool.depth import RELEVANT_RATIO, choose_depths
from tracetool.errors import BadTopology, ScheduleError, TraceToolError
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import BY_EDGE
from tracetool.replay.stages import stages_for
from tracetool.schedules import SCHEDULES
from tracetool.schedules.recognise import recognise
from tracetool.whatif import Answer, Refused, answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.reconstruct import Reconstruction
    from tracetool.whatif import Result

_NEXT_TO_SHORTEST = 0.005
"""geopipe is also tried so near to its shortest step: what is chosen for is measured against that."""

Evidence = Literal["recorded", "measured", "unproven"]
"""What a prediction rests on.

- recorded: predictions like it were compared with recorded steps, so its error is known (``seen_error_ratio``).
- measured: all its costs are measured, in the stages and transfers of the trace, but nothing like it was compared.
- unproven: costs are derived (halves of backwards, stages cut anew or copied), the order is made to measure, or
  transfers are issued in a way that the trace does not show, and nothing like it was compared.
"""

_HALVES = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
_LEFT_OUT = ("optimal", "observed")
"""Not tried unless asked for: a long search; and the recorded order, unless it is that of no known schedule."""


class Way(NamedTuple):
    """How a plan would be run: a schedule by name, and how its transfers are issued (None: as the trace shows)."""

    schedule: str
    p2p: P2PMode | None


@dataclass(frozen=True, slots=True)
class Plan:
    """One schedule that could be run, replayed.

    Attributes:
        way: What was asked for.
        result: What came of it.
        evidence: What the prediction rests on.
        rests_on: The same in words, for what is unproven.
        is_extra: Whether it is a depth that advice would not choose by itself here.
    """

    way: Way
    result: Result
    evidence: Evidence
    rests_on: tuple[str, ...] = ()
    is_extra: bool = False

    @property
    def step_ns(self) -> int:
        """Step time."""
        return self.result.metrics.step_ns

    @property
    def label(self) -> str:
        """Schedule and depth, as ``geopipe +2,2,0,0``."""
        extra = self.result.extra_forwards
        return self.result.schedule + (f" {depth_label(extra)}" if extra is not None else "")

    @property
    def highest_bytes(self) -> int | None:
        """What the fullest rank needs; None if it is unknown of any."""
        needed = [size for size in self.result.metrics.needed_hbm_bytes if size is not None]
        return max(needed) if len(needed) == len(self.result.metrics.needed_hbm_bytes) else None


def depth_label(extra_forwards: Sequence[int]) -> str:
    """Extra forwards per rank in short: ``+2,2,0,0``, and of more ranks ``+2×8,0×8``."""
    if len(extra_forwards) <= 4:
        return f"+{','.join(map(str, extra_forwards))}"
    return "+" + ",".join(f"{n}×{len(list(ranks))}" for n, ranks in groupby(extra_forwards))


class Asked(NamedTuple):
    """Plans of one scenario.

    Attributes:
        plans: Those that run, whether they fit the memory or not.
        refused: Schedules that cannot be built or replayed, and why.
        answer: The first of the answers, for what holds of all of them.
    """

    plans: tuple[Plan, ...]
    refused: tuple[Refused, ...]
    answer: Answer


def ways(found: Reconstruction, scenario: Scenario, names: Sequence[str] | None) -> list[Way]:
    """What can be tried: every schedule as the trace issues transfers and, if that was left open, per edge."""
    if names is None:
        names = [name for name in SCHEDULES.names() if name not in _LEFT_OUT]
        if recognise(found.pipeline.observed) is None:
            names = ["observed", *names]
    open_mode = scenario.p2p is None and found.pipeline.p2p not in BY_EDGE
    modes: list[P2PMode | None] = [None, "per-edge"] if open_mode else [None]
    return [Way(name, mode) for mode in modes for name in names]


def plans_for(
    found: Reconstruction,
    scenario: Scenario,
    tried: Iterable[Way],
    *,
    baseline: str,
    depths: Sequence[tuple[int, ...]] = (),
) -> Asked:
    """Replay each way in a scenario; geopipe at the depth that hides most, and the least that is as good.

    Both are also taken as they would be without the memory limit: what fits is judged by how near it comes to them.

    Args:
        found: A reconstructed Run.
        scenario: The what-if.
        tried: Ways to run it.
        baseline: Schedule that the answers compare with.
        depths: Extra forwards that geopipe is replayed with besides; those plans are ``extra``.

    Raises:
        ScheduleError: If the baseline does not fit, or none of the ways can be replayed.
        TraceToolError: If the scenario does not fit the pipeline.
    """
    plans: list[Plan] = []
    refused: dict[str, Refused] = {}
    answers: list[Answer] = []
    trouble: TraceToolError | None = None
    for question in _questions(found, scenario, tried, depths):
        if isinstance(question, _Unanswerable):
            trouble = question.error
            refused.setdefault(question.name, Refused(question.name, trouble.message, trouble.hint))
            continue
        mode, names, depth = question
        here = scenario if mode is None else replace(scenario, p2p=mode)
        extra, remark, is_extra = depth or (None, None, False)
        try:
            done = answer(found, names, here, baseline=baseline, extra_forwards=extra)
        except (ScheduleError, BadTopology) as error:
            trouble = error
            refused |= {name: Refused(name, error.message, error.hint) for name in names if name not in refused}
            continue
        answers.append(done)
        turned_down = {r.schedule: r for r in done.refused}
        refused = turned_down | refused
        run = [name for name in names if name not in turned_down]
        results = [replace(r, remark="; ".join(filter(None, (remark, r.remark))) or None) for r in done.results]
        made = [_plan(found, Way(name, mode), result) for name, result in zip(run, results, strict=True)]
        plans += [replace(plan, is_extra=is_extra) for plan in made]
    if not answers:
        raise trouble or ScheduleError("no schedule was named.")
    return Asked(tuple(plans), tuple(refused.values()), answers[0])


class _Depth(NamedTuple):
    """Extra forwards per rank, why so many, and whether they were asked for besides those chosen."""

    extra_forwards: tuple[int, ...]
    remark: str | None
    is_extra: bool


class _Question(NamedTuple):
    """What to replay together."""

    mode: P2PMode | None
    names: list[str]
    depth: _Depth | None


class _Unanswerable(NamedTuple):
    """A schedule whose depth cannot be chosen."""

    name: str
    error: TraceToolError


def _questions(
    found: Reconstruction,
    scenario: Scenario,
    tried: Iterable[Way],
    depths: Sequence[tuple[int, ...]],
) -> Iterator[_Question | _Unanswerable]:
    """What to replay together: per p2p mode all schedules but geopipe, and that at one depth at a time."""
    by_mode: dict[P2PMode | None, list[str]] = {}
    for way in tried:
        by_mode.setdefault(way.p2p, []).append(way.schedule)
    for mode, names in by_mode.items():
        others = [name for name in names if name != "geopipe"]
        if others:
            yield _Question(mode, others, None)
        if "geopipe" not in names:
            continue
        here = scenario if mode is None else replace(scenario, p2p=mode)
        shape = found.pipeline.observed.shape
        shape = replace(shape, microbatches=scenario.microbatches or shape.microbatches)
        ratios = RELEVANT_RATIO, _NEXT_TO_SHORTEST
        try:
            chosen = choose_depths(found.pipeline, shape, here, ratios, wanted=here.hbm_bytes is not None)
        except (ScheduleError, BadTopology) as error:
            yield _Unanswerable("geopipe", error)
            continue
        wanted = {extra: _Depth(extra, None, is_extra=True) for extra in depths}
        wanted |= {extra: _Depth(extra, remark, is_extra=False) for extra, remark in reversed(chosen)}
        yield from (_Question(mode, ["geopipe"], depth) for depth in wanted.values())


def _plan(found: Reconstruction, way: Way, result: Result) -> Plan:
    if result.seen_error_ratio is not None:
        return Plan(way, result, "recorded")
    reasons = _reasons(found.pipeline, way, result)
    return Plan(way, result, "unproven" if reasons else "measured", tuple(reasons))


def _reasons(pipeline: Pipeline, way: Way, result: Result) -> list[str]:
    """Why a prediction that was never compared with a recorded step may be off by more than one that was."""
    reasons = []
    if not way.schedule.startswith("csv:") and SCHEDULES.get(way.schedule).needs_costs:
        reasons.append("order made to measure")
    _, shape, cut = stages_for(pipeline, way.schedule, None, result.microbatches)
    if cut is not None:
        reasons.append("two copies of each stage" if shape.is_bidirectional else "stages cut anew")
    halves = {op.kind for op in result.timeline.computes()} & set(_HALVES)
    if halves and not any(kind in stage.costs for stage in pipeline.stages for kind in _HALVES):
        reasons.append("halves of backwards")
    if result.p2p == "posted-ahead":
        reasons.append("receives posted ahead")
    elif way.p2p is not None and way.p2p != pipeline.p2p:
        reasons.append(f"{way.p2p} transfers")
    return reasons
