"""What --debug writes: what a bug report needs, and nothing that a trace holds."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracetool.cli.question import named_paths
from tracetool.cli.settings import in_effect
from tracetool.version import __version__

if TYPE_CHECKING:
    from tracetool.store.run import Run

debugged: list[click.Context] = []
"""The call that --debug was typed for."""


def _note_debug(context: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if value:
        debugged.append(context)


DEBUG = click.Option(
    ["--debug"], is_flag=True, is_eager=True, expose_value=False, callback=_note_debug,
    help="Also write what a bug report needs; no contents of traces.",
)  # fmt: skip

_INPUTS = ("paths", "run", "also", "costs_from", "memory_from", "base", "new", "runs")
_PIECES = re.compile(r"([,;=*]|->|\.\.)")
_PLAIN = re.compile(
    r"[<>]?[+-]?[\d.]+(?:-\d+)?\s?(?:[kKMGTP]i?)?(?:bit/s|bps|B/s|B|ns|us|ms|s|km|%)?|dc\d+(?:-dc\d+)?|", re.ASCII
)


def write_bundle(context: click.Context, arguments: list[str], code: int, error: BaseException | None) -> Path:
    """Write what is known of a call: versions, words, the error's way and sizes; no names that a trace could hold.

    Args:
        context: The call.
        arguments: Its words.
        code: Its exit code.
        error: What it ended by; None if by nothing.

    Returns:
        The file, in the current folder if that can be written to.
    """
    words = [*arguments, *(word for one in in_effect(context) for word in one.words)]
    import json
    import tempfile

    bundle = {
        "versions": _versions(),
        "command": _shortened(context, words),
        "exit": code,
        "error": None if error is None else _way(error),
        "inputs": [_input(context, path) for path in _inputs(context)],
    }
    text = json.dumps(bundle, indent=2, default=str) + "\n"
    folder = Path.cwd() if os.access(Path.cwd(), os.W_OK) else None
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="tracetool-debug-", suffix=".json", dir=folder, delete=False
    ) as file:
        file.write(text)
    return Path(file.name)


def _versions() -> dict[str, str]:
    import platform
    from importlib import metadata

    versions = {"tracetool": __version__, "python": platform.python_version(), "platform": platform.platform()}
    try:
        names = [re.split(r"[^\w.-]", line)[0] for line in metadata.requires("tracetool") or () if "extra" not in line]
    except metadata.PackageNotFoundError:
        names = []
    for name in names:
        with suppress(metadata.PackageNotFoundError):  # some are for other platforms
            versions[name] = metadata.version(name)
    chosen = {name: os.environ.get(name, "") for name in ("TRACETOOL_ENGINE", "TRACETOOL_SCANNER")}
    return versions | {name: value for name, value in chosen.items() if value in ("plain", "compiled")}


def _shortened(context: click.Context, words: list[str]) -> str:
    """A command line: options, quantities and names of ours as typed, anything else by its kind alone."""
    from tracetool.model.pipeline import P2P_MODES
    from tracetool.schedules import SCHEDULES

    ours = {*context.command_path.split(), *SCHEDULES.names(), *P2P_MODES, "auto"}
    flags = {flag for option in context.command.params for flag in (*option.opts, *option.secondary_opts)}

    def piece(text: str) -> str:
        if text in ours or _PLAIN.fullmatch(text) or _PIECES.fullmatch(text):
            return text
        return "PATH" if "/" in text or Path(text).exists() else "TEXT"

    def shown(word: str) -> str:
        flag, equals, value = word.partition("=")
        if flag in flags:
            return flag + equals + (shown(value) if value else "")
        return "".join(map(piece, _PIECES.split(word)))

    return " ".join(["tracetool", *map(shown, words)])


def _way(error: BaseException) -> list[dict[str, Any]]:
    """Where an error and those that it came of were raised; what they say may name kernels, so that stays out."""
    import traceback

    where = []
    each: BaseException | None = error
    while each is not None:
        frames = traceback.extract_tb(each.__traceback__)
        places = [f"{_module(Path(one.filename))}:{one.lineno} in {one.name}" for one in frames]
        where.append({"type": type(each).__name__, "frames": places})
        each = each.__cause__ or each.__context__
    return where


def _module(path: Path) -> str:
    """A source file without the folders that it was installed below."""
    folders = [Path(__file__).parents[2], *(folder for folder in path.parents if folder.name == "site-packages")]
    return next((str(path.relative_to(folder)) for folder in folders if path.is_relative_to(folder)), path.name)


def _inputs(context: click.Context) -> list[list[Path]]:
    """The recordings that a call named."""
    paths: list[list[Path]] = []
    for name in _INPUTS:
        value = context.params.get(name)
        if isinstance(value, str):
            paths += [[path] for _, path in named_paths(value)]
        elif isinstance(value, Path):
            paths.append([value])
        elif value:
            paths.append(list(value))
    return paths


def _input(context: click.Context, paths: list[Path]) -> dict[str, Any]:
    """How large a recording is, what was read and reconstructed of it: numbers, and words that are ours."""
    from tracetool.ingestion.runs import open_run
    from tracetool.reconstruction import reconstruct

    kinds = Counter("folder" if path.is_dir() else "file" if path.exists() else "absent" for path in paths)
    facts: dict[str, Any] = {"given": kinds}
    copied = bool(context.params.get("copy_missing_ranks"))
    try:
        run = open_run(paths)
        facts |= {"tables": _tables(run), "sources": [_source(source) for source in run.manifest["sources"]]}
        made = reconstruct(run, step=context.params.get("step"), copy_missing=copied)
        shape = made.pipeline.observed.shape
        facts["shape"] = {"ranks": shape.ranks, "microbatches": shape.microbatches, "chunks": shape.chunks}
        facts["notices"] = Counter(note.code.name for note in made.notes)
    except Exception as error:
        facts["error"] = _way(error)
    return facts


def _tables(run: Run) -> dict[str, dict[str, int]]:
    """Rows and bytes of a Run's tables."""
    from pyarrow import parquet

    from tracetool.tables.run import TABLES

    parts = {name: run.files(name) for name in TABLES}
    return {
        name: {
            "rows": sum(parquet.read_metadata(p).num_rows for p in files),
            "bytes": sum(p.stat().st_size for p in files),
        }
        for name, files in parts.items()
    }


def _source(source: dict[str, Any]) -> dict[str, Any]:
    """How a trace was read: counts without the reasons, which may name what it holds."""
    counts = {key: sum(source[key].values()) for key in ("dropped", "repaired", "skipped")}
    return {
        "reader": source["reader"],
        "failed": source["failure"] is not None,
        "notes": len(source["notes"]),
        **counts,
    }
