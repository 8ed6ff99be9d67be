"""Reading speed and memory, beside HolisticTraceAnalysis where it is installed.

Run with: pytest -n0 -s --benchmark-enable tests/benchmarks/test_ingest.py
The large file is made here, of a sample; ``TRACETOOL_BENCH_TRACE`` names another trace to make it of and
``TRACETOOL_HTA_PYTHON`` an interpreter that has HolisticTraceAnalysis (its pandas need not be ours). Rates are
bytes of text per second of processor time, of all processes; the interpreter's start is in neither figure.
Nothing here asserts a time.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.large_trace import write_large_export, write_large_trace
from helpers.nsys_export import How, export
from helpers.recorded import SAMPLES

from tracetool.readers.chrome.compiled import available

SOURCE = Path(os.environ.get("TRACETOOL_BENCH_TRACE", SAMPLES / "h100-1f1b" / "rank0.json.gz"))
LARGE_MB = [int(size) for size in os.environ.get("TRACETOOL_BENCH_MB", "50,200,1000").split(",")]
EXPORT_COPIES = [int(count) for count in os.environ.get("TRACETOOL_BENCH_COPIES", "25,100").split(",")]
HTA_PYTHON = os.environ.get("TRACETOOL_HTA_PYTHON", "")

_OURS = """
import resource, sys, time
from pathlib import Path
from tracetool.ingestion import IngestOptions, ingest
import tracetool.readers.kineto, pyarrow.parquet, pyarrow.compute
def cpu():
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
if __name__ == "__main__":
    start, clock = cpu(), time.perf_counter()
    ingest([Path(sys.argv[1])], sys.argv[2], force=True, options=IngestOptions(jobs=int(sys.argv[3])))
    wall = time.perf_counter() - clock
    # Not ru_maxrss of this process: it survives exec, so it may be that of the tests which started it.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own = int(status["VmHWM"].split()[0])
    print(cpu() - start, wall, max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024)
"""
_HTA = """
import resource, sys, time
from hta.common.trace import Trace
start, clock = time.process_time(), time.perf_counter()
Trace(trace_files={0: sys.argv[1]}, trace_dir="").parse_traces(use_multiprocessing=False)
print(time.process_time() - start, time.perf_counter() - clock, resource.getrusage(0).ru_maxrss / 1024)
"""


class Cost(NamedTuple):
    """What reading took."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def _run(python: str, code: str, *arguments: str, scanner: str = "") -> Cost:
    command = [python, "-c", code, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "TRACETOOL_SCANNER": scanner}
    )
    return Cost(*map(float, done.stdout.split()[-3:]))


def _line(name: str, size: int, cost: Cost, anchor: Cost | None = None) -> str:
    ratio = f"{anchor.cpu_s / cost.cpu_s:5.1f} x HTA" if anchor else ""
    wall = f"{anchor.wall_s / cost.wall_s:5.1f} x by the clock" if anchor else ""
    return f"  {name:<22}{size / cost.cpu_s / 1e6:7.1f} MB/s  peak {cost.peak_mb:6.0f} MB  {ratio} {wall}"


