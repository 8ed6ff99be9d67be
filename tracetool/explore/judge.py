"""The judge of plans: replay by the same engine, many plans of one form at once.

Pipelines of one plan that are unlike are replayed one by one, and the slowest counts: gradients meet. Pipelines that
take turns on a link are replayed side by side.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import TraceToolError
from tracetool.estimates.estimating import Job
from tracetool.estimates.form import OrderKey, form_of, held_by
from tracetool.estimates.layer_costs import CurveCosts
from tracetool.estimates.many import estimates_of
from tracetool.estimates.stages import JobCosts, message_bytes, parts_of
from tracetool.explore.plan import pipelines_sharing, transports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.estimates.estimating import Estimate
    from tracetool.estimates.stages import ModelParts
    from tracetool.estimates.transport import OverTiers
    from tracetool.explore.plan import JobPlan, Workload
    from tracetool.model.pipeline import P2PMode

MEMORY = "memory"
"""Why a plan is refused that needs more than a device has."""
_KEPT = 250
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


_Form = tuple[OrderKey, "P2PMode", tuple[int, ...], int]


class Judge:
    """Replays plans of a workload.

    Args:
        workload: What is to be trained, and on what.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._parts: dict[tuple[object, ...], ModelParts] = {}
        self._transports: dict[tuple[object, ...], list[OverTiers]] = {}

    def costs(self, plan: JobPlan) -> list[tuple[OverTiers, JobCosts]]:
        """What carries a plan, and its costs, of each sort of its pipelines.

        Raises:
            BadTopology: If it does not fit on the network.
        """
        model, device, how = self.workload.model, self.workload.device, plan.training
        costs_of_ways = []
        for transport in self._carrying(plan):
            key = (
                how.degrees, how.batch, how.recompute, plan.placement, plan.routing_ratio, plan.compression_ratio,
                how.sequence_parallel, how.overlap,
            )  # fmt: skip
            if key not in self._parts:
                if len(self._parts) > _KEPT:
                    self._parts.clear()
                self._parts[key] = parts_of(CurveCosts(model, device, how, transport))
            hops = transport.hops_ns(message_bytes(model, how) // how.tensor)
            costs_of_ways.append(
                (transport, JobCosts(model, device, how, transport, parts=self._parts[key], hops=hops))
            )
        return costs_of_ways

    def _carrying(self, plan: JobPlan) -> list[OverTiers]:
        key = (
            plan.training.degrees, plan.placement, plan.collectives, plan.sharing, plan.routing_ratio,
            plan.compression_ratio,
        )  # fmt: skip
        if key not in self._transports:
            if len(self._transports) > _KEPT:
                self._transports.clear()
            self._transports[key] = transports(self.workload, plan)
        return self._transports[key]

    def judge(self, plans: Sequence[JobPlan]) -> list[Judged]:
        """Replay plans; what cannot run is kept with the reason.

        Args:
            plans: Which.
        """
        done: dict[int, Judged] = {}
        lanes: dict[_Form, list[_Lane]] = defaultdict(list)
        for number, plan in enumerate(plans):
            try:
                costs = self.costs(plan)
                peak = max(costs[0][1].peaks_bytes(held_by(OrderKey.of(plan.training))))
                if peak > self.workload.hbm_bytes:
                    done[number] = Judged(plan, 0, peak_hbm_bytes=peak, refusal=MEMORY)
                else:
                    self._add(number, plan, costs, lanes)
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
        of_tiers: Sequence[tuple[OverTiers, JobCosts]],
        lanes: dict[_Form, list[_Lane]],
    ) -> None:
        key, mode = OrderKey.of(plan.training), plan.training.mode
        for over, costs in of_tiers:
            places = () if plan.training.messages_hold_up else over.line.places
            copies = pipelines_sharing(over.line) if places and plan.sharing == "temporal" else 1
            lanes[key, mode, places, copies].append(_Lane(number, self._job(plan), costs))

    def _job(self, plan: JobPlan) -> Job:
        return Job("plan", self.workload.model, self.workload.device, plan.training)


def _swept(form: _Form, lanes: Sequence[_Lane]) -> Iterator[tuple[_Lane, Estimate]]:
    made = form_of(*form)
    for first in range(0, len(lanes), _TOGETHER):
        some = lanes[first : first + _TOGETHER]
        estimates = estimates_of(made, [lane.job for lane in some], [lane.costs for lane in some])
        yield from zip(some, estimates, strict=True)
