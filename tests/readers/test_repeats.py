"""What a file records twice counts once: known as it was put in, and by a set of all rows."""

from __future__ import annotations

import json
import random
import shutil
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
from helpers.recorded import SAMPLES, looked_at, run_of
from helpers.small_pipeline import Job, write
from helpers.thorough import spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool.ingestion import ingest
from tracetool.readers.files.spill import Repeats
from tracetool.reconstruction import reconstruct

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.store.run import Run


@given(st.integers(0, 2**32), st.lists(st.integers(1, 3_000), min_size=1, max_size=6), st.integers(2, 400))
def test_as_a_set_of_all_rows_tells(seed: int, sizes: list[int], values: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    seen: set[tuple[int, int]] = set()
    repeats = Repeats()
    for size in sizes:
        rows = [(rng.randrange(values), -rng.randrange(values)) for _ in range(size)]
        wanted = []
        for row in rows:
            wanted.append(row not in seen)
            seen.add(row)
        columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
        assert repeats.fresh(columns).tolist() == wanted


@cache
def _recorded_once(job: Job) -> tuple[Path, Run]:
    folder = write(Path(mkdtemp(prefix="tracetool-once-")) / "once", job)
    return folder, run_of(folder)


def _twice(chosen: Callable[[dict[str, Any]], bool], *, behind: bool) -> Callable[[int, dict[str, Any]], None]:
    def change(rank: int, trace: dict[str, Any]) -> None:
        if rank == 1:
            events = trace["traceEvents"]
            again = [dict(event) for event in events if chosen(event)]
            beside = [e for event in events for e in [event] * (2 if chosen(event) else 1)]
            trace["traceEvents"] = [*events, *again] if behind else beside

    return change


# Behind the first copy or among it, of all or of one kind: a pair that is counted twice is alone in it.
@spread(
    ("what", "behind"),
    list(product(["all", "records", "kernels"], [True, False])),
    [("kernels", False)],
)
def test_what_is_recorded_twice_counts_once(tmp_path: Path, what: str, *, behind: bool) -> None:
    chosen: dict[str, Callable[[dict[str, Any]], bool]] = {
        "all": lambda _: True,
        "records": lambda event: event["name"] == "record_param_comms",
        "kernels": lambda event: event["cat"] == "kernel",
    }
    once, sound = _recorded_once(Job(2))
    folder = write(tmp_path / "twice", Job(2), _twice(chosen[what], behind=behind))
    run = ingest([folder], tmp_path / "twice.run")
    # Marks without a number cannot be told from other ones of the same name and time.
    named = "category <> 'annotation'"
    columns = "rank, category, name, start_ns, duration_ns, thread, stream, correlation, external_id, sequence_number"
    for query in (f"SELECT {columns} FROM events WHERE {named} ORDER BY ALL", "SELECT * FROM comms ORDER BY ALL"):
        assert run.rows(query) == sound.rows(query)
    ((count,),) = run.rows(
        "SELECT records FROM problems WHERE action = 'repaired' AND reason LIKE 'recorded more than%'"
    )
    written = json.loads((once / "rank1.json").read_text())["traceEvents"]
    numbered = [e for e in written if e["args"].get("correlation") or e["args"].get("External id")]
    assert count == sum(map(chosen[what], numbered))
    assert reconstruct(run).observed == looked_at(sound).observed


# One tensor is the easier half of two; records or kernels alone are repeated where only one of two exports had both.
@spread("what", ["records", "all", "kernels"], 1)
@spread("tensors", [2, 1], 1)
def test_what_merged_exports_number_anew_counts_once(tmp_path: Path, what: str, tensors: int) -> None:
    """Numbers of the second copy are others; two tensors of one size in a batch are no repetition."""
    chosen = {"records": "record_param_comms", "kernels": "nccl", "all": ""}[what]

    def change(_: int, trace: dict[str, Any]) -> None:
        again = [json.loads(json.dumps(e)) for e in trace["traceEvents"] if e["name"].startswith(chosen)]
        for event in again:
            event["args"] |= {k: n + 10**6 for k, n in event["args"].items() if k in {"correlation", "External id"}}
        trace["traceEvents"] += again

    job = Job(2, forward_bytes=(1 << 20,) * tensors, backward_bytes=(1 << 20,) * tensors)
    _, sound = _recorded_once(job)
    run = ingest([write(tmp_path / "twice", job, change)], tmp_path / "twice.run")
    kernels = "SELECT rank, name, start_ns, duration_ns, stream FROM events WHERE category = 'kernel' ORDER BY ALL"
    for query in (kernels, "SELECT * EXCLUDE (batch) FROM comms ORDER BY ALL"):
        assert run.rows(query) == sound.rows(query)
    observed = reconstruct(run).observed
    assert observed == looked_at(sound).observed
    assert {t.payload_bytes for t in observed.transfers} == {tensors << 20}


def test_lines_of_an_ascend_export_count_once(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "ascend-1f1b", tmp_path / "twice")
    (path,) = (tmp_path / "twice" / "rank_1_ascend_pt").rglob("kernel_details.csv")
    head, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([head, *lines, *lines[3:]]), encoding="utf-8")
    run, sound = ingest([tmp_path / "twice"], tmp_path / "x.run"), run_of(SAMPLES / "ascend-1f1b")
    for table in ("events", "comms"):
        assert run.rows(f"SELECT * FROM {table} ORDER BY ALL") == sound.rows(f"SELECT * FROM {table} ORDER BY ALL")
    assert run.rows("SELECT records FROM problems WHERE reason = 'recorded more than once: counted once'") == [
        (len(lines) - 3,)
    ]
