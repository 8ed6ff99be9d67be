"""Which notes stand on the first screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.notice import NoticeCode
from tracetool.reports.lines import Note, lines_left, wrapped
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.notice import Notice

_FIRST = (
    NoticeCode.FIDELITY, NoticeCode.TIER_UNPASSED, NoticeCode.ALGORITHM_UNUSED, NoticeCode.PIPELINES_DIFFER,
    NoticeCode.WAITS_FOR_PIPELINES, NoticeCode.LAYERS_GAIN, NoticeCode.HBM_UNCHECKED, NoticeCode.HOST_BOUND,
    NoticeCode.COLLECTIVES_KEPT, NoticeCode.LINKS_SHARED, NoticeCode.RANKS_COPIED, NoticeCode.PIPELINES_JOINED,
    NoticeCode.PIPELINES_ALIKE, NoticeCode.NAME_MEANT,
)  # fmt: skip


MOST_NOTES = 2


def weightiest(notes: Sequence[Notice]) -> list[Notice]:
    """Notes with those first of which an answer hangs most; the others in their order."""
    return sorted(notes, key=lambda note: _FIRST.index(note.code) if note.code in _FIRST else len(_FIRST))


def first_notes(
    notes: Sequence[Notice],
    width: int | None = None,
    above: Sequence[str] = (),
    after: str | None = None,
    *,
    others: int = 0,
) -> list[str]:
    """The notes of which an answer hangs most as lines, and how many more there are: two, and no more than fit.

    Args:
        notes: All of them.
        width: Columns; by default the terminal's.
        above: The lines of the answer that they stand below.
        after: What to run next, where that is known.
        others: How many more there are that are not among the notes.
    """
    shown = [note for note in weightiest(notes) if note.code in _FIRST]
    for count in range(min(MOST_NOTES, len(shown)), -1, -1):
        rest = len(notes) + others - count
        lines = wrapped(
            [*map(Note, shown[:count]), f"{format_count(rest, 'note')} more, and everything tried: -v"], width
        )
        if not count or len(lines) + 1 <= lines_left(above, width, after):
            return lines
    return []
