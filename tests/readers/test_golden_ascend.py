"""Every public Ascend and NDTimeline timeline: against an independent parse, and with either scanner."""

from __future__ import annotations

import ast
import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from helpers.independent_ascend import TimelineFacts, ns
from helpers.recorded import data
from helpers.same_tables import assert_same_tables
from helpers.thorough import spread

from tracetool.readers import READERS, SourceReport
from tracetool.readers.chrome.compiled import available
from tracetool.readers.ndtimeline.chrome import timeline_of

if TYPE_CHECKING:
    from tracetool.readers import Source

TABLE = Path(__file__).with_name("golden_ascend.tsv")
DDP = "ascend/Ascend+msinsight/test/data/pytorch/text/level1/rank0_ascend_pt"
PROF = "ascend/mindspore-ai+mindinsight/tests/utils/resource/profiler/PROF_000001_20230818142704322_COJGGGCANRMICFBC"
STRAGGLER = "torch/ByteDance-Seed+StragglerAnalysis"
# A file, or a folder whose files are read together, and the readers that are asked.
TOGETHER = [(DDP, "ascend"), (PROF, "msprof"), (f"{STRAGGLER}/timeline-ST.json.gz", "ndtimeline")]


def _golden() -> dict[str, TimelineFacts]:
    lines = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()[3:]]
    return {name: TimelineFacts(*map(ast.literal_eval, values)) for name, *values in lines}


GOLDEN = _golden()


def _alone(name: str, folder: Path) -> Path:
    """A copy of a file beside nothing else."""
    return Path(shutil.copyfile(data(*name.split("/")), folder / Path(name).name))


def _sources(path: Path, reader: str) -> list[Source]:
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
    return READERS.get(reader).find(files).sources


def _parts(source: Source, keep: frozenset[str] = frozenset()) -> tuple[dict[str, list[pa.Table]], SourceReport]:
    reader, report = READERS.get(source.reader), SourceReport()
    tables: dict[str, list[pa.Table]] = {}
    identity = reader.identify(source)
    rank = identity.rank if identity.rank is not None else 0
    for name, rows in reader.read(source, rank, identity, keep, report, lambda _count: None):
        tables.setdefault(name, []).append(rows)
    return tables, report


def _read(source: Source, keep: frozenset[str] = frozenset()) -> tuple[dict[str, list[dict[str, Any]]], SourceReport]:
    tables, report = _parts(source, keep)
    return {name: pa.concat_tables(parts).to_pylist() for name, parts in tables.items()}, report


