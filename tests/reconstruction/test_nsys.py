"""What torch.profiler recorded, as Nsight Systems would have: the same pipeline comes out, whatever its export lacks.

The exports are made of the recorded traces by the standard library alone (``helpers.nsys_export``); what is expected
is what reconstruction finds in the recording itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import pytest
from helpers.nsys_export import How, export
from helpers.recorded import ROOT, data, looked_at, reconstruct_once, run_of
from helpers.shared import place_of
from helpers.thorough import spread

from tracetool.ingestion import IngestOptions, ingest
from tracetool.model.timeline import Op, measure
from tracetool.reconstruction import notes_of_sources
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.peers import Nameless, peers_of
from tracetool.replays import replay
from tracetool.reports.recording.findings import find_gaps
from tracetool.schedules.names import best_fit

if TYPE_CHECKING:
    from tracetool.reconstruction import Reconstruction
    from tracetool.store.run import Run

H100, MEGATRON = "h100-pp4/traces", "megatron"
RECORDED = {
    "1f1b_m8": H100, "interleaved_m8": H100, "zbh1_m8": H100, "vpp2_overlap_m8": MEGATRON, "megatron-m4": "",
}  # fmt: skip
SCHEDULES = {
    "1f1b_m8": "1f1b", "interleaved_m8": "interleaved", "zbh1_m8": "zb-h1", "vpp2_overlap_m8": "interleaved",
    "megatron-m4": "1f1b",
}  # fmt: skip
"""What their scripts ran."""


def recorded(name: str) -> Path:
    """The folder of a recording."""
    return data(*RECORDED[name].split("/"), name) if RECORDED[name] else ROOT / "tests" / "data" / name


BARE = How(payloads=False, labels=False)
"""The export that several tests look at."""


@cache
def exported(name: str, how: How = BARE) -> Path:
    """The folder of a recording's export, made once in a run of the tests."""
    with place_of("exported", name, how) as place:
        folder = Path(mkdtemp(prefix="tracetool-test-")) if place is None else place
        if not list(folder.glob("*.sqlite")):
            export(recorded(name), folder, how)
    return folder


def both(name: str, run: Run) -> tuple[Reconstruction, Reconstruction]:
    """What is found in a recording, and in the same step of its export: nsys marks none, so they count from 0."""
    kineto = looked_at(run_of(recorded(name)))
    step = [s.number for s in kineto.steps].index(kineto.pipeline.step)
    return kineto, reconstruct_once(run, step=step, account=Account())


def computes(found: Reconstruction) -> dict[tuple[int, int, str, int], int]:
    """How long each action took."""
    ops = (op for op in found.observed.ops if isinstance(op, Op))
    return {(op.rank, op.stage, op.kind.value, op.microbatch): op.duration_ns for op in ops}


def messages(found: Reconstruction, *, sizes: bool) -> list[tuple[object, ...]]:
    """Who sends what to whom."""
    return sorted(
        (t.kind.value, t.microbatch, t.src_stage, t.dst_stage, t.src_rank, t.dst_rank, t.payload_bytes if sizes else 0)
        for t in found.observed.transfers
    )


def step_ns(found: Reconstruction) -> int:
    """The step's time in replay, as observed."""
    return measure(replay(found.pipeline, found.pipeline.observed).timeline).step_ns


def waits(run: Run) -> list[tuple[object, ...]]:
    """When hosts waited for their devices, from the first time on: what launches come late for goes by it."""
    rows = run.rows(
        "SELECT rank, name, start_ns - min(start_ns) OVER (PARTITION BY rank), duration_ns FROM events "
        "WHERE category = 'launch' AND name LIKE '%Synchronize' ORDER BY ALL"
    )
    assert len({rank for rank, *_ in rows}) >= 2
    return rows


# What has neither payloads nor labels tells all but bytes by default (below): this is the easier half.
@pytest.mark.thorough
# Ranks in one file, other origins of time and payloads in JSON are read alike by default (readers/test_nsys_forms).
@spread(
    ("name", "how"),
    [
        ("1f1b_m8", How(normalized=True, together=True)),
        ("vpp2_overlap_m8", How(as_json=True)),
        ("vpp2_overlap_m8", How(names_communicators=False, labels=False)),
    ],
    [("vpp2_overlap_m8", How(names_communicators=False, labels=False))],
)
def test_an_export_with_payloads_tells_the_same_as_the_recording(name: str, how: How) -> None:
    kineto, nsys = both(name, run_of(exported(name, how)))
    assert waits(run_of(exported(name, how))) == waits(run_of(recorded(name)))
    assert computes(nsys) == computes(kineto)
    assert messages(nsys, sizes=True) == messages(kineto, sizes=True)
    assert nsys.pipeline.p2p == kineto.pipeline.p2p
    assert step_ns(nsys) == step_ns(kineto)


def schedule(found: Reconstruction) -> tuple[str, int] | None:
    """The schedule by name, and how many actions are elsewhere in it."""
    fit = best_fit(found.pipeline.observed)
    return None if fit is None else (fit.schedule.name, fit.mismatches)


