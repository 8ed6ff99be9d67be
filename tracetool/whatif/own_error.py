"""By how much replay misses the recording itself, and what that says of its predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.causes import profiler_ns
from tracetool.model.notice import Notice, NoticeCode
from tracetool.model.pipeline import BY_EDGE
from tracetool.model.timeline import Metrics, measure
from tracetool.replays.evaluation import evaluate

if TYPE_CHECKING:
    from tracetool.reconstruction import Reconstruction


class Miss(NamedTuple):
    """The observed order replayed at the measured costs, beside what was observed.

    Attributes:
        observed: Metrics of the observed Timeline.
        replayed: The same of the replay.
        profiler_ns: How much of the observed step the profiler's own work held up; replay leaves it out.
    """

    observed: Metrics
    replayed: Metrics
    profiler_ns: int

    @property
    def error_ratio(self) -> float:
        """By how much replay misses the window or the step, whichever it misses more."""
        pairs = (
            (self.replayed.window_ns, self.observed.window_ns),
            (self.replayed.step_ns, self.observed.step_ns),
        )
        return max(abs(back / (recorded - self.profiler_ns) - 1) for back, recorded in pairs)


def own_miss(recording: Reconstruction) -> Miss:
    """Replay the observed order as measured."""
    pipeline = recording.pipeline
    back = evaluate(pipeline.as_recorded().with_other_pipelines(), pipeline.observed).metrics
    held_ns = profiler_ns(recording.observed, blocking=pipeline.p2p == "grouped", by_edge=pipeline.p2p in BY_EDGE)
    return Miss(measure(recording.observed), back, held_ns)


def own_error_notices(own_error: float) -> list[Notice]:
    """A warning where replay misses the recording itself."""
    if own_error <= 0.05:
        return []
    return [
        Notice(
            NoticeCode.FIDELITY,
            f"replay misses its own recording by {own_error:.1%}: do not trust its predictions before the cause is "
            "known",
        )
    ]


def is_like_the_recordings(recording: Reconstruction) -> bool:
    """Whether device and setting are those that errors were seen on: four H100, pipeline parallel alone."""
    ranks = recording.pipeline.ranks
    return (
        len(ranks) == 4
        and all(rank.load is not None and rank.load.device == "H100" for rank in ranks)
        and not any(c.tp or c.cp or c.ep for c in recording.coordinates)
    )
