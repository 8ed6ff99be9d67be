"""Labelled timelines of any size: read once for all ranks, handed over step by step."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from helpers.labelled import job, ndtimeline_events, write_events

from tracetool.readers import SourceReport
from tracetool.readers.chrome.scan import ChromeTrace
from tracetool.readers.ndtimeline import READER
from tracetool.readers.ndtimeline import chrome as ndtimeline_chrome
from tracetool.readers.ndtimeline import rows as ndtimeline_rows

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tracetool.readers.chrome import Scanner
    from tracetool.readers.files import ByteStream


def read(path: Path) -> dict[str, list[list[dict[str, Any]]]]:
    """The chunks of each table, of all ranks."""
    tables: dict[str, list[list[dict[str, Any]]]] = {}
    for source in READER.find([path]).sources:
        identity = READER.identify(source)
        rank = identity.rank
        assert rank is not None
        for name, rows in READER.read(source, rank, identity, frozenset(), SourceReport(), lambda _count: None):
            tables.setdefault(name, []).append(rows.to_pylist())
    return tables


def test_a_file_is_read_once_for_all_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_events(tmp_path / "t", ndtimeline_events(job(4, 1, 3)))
    opened: list[str] = []

    class Counted(ChromeTrace):
        def __init__(self, stream: ByteStream, scanner: Scanner, report: SourceReport) -> None:
            opened.append(stream.name)
            super().__init__(stream, scanner, report)

    monkeypatch.setattr(ndtimeline_chrome, "ChromeTrace", Counted)
    assert {row["rank"] for rows in read(path)["events"] for row in rows} == {0, 1, 2, 3}
    assert opened == [str(path)]
    path.write_text(json.dumps(ndtimeline_events(job(2, 1, 3))))
    assert {row["rank"] for rows in read(path)["events"] for row in rows} == {0, 1}
    assert len(opened) == 2


def test_chunks_give_what_the_whole_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = ndtimeline_events(job(2, 1, 5, dp=2, steps=7))
    for event in events:
        event["ts"] += event["args"]["step"] * 10**6
    # Steps in any order in the file.
    path = write_events(tmp_path / "t", sorted(events, key=lambda e: (-e["args"]["step"], e["ts"])))
    whole = read(path)
    monkeypatch.setattr(ndtimeline_rows, "_CHUNK_ROWS", 3)
    parts = read(path)
    for name, chunks in whole.items():
        assert [row for rows in parts[name] for row in rows] == [row for rows in chunks for row in rows]
    assert len(parts["events"]) > len(whole["events"]) == 4
    numbers = [row["event"] for rows in parts["events"] for row in rows if row["rank"] == 0]
    assert numbers == list(range(len(numbers)))
