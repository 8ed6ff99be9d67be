"""Ways to overlap inside layers, as several commands ask for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.cli.question import Question
    from tracetool.model.pipeline import LayerOverlap
    from tracetool.reconstruction import Reconstruction

WAYS_HELP = "slice:N, p2p, p2p:N, async-tp or fused ('tracetool help overlap')"


def ways_of(text: str | None, *, links: bool = False) -> tuple[str, ...]:
    """Ways that were named, none first; empty if not asked for.

    Args:
        text: The ways.
        links: Whether other links are asked about, over which layers as they are take another time.

    Raises:
        BadQuery: If one is none.
    """
    if text is None and not links:
        return ()
    from tracetool.model.pipeline import NO_OVERLAP
    from tracetool.overlap.answer import parse_ways

    return parse_ways(text or NO_OVERLAP)


def one_way(text: str | None) -> str | None:
    """The way that was named; None if not asked for.

    Raises:
        BadQuery: If it is none.
        ScenarioError: If they are several.
    """
    if text is None:
        return None
    none, *ways = ways_of(text)
    if len(ways) > 1:
        raise ScenarioError("--overlap takes one way.", hint="run the command once for each")
    return ways[0] if ways else none


def overlapping(question: Question, way: str | None, *, explained: bool = False) -> Reconstruction:
    """What was reconstructed, with layers that overlap so; None leaves them as they are.

    Args:
        question: What was asked.
        way: The way.
        explained: Whether a note also says what is in the way of it.
    """
    if way is None:
        return question.recording
    from tracetool.overlap.actions import with_overlap

    return with_overlap(question.recording, question.run, way, explained=explained)


def with_ways(
    question: Question, ways: Sequence[str], bandwidths_bytes_per_s: Sequence[int] = ()
) -> tuple[Reconstruction, tuple[LayerOverlap, ...]]:
    """What was reconstructed, with notes on ways to run its layers, and what these change; nothing if there are none.

    Args:
        question: What was asked.
        ways: The ways, none first.
        bandwidths_bytes_per_s: Of the links between the ranks of a group; as recorded if there are none.
    """
    if not ways:
        return question.recording, ()
    from tracetool.overlap.actions import layer_overlaps

    overlaps, notes = layer_overlaps(question.run, ways, bandwidths_bytes_per_s)
    return replace(question.recording, notes=(*question.recording.notes, *notes)), overlaps
