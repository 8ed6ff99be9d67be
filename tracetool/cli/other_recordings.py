"""--costs-from and --memory-from: what is taken from other recordings of the same model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.model.notice import Notice, NoticeCode

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.reconstruction import Reconstruction
    from tracetool.store.run import Run


def borrow_slowdown(found: Reconstruction, other: Run, path: Path) -> Reconstruction:
    """What was reconstructed, slowed down beside communication as another recording was, with a note on how sure it is.

    Args:
        found: Where all other costs come from.
        other: The recording to take the slowdown from.
        path: Its name, for the notes.

    Raises:
        ScenarioError: If the other one has other stages, or does not tell its slowdown.
        TraceToolError: If it holds no pipeline.
    """
    from tracetool.costs.borrowed import with_factors_of
    from tracetool.reconstruction import reconstruct

    theirs = reconstruct(other)
    told = "; ".join(finding.value for finding in theirs.findings if finding.fact == "interference")
    return replace(
        found,
        pipeline=with_factors_of(found.pipeline, theirs.pipeline),
        notes=(
            *(note for note in found.notes if note.code is not NoticeCode.SLOWDOWN_DEFAULT),
            Notice(
                NoticeCode.COSTS_BORROWED,
                f"--costs-from {path}: {told or 'no slowdown beside communication'}",
            ),
        ),
        taken=replace(found.taken, costs_from=str(other.manifest.get("digest", ""))),
    )


def borrow_memory(found: Reconstruction, other: Run, path: Path) -> Reconstruction:
    """What was reconstructed, with the memory figures of another recording and a note that says so.

    Args:
        found: Where times, messages and order come from.
        other: The recording to take memory from.
        path: Its name, for the notes.

    Raises:
        ScenarioError: If the other one is of another model, or of stages that cannot be made these.
        TraceToolError: If it holds no pipeline.
    """
    from tracetool.costs.borrowed import with_memory_of
    from tracetool.reconstruction import reconstruct

    theirs = reconstruct(other)
    told = "memory figures (peaks, what fits) are that recording's"
    if any(rank.static_bytes is None for rank in theirs.pipeline.ranks):
        told = "that recording does not tell what ranks hold in memory"
    return replace(
        found,
        pipeline=with_memory_of(found.pipeline, theirs.pipeline),
        notes=(*found.notes, Notice(NoticeCode.MEMORY_BORROWED, f"--memory-from {path}: {told}")),
        taken=replace(found.taken, memory_from=str(other.manifest.get("digest", ""))),
    )
