"""Predictions against measured steps: how far can this tool be trusted on this machine?

Every row of a file of measured steps is replayed from one Run, and nothing is fitted to the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.costs.borrowed import with_memory_of
from tracetool.errors import Option, ScenarioError, TraceToolError
from tracetool.model.notice import unasked
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.model.topology import between_ranks
from tracetool.replays.evaluation import evaluate, stages_for
from tracetool.schedules import build_schedule
from tracetool.schedules.names import beside, schedule_name
from tracetool.units import format_count
from tracetool.validation.measured import p2p_mode
from tracetool.validation.notes import notes_on
from tracetool.validation.rows import PredictedRow, Prediction, check_row, kendall_tau_b, left_over_microbatches
from tracetool.whatif.job import job_notes
from tracetool.whatif.remarks import host_notes, memory_remarks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracetool.model.notice import Notice, Progress
    from tracetool.model.pipeline import JobPipelines, Pipeline
    from tracetool.model.schedule import PipelineShape, Schedule
    from tracetool.model.topology import Topology
    from tracetool.reconstruction import Reconstruction
    from tracetool.validation.measured import MeasuredStep, Measurements


@dataclass(frozen=True, slots=True)
class Sources:
    """What predictions are made from.

    Attributes:
        run: Costs, transfers and shape.
        memory: Where memory figures come from instead; None takes them from ``run``.
    """

    run: Reconstruction
    memory: Reconstruction | None = None


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows of a file.

    Attributes:
        sources: What predictions were made from.
        rows: In the order of the file.
        recorded_ns: The Run's own step, with the profiler at work.
        replayed_ns: The same step as replay gives it back.
        notes: What was inferred, is missing, or was left out of the comparison.
    """

    sources: Sources
    rows: tuple[PredictedRow, ...]
    recorded_ns: int
    replayed_ns: int
    notes: tuple[Notice, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        """Signed errors of all rows that have both times."""
        return tuple(error for row in self.rows if (error := row.error_ratio) is not None)

    @property
    def mape_ratio(self) -> float | None:
        """Mean absolute error; None if no row can be compared."""
        errors = self.errors
        return sum(map(abs, errors)) / len(errors) if errors else None

    @property
    def max_error_ratio(self) -> float | None:
        """Largest absolute error; None if no row can be compared."""
        return max(map(abs, self.errors), default=None)

    @property
    def max_peak_error_ratio(self) -> float | None:
        """Largest absolute error of a rank's peak; None if none can be compared."""
        return max((abs(e) for row in self.rows for e in row.peak_error_ratios if e is not None), default=None)

    @property
    def kendall_tau(self) -> float | None:
        """Kendall's tau-b of predicted and measured step times; None if either does not differ between rows."""
        both = [
            (row.measured.step_ms, row.prediction.step_ns)
            for row in self.rows
            if row.prediction is not None and row.measured.step_ms is not None
        ]
        return kendall_tau_b([a for a, _ in both], [b for _, b in both])

    @property
    def not_predicted(self) -> int:
        """How many rows could not be predicted."""
        return sum(row.prediction is None for row in self.rows)


def validate(sources: Sources, measurements: Measurements, progress: Progress | None = None) -> Validation:
    """Predict every row of a file of measured steps.

    Args:
        sources: What to predict from.
        measurements: The file.
        progress: Told how many rows there are, and how many are predicted.

    Raises:
        ScenarioError: If the memory figures are of another pipeline than the Run.
    """
    run = sources.run
    pipeline = run.pipeline if sources.memory is None else with_memory_of(run.pipeline, sources.memory.pipeline)
    predictor = _Predictor(pipeline, run.observed.global_ranks, measurements.folder)
    progress = progress or unasked()
    progress.start(len(measurements.steps))
    rows = []
    for step in measurements.steps:
        rows.append(_row(step, measurements, run, predictor))
        progress.advance(1)
    return Validation(
        sources,
        tuple(rows),
        recorded_ns=measure(run.observed).step_ns,
        replayed_ns=evaluate(run.pipeline.as_recorded(), run.pipeline.observed).metrics.step_ns,
        notes=(
            *job_notes(run.notes, pipeline, Scenario()),
            *host_notes(run),
            *measurements.notes,
            *notes_on(rows, pipeline),
        ),
    )


def _row(step: MeasuredStep, measurements: Measurements, run: Reconstruction, predictor: _Predictor) -> PredictedRow:
    try:
        check_row(step, {**measurements.model, **(step.model or {})}, run)
        prediction = predictor.predict(step)
    except TraceToolError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return PredictedRow(step, reason=error.message + hint)
    return PredictedRow(step, prediction, _in_order_of(step, prediction.peak_bytes, prediction.global_ranks))


def _in_order_of(
    step: MeasuredStep, peaks: Sequence[int | None], global_ranks: Sequence[int]
) -> tuple[int | None, ...]:
    """Peaks of the pipeline's ranks where the row has those of all ranks of the job."""
    size = step.pipeline_ranks * step.tensor_parallel * step.data_parallel
    if len(step.peak_bytes) == len(peaks) or len(step.peak_bytes) != size or max(global_ranks) >= size:
        return tuple(peaks)
    by_rank = dict(zip(global_ranks, peaks, strict=True))
    return tuple(by_rank.get(rank) for rank in range(size))


class _Predictor:
    """Replays rows from one pipeline; what several rows need is made once."""

    def __init__(self, pipeline: Pipeline, global_ranks: Sequence[int], folder: Path | None) -> None:
        self._measured = pipeline
        self._global_ranks = global_ranks
        self._folder = folder
        self._cut: dict[tuple[str, int | None], tuple[Pipeline, PipelineShape, Notice | None]] = {}

    def predict(self, step: MeasuredStep) -> Prediction:
        """Replay one row.

        Raises:
            TraceToolError: If it cannot be, in words for the row's ``reason``.
        """
        name = self._schedule_name(step.schedule)
        pipeline, shape, remarks = self._with_chunks(name, step)
        extra = None if step.extra_forwards is None else tuple(step.extra_forwards)
        schedule = build_schedule(name, shape, extra_forwards=extra, observed=pipeline.observed)
        _check_extra(schedule, extra)
        topology = between_ranks(shape.ranks, [link.rank_link() for link in step.links])
        sharing = step.pipelines_on_link or step.tensor_parallel * step.data_parallel
        if pipeline.job is not None:
            topology = _all_placed(pipeline.job, topology, sharing)
        scenario = Scenario(
            topology=topology,
            p2p=p2p_mode(step.p2p),
            microbatches=step.microbatches,
            pipelines=sharing if pipeline.job is None else None,
        )
        done = evaluate(pipeline, schedule, scenario)
        p2p, metrics = done.replayed.p2p, done.metrics
        ranks = self._global_ranks if done.joined is None else done.replayed.timeline.global_ranks
        remarks += tuple(memory_remarks(self._measured, pipeline, metrics))
        more, more_bytes = left_over_microbatches(pipeline, schedule, scenario, self._levels(step, shape.ranks))
        return Prediction(
            schedule=schedule, global_ranks=tuple(ranks), p2p=p2p, metrics=metrics,
            outside_ns=pipeline.outside_ns or 0, remarks=remarks,
            left_over_microbatches=more, left_over_bytes=more_bytes,
        )  # fmt: skip

    def _levels(self, step: MeasuredStep, ranks: int) -> tuple[int | None, ...]:
        """What the row says that each rank of the pipeline has allocated between steps."""
        static = step.static_bytes
        if len(static) == ranks:
            return static
        return tuple(static[rank] if rank < len(static) else None for rank in self._global_ranks)

    def _schedule_name(self, name: str) -> str:
        if "\0" in name:
            raise ScenarioError(f"no file has a name like {name!r}.")
        return schedule_name(beside(name, self._folder))

    def _with_chunks(self, name: str, step: MeasuredStep) -> tuple[Pipeline, PipelineShape, tuple[Notice, ...]]:
        """The pipeline with as many stages per rank as the row says, else as the schedule needs."""
        recorded = self._measured.observed.shape.chunks
        chunks = step.stages_per_rank
        if chunks is not None and chunks != recorded and recorded > 1:
            raise ScenarioError(f"the row has {chunks} stages per rank, the Run {recorded}: their layers are not told.")
        key = name, chunks
        if key not in self._cut:
            self._cut[key] = stages_for(self._measured, name, chunks, step.microbatches)
        pipeline, shape, remark = self._cut[key]
        if chunks is not None and chunks != shape.chunks:
            raise ScenarioError(f"the row has {chunks} stages per rank, {name} runs on {shape.chunks}.")
        return pipeline, replace(shape, microbatches=step.microbatches), (remark,) if remark else ()


def _all_placed(job: JobPipelines, topology: Topology, sharing: int) -> Topology:
    """The places of all ranks of a job, whose pipelines a row places alike.

    Raises:
        ScenarioError: If the row is of another number of pipelines.
    """
    if not topology.links:
        return topology
    if sharing != len(job.pipelines):
        raise ScenarioError(
            f"the row has {format_count(sharing, 'pipeline')} on its links, the Run {len(job.pipelines)} that are "
            f"replayed together: replay one of them ({Option.PIPELINE(0)})."
        )
    places = [(profile.rank, dc) for one in job.pipelines for profile, dc in zip(one.ranks, topology.dcs, strict=True)]
    return replace(topology, rank_dcs=tuple(sorted(places)), pipelines=sharing)


def _check_extra(schedule: Schedule, extra: tuple[int, ...] | None) -> None:
    if schedule.extra_forwards is not None and extra is None:
        raise ScenarioError(f"the row does not say how many extra_forwards {schedule.name} ran with.")
    if schedule.extra_forwards is None and extra is not None and any(extra):
        raise ScenarioError(f"{schedule.name} has no extra forwards, the row has {list(extra)}.")
