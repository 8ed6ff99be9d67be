"""Plans that advice chooses among: schedules replayed over the same links, and what each prediction rests on.

One more unit of each resource: the scenarios that say what it would buy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from tracetool.costs.rescaled import with_faster_compute, with_layers
from tracetool.errors import BadTopology, Option, ScenarioError, ScheduleError, command_or_call, together
from tracetool.model.notice import Silent
from tracetool.model.pipeline import BY_EDGE
from tracetool.model.topology import in_two
from tracetool.replays.evaluation import evaluate, stages_for
from tracetool.units import format_size
from tracetool.whatif.accuracy import LayersStep, known_error, layers_gain
from tracetool.whatif.answer import answer
from tracetool.whatif.best import default_schedules, evidence_of, plan_name
from tracetool.whatif.layers import layers_error
from tracetool.whatif.results import Answer, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracetool.errors import TraceToolError
    from tracetool.model.pipeline import LayerOverlap, P2PMode, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.topology import Topology
    from tracetool.network.link import Link
    from tracetool.reconstruction import Reconstruction
    from tracetool.whatif.accuracy import KnownError
    from tracetool.whatif.best import Evidence
    from tracetool.whatif.layers import LayersGain
    from tracetool.whatif.results import Result


class PlanWay(NamedTuple):
    """How a plan would be run: a schedule by name, and how its transfers are issued (None: as the scenario says)."""

    schedule: str
    p2p: P2PMode | None


@dataclass(frozen=True, slots=True)
class Plan:
    """One schedule that could be run, replayed.

    Attributes:
        way: What was asked for.
        result: What came of it.
        is_extra: Whether it is a depth that advice would not choose by itself here.
    """

    way: PlanWay
    result: Result
    is_extra: bool = False

    @property
    def step_ns(self) -> int:
        """Step time."""
        return self.result.step_ns

    @property
    def evidence(self) -> Evidence:
        """What the prediction rests on."""
        return evidence_of(self)

    @property
    def rests_on(self) -> tuple[str, ...]:
        """The same in words, for what is unproven."""
        return self.result.rests_on

    @property
    def known_error(self) -> KnownError | None:
        """How far off such predictions were; None if nothing was like it."""
        return self.result.known_error

    @property
    def order_digest(self) -> str:
        """What its order is, whatever its name."""
        return self.result.order_digest

    @property
    def schedule(self) -> str:
        """Name of the schedule."""
        return self.result.schedule

    @property
    def extra_forwards(self) -> tuple[int, ...] | None:
        """Warm-up forwards per rank beyond 1F1B's; None for schedules without any."""
        return self.result.extra_forwards

    @property
    def p2p(self) -> str:
        """How its transfers are issued."""
        return self.result.p2p

    @property
    def feasible(self) -> bool | None:
        """Whether it fits; None if that is unknown."""
        return self.result.feasible

    @property
    def unlimited_ns(self) -> int | None:
        """Step of the warm-up that it would have without the memory limit; None if that cuts nothing."""
        return self.result.unlimited_ns

    @property
    def needed_bytes(self) -> int | None:
        """What the fullest rank needs; None if it is unknown of any."""
        return self.result.needed_bytes

    @property
    def label(self) -> str:
        """Schedule and depth, as ``geopipe +2,2,0,0``."""
        return plan_name(self)


class Deepened(NamedTuple):
    """A tuned schedule, and extra forwards per rank that it is to have."""

    schedule: str
    extra_forwards: tuple[int, ...]


class ScenarioPlans(NamedTuple):
    """Plans of one scenario.

    Attributes:
        plans: Those that run, whether they fit the memory or not.
        refused: Schedules that cannot be built or replayed, and why.
        answer: The first of the answers, for what holds of all of them.
    """

    plans: tuple[Plan, ...]
    refused: tuple[Refused, ...]
    answer: Answer


def ways(recording: Reconstruction, scenario: Scenario, names: Sequence[str] | None) -> list[PlanWay]:
    """What can be tried: every schedule as the trace issues transfers and, if that was left open, per edge.

    Raises:
        ScenarioError: If the scenario has no links, as the ranks have no places or one.
    """
    _check_links(scenario.topology, len(recording.observed.global_ranks))
    if names is None:
        names = default_schedules(recording.pipeline.observed)
    open_mode = scenario.p2p is None and recording.pipeline.p2p not in BY_EDGE
    modes: list[P2PMode | None] = [None, "per-edge"] if open_mode else [None]
    return [PlanWay(name, mode) for mode in modes for name in names]


