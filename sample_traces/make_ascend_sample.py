"""Writes ``ascend-1f1b``: a synthetic capture in the text format of torch_npu (headers of November 2025).

Four pipeline stages, one rank each, run one step of 1F1B with four microbatches; ``ascend_sample_step.py``
has the constants and the simulation. All clocks agree. The constants and what comes of them:

    forward, stages 0 to 3      9.0, 8.0, 8.0, 11.0 ms
    backward, stages 0 to 3     17.0, 16.0, 16.0, 21.0 ms
    message                     8,388,608 bytes at 20.9 GB/s: 401,370 ns
    pipeline window             206,367,330 ns   (first forward starts .. last backward ends)
    step                        209,782,330 ns   (first kernel starts .. last kernel ends, over all ranks)

``python sample_traces/make_ascend_sample.py [FOLDER]`` writes the same bytes each time.
"""

from __future__ import annotations

import csv
import io
import json
import random
import sys
from pathlib import Path

from ascend_sample_step import (
    ACTIVATION_MB,
    BACKWARD_NS,
    FORWARD_NS,
    MICROBATCHES,
    MP,
    PAYLOAD_BYTES,
    PP,
    STAGES,
    STATIC_MB,
    STEP,
    TRANSFER_NS,
    Communication,
    Compute,
    Rank,
    busy,
    group_hash,
    kernel_times,
    known_times,
    simulate,
)

HEADER_LINE = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),"
    "Duration(us),Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes,Input Data Types,"
    "Input Formats,Output Shapes,Output Data Types,Output Formats,Context ID,aicore_time(us),"
    "aic_total_cycles,aic_mac_time(us),aic_mac_ratio,aic_scalar_time(us),aic_scalar_ratio,"
    "aic_mte1_time(us),aic_mte1_ratio,aic_mte2_time(us),aic_mte2_ratio,aic_fixpipe_time(us),"
    "aic_fixpipe_ratio,aic_icache_miss_rate,aiv_time(us),aiv_total_cycles,aiv_vec_time(us),aiv_vec_ratio,"
    "aiv_scalar_time(us),aiv_scalar_ratio,aiv_mte2_time(us),aiv_mte2_ratio,aiv_mte3_time(us),"
    "aiv_mte3_ratio,aiv_icache_miss_rate,cube_utilization(%)"
)
HEADER = HEADER_LINE.split(",")
PMU_COLUMNS = len(HEADER) - HEADER.index("aicore_time(us)")


def us(value_ns: int) -> str:
    return f"{value_ns // 1000}.{value_ns % 1000:03}"


def kernel_rows(rank: Rank, dice: random.Random) -> list[list[str]]:
    rows: list[list[str]] = []
    task, last_end = 1000 + 100 * rank.stage, rank.ran[0][0]
    for start, item in rank.ran:
        if isinstance(item, Communication):
            kind = item.name.split("__")[0] + "_"
            head = [
                str(STEP),
                str(rank.stage),
                "4294967295",
                "N/A",
                "N/A",
                item.name,
                kind,
                "N/A",
                "COMMUNICATION",
            ]
            times = [us(start) + "\t", us(item.end_ns - start), us(start - last_end) + "000"]
            rows.append([*head, *times, "0", *["N/A"] * (len(HEADER) - 13)])
            last_end = item.end_ns
            continue
        for begin, duration, (name, kind, core, _, inputs, outputs) in kernel_times(start, item, dice):
            task += 1
            head = [str(STEP), str(rank.stage), "4294967295", str(task), "2", name, kind, "dynamic", core]
            times = [us(begin) + "\t", us(duration), us(begin - last_end) + "000"]
            rows.append(
                [
                    *head,
                    *times,
                    "40",
                    "0",
                    "NO",
                    *shapes(inputs),
                    *shapes(outputs),
                    "N/A",
                    *pmu(core, duration),
                ]
            )
            last_end = begin + duration
    return rows


