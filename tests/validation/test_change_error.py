"""The error that is given of a change of the step, against every pair of measured steps, and against pairs held back.

A pair is two measured rows of one machine, both predicted from one recording: the error is the predicted change less
the measured one. Pairs share rows, so what is held back are configurations with all their pairs, never single pairs.
"""

from __future__ import annotations

import random
from collections import defaultdict
from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

import pytest
from helpers.recorded import ROOT, data, looked_at, rebuilt, small

from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology, between_ranks
from tracetool.validation import Sources, validate
from tracetool.validation.measured import read_measurements
from tracetool.whatif import accuracy
from tracetool.whatif.accuracy import Change, KnownError, change_error_ratio, change_of, known_error, widened

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from tracetool.reconstruction import Reconstruction
    from tracetool.validation.rows import Row

WHOLE = ("rt1f1b_m8", "1f1b_m8", "gpipe_m8")
CHANGES: tuple[Change, ...] = ("inside", "links", "scenario")


class Step(NamedTuple):
    """A row of a file of measured steps, predicted from a recording."""

    recording: str
    name: str
    known: KnownError
    predicted_ns: int
    measured_ns: float


class Pair(NamedTuple):
    """Two of one recording."""

    base: Step
    other: Step

    @property
    def change(self) -> float:
        return self.other.predicted_ns / self.base.predicted_ns - 1

    @property
    def error(self) -> float:
        return abs(self.change - (self.other.measured_ns / self.base.measured_ns - 1))

    @property
    def learned(self) -> float:
        """The error in shares of the longer step, as it is given."""
        return self.error / max(1.0, 1 + self.change)


def _steps(name: str, found: Reconstruction, files: Iterable[Path], *, is_like: bool = True) -> list[Step]:
    """What is measured and predicted of all rows whose error the tool gives; of another machine, of all rows."""
    rows: dict[str, Row] = {}
    for path in files:
        rows |= {row.measured.name: row for row in validate(Sources(found), read_measurements(path)).rows}
    steps = []
    for row in rows.values():
        done, measured = row.prediction, row.measured
        if done is None or measured.step_ms is None:
            continue
        topology = between_ranks(4, [link.rank_link() for link in measured.links]) if measured.links else Topology()
        asked = Scenario(topology=topology, p2p=done.p2p)
        known = known_error(found.pipeline, done.schedule, done.p2p, asked, 0.0)
        if known is None and not is_like:
            known = KnownError(0.0, 0.0, topology, measured.microbatches)
        if known is not None:
            steps.append(Step(name, measured.name, known, done.metrics.step_ns, measured.step_ms * 1e6))
    return steps


@cache
def _of(name: str) -> tuple[Pair, ...]:
    """All pairs of a recording, both ways."""
    if name == "h200-pp2":
        path = ROOT / "tests" / "data" / "h200-pp2" / "measured.json"
        steps = _steps(name, looked_at(small("h200-pp2")), [path], is_like=False)
        assert len(steps) == 8
    else:
        files = [data("h100-pp4", "measured.json"), data("h100-pp4", "measured-per-edge.json")]
        steps = _steps(name, rebuilt(name), files)
        assert len(steps) == 27
    return tuple(Pair(base, other) for base, other in permutations(steps, 2))


def _pairs(recordings: Iterable[str]) -> list[Pair]:
    return [pair for name in recordings for pair in _of(name)]


def _largest(pairs: Iterable[Pair]) -> dict[Change, float]:
    found: dict[Change, float] = defaultdict(float)
    for pair in pairs:
        change = change_of(pair.base.known, pair.other.known)
        found[change] = max(found[change], pair.learned)
    return found


@pytest.mark.parametrize(
    ("recordings", "stated"),
    [((*WHOLE, "h200-pp2"), accuracy._LARGEST_SEEN), (("zbh1_m8",), accuracy._LARGEST_SEEN_SPLIT)],
)
def test_the_largest_errors_are_those_of_the_measured_rows(
    recordings: tuple[str, ...], stated: dict[Change, float]
) -> None:
    """No figure is smaller than what was seen, and none larger by more than 0.3 %."""
    found = _largest(_pairs(recordings))
    assert set(found) == set(CHANGES)
    assert all(found[change] <= stated[change] <= found[change] + 0.003 for change in CHANGES), found


@pytest.mark.parametrize("name", [*WHOLE, "zbh1_m8"])
def test_every_measured_step_is_within_the_error_given(name: str) -> None:
    """Those of other microbatches and over per-edge transfers as well."""
    steps = {pair.base for pair in _of(name)}
    assert {step.known.microbatches for step in steps} == {8, 16}
    for step in steps:
        assert abs(step.predicted_ns / step.measured_ns - 1) <= step.known.step_ratio, step.name


@pytest.mark.parametrize("name", [*WHOLE, "zbh1_m8", "h200-pp2"])
def test_every_measured_change_is_within_the_error_given(name: str) -> None:
    for pair in _of(name):
        given = change_error_ratio(pair.base.known, pair.other.known, pair.change)
        assert given is not None
        assert pair.error <= given, (pair.base.name, pair.other.name)


def _inside(held: Collection[str], pairs: Iterable[Pair]) -> dict[Change, list[bool]]:
    """Per change, whether each pair of configurations that were held back is within what the others tell."""
    pairs = list(pairs)
    told = _largest(p for p in pairs if p.base.name not in held and p.other.name not in held)
    found: dict[Change, list[bool]] = defaultdict(list)
    for pair in pairs:
        if pair.base.name in held and pair.other.name in held:
            change = change_of(pair.base.known, pair.other.known)
            found[change].append(pair.learned <= widened(told[change]))
    return found


@pytest.mark.parametrize("share", [0.25, 0.33])
def test_pairs_of_configurations_held_back_are_within_what_the_others_tell(share: float) -> None:
    """At least 95 % of them, over 200 draws of the configurations to hold back, for every kind of change."""
    pairs = _pairs((*WHOLE, "h200-pp2"))
    names = sorted({pair.base.name for pair in pairs})
    draw = random.Random(14)  # noqa: S311 - reproducible, not secret
    inside: dict[Change, list[bool]] = defaultdict(list)
    for _ in range(200):
        for change, found in _inside(set(draw.sample(names, round(share * len(names)))), pairs).items():
            inside[change] += found
    covered = {change: sum(found) / len(found) for change, found in inside.items()}
    assert set(covered) == set(CHANGES)
    assert min(covered.values()) >= 0.95, covered


@pytest.mark.parametrize("name", WHOLE)
def test_a_recording_held_back_is_within_what_the_others_tell(name: str) -> None:
    told = _largest(_pairs(other for other in (*WHOLE, "h200-pp2") if other != name))
    pairs = _of(name)
    inside = [pair.learned <= widened(told[change_of(pair.base.known, pair.other.known)]) for pair in pairs]
    assert sum(inside) >= 0.95 * len(pairs)
