"""CSV text of Ascend profilers: what is whole is read as the standard library does, the rest is counted."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracetool.readers import SourceReport
from tracetool.readers.cann import csv_header, csv_records, csv_rows

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = st.text(st.sampled_from('ab,"\r\n\t 0'), max_size=6)
SAME_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def nobody(count: int) -> None:
    """Bytes are shown to nobody here."""


@SAME_FILE
@given(records=st.lists(st.tuples(FIELDS, FIELDS, FIELDS), max_size=8), end=st.sampled_from(["\n", "\r\n"]))
def test_whole_files_read_as_by_the_standard_library(
    tmp_path: Path, records: list[tuple[str, str, str]], end: str
) -> None:
    path = tmp_path / "x.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        # The library's writer leaves a bare CR unquoted, which its reader then rejects.
        if any("\r" in field for record in records for field in record):
            writer = csv.writer(stream, lineterminator=end, quoting=csv.QUOTE_ALL)
        else:
            writer = csv.writer(stream, lineterminator=end)
        writer.writerows([("a", "b", "c"), *records])
    report = SourceReport()
    found = list(csv_rows(path, ("b", "a"), ("d", "c"), nobody, report))
    assert found == [(b.strip(), a.strip(), "", c.strip()) for a, b, c in records]
    assert not report.dropped


@SAME_FILE
@given(st.data())
def test_a_damaged_line_costs_no_other(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "x.csv"
    count = data.draw(st.integers(1, 8))
    lines = [f'{n},"x;""{n}""",{n}.5\t' for n in range(count)]
    place = data.draw(st.integers(0, count - 1))
    damage = data.draw(
        st.sampled_from(['{},"x,1', '{},x",1.5,2', '{},"x"y,1', "{}", "{},\0,1", "{},1,2,3", '{},"x",1,"'])
    )
    lines[place] = damage.format(place)
    path.write_text("\n".join(["a,b,c", *lines, ""]), encoding="utf-8")
    report = SourceReport()
    found = list(csv_records(path, ("a", "c"), (), nobody, report))
    assert found == [(n + 2, (str(n), f"{n}.5")) for n in range(count) if n != place]
    assert report.dropped.total() == 1
    assert [(p.at, p.unit) for p in report.places.values()] == [(place + 2, "line")]


def test_a_quote_that_nothing_closes_costs_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('a,b\n1,"x\n' + "".join(f"{n},y\n" for n in range(2, 3000)), encoding="utf-8")
    report = SourceReport()
    assert [a for a, _ in csv_rows(path, ("a", "b"), (), nobody, report)] == [str(n) for n in range(2, 3000)]
    assert dict(report.dropped) == {"record with damaged quotes": 1}


def test_bytes_are_shown_once(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xef\xbb\xbfa, b\r\n" + b"1,2\r\n" * 40_000)
    shown: list[int] = []
    assert csv_header(path) == ("a", "b")
    assert sum(1 for _ in csv_rows(path, ("b",), (), shown.append)) == 40_000
    assert sum(shown) == path.stat().st_size
