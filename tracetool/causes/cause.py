"""The causes of idle time: each is one value with its words, its look and its removal, and all else follows from it.

Idle time of a Timeline, each interval of it with the one cause that it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Self

from tracetool.causes.removals import (
    EQUAL_STAGES,
    HOST_IN_TIME,
    MORE_MICROBATCHES,
    NO_LATENCY,
    NO_LIMIT,
    NO_OPTIMIZER,
    NO_REDUCTION,
    OPEN_CHANNEL,
    UNLIMITED_BANDWIDTH,
    UNTIED,
    HowRemoved,
)

if TYPE_CHECKING:
    from tracetool.model.timeline import Op, Transfer


class CauseWords(NamedTuple):
    """What people read about a cause.

    Attributes:
        label: Its name.
        meaning: What it is, in a sentence.
        on_path: What time spent on it is called in a step of the critical path; by default as it is.
    """

    label: str
    meaning: str
    on_path: str | None = None


class Look(NamedTuple):
    """How idle time of one cause looks.

    Tints apart for people with colour-blindness too, paler than what runs. Hatches of straight lines alone: dots and
    circles take 300 kB each in SVG.

    Attributes:
        tint: Colour of the ground.
        line: Colour of the hatch.
        hatch: In pictures, as matplotlib has it.
        angle_deg: Of the lines on pages, whose style sheets have lines of one direction.
    """

    tint: str
    line: str
    hatch: str
    angle_deg: int


class Cause(StrEnum):
    """Why a rank ran no action: within the pipeline window, or in what follows it.

    Attributes:
        words: What people read.
        look: In pictures and on pages.
        removal: What replay without it means.
    """

    words: CauseWords
    look: Look
    removal: HowRemoved

    def __new__(cls, value: str, words: CauseWords, look: Look, removal: HowRemoved) -> Self:
        """A member: its text is its name in tables and JSON."""
        cause = str.__new__(cls, value)
        cause._value_ = value
        cause.words, cause.look, cause.removal = words, look, removal
        return cause

    FILL = (
        "fill",
        CauseWords("fill", "Computes of other ranks ahead of the rank's first backward: the pipeline fills."),
        Look("#FFFFFF", "#BDBDBD", "/////", 135),
        MORE_MICROBATCHES,
    )
    DRAIN = (
        "drain",
        CauseWords("drain", "Computes of other ranks after the rank's last forward: the pipeline drains."),
        Look("#CFCFCF", "#8F8F8F", "\\\\\\\\\\", 45),
        MORE_MICROBATCHES,
    )
    DEPENDENCY = (
        "dependency",
        CauseWords(
            "dependency",
            "Computes of other ranks in between: stages or microbatches are unequal, or too few in flight.",
        ),
        Look("#E0D8C0", "#8A7A4E", "----", 90),
        EQUAL_STAGES,
    )
    CROSS_DC_LATENCY = (
        "cross_dc_latency",
        CauseWords(
            "cross-DC latency",
            "The latency of a link between data centres, however far from the rank.",
            on_path="latency",
        ),
        Look("#EAD9F2", "#A679B8", "--//", 160),
        NO_LATENCY,
    )
    CROSS_DC_BANDWIDTH = (
        "cross_dc_bandwidth",
        CauseWords(
            "cross-DC bandwidth",
            "A message that occupied a link between data centres, or queued for it.",
            on_path="bandwidth",
        ),
        Look("#D99CCB", "#8A3D78", "xxxxx", 45),
        UNLIMITED_BANDWIDTH,
    )
    CHANNEL = (
        "channel",
        CauseWords(
            "channel",
            "A message inside a data centre, or behind another one on the same communicator.",
            on_path="moving",
        ),
        Look("#B4D3F7", "#3F74B5", "||||", 0),
        OPEN_CHANNEL,
    )
    MEMORY = (
        "memory",
        CauseWords("memory", "No room for another forward that was ready to run."),
        Look("#F5AD98", "#B5482A", "xx++", 120),
        NO_LIMIT,
    )
    PROFILER_OVERHEAD = (
        "profiler_overhead",
        CauseWords(
            "profiler overhead",
            "The profiler's own overhead (buffers and the like) held the host up: no part of the job.",
            on_path="profiler",
        ),
        Look("#B8B8F8", "#5454A8", "\\\\--", 20),
        HOST_IN_TIME,
    )
    HOST = (
        "host",
        CauseWords("host", "Nothing else held the action back: the host launched it late.", on_path="host"),
        Look("#EEF0B0", "#8F9228", "++++", 90),
        HOST_IN_TIME,
    )
    GRADIENT_REDUCTION = (
        "gradient_reduction",
        CauseWords(
            "gradient reduction",
            "After the last backward of all: gradients are summed over replicas and made ready, or another rank's are.",
        ),
        Look("#9EC577", "#4F7A2A", "//||", 110),
        NO_REDUCTION,
    )
    EMBEDDING_ALLREDUCE = (
        "embedding_allreduce",
        CauseWords(
            "embedding all-reduce",
            "After the last backward of all: stages that hold the same weights (a tied embedding) sum their gradients.",
        ),
        Look("#ECD251", "#8C7410", "\\\\||", 70),
        UNTIED,
    )
    OPTIMIZER = (
        "optimizer",
        CauseWords("optimizer", "After the last backward of all: the optimizer runs, or another rank's does."),
        Look("#93BEB0", "#3D6E5F", "||++", 10),
        NO_OPTIMIZER,
    )


ON_LINKS = frozenset((Cause.CROSS_DC_LATENCY, Cause.CROSS_DC_BANDWIDTH))
"""Causes that links between data centres are to blame for."""

LATE = frozenset((Cause.PROFILER_OVERHEAD, Cause.HOST))
"""Causes that a replay has none of: actions launched later than what they waited for."""

ON_CHAINS = (
    Cause.CROSS_DC_BANDWIDTH,
    Cause.CROSS_DC_LATENCY,
    Cause.CHANNEL,
    Cause.PROFILER_OVERHEAD,
    Cause.HOST,
)
"""What a chain of actions and messages may be spent with besides computes; what is laid out first comes first."""

AFTER_WINDOW = (Cause.GRADIENT_REDUCTION, Cause.EMBEDDING_ALLREDUCE, Cause.OPTIMIZER)
"""Causes of what a step takes beyond its pipeline window."""

IN_WINDOW = tuple(cause for cause in Cause if cause not in AFTER_WINDOW)
"""Causes of idle time within the window: of the bubble."""


@dataclass(frozen=True, slots=True)
class Idle:
    """An interval in which a pipeline rank computed nothing: within the pipeline window, or what follows it.

    Attributes:
        rank: Pipeline rank.
        start_ns: From when.
        end_ns: Until when.
        cause: Why.
        held: The action of the rank that came next; None after its last one.
        transfer: The message whose way caused it, where one did.
    """

    rank: int
    start_ns: int
    end_ns: int
    cause: Cause
    held: Op | None = None
    transfer: Transfer | None = None

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns
