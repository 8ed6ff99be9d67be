"""A comparison as people ask for it: Runs, traces and reports by name, limits as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracetool.comparison import compare as held_against
from tracetool.comparison.limits import parse_limit
from tracetool.comparison.sides import is_report, sides_of
from tracetool.comparison.verdict import Rules
from tracetool.ingestion.runs import open_run
from tracetool.store.run import Run
from tracetool.units import parse_share_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.comparison import Comparison

Compared = Run | Path | str


def compare(
    base: Compared | Sequence[Compared],
    new: Compared | Sequence[Compared],
    *,
    fail_on: str | Sequence[str] = (),
    least_change: str = "2%",
    alpha: float = 0.01,
    accept: bool = False,
    allow_inconclusive: bool = False,
    pipeline: int | None = None,
) -> Comparison:
    """Compare Runs, raw traces or reports: what changed, whether that is certain, and why.

    Steps of other traces are held against each other with a rank test and a least change; of the same traces every
    number must be the same. Settings of a pyproject.toml are not looked at.

    Args:
        base: What is compared with: a Run or its path, traces, a report of ``replay --json``; or several of them.
        new: What is new.
        fail_on: Limits for the new side, as in ``bubble_ratio>+2%`` or ``step_ns>400ms``.
        least_change: Least change of a median that counts.
        alpha: Chance at which the rank test calls equal sets different.
        accept: Whether results of the same traces may differ, for the tool has changed on purpose.
        allow_inconclusive: Whether limits hold that too few steps can tell.
        pipeline: Which one of several side by side, of Runs; by default the one that sets the step of each: the
            same on both sides where that does.

    Returns:
        The comparison; ``failures`` says why it fails, and is empty if it does not.

    Raises:
        ScenarioError: If a limit cannot be read.
        StoreError: If a Run or a report cannot be read.
        TraceToolError: If traces hold no pipeline that could be reconstructed.

    Example:
        >>> same = tt.compare(run, "x.run", fail_on="step_ns>+3%")
        >>> same.gate, same.failures, {line.verdict for line in same.lines}
        ('tool', (), {'unchanged'})
    """
    limits = [parse_limit(text) for text in ([fail_on] if isinstance(fail_on, str) else fail_on)]
    rules = Rules(alpha, parse_share_ratio(least_change))
    items = [[_item(each) for each in ([side] if isinstance(side, Compared) else side)] for side in (base, new)]
    sides = sides_of(*items, pipeline=pipeline)
    return held_against(*sides, rules=rules, limits=limits, accept=accept, allow_inconclusive=allow_inconclusive)


def _item(given: Compared) -> tuple[str, Run | Path]:
    if isinstance(given, Run):
        return given.name, given
    path = Path(given)
    return str(given), path if is_report(path) else open_run(given)
