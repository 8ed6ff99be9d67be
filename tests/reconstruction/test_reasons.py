"""What is given as the reason is what was taken out of a sound trace, not where its lack was first met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from helpers.small_pipeline import Job, traces, write

from tracetool.errors import ReconstructError
from tracetool.ingestion import ingest
from tracetool.reconstruction import reconstruct

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Event = dict[str, Any]
JOB = Job(3, steps=(4, 4))


def _is(category: str) -> Callable[[Event], bool]:
    return lambda event: event["cat"] == category


def _named(start: str) -> Callable[[Event], bool]:
    return lambda event: event["name"].startswith(start)


def _as_graphs(event: Event) -> Event:
    return {**event, "name": "cudaGraphLaunch"} if event["name"] == "cudaLaunchKernel" else event


def _doubled(event: Event) -> Event:
    if event["args"].get("Collective name") != "recv":
        return event
    return {**event, "args": {**event["args"], "In msg nelems": 2 * event["args"]["In msg nelems"]}}


def _early(events: list[Event]) -> list[Event]:
    first, last = min(e["ts"] for e in events), max(e["ts"] for e in events)
    return [event for event in events if event["ts"] < first + 0.4 * (last - first)]


def _without(*which: Callable[[Event], bool]) -> Callable[[list[Event]], list[Event]]:
    return lambda events: [event for event in events if not any(one(event) for one in which)]


def _is_op(event: Event) -> bool:
    return event["cat"] == "cpu_op" and not event["name"].startswith("record_param")


def _no_marks(events: list[Event]) -> list[Event]:
    return _without(_named("ProfilerStep"))(events)


SPOILED: dict[str, tuple[list[int], Callable[[list[Event]], list[Event]], str]] = {
    "no host": ([1], _without(_is("cpu_op"), _is("cuda_runtime"), _is("user_annotation")),
                "no ops of the host were recorded on rank 1"),
    "no host anywhere": ([0, 1, 2], _without(_is("cpu_op"), _is("cuda_runtime")),
                         "no ops of the host were recorded on ranks 0-2"),
    "no records": ([1], _without(_named("record_param_comms")),
                   r"16 communication kernels on rank 1 have no record of the host"),
    "no launches": ([2], _without(_is("cuda_runtime")), r"no launches of kernels \(cuda_runtime\) .* on rank 2"),
    "no nodes": ([1], _without(_named("autograd")), "no autograd node was recorded on rank 1, as on the other ranks"),
    "graphs": ([0, 1, 2], lambda events: [_as_graphs(e) for e in events if not _is_op(e)],
               "kernels on ranks 0-2 were launched as CUDA graphs"),
    "lost messages": ([1], _without(lambda e: e["cat"] == "kernel" and e["name"].startswith("nccl")),
                      "kernels are missing: launches without one are 16 of 57 on rank 1"),
    "lost computes": ([2], _without(lambda e: e["cat"] == "kernel" and not e["name"].startswith("nccl")),
                      "kernels are missing: launches without one are 41 of 49 on rank 2"),
    "ends early": ([1], _early, "the trace ends inside the step: nothing is recorded of its last .* on rank 1"),
    "no marks": ([1], _no_marks, "no step is marked on rank 1"),
    "sizes": ([1], lambda events: [_doubled(e) for e in events],
              "sends messages of 2,097,152 bytes to rank 1, which receives such of 4,194,304 bytes"),
    "another run": ([1], lambda _: traces(Job(3, steps=(6, 6)))[1]["traceEvents"],
                    "rank 0 sends 4 messages to rank 1, which receives 6 in it"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_the_reason_is_the_cause(tmp_path: Path, name: str) -> None:
    ranks, spoil, reason = SPOILED[name]

    def change(rank: int, trace: dict[str, Any]) -> None:
        if rank in ranks:
            trace["traceEvents"] = spoil(trace["traceEvents"])

    run = ingest([write(tmp_path / "traces", JOB, change)], tmp_path / "x.run")
    with pytest.raises(ReconstructError, match=reason) as raised:
        reconstruct(run)
    assert raised.value.hint
