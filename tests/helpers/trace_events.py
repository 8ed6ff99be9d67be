"""A strict reader of the Trace Event Format: what Perfetto and chrome://tracing need, checked rule by rule."""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from typing import Any, NamedTuple

Track = tuple[int, int]
_META = {"process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"}


class Slice(NamedTuple):
    """A complete event, times in ns."""

    start: int
    end: int
    name: str
    category: str
    args: dict[str, Any]


class Trace(NamedTuple):
    """What a trace holds, by the names of processes and tracks.

    Attributes:
        slices: Per process and track, its slices in order.
        flows: Per arrow, process and track and slice of both ends.
        counters: Per process and counter, its points.
        order: Names of processes, and per process those of tracks, as they are to be sorted.
    """

    slices: dict[tuple[str, str], list[Slice]]
    flows: list[tuple[tuple[str, str, Slice], tuple[str, str, Slice]]]
    counters: dict[tuple[str, str], list[tuple[int, float]]]
    order: dict[str, list[str]]
    about: dict[str, Any]


def nanoseconds(value: Any) -> int:
    """A time in us as written, in ns; refuses what is not whole ns."""
    assert isinstance(value, Decimal), value
    scaled = value * 1000
    assert scaled == scaled.to_integral_value(), value
    assert scaled >= 0, value
    return int(scaled)


def read_trace(text: bytes) -> Trace:
    """Read a trace and check it."""
    document = json.loads(text, parse_float=Decimal)
    events = document["traceEvents"]
    meta: dict[tuple[int, int | None], dict[str, Any]] = defaultdict(dict)
    for event in events:
        assert event["ph"] in {"M", "X", "s", "f", "C"}, event
        assert event["pid"] > 0, event
        if event["ph"] == "M":
            assert event["name"] in _META, event
            of_track = meta[event["pid"], event.get("tid")]
            assert event["name"] not in of_track, event
            (of_track[event["name"]],) = event["args"].values()
    tracks = [key for key in meta if key[1] is not None]
    assert len({tid for _, tid in tracks}) == len(tracks), "a track number stands for two tracks"
    names = {(pid, tid): (meta[pid, None]["process_name"], meta[pid, tid]["thread_name"]) for pid, tid in tracks}
    assert len(set(names.values())) == len(names), "two tracks have the same name"
    slices = _slices(events, names)
    by_name = {names[track]: found for track, found in slices.items()}
    return Trace(by_name, _flows(events, slices, names), _counters(events, meta), _order(meta), document["otherData"])


def _slices(events: list[Any], names: dict[Any, Any]) -> dict[Any, list[Slice]]:
    found: dict[Any, list[Slice]] = {track: [] for track in names}
    for event in events:
        if event["ph"] == "X":
            start, duration = nanoseconds(event["ts"]), nanoseconds(event["dur"])
            assert event["name"]
            assert None not in event["args"].values()
            found[event["pid"], event["tid"]].append(
                Slice(start, start + duration, event["name"], event["cat"], event["args"])
            )
    for of_track in found.values():
        of_track.sort(key=lambda s: (s.start, -s.end))
        open_slices: list[Slice] = []
        for one in of_track:
            while open_slices and open_slices[-1].end <= one.start:
                open_slices.pop()
            assert not open_slices or one.end <= open_slices[-1].end, ("slices cross", open_slices[-1], one)
            open_slices.append(one)
    return found


def _flows(events: list[Any], slices: dict[Any, list[Slice]], names: dict[Any, Any]) -> list[Any]:
    ends: dict[int, dict[str, Any]] = defaultdict(dict)
    for event in events:
        if event["ph"] in {"s", "f"}:
            assert event["ph"] not in ends[event["id"]], ("an arrow has two such ends", event)
            assert event["ph"] == "s" or event["bp"] == "e"
            at, track = nanoseconds(event["ts"]), (event["pid"], event["tid"])
            (inside,) = [one for one in slices[track] if one.start == at]
            ends[event["id"]][event["ph"]] = (at, (*names[track], inside))
    assert all(set(pair) == {"s", "f"} for pair in ends.values()), "an arrow lacks an end"
    assert all(pair["s"][0] <= pair["f"][0] for pair in ends.values()), "an arrow goes back in time"
    return [(pair["s"][1], pair["f"][1]) for pair in ends.values()]


def _counters(events: list[Any], meta: dict[Any, Any]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    found: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            ((unit, value),) = event["args"].items()
            points = found[meta[event["pid"], None]["process_name"], f"{event['name']} {unit}"]
            at = nanoseconds(event["ts"])
            assert not points or points[-1][0] <= at, "a counter goes back in time"
            points.append((at, float(value)))
    return dict(found)


def _order(meta: dict[Any, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pid, tid in sorted(meta, key=lambda key: (meta[key[0], None]["process_sort_index"], key[1] is not None)):
        if tid is None:
            of_process = [key for key in meta if key[0] == pid and key[1] is not None]
            in_order = sorted(of_process, key=lambda key: meta[key]["thread_sort_index"])
            found[meta[pid, None]["process_name"]] = [meta[key]["thread_name"] for key in in_order]
    return found
