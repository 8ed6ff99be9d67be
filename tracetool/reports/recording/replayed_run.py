"""An Answer as a Run: the recorded one with the replayed Timelines beside the observed one, for SQL."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from tracetool.ingestion.recording import RECORDING
from tracetool.ingestion.runs import idle_table, timeline_tables
from tracetool.readers import rows_table
from tracetool.store import is_local
from tracetool.store.run import RunWriter
from tracetool.tables.run import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from tracetool.store.run import Run
    from tracetool.whatif.results import Answer, Result


def write_replayed_run(answer: Answer, run: Run, path: Path, command: str, *, force: bool = False) -> list[str]:
    """Write a Run of the same traces whose tables of Timelines hold the replayed ones, too.

    Files of recorded tables are shared with the Run (hard links) where the file system can: a Run's files are replaced,
    never changed.

    Args:
        answer: What was replayed.
        run: The Run it was replayed from.
        path: Folder to make.
        command: The command line, for the manifest.
        force: Replace an existing Run.

    Returns:
        Names of the replayed Timelines.

    Raises:
        AlreadyExists: If the path exists and is no Run, or ``force`` is off.
        StoreError: If it cannot be written.
    """
    tables = _timelines(answer)
    replayed: list[str] = tables["metrics"].column("timeline").unique().to_pylist()[1:]
    with RunWriter(path, force=force) as writer:
        for name in (name for name in TABLES if name not in tables):
            for part in (run.path / name).glob("*.parquet"):
                _share(part, writer.folder / name / part.name)
        if (run.path / RECORDING).is_file():
            _share(run.path / RECORDING, writer.folder / RECORDING)
        entry = {"command": command, "timelines": replayed}
        writer.commit(run.manifest | {"replayed": entry}, tables)
    return replayed


def _timelines(answer: Answer) -> dict[str, pa.Table]:
    """The tables of the observed Timeline and, below it, of every replayed one."""
    import pyarrow as pa

    results = {result.schedule: result for result in (answer.baseline, *answer.results)}
    each = [timeline_tables(answer.observed) | {"idles": idle_table(answer.observed, answer.observed_idles)}]
    for name, result in results.items():
        # The observed order replayed is another Timeline than what was observed.
        timeline = result.timeline
        told = f"{name} replayed" if name == answer.observed.name else name
        named = timeline_tables(timeline) | {"idles": idle_table(timeline, result.idles)}
        named["metrics"] = pa.concat_tables(
            [named["metrics"], _judged(result, is_limited=answer.scenario.hbm_bytes is not None)]
        )
        each.append({table: _renamed(rows, told) for table, rows in named.items()})
    return {name: pa.concat_tables([tables[name] for tables in each]) for name in each[0]}


def _judged(result: Result, *, is_limited: bool) -> pa.Table:
    """What is predicted of a result beyond its Timeline; what is unknown has no row."""
    values = {
        "cross_dc_bubble_ns": result.cross_dc_bubble_ns,
        "cross_dc_step_ns": result.cross_dc_step_ns,
        "fits": result.feasible if is_limited else None,
        "seen_error_ratio": result.seen_error_ratio,
        "unproven": result.evidence == "unproven",
    }
    known = [(result.timeline.name, name, None, float(v)) for name, v in values.items() if v is not None]
    return rows_table("metrics", known)


def _renamed(rows: pa.Table, timeline: str) -> pa.Table:
    import pyarrow as pa

    place = rows.schema.get_field_index("timeline")
    names = pa.array([timeline] * len(rows)).cast(rows.schema.field(place).type)
    return rows.set_column(place, rows.schema.field(place), names)


def _share(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not (is_local(source) and is_local(target)):
        target.write_bytes(source.read_bytes())
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
