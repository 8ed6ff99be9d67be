"""Kineto files of odd events, whole and damaged, read by both scanners and held to the standard library's reading."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import pytest
from helpers.kineto_soup import KinetoSoup, Row
from helpers.thorough import drawn
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tracetool.errors import MalformedTrace
from tracetool.readers import Source, SourceReport
from tracetool.readers.kineto import KinetoReader

if TYPE_CHECKING:
    import pyarrow as pa
    from helpers.kineto_soup import Event

# A seed makes a whole file: making it smaller shows nothing more.
SEEDS = st.integers(0, 2**32)
SETTINGS = settings(phases=[Phase.explicit, Phase.generate])
_NAME = re.compile(rb'"n\d+[^",]*')
_COMMA = re.compile(rb"\}\s*,\s*\]")
SCANNERS = ["plain"] + (["compiled"] if find_spec("tracetool.readers.chrome._scan") else [])


def _random(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - cases of a test, repeatable


@dataclass
class Reading:
    rows: list[Row]
    tables: dict[str, list[dict[str, object]]]
    report: SourceReport


def _read(text: bytes, scanner: str, keep: frozenset[str] = frozenset(), name: str = "rank0.json") -> Reading:
    folder = Path(mkdtemp(prefix="tracetool-soup-"))
    path = folder / name
    path.write_bytes(text)
    report, tables = SourceReport(), dict[str, list[dict[str, object]]]()
    reader = KinetoReader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACETOOL_SCANNER", scanner)
        try:
            source = Source("kineto", path, (path,))
            for table, rows in reader.read(source, 0, reader.identify(source), keep, report, lambda _: None):
                tables.setdefault(table, []).extend(_listed(rows))
        finally:
            shutil.rmtree(folder)
    for place in report.places.values():
        assert place.file == str(path)
    rows = [(e["category"], e["name"], e["start_ns"], e["duration_ns"]) for e in tables.get("events", [])]
    return Reading(rows, tables, report)


def _listed(rows: pa.Table) -> list[dict[str, object]]:
    found: list[dict[str, object]] = rows.to_pylist()
    return found


def _read_by_all(text: bytes) -> Reading:
    """What all scanners find: the same."""
    readings = [_read(text, scanner) for scanner in SCANNERS]
    for other in readings[1:]:
        assert other.tables == readings[0].tables
        assert _counts(other.report) == _counts(readings[0].report)
    return readings[0]


def _counts(report: SourceReport) -> tuple[object, ...]:
    return report.rows, report.dropped, report.repaired, report.skipped, report.notes, report.first_ns


@drawn(120, first=5, parent=SETTINGS)
@given(SEEDS)
def test_whole_files_give_every_event_exactly(seed: int) -> None:
    rng = _random(seed)
    file = KinetoSoup(rng).file(rng.choice([1, 3, 20]))
    json.loads(file.text, parse_int=str)  # or the test is wrong
    found = _read_by_all(file.text)
    assert found.rows == [event.row for event in file.events if event.row is not None]
    # No event disappears: each is a row, or counted.
    assert found.report.rows == len(file.events)
    spans = len(found.rows) + sum(n for reason, n in found.report.dropped.items() if "out of range" in reason)
    spans += found.report.dropped["time is no number"] + found.report.dropped["time is zero"]
    assert spans + found.report.skipped.total() >= len(file.events)


@drawn(250, first=5, parent=SETTINGS)
@given(SEEDS)
def test_damage_costs_what_it_touches_only(seed: int) -> None:
    rng = _random(seed)
    soup = KinetoSoup(rng)
    file = soup.file(rng.choice([2, 6, 15]))
    start, end, instead = soup.damage(file)
    text = file.text[:start] + instead + file.text[end:]
    found = _read_by_all(text)
    kept, touched = _untouched(file.events, start, end, len(instead), text)
    wanted = Counter(row for row in kept if row is not None)
    rows = Counter(found.rows)
    assert not wanted - rows, "an event outside the damage is lost"
    # What remains is of events that were touched, or was put in.
    invented = rows - Counter(event.row for event in file.events if event.row is not None)
    assert invented.total() <= touched + instead.count(b'"ph"')
    # Of an event and a copy of it that the damage put in, the first one counts, wherever the other stands.
    # A copy of its name and times is one: what damage left beside it may stand in for its ends.
    named = [(event, _NAME.search(file.text, event.start, event.end)) for event in file.events]
    marks = [(event.row, name[0] if name else file.text[event.start + 1 : event.end]) for event, name in named]
    copied = {row for row, mark in marks if mark in instead}
    order = [row for row in found.rows if row in wanted]
    assert _is_subsequence([row for row in kept if row is not None and row not in copied], order)
    lost = Counter(event.row for event in file.events if event.row is not None) - rows
    if lost and not found.report.dropped and not found.report.repaired:
        # Whatever was lost is said, unless the damage left valid text; the last event may have a comma behind it.
        json.loads(_COMMA.sub(b"}]", text).decode(errors="replace"), strict=False, parse_int=str)


def _untouched(events: list[Event], start: int, end: int, put: int, text: bytes) -> tuple[list[Row | None], int]:
    """Rows of the events that stand whole outside the damage, and the number of the others."""
    moved = put - (end - start)
    kept, touched, inside = list[Row | None](), 0, 0
    # What damage put between two events may have opened something, too.
    opened: int | None = start
    for event in events:
        at = event.start if event.end <= start else event.start + moved
        if opened is not None and event.start >= end:
            inside, opened = max(inside, _left_open_until(text, opened, at)), None
        if (event.end > start and event.start < end) or event.start < start < event.end:
            touched += 1
            # The damage may have opened it so that it now holds what follows it: then those are no events.
            inside = max(inside, _end_of(text, event.start)) if event.start < start else inside
            opened = event.start if event.start < start else opened
        elif at < inside:
            touched += 1
        else:
            kept.append(event.row)
    return kept, touched


def _left_open_until(text: bytes, opened: int, at: int) -> int:
    """Where events from ``at`` on count again, if damage left open what began at ``opened``.

    A value takes one event with it at most; a list of objects takes all, since they are its items as well as the
    trace's.
    """
    parts = re.sub(rb"\\.", b"", text[opened:at], flags=re.DOTALL).split(b'"')
    # After a quote that damage left alone, texts and what stands between them have changed places.
    sides = [parts[::2]] if len(parts) % 2 else [parts[::2], parts[1::2]]
    if any(_leaves_objects_listed(b"".join(side)) for side in sides):
        return len(text)
    return at + 1 if _is_left_open(text[opened:at]) else 0


def _leaves_objects_listed(outside: bytes) -> bool:
    """Whether a list that begins with an object is left open; what closes nothing counts for nothing."""
    stack: list[bytes] = []
    for mark in re.findall(rb"\[\s*\{|[\[\]{}]", outside):
        if mark in (b"]", b"}"):
            stack = stack[:-1]
        else:
            stack += [b"[{", b"{"] if len(mark) > 1 else [mark]
    return b"[{" in stack


def _is_left_open(text: bytes) -> bool:
    """Whether an event ends within a text or a value: what follows it may then be read as part of it."""
    bare = re.sub(rb"\\.", b"", text, flags=re.DOTALL)
    outside = b"".join(bare.split(b'"')[::2])
    opened = sum(outside.count(mark) for mark in (b"{", b"["))
    closed = sum(outside.count(mark) for mark in (b"}", b"]"))
    return bare.count(b'"') % 2 == 1 or opened > closed


def _end_of(text: bytes, at: int) -> int:
    try:
        return json.JSONDecoder(strict=False, parse_int=str).raw_decode(text.decode("latin-1"), at)[1]
    except (ValueError, RecursionError):
        return 0


def _is_subsequence(short: list[Row], long: list[Row]) -> bool:
    rest = iter(long)
    return all(row in rest for row in short)


@drawn(60, first=5, parent=SETTINGS)
@given(SEEDS)
def test_several_damages_raise_nothing_and_scanners_agree(seed: int) -> None:
    rng = _random(seed)
    soup = KinetoSoup(rng)
    file = soup.file(8)
    text = file.text
    for _ in range(rng.randint(1, 4)):
        start, end, instead = soup.damage(file)
        text = text[:start] + instead + text[end:]
    if b'"ph"' in text[file.begin :]:
        with suppress(MalformedTrace):
            _read_by_all(text)


@drawn(30, first=5, parent=SETTINGS)
@given(SEEDS)
def test_arguments_are_kept_as_they_stand(seed: int) -> None:
    file = KinetoSoup(_random(seed)).file(6)
    found = _read(file.text, os.environ.get("TRACETOOL_SCANNER", "plain"), frozenset({"args"}))
    assert found.rows == [event.row for event in file.events if event.row is not None]
    for row in found.tables["events"]:
        assert row["args"] is None or json.loads(str(row["args"])) is not None
