"""CUDA memory snapshots: read alone, and beside the trace of their rank.

The snapshots are made by ``snapshot_writer`` from the documented structure; what is expected follows from the
allocations that each test makes, and at the end from the allocator records of a recorded trace.
"""

from __future__ import annotations

import os
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from helpers.notices import texts
from helpers.recorded import SAMPLES, looked_at, run_of, small
from helpers.snapshot_writer import Allocator, dump, split_off_memory
from readers.ascend_reading import Read, find, read_only

from tracetool.errors import DuplicateRank, IngestError, MalformedTrace, MissingRank
from tracetool.ingestion import IngestOptions, discover, ingest
from tracetool.model.notice import NoticeCode
from tracetool.readers.memory_snapshot import READER
from tracetool.reconstruction import reconstruct

if TYPE_CHECKING:
    from pathlib import Path

T0 = 1_795_000_000_000_000  # us
MIB = 2**20
SAMPLE = SAMPLES / "h100-1f1b"


def _rows(found: Read) -> list[tuple[Any, ...]]:
    names = ("time_ns", "delta_bytes", "allocated_bytes", "reserved_bytes", "block")
    return [tuple(row[name] for name in names) for row in found.tables["memory"]]


def _simple() -> Allocator:
    allocator = Allocator()
    allocator.segment(T0, 4096, 20 * MIB)
    allocator.alloc(T0 + 1, 4096, 3 * MIB)
    allocator.alloc(T0 + 1, 8 * MIB, 512)
    allocator.free(T0 + 5, 4096, 3 * MIB, completed_us=T0 + 9)
    allocator.segment(T0 + 10, 64 * MIB, 2 * MIB)
    allocator.release_segment(T0 + 11, 64 * MIB, 2 * MIB)
    return allocator


def test_levels_are_those_of_the_allocator(tmp_path: Path) -> None:
    """Reserved is the segments'; allocated changes when a free is requested, as torch's own counter does."""
    dump(tmp_path / "rank0.pickle", _simple().snapshot())
    found = read_only(READER, tmp_path)
    ns = T0 * 1000
    assert _rows(found) == [
        (ns, 0, 0, 20 * MIB, None),
        (ns + 1000, 3 * MIB, 3 * MIB, 20 * MIB, 4096),
        (ns + 1001, 512, 3 * MIB + 512, 20 * MIB, 8 * MIB),  # of the same microsecond, after it
        (ns + 5000, -3 * MIB, 512, 20 * MIB, 4096),
        (ns + 10_000, 0, 512, 22 * MIB, None),
        (ns + 11_000, 0, 512, 20 * MIB, None),
    ]
    assert {row["component"] for row in found.tables["memory"]} == {"torch snapshot"}
    assert found.report.skipped == {"free_completed in the history": 1}
    assert found.report.rows == 7
    assert found.advanced == found.source.size_bytes
    assert not found.report.dropped
    assert not found.report.repaired


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_and_compression_reads_the_same(protocol: int, tmp_path: Path) -> None:
    import gzip

    plain, packed = tmp_path / "a", tmp_path / "b"
    plain.mkdir()
    packed.mkdir()
    dump(plain / "x.pkl", _simple().snapshot(), protocol)
    (packed / "x.pkl.gz").write_bytes(gzip.compress((plain / "x.pkl").read_bytes()))
    assert _rows(read_only(READER, plain)) == _rows(read_only(READER, packed))


def test_a_history_that_begins_late_counts_back_from_the_end(tmp_path: Path) -> None:
    """The ring buffer forgot the first entries: a free of what it did not see made, and levels from before it."""
    allocator = _simple()
    del allocator.history[:2]
    dump(tmp_path / "rank0.pickle", allocator.snapshot())
    found = read_only(READER, tmp_path)
    assert [row[1:4] for row in _rows(found)][:2] == [
        (512, 3 * MIB + 512, 20 * MIB),
        (-3 * MIB, 512, 20 * MIB),
    ]


def test_sizes_are_rounded_as_the_allocator_does(tmp_path: Path) -> None:
    """Entries say what was asked for; blocks are multiples of 512 bytes, those at the end say how large."""
    allocator = Allocator(reserved=20 * MIB)
    allocator.alloc(T0, 4096, 1, block=512)
    allocator.alloc(T0 + 1, 8192, 1000, block=1024)
    allocator.alloc(T0 + 2, 2 * MIB, 3 * MIB, block=4 * MIB)  # not split: less than 1 MiB would have been left
    allocator.free(T0 + 3, 8192, 1000)
    dump(tmp_path / "rank0.pickle", allocator.snapshot())
    assert [row[1:3] for row in _rows(read_only(READER, tmp_path))] == [
        (512, 512), (1024, 1536), (4 * MIB, 4 * MIB + 1536), (-1024, 4 * MIB + 512),
    ]  # fmt: skip


