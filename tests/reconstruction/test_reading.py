"""Steps that are read together: each question is asked once for all, and says of each what it says of it alone."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from helpers.made_job import MadeJob
from helpers.made_traces import write_job
from helpers.recorded import run_of
from helpers.thorough import drawn, spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool.ingestion import ingest
from tracetool.readers import rows_table
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.actions.around import begun_last, holding
from tracetool.reconstruction.actions.kernels import autograd_kernels, host_kernels, nodes_that_ran
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.steps import Step
from tracetool.reconstruction.steps.reading import StepEvidence, StepReading
from tracetool.store.query import Lens
from tracetool.store.run import Run, RunWriter
from tracetool.stragglers import measured
from tracetool.stragglers.measured import job_steps
from tracetool.tables.run import COMMS, EVENTS

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


class _Made(NamedTuple):
    """Events of ranks, and their records of communication."""

    events: list[dict[str, Any]]
    comms: list[dict[str, Any]]


def _made_of(random: Random, rank: int) -> _Made:
    """Nodes, ops and annotations at any times on two threads, nested or not, and kernels launched meanwhile."""
    events: list[dict[str, Any]] = []
    comms: list[dict[str, Any]] = []
    for at in random.sample(range(2200), 120):
        kind = random.choice(("node", "node", "op", "kernel", "kernel", "kernel", "annotation"))
        event = {"rank": rank, "start_ns": at, "duration_ns": random.choice((0, 60, 200, 400)), "category": "op"}
        host = {"thread": random.randrange(2), "external_id": random.randrange(40)}
        number = {"sequence_number": at} if random.random() < 0.8 else {}
        if kind == "kernel":
            launch = {"correlation": at, "category": "launch", "name": "cudaLaunchKernel"}
            category, name = random.choice((("kernel", "mm"), ("kernel", "ncclDevKernel_X"), ("memcpy", "Memcpy DtoD")))
            kernel = {"correlation": at, "category": category, "name": name, "stream": random.choice((7, 8, 20))}
            events += [event | host | launch, event | kernel | {"external_id": random.randrange(40)}]
            if random.random() < 0.5:
                operation = random.choice(("send", "recv", "barrier", "allreduce"))
                comms.append(_record(rank, at, operation, len(comms), random.choice((7, 8, 20))))
        elif kind == "node":
            events.append(event | host | number | {"name": "autograd::engine::evaluate_function: MmBackward0"})
        elif kind == "op":
            events.append(event | host | number | {"name": f"aten::mm{at}"})
        else:
            name = random.choice((f"PP:0F{at}", f"Backward {at}", "Optimizer.step#AdamW.step", "PP:warm", "else"))
            events.append(event | {"category": "annotation", "name": name, "thread": random.randrange(2)})
    return _Made([{"event": n} | event for n, event in enumerate(events)], comms)


def _record(rank: int, at: int, operation: str, position: int, stream: int) -> dict[str, Any]:
    return {
        "rank": rank, "position": position, "operation": operation, "group": "0", "group_ranks": [0, 1],
        "posted_ns": at, "start_ns": at, "end_ns": at + 9, "stream": stream, "evidence": "metadata",
    }  # fmt: skip


def _run_of(path: Path, made: _Made) -> Run:
    tables = {
        name: rows_table(name, [tuple(row.get(column.name) for column in table.columns) for row in rows])
        for name, table, rows in (("events", EVENTS, made.events), ("comms", COMMS, made.comms))
    }
    with RunWriter(path) as writer:
        writer.commit({"digest": "x", "world_size": 2}, tables)
    return Run(path)


def _around(events: list[dict[str, Any]], launch: dict[str, Any], what: str) -> list[dict[str, Any]]:
    """Ops of a kind around a launch or an op, from the outermost to the innermost, each compared with it by itself."""
    same = (
        e for e in events if e["category"] == "op" and (e["rank"], e["thread"]) == (launch["rank"], launch["thread"])
    )
    at = launch["start_ns"]
    until = at + launch["duration_ns"] if launch["category"] == "op" else at
    around = [e for e in same if e["start_ns"] <= at and until <= e["start_ns"] + e["duration_ns"]]
    of_kind = [e for e in around if e["name"].startswith("autograd") or what == "numbered"]
    return sorted((e for e in of_kind if what == "nodes" or "sequence_number" in e), key=lambda e: e["start_ns"])


def _nodes_of(events: list[dict[str, Any]], launch: dict[str, Any]) -> tuple[int | None, ...]:
    """Outermost and innermost node, and their numbers, of those that have any."""
    nodes = [node["event"] for node in _around(events, launch, "nodes")] or [None]
    all_numbers = [node.get("sequence_number") for node in _around(events, launch, "nodes")]
    numbers = [number for number in all_numbers if number is not None] or [None]
    return nodes[0], nodes[-1], numbers[0], numbers[-1]


def _annotation(events: list[dict[str, Any]], launch: dict[str, Any], names: str) -> str | None:
    """The annotation of such a name that a rank began last before a launch, unless it is over."""
    begun = [
        e for e in events
        if e["category"] == "annotation" and e["rank"] == launch["rank"] and e["start_ns"] <= launch["start_ns"]
        and re.match(names, e["name"])
    ]  # fmt: skip
    last = max(begun, key=lambda e: e["start_ns"], default=None)
    is_over = last is None or last["start_ns"] + last["duration_ns"] < launch["start_ns"]
    return None if last is None or is_over else last["name"]


def _op(events: list[dict[str, Any]], kernel: dict[str, Any]) -> tuple[int | None, str | None]:
    """Number and name that the ops of a kernel's id say first."""
    ops = [e for e in events if e["category"] == "op" and e["rank"] == kernel["rank"]]
    ops = [e for e in ops if e["external_id"] == kernel["external_id"]]
    numbers = [e["sequence_number"] for e in ops if "sequence_number" in e]
    return next(iter(numbers), None), next((e["name"] for e in ops), None)


