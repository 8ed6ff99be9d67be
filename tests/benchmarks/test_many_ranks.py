"""What a job of many equal pipelines costs, per rank and per question.

Run with: pytest -n0 -s --benchmark-enable tests/benchmarks/test_many_ranks.py
The traces are the sample's under other rank numbers, and made ones. Figures are processor time of commands, start of
the interpreter included, beside those of the smallest job of the same run. ``TRACETOOL_BENCH_PIPELINES`` says how many
pipelines of four ranks. What is only to show that it runs does so in the tests' own process, but for the first command.
Nothing here asserts a time.
"""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from helpers.made_job import MadeJob
from helpers.made_traces import write_job
from helpers.recorded import SAMPLES
from helpers.renumbered import write_renumbered

from tracetool.cli import run as run_here
from tracetool.model.schedule import PipelineShape
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from pathlib import Path

PIPELINES = [int(count) for count in os.environ.get("TRACETOOL_BENCH_PIPELINES", "1,4,16,64,256").split(",")]
_RUN = """
import resource, sys
from multiprocessing.forkserver import _forkserver
from pathlib import Path
from tracetool.cli import main
try:
    main(sys.argv[1:])  # as the command starts, which leaves pandas and looks for cycles seldom
except SystemExit as end:
    code = end.code
_forkserver._stop()  # what its workers took counts once it was waited for
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
peak = int(dict(l.split(":", 1) for l in Path("/proc/self/status").read_text().splitlines())["VmHWM"].split()[0])
print(code, sum(each.ru_utime + each.ru_stime for each in used), peak >> 10)
"""


class Cost(NamedTuple):
    """Processor time and peak memory of a command."""

    cpu_s: float
    peak_mb: int


def _cost(*arguments: object, alone: bool = True) -> Cost:
    """Of a command in a process of its own, or in this one, whose peak is that of all it ever did."""
    if not alone:
        before_s = time.process_time()
        assert run_here([*map(str, arguments)]) == 0
        return Cost(time.process_time() - before_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
    command = [sys.executable, "-c", _RUN, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, cpu_s, peak_mb = done.stdout.split()[-3:]
    assert code == "0", done.stderr
    return Cost(float(cpu_s), int(peak_mb))


def _costs(folder: Path, pipelines: int, *, large: bool) -> dict[str, Cost]:
    """Of each question, by its name; where it is large, also of reading in two worker processes."""
    traces = write_renumbered(SAMPLES / "h100-1f1b", folder / str(pipelines), pipelines)
    run = folder / f"{pipelines}.run"
    return {
        "ingest": _cost("ingest", traces, "-o", run, "--jobs", "1", "-q"),
        **(
            {"ingest, 2 workers": _cost("ingest", traces, "-o", folder / "two.run", "--jobs", "2", "-q", "--force")}
            if large
            else {}
        ),
        "replay": _cost("replay", run, "--schedule", "geopipe", "-q", alone=large),
        "replay of the last": _cost(
            "replay", run, "--schedule", "geopipe", "--pipeline", pipelines - 1, "-q", alone=large
        ),
        "info": _cost("info", run, "-q", alone=large),
        "sql step_breakdown": _cost("sql", run, "step_breakdown", alone=large),
    }


def _files(run: Path) -> int:
    return sum(1 for _ in run.rglob("*.parquet"))


@pytest.mark.parametrize("counts", [PIPELINES[:1], pytest.param(PIPELINES, marks=pytest.mark.large)])
def test_questions_of_jobs_of_many_ranks(counts: list[int], tmp_path: Path) -> None:
    first: dict[str, Cost] = {}
    large = len(counts) > 1
    for count in counts:
        costs = _costs(tmp_path, count, large=large)
        first = first or costs
        print(f"\n{4 * count} ranks, {_files(tmp_path / f'{count}.run')} files")  # noqa: T201 - a benchmark's purpose
        for name, cost in costs.items():
            growth = ""
            if count > counts[0]:
                exponent = math.log(cost.cpu_s / first[name].cpu_s) / math.log(count / counts[0])
                per_rank = cost.cpu_s / first[name].cpu_s * counts[0] / count
                growth = f"  {per_rank:5.2f} of the first per rank, grows with the ranks to the {exponent:.2f}"
            print(f"  {name:<20}{cost.cpu_s:8.2f} s  peak {cost.peak_mb:4} MB{growth}")  # noqa: T201
            assert cost.peak_mb < 600 or not (large or name == "ingest")


@pytest.mark.parametrize(
    ("stages", "microbatches"), [(2, 4), *(pytest.param(64, m, marks=pytest.mark.large) for m in (128, 512))]
)
def test_one_deep_pipeline_from_traces_to_replays(stages: int, microbatches: int, tmp_path: Path) -> None:
    """Two stages per rank, collectives inside its actions; of each pair of ranks that meet in them one is recorded."""
    schedule = build_schedule("interleaved", PipelineShape(stages, microbatches, chunks=2))
    orders = [[(a.stage, a.kind.value, a.microbatch) for a in order] for order in schedule.orders]
    job = MadeJob(
        pp=stages, tp=2, chunks=2, microbatches=microbatches, layers=1, order=orders.__getitem__, jitter_ratio=0.003
    )
    write_job(tmp_path / "traces", job, ranks=range(0, job.world, 2))
    run, large = tmp_path / "x.run", stages > 2
    _show(f"p={stages} m={microbatches} v=2", {
        "ingest": _cost("ingest", tmp_path / "traces", "-o", run, "--jobs", "1", "-q", alone=large),
        "replay of 3 schedules": _cost(
            "replay", run, "--schedule", "observed,interleaved,looped-bfs", "-q", alone=large
        ),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "tp", "replicas", "steps"), [(2, 1, 2, 2), pytest.param(4, 2, 16, 40, marks=pytest.mark.large)]
)
def test_equalizing_a_job_of_many_pipelines(stages: int, tp: int, replicas: int, steps: int, tmp_path: Path) -> None:
    """Of 4 ranks, or of 128 with 40 steps; one of them is slow."""
    job = MadeJob(
        pp=stages, dp=replicas, tp=tp, microbatches=2 * stages, steps=steps, layers=1, jitter_ratio=0.01, slow={3: 1.2}
    )
    write_job(tmp_path / "traces", job)
    run, large = tmp_path / "x.run", stages > 2
    _show(f"{job.world} ranks, {steps} steps", {
        "ingest": _cost("ingest", tmp_path / "traces", "-o", run, "--jobs", "1", "-q", alone=large),
        "replay --equalize": _cost("replay", run, "--equalize", "-q", alone=large),
    })  # fmt: skip


def _show(what: str, costs: dict[str, Cost]) -> None:
    print(f"\n{what}")  # noqa: T201 - a benchmark's purpose
    for name, cost in costs.items():
        print(f"  {name:<22}{cost.cpu_s:8.2f} s  peak {cost.peak_mb:4} MB")  # noqa: T201
