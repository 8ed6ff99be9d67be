"""Files of measured ways in every form: what cannot be predicted says why, and nothing is predicted from itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import pytest
from helpers.recorded import ROOT, data
from helpers.thorough import spread

from tracetool.overlap.measured import MeasuredShape, MeasuredVariant, MeasuredVariants, read_measured
from tracetool.overlap.prediction import PredictedVariant, compare
from tracetool.overlap.recording import read_recordings

if TYPE_CHECKING:
    from tracetool.overlap.recording import LayerRecording

H200 = ROOT / "tests" / "data" / "h200-overlap"
SMALL = MeasuredShape(tokens=8192, hidden=4096, ffn_per_rank=2752)


@cache
def four_h100() -> tuple[LayerRecording, ...]:
    """All ten recordings, those that overlap already among them."""
    return tuple(read_recordings([data("h100-tp") / "traces"]))


@cache
def plain_h100() -> tuple[LayerRecording, ...]:
    """Those of layers as they are of one shape."""
    return tuple(read_recordings(sorted(data("h100-tp").glob("traces/8192_4096_2752_*_coll"))))


@cache
def two_h200() -> tuple[LayerRecording, ...]:
    """Without the folder's name, which is that of a transport."""
    found = read_recordings([H200 / "traces" / "nvlink"])
    return tuple(replace(each, name=each.name.rpartition("/")[2]) for each in found)


def predicted(
    variant: str, shape: MeasuredShape = SMALL, group_size: int = 4, transport: str = "nvlink-nccl"
) -> PredictedVariant:
    row = MeasuredVariant(shape=shape, group_size=group_size, transport=transport, variant=variant, measured_ms=1.0)
    (found,) = compare(plain_h100(), MeasuredVariants(results=[row])).rows
    return found


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"variant": "ag_coll", "group_size": 1}, "recorded are groups of 4 ranks"),
        ({"variant": "ag_coll", "group_size": 8}, "recorded are groups of 4 ranks"),
        ({"variant": "rs_p2p", "transport": "host"}, r"recorded over NVLink \(\d+ blocks each\), not host"),
        ({"variant": "ag_ring"}, "no variant is named ag_ring"),
        ({"variant": ""}, "no variant is named"),
        ({"variant": "AG_COLL"}, "no variant is named AG_COLL"),
        ({"variant": "ag_coll2"}, "no variant is named ag_coll2"),
        ({"variant": "rs_sliced0"}, "rs_sliced0 has 0 pieces"),
        ({"variant": "ag_sliced99999999"}, "1 to 99 are known"),
        ({"variant": "ag_sliced3"}, "2048 rows are no multiple of 3 pieces"),
        ({"variant": "rs_p2p", "shape": MeasuredShape(tokens=8190, hidden=64, ffn_per_rank=64)}, "no multiple of 4"),
    ],
)
def test_what_is_not_predicted_says_why(row: dict[str, object], reason: str) -> None:
    found = predicted(**row)  # type: ignore[arg-type]
    assert found.time is None
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found.reason)


VARIANTS = (
    "gemm1", "gemm2", "gemm1_part", "gemm2_part", "ag_only", "rs_only", "p2p_only", "ag_coll", "rs_coll", "ar_coll",
    "ag_sliced2", "rs_sliced64", "ar_sliced4", "ag_p2p", "rs_p2p4", "ag_async_tp", "rs_async_tp",
)  # fmt: skip


@spread("tokens", [1 << 40, 8192, 256], 1)
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_has_a_name_is_predicted_however_large(variant: str, tokens: int) -> None:
    """Times that a float tells apart to a microsecond at most were taken for none, and the simulation stood still."""
    shape = MeasuredShape(tokens=tokens, hidden=1024, ffn_per_rank=1024)
    found = predicted(variant, shape)
    assert found.time is not None
    assert found.time.call_ns >= found.time.device_ns > 0
    longer = predicted(variant, MeasuredShape(tokens=2 * tokens, hidden=1024, ffn_per_rank=1024)).time
    assert longer is not None
    assert longer.call_ns >= found.time.call_ns


def test_groups_of_several_sizes_are_each_predicted_from_their_own() -> None:
    both = [*plain_h100(), *two_h200()]
    rows = [
        MeasuredVariant(shape=SMALL, group_size=size, transport="nvlink", variant="ag_sliced2", measured_ms=1.0)
        for size in (2, 4, 8)
    ]
    mixed = compare(both, MeasuredVariants(results=rows)).rows
    alone = [compare(each, MeasuredVariants(results=rows)).rows for each in (two_h200(), plain_h100())]
    assert mixed[0].time == alone[0][0].time
    assert mixed[1].time == alone[1][1].time
    assert mixed[2].reason == "recorded are groups of 2 and 4 ranks"


# All ten recordings are read for it. Predictions from plain layers are held against measured ones by default
# (test_accuracy).
@pytest.mark.thorough
def test_rows_are_predicted_from_layers_as_they_are_alone() -> None:
    """The recordings of overlapping ways beside them, and what the file says was measured, change nothing."""
    file = read_measured(data("h100-tp") / "measured.json")[0]
    plain = [each for each in four_h100() if each.name.endswith("_coll")]
    assert len(plain) == 4
    doubled = msgspec.structs.replace(
        file, results=[msgspec.structs.replace(row, measured_ms=2 * row.measured_ms) for row in file.results]
    )
    times = [[row.time for row in compare(of, said).rows] for of in (plain, four_h100()) for said in (file, doubled)]
    assert all(each == times[0] for each in times)


# All ten recordings are read for it, of which those of the row itself are of no use.
@pytest.mark.thorough
def test_a_recording_of_the_row_itself_is_left_out() -> None:
    """Were it used, the rows that it is of would follow it."""
    slow = [
        replace(each, collectives=tuple(replace(one, duration_ns=9 * one.duration_ns) for one in each.collectives))
        if each.name.endswith(("p2p", "sliced4"))
        else each
        for each in four_h100()
    ]
    assert sum(one is not other for one, other in zip(slow, four_h100(), strict=True)) == 6
    file = read_measured(data("h100-tp") / "measured.json")[0]
    assert [row.time for row in compare(slow, file).rows] == [row.time for row in compare(four_h100(), file).rows]
