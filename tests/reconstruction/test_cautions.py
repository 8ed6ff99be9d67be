"""What is told of actions' times that hold or lack something, all times chosen by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracetool.model.action import ActionKind
from tracetool.reconstruction.actions import Kernel, RankWork, Segment
from tracetool.reconstruction.actions.cautions import bare_ns, beside_ns

Spans = list[tuple[int, int]]
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda s: (s[0], s[0] + s[1])), max_size=6)


def _work(computes: Spans, collectives: Spans, aside: Spans, copies: Spans) -> RankWork:
    """One action that runs from its first compute kernel to its last one."""
    kernels = [
        *(Kernel(a, b, a, stream=7, name="gemm") for a, b in computes),
        *(Kernel(a, b, a, stream=9, is_collective=True, is_compute=False) for a, b in collectives),
        *(Kernel(a, b, a, stream=8, is_compute=False, name="gemm") for a, b in aside),
        *(Kernel(a, b, a, stream=8, is_compute=False, name="Memcpy DtoD") for a, b in copies),
    ]
    start, end = min(a for a, _ in computes), max(b for _, b in computes)
    return RankWork(
        (
            Segment(
                kind=ActionKind.FORWARD,
                microbatch=0,
                stage=0,
                start_ns=start,
                end_ns=end,
                issue_ns=start,
                issued_ns=end,
                kernels=tuple(kernels),
            ),
        ),
        (),
        "autograd",
    )


def _ticks(spans: Spans) -> set[int]:
    return {tick for start, end in spans for tick in range(start, end)}


@given(SPANS.filter(bool), SPANS, SPANS, SPANS)
def test_both_are_what_counting_every_nanosecond_gives(
    computes: Spans, collectives: Spans, aside: Spans, copies: Spans
) -> None:
    work = _work(computes, collectives, aside, copies)
    action = set(range(min(a for a, _ in computes), max(b for _, b in computes)))
    busy = _ticks(computes) | _ticks(aside) | _ticks(copies)
    assert bare_ns(work) == len(action & _ticks(collectives) - busy)
    assert beside_ns(work) == len(_ticks(aside) - action)
