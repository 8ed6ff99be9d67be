"""An Answer as a Run: the recorded one with the replayed Timelines beside the observed one, for SQL."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from tracetool.ingestion.runs import idle_table, timeline_tables
from tracetool.readers import rows_table
from tracetool.store.place import RECORDING
from tracetool.store.run import RunWriter
from tracetool.tables.results import OF_A_PREDICTION, P2P_MODES
from tracetool.tables.run import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from tracetool.store.run import Run
    from tracetool.tables.results import P2PMode
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
            for part in run.files(name):
                _share(part, writer.folder / name / part.name)
        if (recording := run.file(RECORDING)).is_file():
            _share(recording, writer.folder / RECORDING)
        entry = {"command": command, "timelines": replayed}
        writer.commit(run.manifest | {"replayed": entry}, tables)
    return replayed


def _timelines(answer: Answer) -> dict[str, pa.Table]:
    """The tables of the observed Timeline and, below it, of every replayed one."""
    import pyarrow as pa

    results = {result.schedule: result for result in (answer.baseline, *answer.results)}
    observed = timeline_tables(answer.observed) | {"idles": idle_table(answer.observed, answer.observed_idles)}
    issued = rows_table("metrics", [_issued(answer.observed.name, answer.pipeline.p2p)])
    observed["metrics"] = pa.concat_tables([observed["metrics"], issued])
    each = [observed]
    for name, result in results.items():
        # The observed order replayed is another Timeline than what was observed.
        timeline = result.timeline
        title = f"{name} replayed" if name == answer.observed.name else name
        named = timeline_tables(timeline) | {"idles": idle_table(timeline, result.idles)}
        named["metrics"] = pa.concat_tables([named["metrics"], _judged(answer, result)])
        each.append({table: _renamed(rows, title) for table, rows in named.items()})
    return {name: pa.concat_tables([tables[name] for tables in each]) for name in each[0]}


def _judged(answer: Answer, result: Result) -> pa.Table:
    """What is predicted of a result beyond its Timeline; what is unknown has no row."""
    compared = {
        "step_change_ratio": answer.step_change(result),
        "step_change_error_ratio": answer.step_change_error(result),
    }
    values = {name: compared[name] if name in compared else getattr(result, name) for name in OF_A_PREDICTION} | {
        "fits": result.feasible if answer.scenario.hbm_bytes is not None else None,
        "unproven": result.evidence == "unproven",
    }
    name = result.timeline.name
    known = [(name, what, None, float(value)) for what, value in values.items() if value is not None]
    return rows_table("metrics", [*known, _issued(name, result.p2p)])


def _issued(timeline: str, mode: P2PMode) -> tuple[str, str, None, float]:
    """How transfers are issued, as a metric: its place among the modes."""
    return timeline, "p2p", None, float(P2P_MODES.index(mode))


def _renamed(rows: pa.Table, timeline: str) -> pa.Table:
    import pyarrow as pa

    place = rows.schema.get_field_index("timeline")
    names = pa.array([timeline] * len(rows)).cast(rows.schema.field(place).type)
    return rows.set_column(place, rows.schema.field(place), names)


def _share(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
