"""Steps that are read together: each question is asked once for all, and says of each what it says of it alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from helpers.made_job import MadeJob
from helpers.made_traces import write_job
from helpers.recorded import run_of
from helpers.thorough import spread

from tracetool.ingestion import ingest
from tracetool.readers import rows_table
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.actions.kernels import autograd_kernels
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.steps import Step
from tracetool.reconstruction.steps.reading import StepEvidence, StepReading
from tracetool.store.query import Lens
from tracetool.store.run import Run, RunWriter
from tracetool.stragglers import measured
from tracetool.stragglers.measured import job_steps
from tracetool.tables.run import EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

JOB = MadeJob(pp=2, dp=2, microbatches=2, steps=3, jitter_ratio=0.02, seed=4, clocks_ns={1: 3_000_000, 2: -1_000_000})
STEPS = [Step(n, {rank: (1000 * n + 100 * rank, 1000 * (n + 1) + 100 * rank) for rank in (0, 1)}) for n in range(2)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("made")
    write_job(folder, JOB)
    return run_of(folder)


def _events(random: Random, rank: int) -> list[dict[str, Any]]:
    """Nodes and ops at any times on two threads, nested or not, and kernels launched meanwhile."""
    events: list[dict[str, Any]] = []
    for at in random.sample(range(2200), 90):
        kind = random.choice(("node", "node", "op", "kernel", "kernel"))
        event = {"rank": rank, "start_ns": at, "duration_ns": random.choice((0, 60, 200, 400)), "category": "op"}
        host = {"thread": random.randrange(2), "external_id": len(events)}
        number = {"sequence_number": at} if random.random() < 0.8 else {}
        if kind == "kernel":
            launch = {"correlation": at, "category": "launch", "name": "cudaLaunchKernel"}
            kernel = {"correlation": at, "category": "kernel", "name": "mm", "stream": 7}
            events += [event | host | launch, event | kernel | {"external_id": random.randrange(len(events) + 1)}]
        elif kind == "node":
            events.append(event | host | number | {"name": "autograd::engine::evaluate_function: MmBackward0"})
        else:
            events.append(event | host | number | {"name": "aten::mm"})
    return [{"event": n} | event for n, event in enumerate(events)]


def _run_of(path: Path, events: list[dict[str, Any]]) -> Run:
    rows = [tuple(event.get(column.name) for column in EVENTS.columns) for event in events]
    with RunWriter(path) as writer:
        writer.commit({"digest": "x", "world_size": 2}, {"events": rows_table("events", rows)})
    return Run(path)


def _around(events: list[dict[str, Any]], launch: dict[str, Any], what: str) -> list[dict[str, Any]]:
    """Ops of a kind around a launch, from the outermost to the innermost, each compared with it by itself."""
    same = (
        e for e in events if e["category"] == "op" and (e["rank"], e["thread"]) == (launch["rank"], launch["thread"])
    )
    at = launch["start_ns"]
    around = [e for e in same if e["start_ns"] <= at <= e["start_ns"] + e["duration_ns"]]
    of_kind = [e for e in around if e["name"].startswith("autograd") or what == "numbered"]
    return sorted((e for e in of_kind if what == "nodes" or "sequence_number" in e), key=lambda e: e["start_ns"])


@spread("seed", range(4), 2)
def test_what_is_around_launches_is_found_wherever_it_nests(seed: int, tmp_path: Path) -> None:
    """Each launch is compared with every op, which the query does only within what overlaps."""
    random = Random(seed)  # noqa: S311 - no secret
    events = [event for rank in (0, 1) for event in _events(random, rank)]
    launches = {(e["rank"], e["correlation"]): e for e in events if e["category"] == "launch"}
    numbers = {(e["rank"], e["external_id"]): e.get("sequence_number") for e in events if e["category"] == "op"}
    reading = StepReading(_run_of(tmp_path / "x", events), STEPS, (0, 1), StepEvidence(True, True, False, False))
    seen = nested = 0
    for step in STEPS:
        for rank in (0, 1):
            first, last = step.spans[rank]
            kernels = autograd_kernels(reading, rank, step.spans[rank])
            mine = [e for e in events if e["rank"] == rank and e["category"] == "kernel"]
            expected = sorted((e for e in mine if first <= e["start_ns"] < last), key=lambda e: e["start_ns"])
            assert [k.event for k in kernels] == [e["event"] for e in expected]
            for kernel, event in zip(kernels, expected, strict=True):
                launch = launches[rank, event["correlation"]]
                nodes, numbered = (_around(events, launch, what) for what in ("nodes", "numbered"))
                ends = (nodes[0]["event"], nodes[-1]["event"]) if nodes else (None, None)
                assert (kernel.root_node, kernel.node, kernel.in_backward) == (*ends, bool(nodes))
                own = numbers.get((rank, event["external_id"]))
                beyond = numbered[-1]["sequence_number"] if numbered and not nodes else None
                assert kernel.sequence_number == (beyond if own is None else own)
                seen += 1
                nested += len(nodes) > 1
    assert seen > 40
    assert nested > 3


def test_costs_of_steps_that_are_read_together_are_those_of_each_by_itself(made: Run) -> None:
    together = job_steps(made, None, Account())
    assert [step.number for step in together] == list(range(JOB.steps))
    for step in together:
        for number, pipeline in enumerate(step.pipelines):
            alone = reconstruct(made, step=step.number, pipeline=number).pipeline
            assert pipeline.observed == alone.observed
            assert (pipeline.p2p, pipeline.buffered) == (alone.p2p, alone.buffered)
            for one, other in zip(pipeline.stages, alone.stages, strict=True):
                assert {kind: [c.duration_ns for c in costs] for kind, costs in one.costs.items()} == {
                    kind: [c.duration_ns for c in costs] for kind, costs in other.costs.items()
                }
                assert one.forward_transfer_ns == other.forward_transfer_ns
                assert one.backward_transfer_ns == other.backward_transfer_ns


def test_more_steps_ask_no_more_questions(made: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_job(tmp_path / "few", replace(JOB, steps=2))
    few = ingest([tmp_path / "few"], tmp_path / "few.run")
    asked: Counter[str] = Counter()
    for name in ("rows", "columns", "arrow"):
        ask = getattr(Lens, name)

        def counted(lens: Lens, sql: str, *rest: Any, ask: Callable[..., Any] = ask) -> Any:
            asked[sql] += 1
            return ask(lens, sql, *rest)

        monkeypatch.setattr(Lens, name, counted)
    monkeypatch.setattr(measured, "reconstruct", reconstruct)  # not what was worked out before in this run of the tests
    counts: list[dict[str, int]] = []
    for run in (few, Run(made.path)):
        asked.clear()
        job_steps(run, None, Account())
        counts.append(dict(asked))
    assert counts[0] == counts[1]