def test_releases_differ_in_what_they_write(tmp_path: Path) -> None:
    """Blocks without addresses (2.0), keys that are new, devices whose history is empty, actions of later releases."""
    snapshot = _simple().snapshot(something_new={"a": [1.5, None, (True,)]})
    for block in snapshot["segments"][0]["blocks"]:
        del block["address"], block["requested_size"]
    snapshot["segments"][0]["address"] = 8 * MIB
    for entry in snapshot["device_traces"][0]:
        entry["compile_context"] = "N/A"
    history = snapshot["device_traces"][0]
    last = history[-1]
    history.append({**last, "action": "segment_map", "time_us": T0 + 12, "size": 2 * MIB})
    history.append({**last, "action": "segment_unmap", "time_us": T0 + 13, "size": 2 * MIB})
    history.append({**last, "action": "snapshot", "time_us": T0 + 13, "size": 0, "addr": 0})
    snapshot["device_traces"].append([])
    snapshot["external_annotations"] = [{"stage": "START", "name": "x", "device": 0, "time_us": T0}]
    dump(tmp_path / "rank0.pickle", snapshot)
    found = read_only(READER, tmp_path)
    assert [row[3] for row in _rows(found)][-3:] == [20 * MIB, 22 * MIB, 20 * MIB]
    assert _rows(found)[2][1] == 512
    assert found.report.skipped["annotation beside the history"] == 1


def test_the_device_with_the_longest_history_is_the_ranks(tmp_path: Path) -> None:
    allocator = _simple()
    allocator.device = 2
    snapshot = allocator.snapshot()
    snapshot["device_traces"][0] = [{"action": "alloc", "addr": 1, "size": 512, "stream": 0, "time_us": T0}]
    snapshot["segments"].append({**snapshot["segments"][0], "device": 0, "allocated_size": 10**9})
    dump(tmp_path / "rank0.pickle", snapshot)
    found = read_only(READER, tmp_path)
    assert found.report.device == 2
    assert _rows(found)[-1][2] == 512
    assert found.report.skipped["memory of another device"] == 1


