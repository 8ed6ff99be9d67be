"""What people really met: a test for each kind of trouble with reading that the public trackers of the formats have.

Damaged text and files written twice are in test_salvage and tests/ingestion, batches of messages and rounded times in
test_kineto.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from helpers.recorded import SAMPLES, data, run_of
from helpers.thorough import spread

from tracetool.errors import DuplicateRank, IngestError, UnknownFormat
from tracetool.ingestion import discover, ingest
from tracetool.model.notice import SourceCode

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.store.run import Run

HTA = ("torch", "facebookresearch+HolisticTraceAnalysis", "tests", "data")


def _event(cat: str, name: str, ts: object, dur: object = 1, tid: object = 7, **args: object) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur, "args": args}


def _write(path: Path, events: list[dict[str, Any]], **around: object) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **around}), encoding="utf-8")
    return path


def _run(tmp_path: Path, events: list[dict[str, Any]], **around: object) -> Run:
    return ingest([_write(tmp_path / "rank0.json", events, **around)], tmp_path / "x.run")


def test_the_legacy_autograd_export_is_named(tmp_path: Path) -> None:
    """pytorch/pytorch#33961."""
    legacy = [{"name": "add", "ph": "X", "ts": 1.5, "dur": 2, "tid": 0, "pid": "CPU functions", "args": {}}]
    (tmp_path / "rank0.json").write_text(json.dumps(legacy), encoding="utf-8")
    with pytest.raises(UnknownFormat, match=r"autograd profiler before torch 1\.8"):
        ingest([tmp_path], tmp_path / "x.run")


def test_a_missing_quote_is_added(tmp_path: Path) -> None:
    """pytorch/pytorch#33961."""
    text = json.dumps([_event("kernel", f"k{n}", n + 1, tid="CUDA functions") for n in range(3)])
    damaged = text.replace('"tid": "CUDA', '"tid": CUDA', 2)
    (tmp_path / "rank0.json").write_text(damaged, encoding="utf-8")
    run = ingest([tmp_path], tmp_path / "x.run")
    assert run.rows("SELECT name FROM events ORDER BY start_ns") == [("k0",), ("k1",), ("k2",)]
    assert run.rows("SELECT reason, records FROM problems") == [
        ("missing quote before a value added (legacy autograd export)", 2)
    ]


def test_a_list_at_top_level_is_read(tmp_path: Path) -> None:
    """pytorch/pytorch#95460."""
    (tmp_path / "rank3.json").write_text(json.dumps([_event("kernel", "k", 5)]), encoding="utf-8")
    run = ingest([tmp_path], tmp_path / "x.run")
    assert run.rows("SELECT rank, name, start_ns FROM events") == [(3, "k", 5000)]


def test_ids_of_64_bits_survive(tmp_path: Path) -> None:
    """facebookresearch/HolisticTraceAnalysis#324."""
    record = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 4, "Process Group Ranks": "[0, 1]"}
    events = [
        _event("cpu_op", "record_param_comms", n + 1, **record, **{"Comms Id": 10159970886766084423 + n})
        for n in range(2)
    ]
    events += [_event("kernel", "k", 9 + n, correlation=2**63 + 5 + n) for n in range(2)]
    run = _run(tmp_path, events)
    assert run.rows("SELECT communicator FROM comms ORDER BY posted_ns") == [
        ("10159970886766084423",), ("10159970886766084424",),
    ]  # fmt: skip
    ids = [correlation for (correlation,) in run.rows("SELECT correlation FROM events WHERE category = 'kernel'")]
    assert [i % 2**64 for i in ids] == [2**63 + 5, 2**63 + 6]
    assert ingest([data(*HTA, "large_integer_trace")], tmp_path / "y.run").rows("SELECT count(*) FROM events") == [(2,)]


def test_ranks_come_from_names_or_being_alone_and_never_twice(tmp_path: Path) -> None:
    """facebookresearch/HolisticTraceAnalysis#104."""
    no_rank = data(*HTA, "distributed_info_unavailable")
    (found,) = discover([no_rank]).sources
    assert (found.rank, found.rank_from) == (0, "being the only one")
    for name in ("rank-4.json", "a_rank_4.json"):
        _write(tmp_path / name, [_event("kernel", "k", 5)])
    with pytest.raises(DuplicateRank, match="both say rank 4"):
        discover([tmp_path])


