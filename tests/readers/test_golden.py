"""Every public and recorded Kineto trace against an independent parse, with either scanner."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from helpers.independent import Facts, facts, texts
from helpers.recorded import SAMPLES, data
from helpers.same_tables import assert_same_tables
from helpers.thorough import some, spread

from tracetool.ingestion.discover import discover
from tracetool.readers import READERS, SourceReport
from tracetool.readers.chrome.compiled import available

if TYPE_CHECKING:
    import pytest

    from tracetool.ingestion.discover import DiscoveredSource

TABLE = Path(__file__).with_name("golden.tsv")


def _golden() -> dict[str, list[Facts]]:
    found: dict[str, list[Facts]] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines()[3:]:
        name, *values = line.split("\t")
        found.setdefault(name, []).append(Facts(*map(ast.literal_eval, values)))
    return found


GOLDEN = _golden()


@cache
def _found(name: str) -> list[DiscoveredSource]:
    return discover([data(*name.split("/"))]).sources


def _read(item: DiscoveredSource) -> tuple[dict[str, list[pa.Table]], SourceReport]:
    report = SourceReport()
    tables: dict[str, list[pa.Table]] = {}
    reader = READERS.get(item.reader)
    for name, rows in reader.read(
        item.source, item.stored_rank, item.identity, frozenset(), report, lambda _count: None
    ):
        tables.setdefault(name, []).append(rows)
    return tables, report


def _facts(tables: dict[str, list[pa.Table]], report: SourceReport) -> Facts:
    rows = pa.concat_tables(tables["events"]) if "events" in tables else None
    assert rows is not None
    categories = Counter(rows.column("category").cast(pa.string()).to_pylist())
    starts, durations = rows.column("start_ns").to_pylist(), rows.column("duration_ns").to_pylist()
    comms = [row for part in tables.get("comms", ()) for row in part.to_pylist()]
    ends = [s + d for s, d in zip(starts, durations, strict=True)]
    return Facts(
        events=len(rows),
        kernels=categories["kernel"],
        communication_kernels=len(
            {(c["start_ns"], c["end_ns"], c["stream"]) for c in comms if c["stream"] is not None}
        ),
        records=sum(bool(c["group"]) or bool(c["group_ranks"]) for c in comms),
        steps=tuple(sorted(set(pa.concat_tables(tables["steps"]).column("step").to_pylist()))),
        first_ns=min(starts, default=0),
        span_ns=max(ends, default=0) - min(starts, default=0),
        start_sum_ns=sum(starts),
        duration_sum_ns=sum(durations),
        memory=sum(map(len, tables.get("memory", ()))) + report.skipped["memory of another device"],
    )


FIRST = {str(Path(name).parent): name for name in reversed(GOLDEN)}
SMALL = sorted(some(FIRST.values(), 12), key=lambda name: sum(found.events for found in GOLDEN[name]))[:3]


# The small ones of the first files of folders, and the sample below. The others have other events: one that only they
# hold is lost or invented in them alone.
@spread("name", GOLDEN, SMALL, ids=str)
def test_nothing_is_lost_or_invented(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either scanner finds what the independent parse found, and both the same tables."""
    results = []
    for scanner in ("plain", "compiled") if available() else ("plain",):
        monkeypatch.setenv("TRACETOOL_SCANNER", scanner)
        results.append([_read(item) for item in _found(name)])
        assert [report.dropped.total() for _, report in results[-1]] == [0] * len(results[-1])
    assert sorted(starmap(_facts, results[0])) == sorted(GOLDEN[name])
    for (plain, plain_report), (tables, report) in zip(results[0], results[-1], strict=True):
        assert_same_tables(tables, plain)
        assert report == plain_report


# The first rank, which has no one to receive from; the others' kinds of messages are in its table too.
@spread("rank", range(4), 1)
def test_the_table_of_a_sample_is_what_the_independent_parse_finds(rank: int) -> None:
    (path,) = (SAMPLES / "h100-1f1b").glob(f"rank{rank}.json.gz")
    (text,) = texts(path)
    (item,) = discover([path]).sources
    tables, report = _read(item)
    assert _facts(tables, report) == facts(text)
