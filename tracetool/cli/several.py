"""Several Runs, or raw traces, named in one argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.cli.output import path_or_url
from tracetool.errors import BadQuery

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.ingestion import Progress
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
