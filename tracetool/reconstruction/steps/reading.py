"""What a Run holds of some steps: each question is asked once for all ranks and steps that are looked at together."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracetool.reconstruction.capture.survey import Survey
    from tracetool.reconstruction.steps import Step
    from tracetool.store.run import Run

SPANS = """
spans AS (
    SELECT unnest($numbers) AS number, unnest($ranks) AS rank, unnest($firsts) AS first, unnest($lasts) AS last
)
"""
"""Common table expression of the queries of ``StepReading.rows``: the spans that are read."""

FIRST_NS, LAST_NS = (f"${bounds}[list_position($ranks, rank)]" for bounds in ("firsts", "lasts"))
"""Of queries with ``StepReading.windows``: the window of a row's rank, NULL of one that is not asked about."""

Span = tuple[int, int]
T = TypeVar("T")
_NUMBER, _VALUES = itemgetter(0), itemgetter(slice(1, None))
"""Of a row: the number of its span, and what the query was asked for."""


class StepEvidence(NamedTuple):
    """What steps are looked at by.

    Attributes:
        use_labels: Whether labels of the framework may be used.
        has_device: Whether the traces hold a device.
        lists_actions: Whether they list operations by action (NDTimeline, straggler analysis) instead of kernels.
        has_memory: Whether they hold a record of memory.
    """

    use_labels: bool
    has_device: bool
    lists_actions: bool
    has_memory: bool


def step_evidence(survey: Survey, *, use_labels: bool = True) -> StepEvidence:
    """What steps of a surveyed capture are looked at by."""
    return StepEvidence(use_labels, bool(survey.kernels), survey.lists_actions, survey.has_memory)


class Device(NamedTuple):
    """A rank's device: model, streaming multiprocessors and memory, as far as the trace tells."""

    name: str | None = None
    sm_count: int | None = None
    hbm_bytes: int | None = None


class StepReading:
    """Rows of a Run by rank and span of its time: a query of its own for each costs more than its rows do.

    Args:
        run: The Run.
        steps: Those that are looked at together.
        ranks: Those of the pipelines.
        evidence: What they are looked at by.
    """

    def __init__(self, run: Run, steps: Iterable[Step], ranks: Sequence[int], evidence: StepEvidence) -> None:
        self.run = run
        self.ranks = ranks
        self.evidence = evidence
        spans = dict.fromkeys((rank, step.spans[rank]) for step in steps for rank in ranks if rank in step.spans)
        self._numbers = {span: number for number, span in enumerate(spans)}
        self._rows: dict[str, Mapping[int, Sequence[Any]]] = {}
        self._known: dict[Callable[[StepReading], object], object] = {}

    @cached_property
    def devices(self) -> dict[int, Device]:
        """The device of each rank."""
        columns = "rank, device_name, sm_count, hbm_bytes"
        rows = self.run.rows(f"SELECT {columns} FROM ranks WHERE list_contains(?, rank)", [list(self.ranks)])
        return {rank: Device() for rank in self.ranks} | {rank: Device(*of_rank) for rank, *of_rank in rows}

    @cached_property
    def recorded(self) -> frozenset[int]:
        """Ranks of the whole job that were recorded."""
        return frozenset(rank for (rank,) in self.run.rows("SELECT rank FROM ranks"))

    @property
    def spans(self) -> Iterable[tuple[int, Span]]:
        """The spans that are read, each with its rank."""
        return self._numbers

    @cached_property
    def windows(self) -> dict[str, list[int]]:
        """Of each rank with spans the time from the first one to the last one, as parameters of a query.

        To join rows with spans costs more than to leave out what lies between them afterwards.
        """
        by_rank: dict[int, list[Span]] = defaultdict(list)
        for rank, span in self._numbers:
            by_rank[rank].append(span)
        return {
            "ranks": list(by_rank),
            "firsts": [min(first for first, _ in spans) for spans in by_rank.values()],
            "lasts": [max(last for _, last in spans) for spans in by_rank.values()],
        }

    def once(self, question: Callable[[StepReading], T]) -> T:
        """What a question about all spans gives; it is asked the first time."""
        if question not in self._known:
            self._known[question] = question(self)
        return cast("T", self._known[question])

    def rows(
        self, sql: str, rank: int, span: Span, make: Callable[[tuple[Any, ...]], Any] = tuple, **parameters: object
    ) -> Sequence[Any]:
        """What a query gives for one of the spans; it is asked for all of them at once.

        Args:
            sql: The query over ``SPANS``; its first column is the number of the span.
            rank: Global rank.
            span: One of the rank's that are read.
            make: Makes a value of the other columns of a row; the same for every span.
            parameters: Of the query, besides the spans.
        """
        if sql not in self._rows:
            places = list(self._numbers)
            spans = {
                "numbers": list(range(len(places))),
                "ranks": [rank for rank, _ in places],
                "firsts": [first for _, (first, _) in places],
                "lasts": [last for _, (_, last) in places],
            }
            by_span: dict[int, list[Any]] = defaultdict(list)
            rows = self.run.rows(sql, {**spans, **parameters})
            # Millions of rows: unpacked one by one, each would make a list on the way.
            for number, made in zip(map(_NUMBER, rows), map(make, map(_VALUES, rows)), strict=True):
                by_span[number].append(made)
            self._rows[sql] = by_span
        return self._rows[sql].get(self._numbers[rank, span], ())