def test_unusable_entries_are_counted_with_their_place(tmp_path: Path) -> None:
    allocator = _simple()
    good = dict(allocator.history[1])
    allocator.history += [
        {**good, "action": "defragment"}, {**good, "time_us": None}, {**good, "size": -5}, {**good, "addr": "x"},
        {**good, "time_us": T0 - 500, "action": "segment_alloc", "size": 0},
        {"action": "oom", "size": 7 * MIB, "device_free": 3 * MIB, "stream": 0, "time_us": T0 + 20, "frames": []},
    ]  # fmt: skip
    dump(tmp_path / "rank0.pickle", allocator.snapshot(allocator_settings={"roundup_power2_divisions": {"256": 4}}))
    report = read_only(READER, tmp_path).report
    assert report.dropped == {
        "action that is not known": 1, "entry without a time": 1, "entry without a size or address": 2,
    }  # fmt: skip
    assert report.places["action that is not known"].at == 8
    assert report.repaired.total() == 1
    assert any("ran out of memory 1 times: the first time 7.00 MiB" in note for note in texts(report.notes))
    assert any("divisions of powers of two" in note for note in texts(report.notes))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"device_traces": []}, "holds no history"),
        ({"device_traces": [[]]}, "holds no history"),
        ({"device_traces": 5}, "holds no history"),
        ({"device_traces": [[{"action": "alloc", "addr": 1, "size": 512}]]}, "none of its 1 entries"),
    ],
)
def test_a_snapshot_without_a_history_says_how_to_record_one(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    dump(tmp_path / "rank0.pickle", _simple().snapshot(**change))
    with pytest.raises(IngestError, match=told):
        read_only(READER, tmp_path)


@pytest.mark.parametrize("segments", [[], None, [3], [{"device": 0}], [{"device": 0, "allocated_size": "x"}]])
def test_segments_that_say_nothing_leave_levels_unknown(segments: object, tmp_path: Path) -> None:
    dump(tmp_path / "rank0.pickle", _simple().snapshot(segments=segments))
    assert {row[2] for row in _rows(read_only(READER, tmp_path))} == {None}


def test_other_pickles_are_left(tmp_path: Path) -> None:
    dump(tmp_path / "weights.pkl", {"layer": [1.0]})
    dump(tmp_path / "list.pkl", ["segments"])
    (tmp_path / "text.pkl").write_text("segments, device_traces")
    assert not find(READER, tmp_path).sources


class _Calls:
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (self._folder,)


def test_a_hostile_snapshot_fails_alone_and_runs_nothing(tmp_path: Path) -> None:
    for rank in range(4):
        shutil.copy(SAMPLE / f"rank{rank}.json.gz", tmp_path)
    witness = tmp_path / "made"
    dump(tmp_path / "rank1.pickle", _simple().snapshot(more=_Calls(str(witness))))
    run = ingest([tmp_path], tmp_path / "x.run")
    assert not witness.exists()
    (failed,) = run.rows("SELECT path, reason FROM sources WHERE status = 'failed'")
    assert failed[0].endswith("rank1.pickle")
    assert "would import or call code (posix.mkdir)" in failed[1]
    assert run.rows("SELECT count(*) FROM ranks") == [(4,)]
    with pytest.raises(IngestError, match="would import or call"):
        ingest([tmp_path / "rank1.pickle"], tmp_path / "y.run")


def test_a_snapshot_that_was_cut_off_says_so(tmp_path: Path) -> None:
    whole = pickle.dumps(_simple().snapshot())
    (tmp_path / "rank0.pickle").write_bytes(whole[:-100])
    with pytest.raises(MalformedTrace, match="cut off"):
        read_only(READER, tmp_path)


# --- Beside traces


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The recorded sample without its allocator records, and snapshots that hold the same."""
    folder = tmp_path_factory.mktemp("split")
    return folder, [split_off_memory(SAMPLE / f"rank{rank}.json.gz", folder)[1] for rank in range(4)]


# Levels and sizes are held by default (above); here all figures of a replay are those of Kineto's records.
@pytest.mark.thorough
def test_a_snapshot_beside_a_bare_trace_tells_what_kinetos_records_do(
    split: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder, snapshots = split
    for rank, snapshot in enumerate(snapshots):
        shutil.copy(folder / f"rank{rank}.json.gz", tmp_path)
        dump(tmp_path / f"rank{rank}.pickle", snapshot)
    run = ingest([tmp_path], tmp_path / "x.run")
    assert run.rows("SELECT DISTINCT component FROM memory") == [("torch snapshot",)]
    assert run.rows("SELECT rank, device IS NOT NULL, sm_count FROM ranks ORDER BY rank") == [
        (rank, True, 132) for rank in range(4)
    ]
    assert run.manifest["world_size"] == 4
    recorded, found = looked_at(run_of(SAMPLE)), reconstruct(run)
    assert found.observed.memory == recorded.observed.memory
    assert found.pipeline == recorded.pipeline


# A recording is read and reconstructed once more for it; which log is taken is decided as in the case above.
@pytest.mark.thorough
def test_of_two_logs_of_a_rank_the_traces_own_is_taken(
    split: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    _, snapshots = split
    for rank in range(4):
        shutil.copy(SAMPLE / f"rank{rank}.json.gz", tmp_path)
    dump(tmp_path / "rank2.pickle", snapshots[2])
    run = ingest([tmp_path], tmp_path / "x.run")
    assert reconstruct(run).pipeline == looked_at(run_of(SAMPLE)).pipeline


def test_a_snapshot_of_another_time_is_told_and_not_used(
    split: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder, _ = split
    for rank in range(4):
        shutil.copy(folder / f"rank{rank}.json.gz", tmp_path)
    dump(tmp_path / "rank0.pickle", _simple().snapshot())
    run = ingest([tmp_path], tmp_path / "x.run")
    found = reconstruct(run)
    assert found.observed.memory[0] is None
    (note,) = texts(found.notes, NoticeCode.SNAPSHOT_UNUSED)
    assert note.startswith("rank 0: ")


def test_a_snapshots_rank_comes_from_what_it_lies_beside(tmp_path: Path) -> None:
    host = tmp_path / "host.7.pt.trace.json.gz"
    shutil.copy(SAMPLE / "rank1.json.gz", host)
    shutil.copy(SAMPLE / "rank0.json.gz", tmp_path / "other.json.gz")
    named = dump(tmp_path / "host.pickle", _simple().snapshot())
    assert [(f.rank, f.reader) for f in discover([tmp_path]).sources] == [
        (0, "kineto"), (1, "kineto"), (1, "memory_snapshot"),
    ]  # fmt: skip
    unnamed = named.rename(tmp_path / "snapshot.pickle")
    with pytest.raises(MissingRank, match=r"snapshot\.pickle does not say its rank"):
        discover([tmp_path])
    options = IngestOptions(ranks={"snapshot.pickle": 0})
    assert [f.rank for f in discover([tmp_path], options.ranks).sources] == [0, 0, 1]
    host.unlink()
    found = discover([tmp_path]).sources
    assert [f.rank for f in found] == [0, 0]
    assert found[1].rank_from == "other.json.gz beside it"
    (tmp_path / "other.json.gz").unlink()
    assert [f.rank for f in discover([unnamed]).sources] == [0]


def test_two_snapshots_or_two_traces_of_a_rank_are_a_conflict(tmp_path: Path) -> None:
    shutil.copy(SAMPLE / "rank0.json.gz", tmp_path)
    dump(tmp_path / "rank0_a.pickle", _simple().snapshot())
    dump(tmp_path / "rank0_b.pickle", _simple().snapshot(more=1))
    with pytest.raises(DuplicateRank, match="both say rank 0"):
        discover([tmp_path])


def test_a_recorded_snapshot_ends_at_the_level_of_the_trace_beside_it() -> None:
    """The trace's own ``[memory]`` totals tell; in between, blocks larger than asked for are known to 1 MiB each."""
    run = small("snapshot")
    levels = "SELECT arg_max(allocated_bytes, time_ns), max(allocated_bytes), max(reserved_bytes) FROM memory "
    ((traced, peak, reserved),) = run.rows(levels + "WHERE component = 'torch'")
    ((last, highest, held),) = run.rows(levels + "WHERE component = 'torch snapshot'")
    assert (last, held) == (traced, reserved)
    assert highest == pytest.approx(peak, rel=0.01)