def shapes(text: str) -> list[str]:
    if not text:
        return ["N/A", "N/A", "N/A"]
    count = text.count(";") + 1
    return [f'"{text}"', ";".join(["DT_BF16"] * count), ";".join(["ND"] * count)]


def pmu(core: str, duration: int) -> list[str]:
    values = ["0.0"] * PMU_COLUMNS
    place = 13 if core in ("AI_VECTOR_CORE", "MIX_AIV") else 0
    values[place], values[place + 1] = us(duration * 24 // 25), str(duration * 33 // 25)
    return values


def links(rank: Rank, operation: Communication) -> dict[str, tuple[str, float, float]]:
    """Link to transport, MB and ms: the receiver logs HCCS, and everybody a local copy per message."""
    me = rank.stage
    if not operation.messages:
        root = {f"{me}-{me}": ("LOCAL", 1.6e-05 if me == 0 else 8e-06, 0.0012)}
        return root if me == 0 else {**root, f"{me}-0": ("HCCS", 8e-06, 0.0021)}
    local = (len(operation.messages) * PAYLOAD_BYTES + 8) / 1e6
    slower = 0.0001 * int(operation.name.split("_")[-2])
    found = {f"{me}-{me}": ("LOCAL", local, round(0.0252 * len(operation.messages) + slower, 5))}
    for peer in operation.received:
        found[f"{me}-{peer}"] = ("HCCS", PAYLOAD_BYTES / 1e6, TRANSFER_NS / 1e6)
    return found


def bandwidths(size: float, time: float) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for transport in ("RDMA", "HCCS", "PCIE", "SDMA", "SIO"):
        used = size > 0 and transport in ("HCCS", "SDMA")
        found[transport] = {
            "Transit Size(MB)": size if used else 0,
            "Transit Time(ms)": time if used else 0,
            "Bandwidth(GB/s)": round(size / time, 4) if used else 0,
            "Large Packet Ratio": 0,
            "Size Distribution": {f"{size}": [1, time]} if used and transport == "HCCS" else {},
        }
    return found


def operation_entry(rank: Rank, operation: Communication) -> dict[str, object]:
    logged = [link for link in links(rank, operation).values() if link[0] == "HCCS"]
    size, time = sum(link[1] for link in logged), sum(link[2] for link in logged)
    elapse = operation.end_ns - operation.start_ns
    # Only the side that sends has a wait of its own; a pure receive shows everything as idle.
    idle = elapse if operation.received and not operation.sends else 32_640 + round(time * 1e6)
    wait = max(elapse - idle, 0) / 1e6
    ratio = 1.0 if wait else 0
    return {
        "Communication Time Info": {
            # The real exporter goes through float64 microseconds and a short print here too.
            "Start Timestamp(us)": operation.start_ns / 1000,
            "Elapse Time(ms)": elapse / 1e6,
            "Transit Time(ms)": 0,
            "Wait Time(ms)": wait,
            "Synchronization Time(ms)": wait,
            "Idle Time(ms)": (elapse - round(wait * 1e6)) / 1e6,
            "Wait Time Ratio": ratio,
            "Synchronization Time Ratio": ratio,
        },
        "Communication Bandwidth Info": bandwidths(size, time),
    }


def operations_of(rank: Rank, group: str) -> list[Communication]:
    return [c for _, c in rank.ran if isinstance(c, Communication) and bool(c.messages) == (group == PP)]


def communication(rank: Rank) -> dict[str, object]:
    kinds = {
        kind: {f"{c.name}@{group_hash(group)}": operation_entry(rank, c) for c in operations_of(rank, group)}
        for kind, group in (("p2p", PP), ("collective", MP))
    }
    return {f"step{STEP}": kinds}


def matrix(rank: Rank) -> dict[str, object]:
    """Per link the fastest, the middle and the three slowest operations, and the sums."""
    kinds: dict[str, dict[str, dict[str, object]]] = {}
    for kind, label, group in (("p2p", "batchsendrecv", PP), ("collective", "allreduce", MP)):
        logged: dict[str, list[tuple[float, str, tuple[str, float, float]]]] = {}
        for operation in operations_of(rank, group):
            for ends, link in links(rank, operation).items():
                logged.setdefault(ends, []).append((-link[1] / link[2], operation.name, link))
        entries: dict[str, dict[str, object]] = {}
        for ends, found in logged.items():
            found.sort()
            picks = {"top1": 0, "middle": len(found) // 2, "bottom1": -1, "bottom2": -2, "bottom3": -3}
            for pick, index in picks.items():
                if -index <= len(found):
                    cell = link_cell([found[index][2]]) | {"Op Name": found[index][1]}
                    entries.setdefault(f"{label}-{pick}@{group_hash(group)}", {})[ends] = cell
            total = link_cell([link for _, _, link in found])
            entries.setdefault(f"{label}-total@{group_hash(group)}", {})[ends] = total
        kinds[kind] = entries
    return {f"step{STEP}": kinds}


def link_cell(found: list[tuple[str, float, float]]) -> dict[str, object]:
    size, time = sum(link[1] for link in found), sum(link[2] for link in found)
    return {
        "Transport Type": found[0][0],
        "Transit Size(MB)": size,
        "Transit Time(ms)": time,
        "Bandwidth(GB/s)": round(size / time, 4),
    }


def step_trace(rank: Rank, rows: list[list[str]]) -> str:
    """One row; the vendor's Bubble knows plain receives only, so it is 0."""
    names = [row[HEADER.index("Name")].startswith("hcom_") for row in rows]
    durations = [float(row[HEADER.index("Duration(us)")]) for row in rows]
    moving = sum(d for d, hcom in zip(durations, names, strict=True) if hcom)
    computing = sum(d for d, hcom in zip(durations, names, strict=True) if not hcom)
    stage = (busy(rank)[-1][1] - busy(rank)[0][0]) / 1000
    values = (
        rank.stage,
        STEP,
        computing,
        moving,
        0.0,
        moving,
        stage - computing - moving,
        stage,
        0,
        moving,
        150.0,
    )
    header = (
        "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
        "Communication(Not Overlapped and Exclude Receive),Preparing"
    )
    return f"{header}\n{','.join(map(str, values))}\n"


def memory_record(rank: Rank) -> str:
    """The allocator grows at each forward and shrinks after each backward; APP is sampled each 20 ms."""
    peak = STATIC_MB[rank.stage] + ACTIVATION_MB * min(STAGES - rank.stage, MICROBATCHES)
    reserved = float(2 * round(peak / 2) + 64)
    first, last = busy(rank)[0][0], busy(rank)[-1][1]
    lines = ["Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,Device Type"]
    device = f"NPU:{rank.stage}"
    lines += [f"APP,{us(at)}\t,,{reserved + 1536.015625},,,{device}" for at in range(first, last, 20_000_000)]
    allocated, changes = STATIC_MB[rank.stage], [(first, 0.0)]
    for start, item in rank.ran:
        if isinstance(item, Compute) and item.what[0] == "F":
            changes.append((start, ACTIVATION_MB))
        elif isinstance(item, Compute) and item.what[0] == "B":
            changes.append((start + item.duration_ns, -ACTIVATION_MB))
    for at, change in changes:
        allocated += change
        both = [f"{part},{us(at)}\t,{allocated},{reserved},{allocated},2,{device}" for part in ("PTA", "PTA+GE")]
        lines += both
    return "\n".join(lines) + "\n"


def profiler_info(rank: Rank) -> str:
    end = busy(rank)[-1][1]
    about = {
        "config": {
            "common_config": {
                "activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"],
                "schedule": {"wait": 0, "active": 1, "warmup": 1, "repeat": 1, "skip_first": STEP - 1},
                "record_shapes": True,
                "profile_memory": True,
            },
            "experimental_config": {"_profiler_level": "Level1", "_export_type": ["text"]},
        },
        "start_info": {
            "syscnt_enable": True,
            "freq": 100,
            "start_cnt": 100_000_000,
            "start_monotonic": 10**9,
        },
        "end_info": {"collectionTimeEnd": end + 10**6, "MonotonicTimeEnd": 2 * 10**9},
        "torch_npu_version": "2.7.1",
        "cann_version": "8.3.RC1",
        "rank_id": str(rank.stage),
    }
    return json.dumps(about, indent=4)


def profiler_metadata(rank: Rank) -> str:
    everyone = list(range(STAGES))
    groups = [("group_name_0", "default_group", everyone), (MP, "mp", everyone), (PP, "pp", everyone)]
    groups += [(f"group_name_{10 + rank.stage}", "tp", [rank.stage])]
    about = {
        "distributed_args": {
            "tensor_model_parallel_size": 1,
            "pipeline_model_parallel_size": STAGES,
            "data_parallel_size": 1,
            "context_parallel_size": 1,
            "expert_model_parallel_size": 1,
            "sequence_parallel": False,
            "rank": rank.stage,
            "world_size": STAGES,
        },
        "parallel_group_info": {
            name: {"group_name": use, "group_rank": ranks.index(rank.stage), "global_ranks": ranks}
            for name, use, ranks in groups
        },
    }
    return json.dumps(about)


def table(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def main(folder: Path) -> None:
    dice = random.Random(20251)
    ranks = simulate()
    for rank in ranks:
        root = folder / f"rank_{rank.stage}_ascend_pt"
        rows = kernel_rows(rank, dice)
        texts = {
            f"profiler_info_{rank.stage}.json": profiler_info(rank),
            "profiler_metadata.json": profiler_metadata(rank),
            "ASCEND_PROFILER_OUTPUT/kernel_details.csv": table([HEADER, *rows]),
            "ASCEND_PROFILER_OUTPUT/communication.json": json.dumps(communication(rank)),
            "ASCEND_PROFILER_OUTPUT/communication_matrix.json": json.dumps(matrix(rank)),
            "ASCEND_PROFILER_OUTPUT/step_trace_time.csv": step_trace(rank, rows),
            "ASCEND_PROFILER_OUTPUT/memory_record.csv": memory_record(rank),
        }
        for name, text in texts.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(text.encode())
    window, step = known_times(ranks)
    (folder / "README.md").write_bytes(readme(window, step).encode())
    print(f"{folder}: pipeline window {window:,} ns, step {step:,} ns")


def readme(window: int, step: int) -> str:
    stages = "\n".join(
        f"| {stage} | {stage} | {FORWARD_NS[stage] / 1e6} | {BACKWARD_NS[stage] / 1e6} |" for stage in range(STAGES)
    )
    static = ", ".join(map(str, STATIC_MB))
    return f"""# ascend-1f1b

**Synthetic**: written by `../make_ascend_sample.py` (same bytes each time), not a recording. The files have
the names, columns and quirks of torch_npu's text output of November 2025; every number in them is simulated.

| what | value |
|---|---|
| shape | 4 pipeline stages, 1 rank each, 4 microbatches, 1 step (number {STEP}), 1F1B as Megatron orders it |
| point-to-point | one `hcom_batchSendRecv__` per call; a send forward and its receive backward share one |
| message | {PAYLOAD_BYTES:,} bytes at 20.9 GB/s: {TRANSFER_NS:,} ns |
| pipeline window | {window:,} ns, from the start of the first forward to the end of the last backward |
| step | {step:,} ns, from the start of the first kernel to the end of the last kernel on any rank |
| memory | {ACTIVATION_MB} MB per microbatch in flight, over {static} MB on stages 0 to 3 |
| clocks | all ranks share one |

| stage | rank | forward, ms | backward, ms |
|---|---|---|---|
{stages}

On the middle stages the matrix keeps the local copy of five operations only, as the real exporter does: for
the others, whether they also send has to be found otherwise.
"""


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "ascend-1f1b")
