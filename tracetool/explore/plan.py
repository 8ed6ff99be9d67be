"""A plan: how a job is trained, where its ranks sit, and how the network is used. A pure value, without times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError
from tracetool.estimates.layer_overlap import CurveOverlap
from tracetool.estimates.seats import seats
from tracetool.estimates.transport import OverTiers
from tracetool.model.pipeline import NO_OVERLAP
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.estimates.device import Accelerator
    from tracetool.estimates.seats import PipelineLine
    from tracetool.estimates.training import Training
    from tracetool.estimates.transformer import Transformer
    from tracetool.model.scenario import LinkSharing
    from tracetool.network.collectives import Algorithm
    from tracetool.network.file import NetworkChoice
    from tracetool.network.placement import Dimension


@dataclass(frozen=True)
class Workload:
    """What is to be trained, and on what.

    Attributes:
        model: The model.
        device: Every device.
        choice: The network; its placement and algorithms are what a plan has that says nothing else.
        hbm_bytes: Memory that a device may use.
    """

    model: Transformer
    device: Accelerator
    choice: NetworkChoice
    hbm_bytes: int


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One way to run a workload.

    Attributes:
        training: Degrees, microbatches, schedule, recomputation and how messages are issued.
        placement: The rule by which ranks are put on devices.
        collectives: How gradients are reduced.
        sharing: How pipelines share the outermost tier: each its part all the time, or in turns.
        routing_ratio: Share of the outermost tier's bandwidth that routing reaches.
        compression_ratio: Bytes over the outermost tier, of what was to be sent; below 1 it changes what is computed.
    """

    training: Training
    placement: str = ""
    collectives: Algorithm = "auto"
    sharing: LinkSharing = "spatial"
    routing_ratio: float = 1.0
    compression_ratio: float = 1.0

    @property
    def seats_rule(self) -> str:
        """Where ranks sit, in short."""
        return self.placement or ",".join(("tp", "cp", "ep", "dp", "pp"))

    @property
    def degrees_text(self) -> str:
        """How wide it is along each dimension, as ``tp 8 · pp 16``."""
        return self.training.degrees.text

    @property
    def order_text(self) -> str:
        """Its schedule, with stages per rank and extra forwards: ``geopipe +2``, ``interleaved x2``."""
        training = self.training
        if training.stages == 1:
            return "no pipeline"
        text = training.order_name
        if training.chunks > 1:
            text += f" x{training.chunks}"
        if any(training.extra_forwards):
            text += " +" + ",".join(map(str, training.extra_forwards))
        return text

    @property
    def p2p_text(self) -> str:
        """How its messages are issued: ``grouped`` also where each action ends with the messages behind it."""
        return "grouped" if self.training.messages_hold_up else self.training.mode

    @property
    def text(self) -> str:
        """Everything that tells it from others, in one line."""
        training = self.training
        parts = [
            self.degrees_text,
            self.order_text,
            *([f"{self.p2p_text} transfers"] if training.stages > 1 else []),
            f"{format_count(training.microbatches, 'microbatch')} of {training.batch}",
            f"recompute {training.recompute}",
            *([f"layers overlap by {training.overlap}"] if training.overlap != NO_OVERLAP else []),
            f"placed {self.seats_rule}",
        ]
        if training.data * training.context > 1:
            beside = " beside the last backward" if training.overlap_reduction else ""
            parts.append(f"gradients {self.collectives}{beside}")
        if self.sharing == "temporal":
            parts.append("pipelines take turns on the link")
        if self.routing_ratio != 1:
            parts.append(f"routing reaches {self.routing_ratio:.0%}")
        if self.compression_ratio != 1:
            parts.append(f"compressed to {self.compression_ratio:.0%} (changes numerics)")
        return ", ".join(parts)


def transports(workload: Workload, plan: JobPlan) -> list[OverTiers]:
    """What carries a plan's collectives and messages, of each sort of its pipelines.

    Raises:
        BadTopology: If it does not fit on the network.
    """
    seated_at = seats(workload.choice.network, plan.placement, plan.training.degrees)
    algorithms: Mapping[Dimension, Algorithm] = {**workload.choice.algorithms, "dp": plan.collectives}
    factor = plan.compression_ratio / plan.routing_ratio
    alone = plan.sharing == "temporal"
    return [OverTiers(seated_at, line, algorithms, factor, alone) for line in seated_at.lines]


def overlap_refusal(workload: Workload, plan: JobPlan) -> str | None:
    """Why the layers of a plan cannot overlap as it says; None if they can.

    Raises:
        BadTopology: If it does not fit on the network.
    """
    if plan.training.overlap == NO_OVERLAP:
        return None
    try:
        CurveOverlap(workload.model, workload.device, plan.training, transports(workload, plan)[0])
    except ScenarioError as error:
        return error.message.rstrip(".")
    return None


def pipelines_sharing(line: PipelineLine) -> int:
    """How many pipelines send over the same of the outermost tier at one hop; 1 where it is not shared."""
    if not line.places:
        return 1
    return max(-(-hop.sharing[-1] // hop.of_one[-1]) for hop in line.hops)
