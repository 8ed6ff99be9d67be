"""A Scenario holds only the differences from what was measured; the empty one means as measured.

What was asked beside a Scenario, and changes what a replay gives: without it two answers are not of one question.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tracetool.errors import ScenarioError
from tracetool.model.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

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


@dataclass(frozen=True, slots=True)
class Choice:
    """What was asked of one schedule; None where it was left to be chosen, or the schedule does not heed it.

    Attributes:
        extra_forwards: Warm-up forwards per pipeline rank beyond 1F1B's.
        chunks: Stages per rank to cut one into.
        time_limit_s: How long a search may take.
        order: SHA-256 of an order read from a file.
    """

    extra_forwards: tuple[int, ...] | None = None
    chunks: int | None = None
    time_limit_s: float | None = None
    order: str | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """What was not measured where it is used.

    Attributes:
        costs_from: Digest of the recording whose slowdown beside communication was taken.
        memory_from: Digest of the recording whose memory figures were taken.
        copied_ranks: Per rank that was not recorded, the rank copied.
        copied_spread_ratio: How far recorded ranks of their stages are apart; None without copies, or if unknown.
    """

    costs_from: str | None = None
    memory_from: str | None = None
    copied_ranks: Mapping[int, int] = field(default_factory=dict)
    copied_spread_ratio: float | None = None
