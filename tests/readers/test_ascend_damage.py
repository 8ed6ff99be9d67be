"""The Ascend reader on damaged files: it names them, or counts what it leaves out."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.notices import texts

from tracetool.errors import MalformedTrace
from tracetool.ingestion import discover
from tracetool.readers import READERS, SourceReport
from tracetool.readers.cann import operations

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ascend-1f1b"
OUTPUT = "ASCEND_PROFILER_OUTPUT"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of rank 1 of the sample, to be damaged."""
    return Path(shutil.copytree(SAMPLE / "rank_1_ascend_pt", tmp_path / "rank_1_ascend_pt"))


def read(folder: Path) -> tuple[SourceReport, int]:
    """The report of reading a folder, and how many events it has."""
    (found,) = discover([folder]).sources
    report = SourceReport()
    advanced: list[int] = []
    tables = READERS.get(found.reader).read(
        found.source, found.stored_rank, found.identity, frozenset(), report, advanced.append
    )
    return report, sum(rows.num_rows for name, rows in tables if name == "events")


@pytest.mark.parametrize("name", ["kernel_details.csv", "communication.json", "communication_matrix.json"])
def test_empty_file_counts_as_missing(copy: Path, name: str) -> None:
    (copy / OUTPUT / name).write_bytes(b"")
    notes = texts(read(copy)[0].notes)
    assert any(note.startswith(f"{name} is empty (0 bytes)") for note in notes)


def test_folder_of_empty_files_is_no_trace(copy: Path) -> None:
    for file in (copy / OUTPUT).iterdir():
        file.write_bytes(b"")
    with pytest.raises(MalformedTrace, match=r"is empty \(0 bytes\)"):
        discover([copy])


@pytest.mark.parametrize("name", ["communication.json", "communication_matrix.json"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncated_file_keeps_its_whole_operations(copy: Path, name: str, share: float) -> None:
    path = copy / OUTPUT / name
    content = path.read_bytes()
    listed = json.loads(content)
    path.write_bytes(content[: int(len(content) * share)])
    report, events = read(copy)
    assert events == read(SAMPLE / "rank_1_ascend_pt")[1]
    (place,) = {report.places[reason] for reason in report.dropped}
    assert sum(report.dropped.values()) == 1
    assert place.file == str(path)
    assert place.at < len(content) * share
    # An operation is whole if it ends before the cut, which its text as the standard library writes it tells.
    keys = [key for step in listed.values() for kind in step.values() for key in kind]
    whole = sum(_end(content, key) <= int(len(content) * share) for key in keys)
    found = list(operations(path, dict[str, Any], SourceReport(), lambda _: None))
    assert [key for _, key, _ in found] == keys[:whole]
    assert {step for step, _, _ in found} <= set(listed)


def _end(content: bytes, key: str) -> int:
    at = content.index(b"{", content.index(json.dumps(key).encode()))
    return json.JSONDecoder().raw_decode(content.decode(), at)[1]


def test_damage_inside_costs_one_operation(copy: Path) -> None:
    path = copy / OUTPUT / "communication.json"
    content = path.read_bytes()
    keys = [key for step in json.loads(content).values() for kind in step.values() for key in kind]
    for old, new in (
        (b'"Wait Time(ms)": ', b'"Wait Time(ms)" '),
        (b'"HCCS": {', b'"HC\xffCS": {'),
        (b'"RDMA": {', b'"RDMA": ['),
    ):
        assert old in content
        path.write_bytes(content.replace(old, new, 1))
        found = list(operations(path, dict[str, Any], report := SourceReport(), lambda _: None))
        assert [key for _, key, _ in found] in (keys[1:], keys)
        assert sum(report.dropped.values()) == len(keys) - len(found)


@pytest.mark.parametrize("name", ["profiler_info_1.json", "profiler_metadata.json"])
def test_truncated_side_file_is_named(copy: Path, name: str) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(MalformedTrace, match=name):
        discover([copy])


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("1764300000009716.370\t", "1.7643E+15", "E notation"),
        ("1764300000009716.370\t", "N/A", "no number"),
        ("1764300000009716.370\t", "0", "time is zero"),
    ],
)
def test_unusable_times_are_dropped_and_counted(copy: Path, old: str, new: str, reason: str) -> None:
    expected = read(copy)[1]
    path = copy / OUTPUT / "kernel_details.csv"
    path.write_text(path.read_text().replace(old, new))
    report, events = read(copy)
    assert events == expected - 1
    ((said, count),) = report.dropped.items()
    assert reason in said
    assert count == 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncated_table_costs_its_last_record_only(copy: Path, share: float) -> None:
    path = copy / OUTPUT / "kernel_details.csv"
    content = path.read_bytes()
    content = content[: int(len(content) * share)]
    path.write_bytes(content)
    # The standard library's parser on what is whole: all lines but the one that was cut.
    whole = list(csv.DictReader(io.StringIO(content[: content.rindex(b"\n") + 1].decode(), newline="")))
    report, events = read(copy)
    assert events == sum(not r["Name"].startswith("hcom_") for r in whole)
    assert dict(report.dropped) == {"record with another number of fields than the header": 1}
    assert report.places["record with another number of fields than the header"].at == content.count(b"\n") + 1


def test_missing_column_is_named(copy: Path) -> None:
    path = copy / OUTPUT / "kernel_details.csv"
    path.write_bytes(path.read_bytes().replace(b"Duration(us)", b"Dauer", 1))
    with pytest.raises(MalformedTrace, match=r"kernel_details\.csv: line 1 has no column"):
        read(copy)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("SwiGlu,", "SwiGlu", "record with another number of fields than the header"),
        ("SwiGlu", "Swi\0lu", "line with NUL bytes"),
        ("SwiGlu", "Swi\udce4lu", "line that is no UTF-8 text"),
        (',"""', ',""', "record with damaged quotes"),
    ],
)
def test_damaged_record_costs_no_other(copy: Path, old: str, new: str, said: str) -> None:
    expected = read(copy)[1]
    path = copy / OUTPUT / "kernel_details.csv"
    content = path.read_bytes()
    path.write_bytes(content.replace(old.encode(), new.encode(errors="surrogateescape"), 1))
    report, events = read(copy)
    assert events == expected - 1
    assert dict(report.dropped) == {said: 1}
    place = report.places[said]
    assert (place.file, place.unit) == (str(path), "line")
    assert place.at == content[: content.index(old.encode())].count(b"\n") + 1
