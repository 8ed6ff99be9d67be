"""What the default factors of slowdown beside communication rest on, counted from the recordings."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import h100, rebuilt

from tracetool.reconstruction.closeup.slowdown import DEFAULT_FACTORS, kernel_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracetool.store.run import Run


def _runs(name: str) -> Iterator[tuple[str, list[int], list[int]]]:
    """Of every kernel (rank, stage, kind of action, which one of its like in it): class, runs alone, runs beside."""
    for rank, segments in rebuilt(name).segments.items():
        spans = _resident(h100(name), rank)
        ends = [end for _, end in spans]
        runs: dict[tuple[object, ...], tuple[str, list[int], list[int]]] = {}
        for segment in segments:
            seen: dict[object, int] = defaultdict(int)
            for kernel in segment.kernels:
                if not kernel.is_compute or kernel.is_collective or kernel.blocks is None:
                    continue
                like = kernel.name, kernel.blocks, kernel.node_name
                seen[like] += 1
                key = segment.stage, segment.kind, *like, seen[like]
                _, alone, beside = runs.setdefault(key, (kernel_class(kernel.name, kernel.blocks, 132), [], []))
                run_ns = kernel.end_ns - kernel.start_ns
                within = 0
                for a, b in spans[bisect_right(ends, kernel.start_ns) :]:
                    if a >= kernel.end_ns:
                        break
                    within += min(b, kernel.end_ns) - max(a, kernel.start_ns)
                if within == 0:
                    alone.append(run_ns)
                elif within >= 0.95 * run_ns:
                    beside.append(run_ns)
        yield from runs.values()


def _resident(run: Run, rank: int) -> list[tuple[int, int]]:
    """When a send or receive was on the rank's device: disjoint, in order."""
    rows = run.rows(
        "SELECT DISTINCT start_ns, end_ns FROM comms WHERE rank = ? AND operation IN ('send', 'recv') "
        "AND start_ns IS NOT NULL ORDER BY 1",
        [rank],
    )
    merged: list[tuple[int, int]] = []
    for start, end in rows:
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def test_defaults_are_what_the_recordings_show() -> None:
    """Per class, time beside over the same kernels' median time alone, in the recordings that have both."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name in ("rt1f1b_m8", "zbh1_m8", "interleaved_m8"):
        for of_class, alone, beside in _runs(name):
            if alone and beside:
                sums[of_class][0] += sum(beside)
                sums[of_class][1] += len(beside) * median(alone)
    found = {of_class: beside / alone for of_class, (beside, alone) in sums.items()}
    shown = {of_class: factor for of_class, factor in DEFAULT_FACTORS.items() if of_class != "matrix product"}
    assert found == pytest.approx(shown, abs=0.02)
    # No product of another grid ran beside one: what is left of 132 SMs beside 8 blocks.
    assert DEFAULT_FACTORS["matrix product"] == pytest.approx(132 / 124, abs=0.005)
