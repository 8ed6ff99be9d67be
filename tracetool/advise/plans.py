"""Plans that advice chooses among: schedules replayed over the same links, and what each prediction rests on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from tracetool.depth import choose_depth
from tracetool.errors import MissingPackage, ScheduleError
from tracetool.model.action import ActionKind
from tracetool.schedules import SCHEDULES
from tracetool.whatif import Answer, Refused, answer, stages_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.reconstruct import Reconstruction
    from tracetool.whatif import Result

RELEVANT_RATIO = 0.02
"""Steps of two plans that differ by less are the same to whoever measures them: each of the two scatters by about 1 %
(repeated steps of the recorded H100 runs). Among such plans the one that needs least memory is taken."""

Evidence = Literal["recorded", "measured", "unproven"]
"""What a prediction rests on.

- recorded: predictions like it were compared with recorded steps, so its error is known (``seen_error_ratio``).
- measured: all its costs are measured, in the stages and transfers of the trace, but nothing like it was compared.
- unproven: costs are derived (halves of backwards, stages cut anew or copied), the order is made to measure, or
  transfers are issued in a way that the trace does not show, and nothing like it was compared.
"""

_HALVES = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
_LEFT_OUT = ("optimal", "observed")
"""Not tried unless asked for: a long search; and the recorded order, which the baseline replays."""


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
    """

    way: Way
    result: Result
    evidence: Evidence
    rests_on: tuple[str, ...] = ()

    @property
    def step_ns(self) -> int:
        """Step time."""
        return self.result.metrics.step_ns

    @property
    def label(self) -> str:
        """Schedule and depth, as ``geopipe +2,2,0,0``."""
        extra = self.result.extra_forwards
        return self.result.schedule + (f" +{','.join(map(str, extra))}" if extra is not None else "")

    @property
    def highest_bytes(self) -> int | None:
        """What the fullest rank needs; None if it is unknown of any."""
        needed = [size for size in self.result.metrics.needed_hbm_bytes if size is not None]
        return max(needed) if len(needed) == len(self.result.metrics.needed_hbm_bytes) else None


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
    open_mode = scenario.p2p is None and found.pipeline.p2p != "per-edge"
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
    """Replay each way in a scenario; geopipe at the depth that is worth it, and at the one that hides most.

    Args:
        found: A reconstructed Run.
        scenario: The what-if.
        tried: Ways to run it.
        baseline: Schedule that the answers compare with.
        depths: Extra forwards that geopipe is replayed with besides.

    Raises:
        ScheduleError: If the baseline does not fit, or none of the ways can be replayed.
        TraceToolError: If the scenario does not fit the pipeline.
    """
    plans: list[Plan] = []
    refused: list[Refused] = []
    first: Answer | None = None
    by_mode: dict[P2PMode | None, list[str]] = {}
    for way in tried:
        by_mode.setdefault(way.p2p, []).append(way.schedule)
    trouble: ScheduleError | None = None
    for mode, names in by_mode.items():
        here = scenario if mode is None else replace(scenario, p2p=mode)
        try:
            done = answer(found, names, here, baseline=baseline)
        except (ScheduleError, MissingPackage) as error:
            trouble = error
            refused += [Refused(name, error.message, error.hint) for name in names]
            continue
        turned_down = {r.schedule for r in done.refused}
        run = [name for name in names if name not in turned_down]
        plans += [_plan(found, Way(name, mode), result) for name, result in zip(run, done.results, strict=True)]
        if "geopipe" in run:
            known = [r.extra_forwards for r in done.results if r.schedule == "geopipe"]
            others = _other_depths(found, here, baseline, depths, known)
            plans += [_plan(found, Way("geopipe", mode), result) for result in others]
        refused += [r for r in done.refused if r.schedule not in {known.schedule for known in refused}]
        first = first or done
    if first is None:
        raise trouble or ScheduleError("no schedule was named.")
    return Asked(tuple(plans), tuple(refused), first)


def _other_depths(
    found: Reconstruction,
    scenario: Scenario,
    baseline: str,
    depths: Sequence[tuple[int, ...]],
    known: Sequence[tuple[int, ...] | None],
) -> list[Result]:
    """Further depths of geopipe: the one where more gains nothing that could be measured, and those given."""
    shape = replace(
        found.pipeline.observed.shape, microbatches=scenario.microbatches or found.pipeline.observed.shape.microbatches
    )
    worth, _ = choose_depth(found.pipeline, shape, scenario, gain_ratio=RELEVANT_RATIO)
    wanted = [extra for extra in dict.fromkeys((worth, *depths)) if extra not in known]
    return [
        answer(found, ["geopipe"], scenario, baseline=baseline, extra_forwards=extra).results[0] for extra in wanted
    ]


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
    if way.p2p is not None and way.p2p != pipeline.p2p:
        reasons.append(f"{way.p2p} transfers")
    return reasons
