"""A user's script: mypy checks it strictly with the tests, and one of them runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

import tracetool as tt


def best_step_ns(found: tt.Reconstruction, link: str) -> int:
    """The shortest step of two schedules over a link."""
    scenario: tt.Scenario = tt.scenario(found, dc="0-1,2-3", link=[link], hbm="80GiB", p2p="per-edge")
    answer: tt.Answer = tt.answer(found, ["1f1b", "geopipe"], scenario)
    results: tuple[tt.Result, ...] = answer.results
    frame: pl.DataFrame = tt.to_polars(answer)["results"]
    shortest = min(result.metrics.step_ns for result in results)
    assert frame.filter(pl.col("role") == "result")["step_ns"].min() == shortest
    return shortest


def alone_ns(pipeline: tt.Pipeline) -> int:
    """The step of one order without a scenario."""
    schedule: tt.Schedule = tt.build_schedule("1f1b", pipeline.observed.shape)
    metrics: tt.Metrics = tt.measure(tt.replay(pipeline, schedule).timeline)
    return metrics.step_ns


def main(path: Path) -> None:
    """Print both."""
    try:
        run: tt.Run = tt.open_run(path)
        found = tt.reconstruct(run)
        sys.stdout.write(f"{best_step_ns(found, 'dc0-dc1=25Gbit/s,10ms')} {alone_ns(found.pipeline)}\n")
    except tt.TraceToolError as error:
        sys.exit(f"{error.message} {error.hint}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
