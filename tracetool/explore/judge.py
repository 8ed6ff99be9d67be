"""The judge of plans: replay by the same engine, many plans of one form at once.

Pipelines of one plan that are unlike are replayed one by one, and the slowest counts: gradients meet. Pipelines that
take turns on a link are replayed side by side.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import TraceToolError
from tracetool.estimate.estimating import Job
from tracetool.estimate.form import OrderKey, form_of, held_by
from tracetool.estimate.layer_costs import CurveCosts
from tracetool.estimate.many import estimates_of
from tracetool.estimate.stages import JobCosts, parts_of, pipeline_of
from tracetool.explore.plan import pipelines_sharing, transports
from tracetool.model.action import ActionKind
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.replays.scenarios import replay_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracetool.estimate.estimating import Estimate
    from tracetool.estimate.stages import ModelParts
    from tracetool.explore.plan import JobPlan, Workload
    from tracetool.explore.transport import OverTiers
    from tracetool.model.pipeline import P2PMode

MEMORY = "memory"
"""Why a plan is refused that needs more than a device has."""
_TOGETHER = 256
"""Plans of one sweep of the engine."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A plan, replayed.

    Attributes:
        plan: The plan.
        step_ns: First forward to the end of gradient reduction and optimizer.
        window_ns: First forward to last backward.
        compute_ns: Of each rank in the window, mean over ranks.
        reduction_ns: Of gradients, after the last backward; the longest of a rank.
        peak_hbm_bytes: Highest allocation of any device.
        refusal: Why it cannot run; times are 0 then.
    """

    plan: JobPlan
    step_ns: int
    window_ns: int = 0
    compute_ns: int = 0
    reduction_ns: int = 0
    peak_hbm_bytes: int = 0
    refusal: str = ""

    @property
    def runs(self) -> bool:
        """Whether it can run."""
        return not self.refusal


class _Lane(NamedTuple):
    """One pipeline of a plan, for a sweep."""

    number: int
    job: Job
    costs: JobCosts


_Form = tuple[OrderKey, "P2PMode", tuple[int, ...]]


class Judge:
    """Replays plans of a workload.

    Args:
        workload: What is to be trained, and on what.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._parts: dict[tuple[object, ...], ModelParts] = {}

    def costs(self, plan: JobPlan) -> list[tuple[OverTiers, JobCosts]]:
        """What carries a plan, and its costs, of each sort of its pipelines.

        Raises:
            BadTopology: If it does not fit on the network.
        """
        model, device, how = self.workload.model, self.workload.device, plan.training
        found = []
        for transport in transports(self.workload, plan):
            key = (
                how.degrees, how.batch, how.recompute, plan.placement, plan.routing_ratio, plan.compression_ratio,
                how.sequence_parallel,
            )  # fmt: skip
            if key not in self._parts:
                if len(self._parts) > 50_000:
                    self._parts.clear()
                self._parts[key] = parts_of(CurveCosts(model, device, how, transport))
            found.append((transport, JobCosts(model, device, how, transport, parts=self._parts[key])))
        return found

    def judge(self, plans: Sequence[JobPlan]) -> list[Judged]:
        """Replay plans; what cannot run is kept with the reason.

        Args:
            plans: Which.
        """
        done: dict[int, Judged] = {}
        lanes: dict[_Form, list[_Lane]] = defaultdict(list)
        for number, plan in enumerate(plans):
            try:
                found = self.costs(plan)
                peak = max(found[0][1].peaks_bytes(held_by(OrderKey.of(plan.training))))
                if peak > self.workload.hbm_bytes:
                    done[number] = Judged(plan, 0, peak_hbm_bytes=peak, refusal=MEMORY)
                elif plan.sharing == "temporal" and any(pipelines_sharing(over.line) > 1 for over, _ in found):
                    done[number] = self._in_turns(plan, found, peak)
                else:
                    self._add(number, plan, found, lanes)
            except TraceToolError as error:
                done[number] = Judged(plan, 0, refusal=error.message)
        for form, alike in lanes.items():
            for lane, took in _swept(form, alike):
                before = done.get(lane.number)
                if before is None or took.step_ns > before.step_ns:
                    done[lane.number] = Judged(
                        plans[lane.number], took.step_ns, took.window_ns, took.compute_ns, took.reduction_ns,
                        max(took.peak_hbm_bytes),
                    )  # fmt: skip
        return [done[number] for number in range(len(plans))]

    def _add(
        self,
        number: int,
        plan: JobPlan,
        found: Sequence[tuple[OverTiers, JobCosts]],
        lanes: dict[_Form, list[_Lane]],
    ) -> None:
        key, mode = OrderKey.of(plan.training), plan.training.mode
        for over, costs in found:
            places = () if plan.training.messages_hold_up else over.line.places
            lanes[key, mode, places].append(_Lane(number, self._job(plan), costs))

    def _job(self, plan: JobPlan) -> Job:
        return Job("plan", self.workload.model, self.workload.device, plan.training)

    def _in_turns(self, plan: JobPlan, found: Iterable[tuple[OverTiers, JobCosts]], peak: int) -> Judged:
        """Pipelines side by side, each message with the whole link in turn."""
        slowest = Judged(plan, 0)
        for over, costs in found:
            pipeline = pipeline_of(plan.training, costs)
            topology, count = links_of(over, costs), pipelines_sharing(over.line)
            scenario = Scenario(topology, p2p=plan.training.mode, pipelines=count, link_sharing="temporal")
            (times,) = replay_many(pipeline, pipeline.observed, [scenario])
            if times.step_ns > slowest.step_ns:
                reductions = (
                    part for rank in pipeline.ranks for part in rank.tail if part.kind is ActionKind.REDUCE_GRAD
                )
                slowest = Judged(
                    plan, times.step_ns, times.window_ns, times.compute_ns // plan.training.stages,
                    max((part.duration_ns for part in reductions), default=0), peak,
                )  # fmt: skip
        return slowest


def _swept(form: _Form, lanes: Sequence[_Lane]) -> Iterator[tuple[_Lane, Estimate]]:
    made = form_of(*form)
    for first in range(0, len(lanes), _TOGETHER):
        some = lanes[first : first + _TOGETHER]
        estimates = estimates_of(made, [lane.job for lane in some], [lane.costs for lane in some])
        yield from zip(some, estimates, strict=True)


def links_of(over: OverTiers, costs: JobCosts) -> Topology:
    """Places of the outermost tier, and links between them that a message occupies as long as it does there."""
    places = over.line.places
    payload = costs.payload
    names = [f"place{place}" for place in places]
    links: dict[tuple[str, str], Link] = {}
    for rank, place in enumerate(names):
        other = names[(rank + 1) % len(names)]
        took = over.link_ns(payload // costs.tensor, rank)
        if took is not None:
            bandwidth = max(1, round(payload * 1e9 / max(1, took[0])))
            for one, two in ((place, other), (other, place)):
                links.setdefault((one, two), Link(one, two, bandwidth, took[1]))
    return Topology(tuple(names), tuple(links.values()))