def test_peers_of_group_ranks_are_mapped_to_global_ones(tmp_path: Path) -> None:
    """pytorch/pytorch#153819."""
    record = {
        "Collective name": "send", "dtype": "Float", "In msg nelems": 4, "Out msg nelems": 4, "Rank": 1,
        "Process Group Name": "5", "Process Group Ranks": "[2, 6]", "Group size": 2,
    }  # fmt: skip
    run = _run(tmp_path, [_event("cpu_op", "record_param_comms", 5, **record)])
    assert run.rows("SELECT operation, peer, payload_bytes FROM comms") == [("send", 6, 16)]


def test_the_collectives_name_counts_not_the_kernels(tmp_path: Path) -> None:
    """mlcommons/chakra#185."""
    record = {"Collective name": "all_to_allv", "dtype": "Float", "In msg nelems": 4, "Process Group Ranks": "[0, 1]"}
    events = [
        _event("cpu_op", "record_param_comms", 5, **record, **{"External id": 11}),
        _event("cuda_runtime", "cudaLaunchKernelExC", 6, correlation=3),
        _event("kernel", "ncclDevKernel_SendRecv(x)", 8, 4, **{"External id": 11}, correlation=3, stream=20),
    ]
    run = _run(tmp_path, events)
    assert run.rows("SELECT operation, start_ns, stream FROM comms") == [("all_to_allv", 8000, 20)]
    bare = ingest([data("torch", "facebookresearch+param", "et_replay", "tests", "inputs")], tmp_path / "y.run")
    assert bare.rows("SELECT count(*) FROM comms WHERE operation IN ('send', 'recv')") == [(0,)]


def test_a_kernel_before_its_launch_keeps_both_times(tmp_path: Path) -> None:
    """pytorch/kineto#1380."""
    events = [
        _event("cuda_runtime", "cudaLaunchKernel", 9, 2, correlation=3),
        _event("kernel", "k", 8, 5, correlation=3),
    ]
    run = _run(tmp_path, events)
    assert run.rows("SELECT category, start_ns FROM events ORDER BY event") == [("launch", 9000), ("kernel", 8000)]


def test_records_out_of_range_are_told(tmp_path: Path) -> None:
    """pytorch/pytorch#192021."""
    run = ingest([data(*HTA, "nccl_parser_config")], tmp_path / "x.run")
    (source,) = run.manifest["sources"]
    (place,) = [at for at, code in enumerate(source["note_codes"]) if code == SourceCode.RECORDS_OUT_OF_RANGE.name]
    assert "left out 4,181 device records as out of range" in source["notes"][place]


def test_zero_times_do_not_set_the_start(tmp_path: Path) -> None:
    """pytorch/kineto#109."""
    base = 1_700_000_000 * 10**9
    events = [_event("kernel", f"k{n}", 0, 0) for n in range(1000)] + [_event("kernel", "real", 5)]
    run = _run(tmp_path, events, baseTimeNanoseconds=base)
    assert run.rows("SELECT count(*), min(start_ns) FROM events") == [(1, base + 5000)]
    assert run.rows("SELECT reason, records FROM problems") == [("time is zero", 1000)]


def test_overlapping_kernels_of_one_stream_stay(tmp_path: Path) -> None:
    """pytorch/kineto#136."""
    run = _run(tmp_path, [_event("kernel", f"k{n}", 10 + n, 5, stream=7) for n in range(4)])
    assert run.rows("SELECT count(*), sum(duration_ns) FROM events") == [(4, 20_000)]


def test_communication_kernels_of_any_spelling_count(tmp_path: Path) -> None:
    """facebookresearch/HolisticTraceAnalysis#208."""
    names = ["ncclKernel_AllReduce_RING_LL", "ncclDevKernel_AllGather_RING_LL(x)", "NCCLDevKernel_ReduceScatter_Sum"]
    names += ["rcclKernel_Broadcast", "mscclpp_allreduce", "ncclDevKernel_Generic(x)"]
    run = _run(tmp_path, [_event("kernel", name, 5 + n, correlation=n) for n, name in enumerate(names)])
    assert [operation for (operation,) in run.rows("SELECT operation FROM comms ORDER BY start_ns")] == [
        "allreduce", "allgather", "reducescatter", "broadcast", "allreduce", "unknown",
    ]  # fmt: skip


def test_every_step_stays(tmp_path: Path) -> None:
    """facebookresearch/HolisticTraceAnalysis#76."""
    run = _run(tmp_path, [_event("user_annotation", f"ProfilerStep#{n}", 10 * n + 1, 9, tid=1) for n in range(3)])
    assert run.rows("SELECT step FROM steps ORDER BY step") == [(0,), (1,), (2,)]