def plans_for(
    recording: Reconstruction,
    scenario: Scenario,
    tried: Iterable[PlanWay],
    *,
    baseline: str,
    also: Deepened | None = None,
) -> ScenarioPlans:
    """Replay each way in a scenario; tuned schedules at the depth that hides most, and the least that is as good.

    Args:
        recording: A reconstructed Run.
        scenario: The what-if.
        tried: Ways to run it.
        baseline: Schedule that the answers compare with.
        also: What is replayed besides, if it is tried; those plans are ``extra``.

    Raises:
        ScheduleError: If the baseline does not fit, or none of the ways can be replayed.
        TraceToolError: If the scenario does not fit the pipeline.
    """
    by_mode: dict[P2PMode | None, list[str]] = {}
    for way in tried:
        by_mode.setdefault(way.p2p, []).append(way.schedule)
    plans: list[Plan] = []
    refused: dict[str, Refused] = {}
    answers: list[Answer] = []
    trouble: TraceToolError | None = None
    for question in _questions(by_mode, also):
        mode, names, extra = question
        here = scenario if mode is None else replace(scenario, p2p=mode)
        try:
            done = answer(recording, names, here, baseline=baseline, extra_forwards=extra, progress=Silent())
        except (ScheduleError, BadTopology) as error:
            trouble = error
            refused |= {name: Refused(name, error.message, error.hint) for name in names if name not in refused}
            continue
        answers.append(done)
        turned_down = {r.schedule: r for r in done.refused}
        refused = turned_down | refused
        run = [name for name in names if name not in turned_down]
        results = (*done.results, *done.closer)
        asked = [*run, *(result.schedule for result in results[len(run) :])]
        known = {(plan.schedule, plan.extra_forwards) for plan in plans if plan.way.p2p == mode}
        plans += [
            Plan(PlanWay(name, mode), result, is_extra=extra is not None)
            for name, result in zip(asked, results, strict=True)
            if (result.schedule, result.extra_forwards) not in known
        ]
    if not answers:
        raise trouble or ScheduleError("no schedule was named.")
    now = answers[0].baseline
    if not any((p.schedule, p.extra_forwards, p.p2p) == (now.schedule, now.extra_forwards, now.p2p) for p in plans):
        plans.append(Plan(PlanWay(baseline, None), now))  # what runs already can always be run
    return ScenarioPlans(tuple(plans), tuple(refused.values()), answers[0])


class _Question(NamedTuple):
    """What to replay together: schedules, and a depth where that is not to be chosen."""

    mode: P2PMode | None
    names: list[str]
    extra_forwards: tuple[int, ...] | None


def _questions(by_mode: dict[P2PMode | None, list[str]], also: Deepened | None) -> Iterator[_Question]:
    """Per p2p mode all schedules, then one at a depth."""
    for mode, names in by_mode.items():
        yield _Question(mode, names, None)
        if also is not None and also.schedule in names:
            yield _Question(mode, [also.schedule], also.extra_forwards)


Resource = Literal["bandwidth", "latency", "hbm", "compute", "microbatches"]

FASTER_COMPUTE = 1.1
MORE_HBM_BYTES = 8 * 2**30
_LESS_LATENCY_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class More:
    """One more unit of a resource.

    Attributes:
        resource: What there is more of.
        text: How much, for people.
        scenario: The what-if with it.
        pipeline: What was measured, faster where compute is.
        link: The pair of DCs whose link alone is better, as ``dc0-dc1``; None if all are.
    """

    resource: Resource
    text: str
    scenario: Scenario
    pipeline: Pipeline
    link: str | None = None


def more_of_each(pipeline: Pipeline, scenario: Scenario, *, memory_known: bool) -> list[More]:
    """Each resource in the units that it is bought in.

    Args:
        pipeline: What was measured.
        scenario: What there is now.
        memory_known: Whether it is known that what runs now fits; more memory buys nothing that could be told
            otherwise.
    """
    more_of = list(_better_links(pipeline, scenario, None))
    pairs = scenario.topology.parts()
    if len(pairs) > 1:
        more_of += [more for pair in pairs for more in _better_links(pipeline, scenario, pair)]
    if scenario.hbm_bytes is not None and memory_known:
        more_of += _more_memory(pipeline, scenario, scenario.hbm_bytes)
    microbatches = scenario.microbatches or pipeline.observed.shape.microbatches
    return [
        *more_of,
        More(
            "compute",
            f"compute {FASTER_COMPUTE - 1:.0%} faster",
            scenario,
            with_faster_compute(pipeline, FASTER_COMPUTE),
        ),
        More("microbatches", "1 microbatch more", replace(scenario, microbatches=microbatches + 1), pipeline),
    ]


