"""A Scenario holds only the differences from what was measured; the empty one means as measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tracetool.errors import ScenarioError
from tracetool.model.topology import Topology

if TYPE_CHECKING:
    from tracetool.model.pipeline import P2PMode


LinkSharing = Literal["temporal", "spatial"]
LINK_SHARINGS: tuple[LinkSharing, ...] = ("temporal", "spatial")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One what-if.

    Attributes:
        topology: DC of each pipeline rank and the links between DCs.
        hbm_bytes: Memory limit per rank; None sets no limit.
        p2p: How transfers are issued; None keeps what the trace shows.
        microbatches: Microbatches per step; None keeps what the trace shows.
        activation_bytes: Bytes one microbatch keeps, instead of the measured ones.
        static_bytes: Bytes allocated at step start, instead of the measured ones.
        overlap_ratio: Time of a forward and a backward that run as one (DualPipe) over the sum of their times alone;
            1 gains nothing: one runs after the other. A trace of another schedule cannot tell it.
        pipelines: Equal pipelines that share the links; None takes those of the job that use them (``topology``).
        link_sharing: How: ``temporal`` gives each message the whole bandwidth in turn, ``spatial`` each pipeline its
            share of it.
        interference: Whether compute slows down beside communication kernels and under sustained load, as far as the
            trace tells by how much; without, actions take what their kernels take alone.
    """

    topology: Topology = field(default_factory=Topology)
    hbm_bytes: int | None = None
    p2p: P2PMode | None = None
    microbatches: int | None = None
    activation_bytes: int | None = None
    static_bytes: int | None = None
    overlap_ratio: float = 1.0
    interference: bool = True
    pipelines: int | None = None
    link_sharing: LinkSharing = "temporal"

    @property
    def interwoven(self) -> bool:
        """Whether kernels of a forward and a backward that run as one run in turns, so that both need their inputs."""
        return self.overlap_ratio != 1

    @property
    def pipelines_on_link(self) -> int:
        """Pipelines that share the links: as asked for, else as the topology says; 1 without links."""
        if not self.topology.links:
            return 1
        return self.topology.pipelines if self.pipelines is None else self.pipelines

    def __post_init__(self) -> None:
        """Refuse a limit that nothing could stay within.

        Raises:
            ScenarioError: If it is no positive number of bytes.
        """
        if self.hbm_bytes is not None and self.hbm_bytes < 1:
            raise ScenarioError(
                f"a memory limit of {self.hbm_bytes} bytes per rank leaves room for nothing.",
                hint="give a size above zero such as 80GiB, or no limit",
            )
