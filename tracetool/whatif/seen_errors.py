"""The errors that predictions had on recorded steps, as ``accuracy.json`` beside this module holds them.

``python -m helpers.accuracy`` in the folder of the tests measures them again and writes that file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FILE = Path(__file__).with_name("accuracy.json")

Backwards = Literal["whole", "split"]
"""How a recording ran its backwards: profilers slow down split ones most."""

StepKind = Literal["whole", "recut", "split"]
"""What the error of a step goes by: whole backwards recorded, the same with stages cut anew, or split ones."""

Change = Literal["inside", "links", "scenario"]
"""In what two predictions differ, as far as errors of the difference do.

- inside: in order, depth or how transfers are issued, inside one data centre.
- links: in any of these, over the same links.
- scenario: in links or microbatches, and maybe in any of these.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepErrors:
    """Errors of step times that one recording predicted.

    Attributes:
        recorded: The recording.
        predicted: Which of the measured steps.
        steps: How many these are.
        mean_ratio: Mean absolute error.
        largest_ratio: Largest absolute error.
    """

    recorded: str
    predicted: str
    steps: int
    mean_ratio: float
    largest_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeErrors:
    """Errors of the difference of two steps, over all pairs that one recording predicted.

    Attributes:
        backwards: Of which recordings.
        change: In what the two differ.
        pairs: How many these are.
        largest_ratio: Largest absolute error, in shares of the longer step.
    """

    backwards: Backwards
    change: Change
    pairs: int
    largest_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakErrors:
    """Errors of memory peaks, rank by rank, where the trace names the blocks it frees.

    Attributes:
        recorded: What was measured.
        configurations: How many schedules, sizes and links these are.
        largest_ratio: Largest absolute error.
    """

    recorded: str
    configurations: int
    largest_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenErrors:
    """All of them, and what is given where it is more than was seen.

    Attributes:
        given_step_ratio: Errors of step times that are given; no step was off by more.
        given_peak_ratio: Peaks were up to so much too low where a trace does not name the blocks it frees.
        given_sizes_ratio: No time of a forward and backward that was extrapolated to other sizes was off by more.
        sizes_ratio: The largest of those errors (layers of one H200).
        steps: Of step times.
        changes: Of differences of two steps.
        peaks: Of memory peaks.
    """

    given_step_ratio: dict[StepKind, float]
    given_peak_ratio: float
    given_sizes_ratio: float
    sizes_ratio: float
    steps: tuple[StepErrors, ...]
    changes: tuple[ChangeErrors, ...]
    peaks: tuple[PeakErrors, ...]

    def largest_of_change(self, backwards: Backwards, change: Change) -> float:
        """The largest error of a change that was seen."""
        return next(e.largest_ratio for e in self.changes if (e.backwards, e.change) == (backwards, change))


def _read() -> SeenErrors:
    fields = json.loads(FILE.read_text(encoding="utf-8"))
    kinds = {"steps": StepErrors, "changes": ChangeErrors, "peaks": PeakErrors}
    return SeenErrors(**fields | {name: tuple(kind(**row) for row in fields[name]) for name, kind in kinds.items()})


SEEN = _read()