class LargeTraces:
    """Large traces by size, each made once and, as it is, read once by each scanner."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._costs: dict[tuple[int, str], Cost] = {}

    def of(self, size_mb: int) -> Path:
        path = self._folder / f"rank0_{size_mb}.json"
        if not path.exists():
            write_large_trace(SOURCE, path, size_mb << 20)
        return path

    def cost_of(self, size_mb: int, scanner: str) -> Cost:
        if (size_mb, scanner) not in self._costs:
            output = self._folder / "x.run"
            self._costs[size_mb, scanner] = _run(
                sys.executable, _OURS, str(self.of(size_mb)), str(output), "1", scanner=scanner
            )
        return self._costs[size_mb, scanner]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> LargeTraces:
    return LargeTraces(tmp_path_factory.mktemp("large"))


def _sizes(*large_mb: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("size", [1, *(pytest.param(size, marks=pytest.mark.large) for size in large_mb)])


def _scanners(size: int) -> tuple[str, ...]:
    """Both, or the one that is used where the size is only to show that it runs."""
    both = ("plain", "compiled") if available() else ("plain",)
    return both if size > 1 else both[-1:]


@_sizes(*LARGE_MB)
def test_one_file(size: int, traces: LargeTraces) -> None:
    path = traces.of(size)
    count = path.stat().st_size
    anchor = _run(HTA_PYTHON, _HTA, str(path)) if HTA_PYTHON else None
    print(f"\n{path.name}, {count / 1e6:.0f} MB")  # noqa: T201 - a benchmark's purpose
    if anchor:
        print(_line("HTA", count, anchor))  # noqa: T201
    for scanner in _scanners(size):
        cost = traces.cost_of(size, scanner)
        print(_line(scanner, count, cost, anchor))  # noqa: T201
        assert cost.peak_mb < 400, "the memory of reading is bounded, whatever the size of the file"


@_sizes(*LARGE_MB[:2][-1:])
def test_compressed(size: int, traces: LargeTraces, tmp_path: Path) -> None:
    path = traces.of(size)
    zipped = tmp_path / "rank0.json.gz"
    with path.open("rb") as source, gzip.open(zipped, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    count = path.stat().st_size
    print(f"\n{path.name}, plain and gzip")  # noqa: T201
    for scanner in _scanners(size):
        one = traces.cost_of(size, scanner)
        two = _run(sys.executable, _OURS, str(zipped), str(tmp_path / "x.run"), "1", scanner=scanner)
        print(_line(f"{scanner} .gz", count, two), f"{one.cpu_s / two.cpu_s:.2f} of plain text")  # noqa: T201


@_sizes(*LARGE_MB[:1])
def test_eight_ranks_on_two_workers(size: int, traces: LargeTraces, tmp_path: Path) -> None:
    """Two ranks, and no other number of workers, where it is only to show that it runs."""
    smallest, ranks = traces.of(size), 8 if size > 1 else 2
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(ranks):
        text = re.sub(rb'("rank"\s*:\s*)0', rb"\g<1>%d" % rank, smallest.read_bytes(), count=1)
        (folder / f"rank{rank}.json").write_bytes(text)
    count = ranks * smallest.stat().st_size
    print(f"\n{ranks} ranks, {count / 1e6:.0f} MB")  # noqa: T201
    for jobs in ("1", "2") if size > 1 else ("2",):
        cost = _run(sys.executable, _OURS, str(folder), str(tmp_path / "x.run"), jobs)
        print(_line(f"--jobs {jobs}", count, cost), f"{count / cost.wall_s / 1e6:.0f} MB/s by the clock")  # noqa: T201


@pytest.mark.parametrize(
    ("size", "nvtx"),
    [
        (1, "nccl"),
        *(pytest.param(size, nvtx, marks=pytest.mark.large) for size in EXPORT_COPIES for nvtx in ("nccl", "all")),
    ],
)
def test_one_export_of_nsight_systems(size: int, nvtx: str, tmp_path: Path) -> None:
    """Of one rank: kernels a minute and core, with NCCL's ranges alone and with all that ``emit_nvtx`` writes."""
    traces, path = tmp_path / "traces", tmp_path / "large.sqlite"
    traces.mkdir()
    shutil.copy(SOURCE, traces)
    (source,) = export(traces, tmp_path / "exports", How(nvtx=nvtx))
    kernels = write_large_export(source, path, size)

    cost = _run(sys.executable, _OURS, str(path), str(tmp_path / "x.run"), "1")
    rate = 60 * kernels / cost.cpu_s / 1e6
    print(  # noqa: T201
        f"\n{size} x {path.name}, NVTX {nvtx}, {path.stat().st_size / 1e6:.0f} MB: {kernels:,} kernels, "
        f"{rate:.2f} M a minute  peak {cost.peak_mb:.0f} MB"
    )
    assert cost.peak_mb < 400, "the memory of reading is bounded, whatever the size of the file"
