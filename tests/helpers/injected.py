"""Real recordings made slower on purpose: as they would have been recorded, had one thing been different.

The recording's own pipeline is replayed as it was and with the change; every rank's events are then moved by what that
moved the action they belong to, in between in proportion, and every message ends as much later as it did in replay. So
kernels of a slower action are stretched, waits grow where others wait, and everything a reader sees stays consistent.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracetool.model.scenario import Scenario
from tracetool.model.timeline import RankOp, measure
from tracetool.replays import replay
from tracetool.store.run import Run, RunWriter
from tracetool.tables.run import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.timeline import Timeline
    from tracetool.reconstruction.recorded_step import RecordedStep

_TIMES = {
    "events": (("start_ns", "duration_ns"),),
    "comms": (("posted_ns", None), ("start_ns", None), ("end_ns", None)),
    "steps": (("start_ns", None), ("end_ns", None)),
    "memory": (("time_ns", None),),
}
_GIVEN = ("sources", "problems", "ranks", "groups", "steps", "events", "comms", "memory", "vendor_figures")


def slower(stages: Mapping[int, str], ratio: float) -> Callable[[Pipeline], Pipeline]:
    """Actions of some stages and kinds (``{2: "B"}``, ``{1: "FB"}``) so many times as long."""

    def change(pipeline: Pipeline) -> Pipeline:
        changed = []
        for stage in pipeline.stages:
            costs = {
                kind: tuple(replace(c, duration_ns=round(c.duration_ns * ratio)) for c in of_kind)
                if kind.value in stages.get(stage.stage, "")
                else of_kind
                for kind, of_kind in stage.costs.items()
            }
            changed.append(replace(stage, costs=costs))
        return replace(pipeline, stages=tuple(changed))

    return change


def later(stage: int, more_ns: int, ratio: float = 1.0) -> Callable[[Pipeline], Pipeline]:
    """Messages between a stage and the next one, both ways, that take so much longer, or so many times as long."""

    def change(pipeline: Pipeline) -> Pipeline:
        stages = list(pipeline.stages)
        up, down = stages[stage], stages[stage + 1]
        stages[stage] = replace(up, forward_transfer_ns=round(up.forward_transfer_ns * ratio) + more_ns)
        stages[stage + 1] = replace(down, backward_transfer_ns=round(down.backward_transfer_ns * ratio) + more_ns)
        return replace(pipeline, stages=tuple(stages))

    return change


def injected(run: Run, looks: Sequence[RecordedStep], change: Callable[[Pipeline], Pipeline], path: Path) -> Run:
    """The first pipeline of a recording with a change, as a Run of its own; what is derived is left out.

    Args:
        run: The recording.
        looks: Its steps that are changed, in order of time; the Run holds no others.
        change: What is different.
        path: Folder to make.
    """
    anchors: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ends: dict[tuple[int, int], int] = {}
    grown = 0
    for look in looks:
        pipeline = look.pipeline
        before, after = (_replayed(each) for each in (pipeline, change(pipeline)))
        moved = {
            (o.stage, o.kind, o.microbatch): (a.start_ns - o.start_ns, a.end_ns - o.end_ns)
            for o, a in zip(before.computes(), after.computes(), strict=True)
        }
        tails = [[op for op in side.ops if isinstance(op, RankOp)] for side in (before, after)]
        for position, rank in enumerate(before.global_ranks):
            anchors[rank].append((look.step.spans[rank][0], grown))
            for s in look.work.ranks[rank].segments:
                start, end = moved[s.stage, s.kind, s.microbatch]
                anchors[rank] += [(s.start_ns, grown + start), (s.end_ns, grown + end)]
            # What follows moves as its last part does.
            last = [max((o.end_ns for o in side if o.rank == position), default=0) for side in tails]
            at = look.work.ranks[rank].segments[-1].end_ns + sum(p.duration_ns for p in look.work.ranks[rank].tail)
            if last[0]:
                anchors[rank].append((at, grown + last[1] - last[0]))
        # A send ends when its receive does: neither is buffered in these recordings.
        sides = [
            {(t.kind, t.microbatch, t.src_stage, True): t.end_ns for t in side.transfers}
            | {(t.kind, t.microbatch, t.dst_stage, False): t.end_ns for t in side.transfers}
            for side in (before, after)
        ]
        for rank, ops in look.p2p_ops.items():
            for op in ops:
                key = (op.kind, op.microbatch, op.stage, op.op.is_send)
                ends[rank, op.op.position] = grown + sides[1][key] - sides[0][key]
        grown += measure(after).step_ns - measure(before).step_ns
        # Ranks meet in collectives after a step: all of them as much later.
        for rank, at in run.rows(
            "SELECT rank, end_ns FROM comms WHERE operation NOT IN ('send', 'recv') AND end_ns IS NOT NULL"
        ):
            if rank in anchors and anchors[rank][-1][0] < at < look.step.start_ns + look.step.duration_ns:
                anchors[rank].append((at, grown))
    return _written(run, [look.step.number for look in looks], anchors, ends, path)


def _replayed(pipeline: Pipeline) -> Timeline:
    return replay(pipeline, pipeline.observed, Scenario(interference=False)).timeline


def _written(
    run: Run,
    steps: list[int],
    anchors: Mapping[int, list[tuple[int, int]]],
    ends: Mapping[tuple[int, int], int],
    path: Path,
) -> Run:
    tables = {name: run.query(f"SELECT * FROM {name}") for name in _GIVEN}
    for name, frame in tables.items():
        if "rank" in frame.columns and name != "vendor_figures":
            tables[name] = frame.filter(pl.col("rank").is_in(list(anchors)) | pl.col("rank").is_null())
    tables["steps"] = tables["steps"].filter(pl.col("step").is_in(steps))
    for name, columns in _TIMES.items():
        frame = tables[name]
        parts = [_moved(name, part, columns, anchors.get(rank, [])) for rank, part in _by_rank(frame)]
        tables[name] = pl.concat(parts) if parts else frame
    comms = tables["comms"]
    recorded = run.query("SELECT rank, position, start_ns AS kernel_ns, end_ns AS recorded_ns FROM comms")
    shifts = pl.DataFrame(
        {"rank": [r for r, _ in ends], "position": [p for _, p in ends], "shift": list(ends.values())},
        schema={"rank": pl.Int32, "position": pl.Int32, "shift": pl.Int64},
    )
    # Operations launched as one kernel end as one: when the last of their receives does.
    kernel = ["rank", "stream", "kernel_ns"]
    arrived = pl.max_horizontal("start_ns", (pl.col("recorded_ns") + pl.col("shift")).max().over(kernel))
    tables["comms"] = (
        comms.join(recorded, on=["rank", "position"], how="left")
        .join(shifts, on=["rank", "position"], how="left")
        .with_columns(
            pl.when(pl.col("shift").max().over(kernel).is_null()).then("end_ns").otherwise(arrived).alias("end_ns")
        )
        .select(comms.columns)
    )
    with RunWriter(path) as writer:
        arrow = {name: frame.to_arrow().cast(TABLES[name].arrow_schema()) for name, frame in tables.items()}
        manifest = {k: v for k, v in run.manifest.items() if k not in ("reconstruction", "schema_version")}
        writer.commit(manifest | {"digest": f"injected {path}"}, arrow)
    return Run(path)


def _by_rank(frame: pl.DataFrame) -> list[tuple[int, pl.DataFrame]]:
    return [(int(str(rank)), part) for (rank,), part in frame.group_by(["rank"], maintain_order=True)]


def _moved(
    name: str, frame: pl.DataFrame, columns: tuple[tuple[str, str | None], ...], points: list[tuple[int, int]]
) -> pl.DataFrame:
    if not points:
        return frame
    points = sorted(points)
    origin = points[0][0]
    old = np.array([at - origin for at, _ in points], float)
    new = np.maximum.accumulate(old + np.array([shift for _, shift in points], float))

    def at(times: np.ndarray) -> np.ndarray:
        inside = np.interp(times, old, new)
        return np.where(times < old[0], times, np.where(times > old[-1], times - old[-1] + new[-1], inside))

    changed = {}
    for start, duration in columns:
        times = (frame[start] - origin).cast(pl.Float64).to_numpy()
        moved = at(times)
        changed[start] = pl.Series(start, np.rint(np.nan_to_num(moved)).astype(np.int64) + origin)
        if duration is not None:
            until = at((frame[start] + frame[duration] - origin).cast(pl.Float64).to_numpy())
            changed[duration] = pl.Series(duration, np.rint(until).astype(np.int64) - np.rint(moved).astype(np.int64))
        if frame[start].null_count():
            changed[start] = (
                pl.select(pl.when(frame[start].is_null()).then(None).otherwise(changed[start])).to_series().alias(start)
            )
    return frame.with_columns(list(changed.values()))