# The smallest recording, with both origins of time between this test and the next. The others say it of each schedule:
# whether it is the missing payloads or the missing ranges that one of them is lost with.
@spread("name", RECORDED, ["megatron-m4"])
def test_an_export_without_payloads_and_labels_tells_all_but_bytes(name: str) -> None:
    """Half of them with times since 1970; those with times since the start are the other half below."""
    run = run_of(exported(name, replace(BARE, normalized=name not in ("1f1b_m8", "interleaved_m8"))))
    kineto, nsys = both(name, run)
    assert schedule(nsys) == (SCHEDULES[name], 0)
    assert computes(nsys) == computes(kineto)
    assert messages(nsys, sizes=False) == messages(kineto, sizes=False)
    assert {t.payload_bytes for t in nsys.observed.transfers} == {None}
    assert step_ns(nsys) == pytest.approx(step_ns(kineto), rel=0.01)
    (pairing,) = [f for f in nsys.findings if f.fact == "messages"]
    assert (pairing.evidence, pairing.confidence) == ("inferred", 1.0)
    gaps = {gap.needed_for: gap.hint for gap in find_gaps(run)}
    assert "nsys export --include-blobs=true" in gaps["bandwidth of links"]
    assert "NVTX range" in gaps["steps by number (they are cut at the optimizer or the messages)"]
    assert not any(
        torch in hint for hint in gaps.values() for torch in ("ProfilerActivity", "profiler.step", "torch >=")
    )


@spread("name", RECORDED, ["megatron-m4"])
def test_launches_alone_tell_actions_by_thread_and_what_repeats(name: str) -> None:
    """Without any range of torch's: NCCL's own names, kernels and the threads that launched them."""
    how = replace(BARE, nvtx="nccl", normalized=name in ("1f1b_m8", "interleaved_m8"))
    kineto, nsys = both(name, run_of(exported(name, how)))
    assert schedule(nsys) == (SCHEDULES[name], 0)
    taken, expected = computes(nsys), computes(kineto)
    assert taken.keys() == expected.keys()
    # What sums gradients between a forward and its backward is of neither here; the first forward has what precedes it.
    assert sum(taken.values()) == pytest.approx(sum(expected.values()), rel=0.01)
    assert messages(nsys, sizes=False) == messages(kineto, sizes=False)
    assert {stage.evidence for stage in nsys.pipeline.stages} == {"kernels"}
    assert step_ns(nsys) == pytest.approx(step_ns(kineto), rel=0.01)


# The larger one has more launches among which sends and receives are to be told.
@spread(("name", "notes"), [("megatron-m4", 1), ("1f1b_m8", 2)], 1)
def test_sizes_that_the_user_states_stand_for_those_not_recorded(name: str, notes: int, tmp_path: Path) -> None:
    """Messages of both scripts hold 16 MiB: 2,048 tokens, 4,096 wide, in 16 bit (measured.json, README of tests/data).

    Ranks of as many messages share a note: the first and the last do, and those between.
    """
    stated = IngestOptions(payload_bytes=1 * 2048 * 4096 * 2)
    run = ingest([exported(name)], tmp_path / "x.run", options=stated)
    kineto, nsys = both(name, run)
    assert messages(nsys, sizes=True) == messages(kineto, sizes=True)
    assert run.rows("SELECT DISTINCT evidence, payload_bytes FROM comms WHERE operation IN ('send', 'recv')") == [
        ("stated", 16 << 20)
    ]
    assert sum("hold 16.00 MiB each because ingest was told so" in str(note) for note in nsys.notes) == notes
    assert "bandwidth of links" not in {gap.needed_for for gap in find_gaps(run)}


def test_what_an_export_lacks_is_counted_once() -> None:
    """2 ranks and 4 microbatches: 2 x 4 messages a step, each sent and received."""
    run = run_of(exported("megatron-m4"))
    ((operations,),) = run.rows("SELECT count(*) FROM comms")
    gaps = [gap.lacks for gap in find_gaps(run) if "communication" in gap.lacks or "sends" in gap.lacks]
    rest = "collectives and kernels of communication of which neither communicator nor size is recorded"
    assert gaps == [
        f"{operations - 16} {rest}",
        "no peer for 16 of 16 sends and receives",
        "no size of 16 of 16 sends and receives",
    ]
    # Ranks differ in how many they have, and share one line.
    assert [note.text.partition(":")[0] for note in notes_of_sources(run.manifest["sources"])] == ["ranks 0-1"]


US = 1000


def op(rank: int, position: int, start: int, end: int, *, sends: bool, follows: str = "F") -> Nameless:
    """An operation alone in its kernel; times in us."""
    return Nameless(rank, position, sends, None, None, True, start * US, end * US, (follows,))


def test_messages_meet_where_only_one_send_began_in_time() -> None:
    """Rank 1 waits for rank 0, then rank 2 for rank 1; bytes take 60 us."""
    ops = []
    for n in range(4):
        at = 10_000 * n
        ops += [
            op(0, n, at + 4000, at + 4060, sends=True), op(1, 2 * n, at + 1000, at + 4070, sends=False),
            op(1, 2 * n + 1, at + 8000, at + 8060, sends=True), op(2, n, at + 5000, at + 8070, sends=False),
        ]  # fmt: skip
    peers = peers_of(ops, world=3)
    assert {peers[0, n] for n in range(4)} == {1}
    assert {(peers[1, 2 * n], peers[1, 2 * n + 1]) for n in range(4)} == {(0, 2)}
    assert {peers[2, n] for n in range(4)} == {1}


def test_messages_that_nothing_tells_apart_keep_no_peer() -> None:
    """Two senders begin at one time, for each of two receivers: either could be either's."""
    ops = []
    for n in range(4):
        at = 10_000 * n
        ops += [op(rank, n, at + 4000, at + 4060, sends=True) for rank in (0, 1)]
        ops += [op(rank, n, at + 1000, at + 4070, sends=False) for rank in (2, 3)]
    assert peers_of(ops, world=4) == {}