def test_one_launch_may_have_many_kernels(tmp_path: Path) -> None:
    """pytorch/kineto#1062."""
    events = [_event("cuda_runtime", "cudaGraphLaunch", 4, correlation=3)]
    events += [_event("kernel", f"ncclDevKernel_AllReduce{n}", 8 + n, correlation=3) for n in range(3)]
    run = _run(tmp_path, events)
    assert run.rows("SELECT posted_ns FROM comms") == [(4000,)] * 3


def test_the_queue_of_an_xpu_kernel_is_its_stream(tmp_path: Path) -> None:
    """intel/torch-xpu-ops#5284."""
    events = [_event("kernel", "gemm", 5, tid=0, **{"sycl queue": "0x5581", "correlation": 3})]
    events += [_event("xpu_runtime", "urEnqueueKernelLaunch", 4, correlation=3)]
    run = _run(tmp_path, events)
    assert run.rows("SELECT category, stream FROM events ORDER BY event") == [("kernel", 0x5581), ("launch", None)]


def test_times_of_torch_1_8_and_its_spelling_of_categories(tmp_path: Path) -> None:
    events = [
        _event("Kernel", "k", 1_623_143_089_861_123, 45, tid="stream 7", **{"external id": 9}),
        _event("Operator", "ProfilerStep#2", 1_623_143_089_861_000, 500, tid=11),
        _event("Runtime", "cudaLaunchKernel", 1_623_143_089_861_100, 5, tid=11, correlation=3),
    ]
    run = _run(tmp_path, events)
    assert run.rows("SELECT category, start_ns, stream, external_id FROM events ORDER BY event") == [
        ("kernel", 1_623_143_089_861_123_000, 7, 9),
        ("op", 1_623_143_089_861_000_000, None, None),
        ("launch", 1_623_143_089_861_100_000, None, None),
    ]
    assert run.rows("SELECT step FROM steps") == [(2,)]


def test_bases_of_ranks_may_differ_but_forms_of_time_may_not(tmp_path: Path) -> None:
    base, later = 1_700_000_000 * 10**9, 1_707_776_000 * 10**9
    _write(tmp_path / "rank0.json", [_event("kernel", "k", 7_776_000_000_005)], baseTimeNanoseconds=base)
    _write(tmp_path / "rank1.json", [_event("kernel", "k", 5)], baseTimeNanoseconds=later)
    run = ingest([tmp_path], tmp_path / "x.run")
    assert run.rows("SELECT DISTINCT start_ns FROM events") == [(later + 5000,)]
    _write(tmp_path / "rank1.json", [_event("kernel", "k", 5)])
    with pytest.raises(IngestError, match=r"rank0\.json has times since 1970, .*rank1\.json counts"):
        ingest([tmp_path], tmp_path / "y.run")


# A compressed archive takes both ways of reading; the others each one of them.
@spread("form", [".json", ".gz", ".zst", ".tar", ".tar.gz"], [".tar.gz"])
def test_containers_give_the_same_events(form: str, tmp_path: Path) -> None:
    texts = {}
    for path in sorted((SAMPLES / "h100-1f1b").glob("*.gz")):
        with pa.CompressedInputStream(pa.OSFile(str(path)), "gzip") as stream:
            texts[path.name.removesuffix(".gz")] = stream.read()
    folder = tmp_path / "traces"
    folder.mkdir()
    if "tar" in form:
        for name, text in texts.items():
            (tmp_path / name).write_bytes(text)
        with tarfile.open(folder / f"ranks{form}", "w:gz" if form.endswith("gz") else "w") as archive:
            for name in texts:
                archive.add(tmp_path / name, arcname=f"../run/{name}")
    else:
        for name, text in texts.items():
            packed = text
            if form == ".gz":
                # Two members in one file, as some writers append.
                packed = gzip.compress(text[:1000]) + gzip.compress(text[1000:])
            elif form == ".zst":
                packed = pa.compress(text, "zstd", asbytes=True)
            (folder / f"x{name}{form}").write_bytes(packed)
    run = ingest([folder], tmp_path / "x.run")
    whole = run_of(SAMPLES / "h100-1f1b")
    for table in ("events", "comms", "memory", "steps"):
        assert run.query(f"SELECT * FROM {table}").equals(whole.query(f"SELECT * FROM {table}"))
