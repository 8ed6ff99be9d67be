"""The schedule picture, of panels: one timeline, and what is said about it.

What share of a panel each cause of idle time takes, and the look of idle time without a cause.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tracetool.causes.cause import Cause, Look
from tracetool.model.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.causes.cause import Idle
    from tracetool.model.timeline import Metrics, Op, RankOp, Timeline


MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Outline:
    """Cells that stand out, with an outline: what they are, and its colour and style."""

    name: str
    colour: str
    style: Literal["-", "--", ":"]
    ops: tuple[Op | RankOp, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One timeline of the picture, with what is said about it.

    Attributes:
        role: What it is of an answer, as in ``Baseline``.
        schedule: The schedule's name.
        details: The rest of its title, part by part.
        timeline: What to draw.
        metrics: Metrics of the timeline.
        microbatches: Microbatches per step.
        topology: DCs of its rows; of the observed panel none, as the links are the scenario's.
        complaint: What is wrong with its memory.
        fits: Whether it fits the memory limit as far as is known.
        hbm_bytes: Memory limit per rank.
        compared_ns: Step time of the baseline, if the difference is to be drawn here.
        error_ratio: Known error of that difference, in shares of the baseline; a smaller one says so.
        idles: Its idle time by cause; empty where causes are not known.
        marks: Cells that stand out.
    """

    role: str
    schedule: str
    details: tuple[str, ...]
    timeline: Timeline
    metrics: Metrics
    microbatches: int
    topology: Topology = field(default_factory=Topology)
    complaint: str | None = None
    fits: bool = True
    hbm_bytes: int | None = None
    compared_ns: int | None = None
    error_ratio: float | None = None
    idles: Sequence[Idle] = ()
    marks: tuple[Outline, ...] = ()

    @property
    def name(self) -> str:
        """Its name, set in bold."""
        return f"{self.role}: {self.schedule}"

    @property
    def ranks(self) -> int:
        """Number of rows."""
        return len(self.timeline.global_ranks)

    @property
    def knows_memory(self) -> bool:
        """Whether a peak is known of any rank."""
        return any(peak is not None for peak in self.metrics.peak_hbm_bytes)


PLAIN = Look("#FFFFFF", "#CFCFCF", "///", 135)
"""Of idle time whose cause is not known."""


def idle_shares(panel: Panel) -> list[str]:
    """What the bubble is made of, as shares of ranks times window, largest first; those below 0.05 % are left out."""
    total = panel.ranks * panel.metrics.window_ns
    sums: dict[Cause, int] = defaultdict(int)
    for idle in panel.idles:
        sums[idle.cause] += idle.duration_ns
    order = sorted(sums, key=lambda cause: (-sums[cause], list(Cause).index(cause)))
    return [f"{cause.words.label} {sums[cause] / total:.1%}" for cause in order if sums[cause] / total >= 0.0005]
