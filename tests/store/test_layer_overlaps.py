"""The views of collectives beside compute, against a recorded trace that is read a second way."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from helpers.independent import COMMUNICATION
from helpers.recorded import data, derived
from helpers.thorough import some

if TYPE_CHECKING:
    from pathlib import Path

TP2PP2 = ("h100-pp4", "traces", "tp2pp2_1f1b_m8")


def _kernels(path: Path) -> list[tuple[Decimal, Decimal, str]]:
    """Start, end in us and name of every kernel of a trace, read by the standard library."""
    raw = path.read_bytes()
    trace = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, parse_float=Decimal)
    return [
        (Decimal(event["ts"]), Decimal(event["ts"]) + Decimal(event["dur"]), event["name"])
        for event in trace["traceEvents"]
        if event.get("cat") == "kernel"
    ]


def _free_us(start: Decimal, end: Decimal, compute: list[tuple[Decimal, Decimal]]) -> Decimal:
    """What is left of an interval beside others, which are in order of their starts."""
    free, at = Decimal(0), start
    for begins, ends in compute:
        if ends <= at:
            continue
        if begins >= end:
            break
        free += max(Decimal(0), begins - at)
        at = max(at, ends)
    return free + max(Decimal(0), end - at)


def test_exposed_tensor_parallel_communication_of_the_raw_traces() -> None:
    folder = data(*TP2PP2)
    run = derived(folder)
    found = dict(
        run.rows("SELECT rank, sum(exposed_ns)::BIGINT FROM layer_overlaps WHERE parallelism = 'tp' GROUP BY rank")
    )
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "json" in path.name)
    assert len(found) == len(files) == 4
    # Ranks of one group wait for the same collectives, each with other kernels beside them.
    for rank, path in some(enumerate(files), 1):
        kernels = sorted(_kernels(path))
        compute = [(start, end) for start, end, name in kernels if not COMMUNICATION.match(name)]
        reduced = [(start, end) for start, end, name in kernels if "AllReduce_Sum_bf16" in name]
        exposed = sum((_free_us(start, end, compute) for start, end in reduced), Decimal(0))
        assert found[rank] == pytest.approx(float(exposed) * 1e3, abs=len(reduced))


def test_collectives_stand_with_their_layer_and_product() -> None:
    """Two all-reduces per layer, forward and backward, of which those of the forward sum what a product gave."""
    run = derived(data(*TP2PP2))
    rows = run.rows(
        "SELECT kind, layer, count(*), count(fed_by), min(group_size), max(payload_bytes) FROM layer_overlaps "
        "WHERE rank = 0 AND kind IN ('F', 'B') GROUP BY ALL"
    )
    assert len(rows) == 16
    for kind, _, count, fed, size, payload in rows:
        assert (count, size, payload) == (16, 2, 16_777_216)
        assert kind == "B" or fed == count


def test_a_tail_is_exposed_and_own_time_has_no_waiting() -> None:
    run = derived(data(*TP2PP2))
    assert run.rows("SELECT count(*) FROM layer_overlaps")[0][0] > 1000
    wrong = "tail_ns > exposed_ns OR own_ns > duration_ns OR exposed_ns > duration_ns"
    assert run.rows(f"SELECT count(*) FROM layer_overlaps WHERE {wrong}") == [(0,)]
    by_layer = run.rows("SELECT sum(operations), sum(exposed_ns) FROM overlap_by_layer")
    assert by_layer == run.rows("SELECT count(*), sum(exposed_ns) FROM layer_overlaps WHERE kind IS NOT NULL")