def _usual(kernels: list[dict[str, Any]]) -> int | None:
    """Stream of most that compute, of the first event's where several have as many."""
    computing = sorted((k for k in kernels if k["name"] == "mm"), key=lambda k: k["event"])
    return next((stream for stream, _ in Counter(k["stream"] for k in computing).most_common(1)), None)


def _moves(made: _Made, kernel: dict[str, Any]) -> tuple[bool, bool, bool]:
    """Whether a kernel is a message, a barrier, a collective."""
    same = [c for c in made.comms if all(c[name] == kernel[name] for name in ("rank", "stream", "start_ns"))]
    operations = {c["operation"] for c in same}
    is_p2p, is_barrier = bool(operations & {"send", "recv"}), "barrier" in operations
    return is_p2p, is_barrier, kernel["name"].startswith("nccl") and not (is_p2p or is_barrier)


_LABELS = r"PP:\d|Backward \d"


def _looked_through(path: Path, seed: int) -> tuple[_Made, StepReading]:
    random = Random(seed)  # noqa: S311 - no secret
    parts = [_made_of(random, rank) for rank in (0, 1)]
    made = _Made([e for part in parts for e in part.events], [c for part in parts for c in part.comms])
    evidence = StepEvidence(True, True, False, False)
    return made, StepReading(_run_of(path, made), STEPS, (0, 1), evidence)


@spread("seed", range(6), 2)
def test_what_is_around_launches_is_found_wherever_it_nests(seed: int, tmp_path: Path) -> None:
    """Each launch is compared with everything by itself, one by one."""
    made, reading = _looked_through(tmp_path / "x", seed)
    events = made.events
    launches = {(e["rank"], e["correlation"]): e for e in events if e["category"] == "launch"}
    count: Counter[str] = Counter()
    for step, rank in product(STEPS, (0, 1)):
        first, last = step.spans[rank]
        kernels = autograd_kernels(reading, rank, step.spans[rank])
        mine = [e for e in events if e["rank"] == rank and e["category"] in ("kernel", "memcpy")]
        expected = sorted((e for e in mine if first <= e["start_ns"] < last), key=lambda e: e["start_ns"])
        assert [k.event for k in kernels] == [e["event"] for e in expected]
        usual = _usual(expected)
        for kernel, event in zip(kernels, expected, strict=True):
            launch = launches[rank, event["correlation"]]
            nodes = _nodes_of(events, launch)
            assert (kernel.root_node, kernel.node, kernel.root_of, kernel.backward_of) == nodes
            assert kernel.in_backward == (nodes[0] is not None)
            own, name = _op(events, event)
            numbered = _around(events, launch, "numbered")
            beyond = numbered[-1]["sequence_number"] if numbered and not kernel.in_backward else None
            assert kernel.sequence_number == (beyond if own is None else own)
            assert (kernel.op, kernel.op_name) == (event["external_id"], name)
            assert kernel.label == _annotation(events, launch, _LABELS)
            assert kernel.is_optimizer == (_annotation(events, launch, r"Optimizer\.step") is not None)
            assert (kernel.is_p2p, kernel.is_barrier, kernel.is_collective) == _moves(made, event)
            assert kernel.is_compute == (event["category"] != "memcpy" and event["stream"] == usual)
            count["kernels"] += 1
            count["nested"] += nodes[0] != nodes[1]
            count["functions"] += own is None and beyond is not None
            count.update(f"is {what}" for what in ("p2p", "barrier", "compute") if getattr(kernel, f"is_{what}"))
            count["labelled"] += kernel.label is not None
            count["optimizing"] += kernel.is_optimizer
    assert count["kernels"] > 60
    assert min(count.values()) > 1, count


