"""tracetool ingest: trace files to a Run."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

import click

from tracetool.cli.output import (
    FORCE,
    JSON,
    PATH_OR_URL,
    QUIET,
    VERBOSE,
    ProgressBar,
    next_step,
    print_json,
    say_written,
)
from tracetool.errors import Option
from tracetool.units import format_count, format_ranks, format_size

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.reports.recording.summary import DiscoveryInfo, LeftInfo

_KEEP = ("python_function", "args")
_SHOWN = 12
_SHOWN_HINTS = 3


def _ranks(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    ranks = {}
    for value in values:
        name, _, rank = value.rpartition("=")
        if not name or not rank.isdecimal():
            raise click.BadParameter(f"{value!r}: expected FILE=RANK, such as node7.json=7")
        ranks[name] = int(rank)
    return ranks


def _size(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    from tracetool.units import parse_size_bytes

    if value is None:
        return None
    size = parse_size_bytes(value)
    if size == 0:
        raise click.BadParameter(f"{value!r}: a message holds something, such as 16MiB")
    return size


@click.command()
@click.argument("paths", nargs=-1, required=True, type=PATH_OR_URL, metavar="TRACES...")
@click.option("-o", "--output", type=PATH_OR_URL, help="Folder (or URL) of the new Run.")
@click.option("--dry-run", is_flag=True, help="Only show what would be read, what would be left, and why.")
@click.option("--strict", is_flag=True, help="Exit with 2 if anything at all is lost while reading.")
@click.option("--keep", multiple=True, type=click.Choice(_KEEP), help="Read this, too; may be repeated.")
@click.option("--rank", "ranks", multiple=True, callback=_ranks, metavar="FILE=N", help="Rank of a trace without one.")
@click.option(
    "--payload",
    "payload_bytes",
    metavar="SIZE",
    callback=_size,
    help="Bytes of each message that does not say its own.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Worker processes [default: by cores, memory and size].")
@click.option("--executor", metavar="dask://HOST:PORT", help="Read on a Dask cluster that reaches the same paths.")
@FORCE
@VERBOSE
@JSON
@QUIET
def ingest(
    paths: tuple[Path, ...],
    output: Path | None,
    *,
    dry_run: bool,
    strict: bool,
    keep: tuple[str, ...],
    ranks: dict[str, int],
    payload_bytes: int | None,
    jobs: int | None,
    executor: str | None,
    force: bool,
    verbose: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Read trace files, or folders of them, into a Run.

    Takes by content: torch.profiler (Kineto) JSON, plain, .gz, .zst or in a .tar; torch_npu, MindSpore
    (MindInsight's, too) and msprof output, text or databases; exports of Nsight Systems; NDTimeline and
    straggler-analysis tables.

    \b
    Examples:
      tracetool ingest traces/ --dry-run
      tracetool ingest traces/rank*.json.gz -o x.run
    """
    from tracetool.cli.facts import next_command, screen_lines, summary_lines
    from tracetool.ingestion import IngestOptions, discover
    from tracetool.ingestion.runs import ingest as make_run
    from tracetool.model.notice import SourceCode
    from tracetool.reports.lines import wrapped
    from tracetool.reports.recording.summary import discovery_info, run_summary

    if dry_run:
        facts = discovery_info(discover(paths, ranks, keep_conflicts=True))
        if as_json:
            print_json(facts)
        else:
            click.echo("\n".join(wrapped(_discovery_lines(facts))))
        if facts["conflicts"]:
            click.get_current_context().exit(2)
        return
    if output is None:
        raise click.UsageError("say where to with -o x.run (or only look with --dry-run).")
    options = IngestOptions(
        keep=keep, ranks=ranks, payload_bytes=payload_bytes, strict=strict, jobs=jobs, executor=executor
    )
    with ProgressBar(quiet=quiet) as progress:
        run = make_run(paths, output, force=force, progress=progress, options=options)
    codes = {code for source in run.manifest["sources"] for code in source["note_codes"]}
    if payload_bytes is not None and SourceCode.SIZES_STATED.name not in codes:
        click.echo("note: no send or receive lacks its size: --payload states nothing", err=True)
    if not quiet:
        _name_copies(paths)
        _name_leftovers(output)
    summary = run_summary(run)
    if as_json:
        print_json(summary)
        return
    say_written(output)
    click.echo("\n".join(wrapped((summary_lines if verbose else screen_lines)(summary, run))))
    next_step(next_command(shlex.quote(str(output)), run, summary), quiet=quiet)


def _name_copies(paths: tuple[Path, ...]) -> None:
    """Say where copies of traces on object stores are left, and how large they are."""
    from tracetool.store import is_local
    from tracetool.store.objects import copies_of
    from tracetool.units import format_count, format_size

    for path in paths:
        if not is_local(path):
            copies = copies_of(path)
            files = [file for file in (copies, *copies.rglob("*")) if file.is_file()]
            held = f"{format_count(len(files), 'file')}, {format_size(sum(file.stat().st_size for file in files))}"
            click.echo(f"note: {path} was copied to {copies} ({held}); the copies can be deleted", err=True)


def _name_leftovers(output: Path) -> None:
    """Say what an ingest that was killed left beside the Run."""
    from tracetool.store.place import leftovers

    for folder in leftovers(output):
        size = format_size(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))
        click.echo(
            f"note: {folder} ({size}) was left by an ingest that was killed, unless one still runs: remove it", err=True
        )


def _discovery_lines(facts: DiscoveryInfo) -> list[str]:
    """What would be read, for people; every file that is left is named."""
    many = format_count(len(facts["sources"]), "source")
    conflicts = format_count(len(facts["conflicts"]), "conflict")
    lines = [f"none of {many} would be read: {conflicts}" if facts["conflicts"] else f"{many} would be read"]
    if facts["missing_ranks"] and not facts["conflicts"]:
        lines[0] += f"; {format_ranks(facts['missing_ranks'])} of the job are in none of them"
    for source in facts["sources"]:
        who = "no rank" if source["rank"] is None else f"rank {source['rank']}"
        origin = "" if source["rank_from"] == "the trace" else f" (from {source['rank_from']})"
        files = "" if source["files"] == 1 else f", {source['files']} files"
        size = "" if source["member"] else f", {format_size(source['size_bytes'])}"
        lines.append(f"  {who}{origin}: {source['path']} ({source['reader']}{size}{files})")
    for unused, why in ((facts["failed"], "cannot be read"), (facts["left"], "left")):
        if unused:
            lines.append(f"{len(unused)} {why}")
            lines += _folded(unused)
    lines += [f"conflict: {conflict}" for conflict in facts["conflicts"]]
    lines += [f"hint: {hint}" for hint in facts["hints"][:_SHOWN_HINTS]]
    more = len(facts["hints"]) - _SHOWN_HINTS
    return [*lines, f"{format_count(more, 'hint')} more ({Option.JSON} lists all)"] if more > 0 else lines


def _folded(items: list[LeftInfo]) -> list[str]:
    """Every item, but of a reason that concerns many files the first few."""
    lines: list[str] = []
    counts: Counter[str] = Counter()
    for item in items:
        counts[item["reason"]] += 1
        if counts[item["reason"]] <= _SHOWN:
            lines.append(f"  {item['path']}: {item['reason']}")
    return lines + [f"  {n - _SHOWN:,} more: {reason} (--json lists all)" for reason, n in counts.items() if n > _SHOWN]
