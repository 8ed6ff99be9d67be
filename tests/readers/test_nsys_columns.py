"""Columns of exports of Nsight Systems: what cells, names and correlations of any kind come out as."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pyarrow as pa
import pytest

from tracetool.readers import SourceReport
from tracetool.readers.cuda import CommKernel
from tracetool.readers.nsys import comms, posts
from tracetool.readers.nsys.columns import column_as, column_of
from tracetool.readers.nsys.comms import comm_records
from tracetool.readers.nsys.correlations import Correlations
from tracetool.readers.nsys.nvtx import Named, labelled_message, read_names
from tracetool.readers.nsys.posts import CommKernels, CommPosts, Post
from tracetool.readers.nsys.spans import OpenOps, in_order, side_by_side


def test_cells_of_any_kind_are_numbers_or_null() -> None:
    """SQLite keeps any value in any column; 64 bits without a sign get the one that SQLite has them with."""
    cells = [5, "7", 2.0, 2.5, "x", None, b"8", 2**63 + 1, -(2**57), 2**70, "\u00b2", 2.0**60]
    expected = [5, 7, 2, None, None, None, None, 1 - 2**63, -(2**57), None, None, None]
    assert column_of(cells, "number").to_pylist() == expected
    for number, value in zip(cells, expected, strict=True):
        assert column_of([number], "number").to_pylist() == [value]
    assert column_as(pa.array([2**63 + 1, 3], pa.uint64()), "number").to_pylist() == [1 - 2**63, 3]
    assert column_as(pa.array([2.5, 3.0]), "number").to_pylist() == [None, 3]
    assert column_as(pa.array([[1], None]), "number").to_pylist() == [None, None]


def test_cells_of_any_kind_are_texts_or_null() -> None:
    assert column_of(["a", b"b", 5, None, "\ud800"], "text").to_pylist() == [b"a", b"b", None, None, b"?"]
    assert column_of(["a", b"b"], "bytes").to_pylist() == [None, b"b"]
    assert column_of(["a", b"b", 5], "bytes").to_pylist() == [None, b"b", None]
    for kind in (pa.string(), pa.large_string()):
        assert column_as(pa.array(["a", None], kind), "text").to_pylist() == [b"a", None]
    assert column_as(pa.array(["a"]).dictionary_encode(), "text").to_pylist() == [b"a"]


@pytest.mark.parametrize("spread", [1, 7, 40_000, 2**40])
def test_correlations_keep_the_operator_of_the_first_launch(spread: int) -> None:
    """Against a dictionary, with ids near each other and far apart, some added many times, in blocks."""
    chance = random.Random(spread)  # noqa: S311 - a test's dice
    # Those far apart lie each in a chunk of its own.
    most = 900 if spread < 100 else 30
    added = [chance.randrange(most) * spread for _ in range(2000)]
    known = set(added)
    correlations = Correlations()
    for first in range(0, len(added), 100):
        correlations.add(np.array(added[first : first + 100]))
    correlations.add(np.array([-(2**63), 2**62]))
    assert not correlations.among(np.array([-(2**63), 2**62])).any()
    around: dict[int, int] = {}
    for start in range(0, 3000, 150):
        ids = np.array([chance.randrange(most + most // 9) * spread for _ in range(150)])
        is_known = correlations.among(ids)
        assert is_known.tolist() == [number in known for number in ids.tolist()]
        ids = ids[is_known]
        is_first = correlations.launched_first(ids)
        ops = np.array([chance.choice([-1, start + n, 2**31 + n]) for n in range(len(ids))])
        for number, op, first in zip(ids.tolist(), ops.tolist(), is_first.tolist(), strict=True):
            assert first == (number not in around)
            around.setdefault(number, op)
        correlations.surround(ids[is_first], ops[is_first])
    asked = [chance.randrange(most + most // 9) * spread for _ in range(500)]
    assert correlations.ops_around(np.array(asked)).tolist() == [around.get(number, -1) for number in asked]


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_two_tables_come_in_order_of_start(seed: int) -> None:
    """Out of order by less than what waits; ties are of the first table's rows, the longest first."""
    chance = random.Random(seed)  # noqa: S311

    def batches(count: int) -> tuple[list[tuple[int, int, int]], list[pa.Table]]:
        starts = sorted(chance.randrange(count // 3) for _ in range(count))
        rows = [(start, start + chance.randrange(50), number) for number, start in enumerate(starts)]
        shifted = sorted(rows, key=lambda row: row[2] + chance.randrange(1000))
        pieces = [shifted[first : first + 700] for first in range(0, count, 700)]
        names = ["start", "end", "number"]
        return rows, [pa.Table.from_arrays(list(map(pa.array, zip(*p, strict=True))), names=names) for p in pieces]

    one, first = batches(9000)
    two, second = batches(5000)

    def late(row: int, count: int) -> None:
        pytest.fail(f"row {row} and {count} in all count as late")

    ordered: list[tuple[int, int, int]] = []
    nothing = first[0][:0]
    for left, right in side_by_side(in_order(first, late), in_order(second, late), nothing, nothing):
        pair = [(row["start"], which, -row["end"], row["number"]) for which, rows in enumerate((left, right))
                for row in rows.to_pylist()]  # fmt: skip
        ordered += [(start, which, number) for start, which, _, number in sorted(pair)]
    expected = sorted([(s, 0, -e, n) for s, e, n in one] + [(s, 1, -e, n) for s, e, n in two])
    assert ordered == [(start, which, number) for start, which, _, number in expected]


def test_the_innermost_of_the_open_operators_is_around_a_launch() -> None:
    """Two threads; the second operator of the first ends behind the one around it, as ranges of one thread may."""
    rows = [  # start, end, thread, event, is a launch
        (0, 100, 1, 10, False), (5, 20, 2, 11, False), (10, 120, 1, 12, False), (15, 16, 2, -1, True),
        (20, 21, 2, -1, True), (21, 22, 2, -1, True), (100, 101, 1, -1, True), (110, 111, 1, -1, True),
        (121, 122, 1, -1, True),
    ]  # fmt: skip
    open_ops, around = OpenOps(), []
    for block in (rows[:4], rows[4:]):
        starts, ends, threads, events, launches = map(np.array, zip(*block, strict=True))
        around += open_ops.around(starts, ends, threads, events, launches)
    assert around == [11, 11, -1, 12, 12, -1]


def test_names_of_ranges() -> None:
    """As ``emit_nvtx`` writes them (reference, section 11), and texts that only look alike."""
    expected = {
        "aten::mm, seq = 12, op_id = 4, sizes = [[2, 3]]": (Named("op", "aten::mm"), 12),
        "MmBackward0, seq = 12": (Named("op", "MmBackward0"), 12),
        "PP:2F0, op_id = 7": (Named("annotation", "PP:2F0", "2F0"), -1),
        "Optimizer.step#AdamW.step, op_id = 7": (Named("annotation", "Optimizer.step#AdamW.step"), -1),
        "ProfilerStep#3": (Named("annotation", "ProfilerStep#3", None, 3), -1),
        "iter_1_5": (Named("annotation", "iter_1_5", None, 5), -1),
        "record_param_comms": (Named("op", "record_param_comms"), -1),
        "my own, seq = x": (Named("op", "my own"), -1),
        "my own, seq = x, seq = 5": (Named("op", "my own"), 5),
        "a, sizes = [[1, 2]], seq = 3": (Named("op", "a"), 3),
        "b, seq = 123456789012345678": (Named("op", "b"), 123456789012345678),
        "c, seq = 1234567890123456789": (Named("op", "c"), -1),
        "d, seq = 7x": (Named("op", "d"), -1),
        "e, seq = ": (Named("op", "e"), -1),
        "f, seq": (Named("annotation", "f, seq"), -1),
        "": (Named("annotation", ""), -1),
    }
    for texts in (list(expected), list(expected)[::-1], list(expected)[3:4]):
        # A slice of what is longer, as blocks of rows are.
        column = pa.array(["x, seq = 9", *texts, "x, seq = 9"], pa.binary())[1:-1]
        names = read_names(column)
        told = [(names.named[code], number) for code, number in zip(names.codes, names.sequence, strict=True)]
        assert told == [expected[text] for text in texts]
    assert labelled_message("nccl:send 0->1") == ("send", 1)
    assert labelled_message("nccl:recv 0<-3") == ("recv", 3)
    assert labelled_message("nccl:coalesced") is None


@pytest.mark.parametrize("seed", range(20))
def test_operations_get_the_same_kernels_however_few_are_gone_through_at_a_time(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against all of them at once, whose rules the readers' other tests hold."""
    chance = random.Random(seed)  # noqa: S311 - a test's dice

    def records_of(slice_: int) -> list[tuple[object, ...]]:
        monkeypatch.setattr(posts, "_SLICE", slice_)
        dice, calls, kernels = random.Random(seed), CommPosts(), CommKernels()  # noqa: S311 - a test's dice
        moments = [dice.randrange(60) for _ in range(40)]
        for posted_ns in moments if seed % 2 else sorted(moments):
            operation = dice.choice(["send", "recv", "allreduce"])
            calls.add(Post(operation, posted_ns, dice.randrange(3), dice.choice([None, 0, 8]), dice.choice([None, 1])))
        for start_ns in sorted(dice.randrange(60, 200) for _ in range(30)):
            kernels.add(
                CommKernel(
                    name=dice.choice(["ncclDevKernel_SendRecv", "ncclKernel_AllReduce"]), start_ns=start_ns,
                    end_ns=start_ns + 1, stream=dice.choice([None, 7]), external_id=None, launch_ns=dice.randrange(65),
                    launch_thread=dice.choice([None, 0, 1]),
                )
            )  # fmt: skip
        report = SourceReport()
        records = list(comm_records(calls, kernels, {}, 0, report))
        assert sum(r.batch is not None for r in records) >= 25
        return [*(dataclasses.astuple(r) for r in records), *((note.code, note.text) for note in report.notes)]

    whole = records_of(1 << 12)
    assert records_of(chance.choice([1, 2])) == records_of(7) == whole


def test_ids_of_communicators_take_all_bits() -> None:
    calls = CommPosts()
    written = [
        Post("send", -n, 1, 2**57, 2**30, name) for n, name in enumerate([None, "1", str(2**63), str(2**64 - 1)])
    ]
    for post in written:
        calls.add(post)
    assert list(calls) == written[::-1] == list(calls)


def test_what_waits_for_a_launch_in_vain_makes_nothing_else_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread posts all along and launches at the end alone, another one launches: no more than a few are held."""
    monkeypatch.setattr(posts, "_SLICE", 10)
    monkeypatch.setattr(comms, "_MOST_HELD", 50)
    calls, kernels = CommPosts(), CommKernels()
    for posted_ns in range(0, 4000, 2):
        calls.add(Post("send", posted_ns, 1))
    moments = [(at, 2) for at in range(1, 4000, 2)]
    for launch_ns, thread in [*moments, (4000, 1)]:
        kernels.add(
            CommKernel(
                name="ncclDevKernel_SendRecv", start_ns=launch_ns, end_ns=launch_ns + 1, stream=7, external_id=None,
                launch_ns=launch_ns, launch_thread=thread,
            )
        )  # fmt: skip
    report = SourceReport()
    order = [record.posted_ns for record in comm_records(calls, kernels, {}, 0, report)]
    assert order == sorted(order)
    assert len(order) == 4000
    # Those of the last slices are with their kernel, the others stand without.
    records = [r for r in comm_records(calls, kernels, {}, 0, SourceReport()) if r.start_ns == 4000]
    assert 10 <= len(records) <= 60
    (in_vain,) = report.repaired.values()
    assert in_vain == 2000 - len(records)


def test_launches_before_time_zero_have_what_was_posted_for_them() -> None:
    """Of captures without an epoch, whose times count from anywhere."""
    calls, kernels = CommPosts(), CommKernels()
    calls.add(Post("send", -50, 1))
    kernels.add(
        CommKernel(
            name="ncclDevKernel_SendRecv", start_ns=-30, end_ns=-20, stream=7, external_id=None, launch_ns=-40,
            launch_thread=1,
        )
    )  # fmt: skip
    (record,) = comm_records(calls, kernels, {}, 0, SourceReport())
    assert (record.operation, record.start_ns) == ("send", -30)
