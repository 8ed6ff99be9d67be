"""The series of a history, each with the last step it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.baselines.history import OBSERVED
from tracetool.baselines.trend import SeriesStep, last_step
from tracetool.errors import Option, ScenarioError, UnknownName
from tracetool.tables.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.baselines.history import Value


@dataclass(frozen=True, slots=True)
class Trend:
    """One metric of one schedule over the entries.

    Attributes:
        schedule: ``observed``, or what was replayed.
        scenario: Digest of the what-if; empty for what was observed.
        metric: Its name.
        values: Those of the last entries that have it, in order.
        step: The last step they took, if any.
    """

    schedule: str
    scenario: str
    metric: str
    values: tuple[Value, ...]
    step: SeriesStep | None

    @property
    def is_regression(self) -> bool:
        """Whether the step is certain, and to the worse."""
        if self.step is None or not self.step.is_certain:
            return False
        grew = self.step.after > self.step.before
        return grew == (METRICS[self.metric].better == "lower")


def trends(
    values: Sequence[Value],
    *,
    metric: str | None = None,
    schedule: str | None = None,
    last: int = 20,
    least_change_ratio: float = 0.02,
) -> list[Trend]:
    """Every series of a history, in order of appearance.

    Args:
        values: The history.
        metric: Only this one.
        schedule: Only this one.
        last: So many entries are looked at.
        least_change_ratio: Smaller steps do not count.

    Raises:
        ScenarioError: If the history has nothing of the kind.
        UnknownName: If no metric is called so.
    """
    if metric is not None and metric not in METRICS:
        raise UnknownName("metric", metric, METRICS)
    series: dict[tuple[str, str, str], list[Value]] = {}
    recent = set(sorted({value.entry for value in values})[-last:])
    for value in values:
        wanted = value.entry in recent and metric in (None, value.metric) and schedule in (None, value.schedule)
        if wanted:
            series.setdefault((value.schedule, value.scenario, value.metric), []).append(value)
    if not series:
        known = ", ".join(dict.fromkeys(value.schedule for value in values)) or "nothing"
        raise ScenarioError(
            f"the history has no such figures; it is about {known}.", hint=f"leave {Option.SCHEDULE} out"
        )
    found = []
    for (name, scenario, of), of_series in series.items():
        kept = tuple(of_series)
        # Replays have no noise, but those of other recordings vary as these do.
        is_exact = name != OBSERVED and len({one.digest for one in kept}) == 1
        step = last_step([one.value for one in kept], least_change_ratio, is_exact=is_exact)
        found.append(Trend(name, scenario, of, kept, step))
    return found