@spread("seed", range(6), 2)
def test_ops_of_a_host_are_looked_through_like_kernels(seed: int, tmp_path: Path) -> None:
    made, reading = _looked_through(tmp_path / "x", seed)
    nested = 0
    for step, rank in product(STEPS, (0, 1)):
        first, last = step.spans[rank]
        ops = [e for e in made.events if e["rank"] == rank and e["name"].startswith("aten::")]
        expected = sorted((e for e in ops if first <= e["start_ns"] < last), key=lambda e: e["start_ns"])
        kernels = host_kernels(reading, rank, step.spans[rank])
        assert [k.event for k in kernels] == [e["event"] for e in expected]
        for kernel, event in zip(kernels, expected, strict=True):
            nodes = _nodes_of(made.events, event)
            assert (kernel.root_node, kernel.node, kernel.root_of, kernel.backward_of) == nodes
            assert kernel.sequence_number == event.get("sequence_number")
            assert kernel.label == _annotation(made.events, event, _LABELS)
            assert kernel.is_compute
            nested += nodes[0] is not None
        ran = {e.get("sequence_number") for e in _nodes_within(made.events, rank, step.spans[rank])} - {None}
        assert nodes_that_ran(reading, rank, step.spans[rank]) == ran
    assert nested > 2


def _nodes_within(events: list[dict[str, Any]], rank: int, span: tuple[int, int]) -> list[dict[str, Any]]:
    nodes = [e for e in events if e["rank"] == rank and e["name"].startswith("autograd")]
    return [e for e in nodes if span[0] <= e["start_ns"] < span[1]]


_SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=12)


@drawn(200)
@given(_SPANS, _SPANS)
def test_of_spans_that_begin_together_the_longer_is_around_the_other(
    spans: list[tuple[int, int]], moments: list[tuple[int, int]]
) -> None:
    """Small numbers, so that most spans share ends; each moment is compared with every span."""
    starts, ends = (np.array(column, np.int64) for column in ([s for s, _ in spans], [s + d for s, d in spans]))
    at, until = (np.array(column, np.int64) for column in ([s for s, _ in moments], [s + d // 3 for s, d in moments]))
    events = np.arange(len(spans))[::-1].copy()
    inner, outer = holding(starts, ends, events, at, until)
    last = begun_last(starts, ends, events, at)
    for n, (begin, end) in enumerate(zip(at.tolist(), until.tolist(), strict=True)):
        held = [(s, -s - d, e) for (s, d), e in zip(spans, events.tolist(), strict=True) if s <= begin and end <= s + d]
        innermost = max(held, key=lambda span: (*span[:2], -span[2]), default=None)
        assert (None if innermost is None else innermost[2]) == (None if inner[n] < 0 else events[inner[n]])
        assert (min(held)[2] if held else None) == (None if outer[n] < 0 else events[outer[n]])
        begun = [(s, -e, s + d) for (s, d), e in zip(spans, events.tolist(), strict=True) if s <= begin]
        counts = begun and max(begun)[2] >= begin
        assert (-max(begun)[1] if counts else None) == (None if last[n] < 0 else events[last[n]])


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
