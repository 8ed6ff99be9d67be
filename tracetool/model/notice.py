"""What a user should know beside the numbers: a code for those who ask what it is, a text for those who read it.

How far the work is, for those who wait for it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tracetool.registry import SHOWING

if TYPE_CHECKING:
    from collections.abc import Iterable

NoticeCode = Enum(
    "NoticeCode",
    """
    ACTIONS_BEFORE_MESSAGES CAPTURES_APART CLOCKS_APART CLOCKS_DRIFT COLLECTIVES_BARE COLLECTIVES_BESIDE
    COLLECTIVES_OF_UNRECORDED COLLECTIVES_UNMATCHED COORDINATES_UNKNOWN COSTS_OF_SOME_STEPS GROUPS_HIDDEN
    GROUPS_MENDED HOSTS_LATE HOST_ONLY KERNELS_BESIDE KERNELS_LOST KERNELS_STRAY LAYERS_UNKNOWN MEMORY_UNKNOWN
    MESSAGES_EARLY MESSAGES_OF_STAGE MESSAGES_OF_UNRECORDED MESSAGES_SMALL MESSAGES_TOGETHER MESSAGES_UNMATCHED
    P2P_ASSUMED PEERS_UNMATCHED PIPELINES_ALIKE PIPELINES_DIFFER PIPELINES_JOINED PIPELINES_LEFT_OUT PIPELINE_LEFT_OUT
    PROFILER_AT_WORK RANK_SLOW_ELSEWHERE RANK_SLOW_MOVED RANKS_COPIED SLOWDOWN_DEFAULT SNAPSHOT_UNUSED SPLIT_UNKNOWN
    STAGE_ORDER STEPS_CUT STEPS_LEFT_OUT STEP_INCOMPLETE WAITS_FOR_PIPELINES ALGORITHM_UNUSED
    ALLOCATIONS BASELINE_OBSERVED COLLECTIVES_ALONE COLLECTIVES_KEPT COLLECTIVES_RESCALED COSTS_BORROWED
    DISTANCES ERRORS_SEEN FIDELITY GIVEN_MEMORY HBM_ABOVE_DEVICE HBM_UNCHECKED HOST_BOUND HOST_GAPS INTERFERENCE_OFF
    LAYERS_GAIN LINKS_DIFFER LINKS_FIXED LINKS_SHARED LOAD_SLOWS MAPS_REPEATED MEMORY_BORROWED NAME_MEANT OWN_REPLAYED
    OVERLAP_CHANGED PEAK_NEAR_LIMIT TIER_UNPASSED UNPROVEN
    DEPTH_IDLE HBM_LACKS HIDES_ALL HIDES_NONE NOT_REPLAYED
    CAUSES_UNKNOWN EQUALIZED MEASURED_ODD NOT_COMPARED OTHER_WORK PEAKS_OF_BUFFERS
    REPLAYED_OTHERWISE STEPS_SHARED STEP_BEYOND_REPLAY TOOLS_DIFFER
    BACKWARDS_WHOLE ENDS_MOVED HALVES_DERIVED HOSTS_RUN_AHEAD LESS_WAITING MEMORY_OF_HALVES ONE_AT_A_TIME
    ORDER_OF_UNTUNED ORDER_SEARCHED OVERLAP_ASSUMED POSTED_AHEAD STAGES_COPIED STAGES_CUT WARM_UP
    """,
)
"""What a notice is about: of recordings, what-ifs, checks and single results. Nothing but the code says so."""

SourceCode = Enum(
    "SourceCode",
    """
    BACKWARD_SPLIT BYTES_DIFFER BYTES_UNKNOWN CAPTURE_UNFINISHED CLASSES_INFERRED CLOCK_CONVERTED CLOCK_MOVED
    CLOCK_RESTARTS DEVICES_DISPUTED DEVICES_SEVERAL EVENTS_OUTSIDE EVENTS_UNREAD FILES_CHOSEN FILES_DAMAGED
    FILES_LEFT_OUT GRAPHS_HIDDEN GROUPS_GUESSED GROUPS_UNKNOWN JOB_ASSUMED LAUNCHES_UNKNOWN LEVELS_APPROXIMATE
    LEVELS_UNKNOWN LINKS_UNKNOWN MESSAGES_INFERRED MESSAGES_UNKNOWN MESSAGES_UNLABELLED MICROBATCHES_UNNAMED NO_EPOCH
    OUT_OF_MEMORY PARTS_MISSING PEERS_UNKNOWN PROFILER_PROBLEMS RANK_DISPUTED RANK_INFERRED RECORDS_OUT_OF_RANGE
    SIZES_STATED STAGES_INFERRED STAGES_UNPLACED STEPS_INFERRED STEPS_UNNAMED TABLES_DAMAGED TIMES_ROUNDED
    UNCODED
    """,
)
"""The same of single sources, as they were read; ``UNCODED`` is what a Run of an earlier version noted of one."""


class SubjectKind(Enum):
    """Kinds of things that a notice or a finding is about; called with its number or name, that thing."""

    RANK = "rank"
    STAGE = "stage"
    PIPELINE = "pipeline"
    STEP = "step"
    LINK = "link"
    SCHEDULE = "schedule"
    FILE = "file"

    def __call__(self, which: object) -> Subject:
        """One of the kind."""
        return Subject(self, str(which))


class Subject(NamedTuple):
    """What a notice or a finding is about.

    Attributes:
        kind: Which kind of thing.
        name: Which of them, as in ``3`` or ``dc0-dc1``.
    """

    kind: SubjectKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"

    @classmethod
    def parse(cls, text: str) -> Subject | None:
        """What ``str`` wrote into a table; None for what is about several things, or all."""
        kind, _, name = text.partition(" ")
        return cls(SubjectKind(kind), name) if name and kind in {each.value for each in SubjectKind} else None


@dataclass(frozen=True, slots=True)
class Notice:
    """What a user should know.

    Attributes:
        code: What is noticed.
        text: The same for people, one sentence.
        hint: What to do about it, if that is no part of the sentence.
        subject: What it is about; None for all.
    """

    code: NoticeCode | SourceCode
    text: str
    hint: str | None = None
    subject: Subject | None = None

    def __str__(self) -> str:
        return self.text if self.hint is None else f"{self.text}: {self.hint}"


class Notices(list[Notice]):
    """Notices in order, each once."""

    def add(
        self, code: NoticeCode | SourceCode, text: str, *, hint: str | None = None, subject: Subject | None = None
    ) -> None:
        """Add one, unless it is known."""
        if (notice := Notice(code, text, hint, subject)) not in self:
            self.append(notice)


def noted(notes: Iterable[Notice]) -> dict[str, list[str]]:
    """Notices as a Run's manifest keeps them: what they say, and beside it what they are about."""
    return {"notes": list(map(str, notes)), "note_codes": [note.code.name for note in notes]}


class Progress(Protocol):
    """Told how far the work is; the command line shows a bar."""

    def start(self, total: int) -> None:
        """Work begins: so many bytes to read, or replays."""

    def advance(self, count: int) -> None:
        """So many more of them are done."""


class Silent:
    """No progress shown."""

    def start(self, total: int) -> None:
        """Do nothing."""

    def advance(self, count: int) -> None:
        """Do nothing."""


def unasked() -> Progress:
    """Who is told where nobody was named: in a cell of a notebook a bar, elsewhere nobody."""
    if "ipykernel" not in sys.modules:
        return Silent()
    bar: Progress = import_module(SHOWING).CellBar()
    return bar