@pytest.mark.parametrize("scanner", ["plain", "compiled"])
# Most are timelines of one capture, iteration by iteration.
@spread("name", GOLDEN, 4, ids=lambda name: "/".join(Path(name).parts[-3:]))
def test_nothing_is_lost_or_invented(name: str, scanner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if scanner == "compiled" and not available():
        pytest.skip("the compiled scanner was not built here")
    monkeypatch.setenv("TRACETOOL_SCANNER", scanner)
    path = _alone(name, tmp_path)
    (source,) = _sources(path, "msprof")
    tables, report = _read(source)
    events, comms = tables.get("events", []), tables["comms"]
    categories = Counter(row["category"] for row in events)
    assert GOLDEN[name] == TimelineFacts(
        kernels=categories["kernel"],
        launches=categories["launch"],
        ops=categories["op"],
        marks=categories["annotation"],
        start_sum_ns=sum(row["start_ns"] for row in events),
        duration_sum_ns=sum(row["duration_ns"] for row in events),
        operations=len(comms),
        operation_start_sum_ns=sum(row["start_ns"] for row in comms),
        operation_duration_sum_ns=sum(row["end_ns"] - row["start_ns"] for row in comms),
        linked_bytes=sum(row["payload_bytes"] for row in comms),
        steps=tuple(row["step"] for row in tables["steps"]),
    )
    assert (report.dropped, report.repaired) == ({}, {})
    assert report.rows == len(json.loads(path.read_bytes()))
    assert [row["event"] for row in events] == list(range(len(events)))


@pytest.mark.skipif(not available(), reason="the compiled scanner was not built here")
# Columns that are kept are read beside the others; without them, and in every other timeline, the scanners have less
# in which they could differ, but other values in it.
@spread("keep", [frozenset(), frozenset({"args", "python_function"})], 1, ids=lambda keep: "keep" if keep else "")
@spread(("name", "reader"), [*TOGETHER, *((name, "msprof") for name in GOLDEN)], 5)
def test_both_scanners_give_the_same_tables(
    name: str, reader: str, keep: frozenset[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = _sources(_alone(name, tmp_path) if name in GOLDEN else data(*name.split("/")), reader)
    assert sources
    for source in sources:
        found = []
        for choice in ("compiled", "plain"):
            monkeypatch.setenv("TRACETOOL_SCANNER", choice)
            timeline_of.cache_clear()
            found.append(_parts(source, keep))
        assert_same_tables(found[0][0], found[1][0])
        assert found[0][1] == found[1][1]


@pytest.mark.skipif(not available(), reason="the compiled scanner was not built here")
def test_both_scanners_give_the_same_simulated_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    path = data(STRAGGLER, "ideal-timeline-ST.json.gz")
    found = []
    for choice in ("compiled", "plain"):
        monkeypatch.setenv("TRACETOOL_SCANNER", choice)
        timeline_of.cache_clear()
        report = SourceReport()
        timeline = timeline_of(path, (0, 0))
        timeline.record_losses(None, report)
        found.append(([o for columns in timeline.usable(None) for o in timeline.operations_of(columns)], report))
    timeline_of.cache_clear()
    assert found[0] == found[1]
    # An independent count: all spans of the file, none of which is damaged.
    events = json.loads(gzip.decompress(path.read_bytes()))
    assert len(found[0][0]) == sum(e["ph"] == "X" for e in events)


# Compressed copies give the same without what is kept on request, too (below).
@spread("form", ["plain", "gzip"], 1)
def test_arguments_and_call_stacks_are_kept_on_request(tmp_path: Path, form: str) -> None:
    real = data(*DDP.split("/"), "ASCEND_PROFILER_OUTPUT", "trace_view.json")
    text = real.read_bytes()
    path = tmp_path / ("rank0.json" if form == "plain" else "rank0.json.gz")
    path.write_bytes(text if form == "plain" else gzip.compress(text))
    (source,) = _sources(path, "msprof")
    tables, report = _read(source, frozenset({"args", "python_function"}))
    events = [e for e in json.loads(text) if e["ph"] == "X"]
    stacks = [e for e in events if e.get("cat") == "python_function"]
    rows = [row for row in tables["events"] if row["category"] == "python"]
    assert [(r["name"], r["thread"], r["start_ns"], r["duration_ns"]) for r in rows] == [
        (e["name"], e["tid"], ns(e["ts"]), ns(e["dur"])) for e in stacks
    ]
    assert report.skipped["python_function"] == 0
    kept = Counter((r["name"], r["start_ns"], json.dumps(json.loads(r["args"]))) for r in tables["events"] if r["args"])
    given = Counter((e["name"], ns(e["ts"]), json.dumps(e["args"])) for e in events if e.get("args"))
    assert kept <= given
    assert kept.total() == sum(bool(json.loads(r["args"] or "{}")) for r in tables["events"]) > 1000
    others = [row | {"event": 0, "args": None} for row in tables["events"] if row["category"] != "python"]
    assert others == [row | {"event": 0} for row in _read(source)[0]["events"]]


# Kineto and Ascend read through one stream, whose forms are tried by default (test_archives, test_trouble_list).
@pytest.mark.thorough
def test_compressed_copies_give_the_same(tmp_path: Path) -> None:
    real = data(*PROF.split("/"))
    copies = {}
    for form in ("plain", "gzip"):
        folder = tmp_path / form / real.name
        for file in (f for f in real.rglob("*") if f.is_file()):
            target = folder / file.relative_to(real)
            target.parent.mkdir(parents=True, exist_ok=True)
            if form == "gzip" and file.suffix == ".json":
                target.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            else:
                shutil.copyfile(file, target)
        (source,) = _sources(folder, "msprof")
        copies[form] = _read(source)
    assert copies["gzip"] == copies["plain"]
    assert len(copies["gzip"][0]["events"]) == 1404
