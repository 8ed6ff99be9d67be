"""Recordings that options and arguments name: several Runs in one argument, and other recordings of the same model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.cli.output import path_or_url
from tracetool.errors import BadQuery
from tracetool.model.notice import Notice, NoticeCode, SubjectKind

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.ingestion import Progress
    from tracetool.reconstruction import Reconstruction
    from tracetool.store.run import Run


def named_paths(text: str) -> list[tuple[str, Path]]:
    """The paths of a list ``RUN[,RUN...]``, each with the name it was given (NAME=RUN), else an empty one.

    Raises:
        BadQuery: If one of them is empty.
    """
    # A comma or = may be part of a path that is there.
    parts = [text] if path_or_url(text).exists() else text.split(",")
    if not all(part.strip() for part in parts):
        raise BadQuery(f"{text!r} names an empty path.", hint="write a list as in base.run,new.run")
    named = [("", part) if path_or_url(part).exists() else part.rpartition("=")[::2] for part in parts]
    if any(part.startswith("=") and not path_or_url(part).exists() for part in parts):
        raise BadQuery(f"{text!r} gives an empty name.", hint="name a Run as in base=x.run, or leave the = out")
    return [(name, path_or_url(path)) for name, path in named]


def open_named(text: str, progress: Progress | None = None) -> dict[str, Run]:
    """The Runs of such a list by name.

    Raises:
        BadQuery: If two have the same name.
        TraceToolError: If one cannot be read.
    """
    from tracetool.ingestion.runs import open_run
    from tracetool.store.catalog import names_for

    found = named_paths(text)
    names = [given or own for (given, _), own in zip(found, names_for([path for _, path in found]), strict=True)]
    if len(set(names)) < len(names):
        raise BadQuery(
            f"two Runs are named {max(names, key=names.count)}.", hint="name each, as in base=a.run,new=b.run"
        )
    return {name: open_run([path], progress) for name, (_, path) in zip(names, found, strict=True)}


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
                subject=SubjectKind.FILE(path),
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
        notes=(
            *found.notes,
            Notice(NoticeCode.MEMORY_BORROWED, f"--memory-from {path}: {told}", subject=SubjectKind.FILE(path)),
        ),
        taken=replace(found.taken, memory_from=str(other.manifest.get("digest", ""))),
    )