def _better_links(pipeline: Pipeline, scenario: Scenario, pair: str | None) -> Iterator[More]:
    def better(resource: Resource, text: str, change: Callable[[Link], Link]) -> More:
        topology = scenario.topology.changed(change, pair)
        where = text if pair is None else f"{text}, {pair} alone"
        return More(resource, where, replace(scenario, topology=topology), pipeline, pair)

    def wider(link: Link, percent: int) -> Link:
        return link.at(link.bandwidth_bytes_per_s * percent // 100)

    yield better("bandwidth", "bandwidth × 2", lambda link: wider(link, 200))
    if pair is None:
        yield better("bandwidth", "bandwidth + 10%", lambda link: wider(link, 110))
    affected = scenario.topology.changeable(pair)
    if not any(link.latency_ns for link in affected):
        return
    yield better("latency", "latency / 2", lambda link: replace(link, latency_ns=link.latency_ns // 2))
    if pair is None and min(link.latency_ns for link in affected) >= _LESS_LATENCY_NS:
        yield better(
            "latency",
            "latency - 1 ms",
            lambda link: replace(link, latency_ns=link.latency_ns - _LESS_LATENCY_NS),
        )


def _more_memory(pipeline: Pipeline, scenario: Scenario, hbm_bytes: int) -> Iterator[More]:
    kept = [stage.activation_bytes() for stage in pipeline.memory_source.stages]
    activation = scenario.activation_bytes or max((size for size in kept if size is not None), default=None)
    if activation:
        yield More(
            "hbm",
            f"HBM + 1 activation ({format_size(activation)})",
            replace(scenario, hbm_bytes=hbm_bytes + activation),
            pipeline,
        )
    yield More(
        "hbm", f"HBM + {MORE_HBM_BYTES >> 30} GiB", replace(scenario, hbm_bytes=hbm_bytes + MORE_HBM_BYTES), pipeline
    )


def _check_links(topology: Topology, ranks: int) -> None:
    if topology.is_joined:
        return
    links = together(Option.DC(in_two(ranks)), Option.LINK("dc0-dc1=25Gbit/s,10ms"))
    compares = command_or_call(
        "tracetool replay TRACES --schedule 1f1b,zb-h1,interleaved", "tt.answer(found, '1f1b,zb-h1,interleaved')"
    )
    raise ScenarioError(
        "advice is about the links between data centres, and none is given"
        + (", as all ranks sit in one." if topology.dcs else "."),
        hint=f"add {links}; inside one data centre, {compares} compares schedules",
    )


@dataclass(frozen=True, slots=True)
class Gain:
    """What one more unit buys, replayed.

    Attributes:
        more: The unit.
        plan: What would be run then.
        same_plan_ns: Step of the plan that is best now; None if it does not fit then.
        gained_ns: How much less time the work of a step takes, against the best plan now.
        gain_ratio: The same as a share of that plan's step.
    """

    more: More
    plan: Plan
    same_plan_ns: int | None
    gained_ns: int
    gain_ratio: float


def layers_gains(
    recording: Reconstruction, plan: Plan | None, scenario: Scenario, overlaps: Iterable[LayerOverlap]
) -> tuple[LayersGain, ...]:
    """What layers that overlap in other ways make of a plan: the same order and transfers, replayed with each.

    Args:
        recording: What was reconstructed, with layers as recorded.
        plan: The plan; nothing is replayed without one.
        scenario: Its links and limits.
        overlaps: The ways; what changes nothing is left out.
    """
    if plan is None:
        return ()
    result = plan.result
    known, order = result.known_error, result.replayed.schedule
    gains = []
    for overlap in overlaps:
        if overlap.is_as_recorded:
            continue
        changed = with_layers(recording.pipeline, overlap)
        pipeline, _, _ = stages_for(changed, plan.way.schedule, None, result.microbatches)
        there = replace(scenario, p2p=plan.way.p2p or scenario.p2p)
        step_ns = evaluate(pipeline, order, there).metrics.step_ns
        error = None if known is None else known_error(changed, order, result.p2p, there, known.own_ratio)
        plain = LayersStep(plan.step_ns, known, layers_error(recording.pipeline))
        gains.append(layers_gain(overlap, plain, LayersStep(step_ns, error, layers_error(changed))))
    return tuple(gains)
