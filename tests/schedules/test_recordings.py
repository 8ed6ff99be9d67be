"""Torch's schedules, as recorded, are told by their orders; labels stay hidden from what finds the orders."""

from __future__ import annotations

from helpers.recorded import looked_at, small
from helpers.thorough import spread

from tracetool.schedules.names import best_fit


# Each is another order.
@spread(
    ("recording", "schedule"),
    [
        ("izb", "interleaved-zero-bubble"),
        ("loopedbfs", "looped-bfs"),
        ("dualpipev", "dualpipev"),
        ("interleaved2", "interleaved"),
        ("interleaved3", "interleaved"),
        ("zbv", "zb-v"),
    ],
)
def test_recordings_of_torchs_schedules_are_named(recording: str, schedule: str) -> None:
    """What was recorded: tests/data/README.md."""
    fit = best_fit(looked_at(small(recording), use_labels=False).pipeline.observed)
    assert fit is not None
    assert (fit.schedule.name, fit.mismatches, fit.first) == (schedule, 0, None)
