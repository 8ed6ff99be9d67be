"""What a user should know beside the numbers: a code for those who ask what it is, a text for those who read it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NoticeCode = Enum(
    "NoticeCode",
    """
    ACTIONS_BEFORE_MESSAGES CLOCKS_APART CLOCKS_DRIFT COLLECTIVES_BARE COLLECTIVES_BESIDE
    COLLECTIVES_OF_UNRECORDED COLLECTIVES_UNMATCHED COORDINATES_UNKNOWN COSTS_OF_SOME_STEPS GROUPS_HIDDEN
    GROUPS_MENDED HOSTS_LATE HOST_ONLY KERNELS_BESIDE KERNELS_LOST KERNELS_STRAY LAYERS_UNKNOWN MEMORY_UNKNOWN
    MESSAGES_EARLY MESSAGES_OF_STAGE MESSAGES_OF_UNRECORDED MESSAGES_SMALL MESSAGES_TOGETHER MESSAGES_UNMATCHED
    P2P_ASSUMED PIPELINES_LEFT_OUT PIPELINE_LEFT_OUT PROFILER_AT_WORK RANKS_COPIED SLOWDOWN_DEFAULT
    SNAPSHOT_UNUSED SOURCE SPLIT_UNKNOWN STAGE_ORDER STEPS_CUT STEPS_LEFT_OUT STEP_INCOMPLETE
    WAITS_FOR_PIPELINES
    ALLOCATIONS BASELINE_OBSERVED COLLECTIVES_ALONE COLLECTIVES_KEPT COLLECTIVES_RESCALED COSTS_BORROWED
    DISTANCES ERRORS_SEEN FIDELITY GIVEN_MEMORY HBM_ABOVE_DEVICE HBM_UNCHECKED HOST_BOUND HOST_GAPS INTERFERENCE_OFF
    LINKS_DIFFER LINKS_FIXED LINKS_SHARED LOAD_SLOWS MAPS_REPEATED MEMORY_BORROWED NAME_MEANT PEAK_NEAR_LIMIT
    UNPROVEN
    CAUSES_UNKNOWN EQUALIZED MEASURED_ODD NOT_COMPARED OTHER_WORK PEAKS_OF_BUFFERS
    REPLAYED_OTHERWISE STEPS_SHARED STEP_BEYOND_REPLAY TOOLS_DIFFER
    """,
)
"""What a notice is about: of recordings, of what-ifs, and of checks. Nothing but the code says so; texts may change."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What a user should know.

    Attributes:
        code: What it is about.
        text: The same for people, one sentence.
    """

    code: NoticeCode
    text: str

    def __str__(self) -> str:
        return self.text


class Notices(list[Notice]):
    """Notices in order, each once."""

    def add(self, code: NoticeCode, text: str) -> None:
        """Add one, unless it is known."""
        if (notice := Notice(code, text)) not in self:
            self.append(notice)
