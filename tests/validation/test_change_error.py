"""The error that is given of a change of the step, against every pair of measured steps, and against pairs held back.

A pair is two measured rows of one machine, both predicted from one recording: the error is the predicted change less
the measured one. Pairs share rows, so what is held back are configurations with all their pairs, never single pairs.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from helpers.accuracy import CHANGES, H200_PP2, RECORDINGS, SPLIT, WHOLE, Pair, all_pairs, largest, pairs_of
from helpers.thorough import some, spread

from tracetool.whatif.accuracy import change_error_ratio, change_of, widened

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tracetool.whatif.seen_errors import Change


@pytest.mark.parametrize("name", [*WHOLE, SPLIT])
def test_every_measured_step_is_within_the_error_given(name: str) -> None:
    """Those of other microbatches and over per-edge transfers as well."""
    steps = {pair.base for pair in pairs_of(name)}
    assert {step.known.microbatches for step in steps} == {8, 16}
    for step in steps:
        assert step.error <= step.known.step_ratio, step.name


@pytest.mark.parametrize("name", [*WHOLE, SPLIT, H200_PP2])
def test_every_measured_change_is_within_the_error_given(name: str) -> None:
    for pair in pairs_of(name):
        given = change_error_ratio(pair.base.known, pair.other.known, pair.change)
        assert given is not None
        assert pair.error <= given, (pair.base.name, pair.other.name)


def _inside(held: Collection[str], drawn: Iterable[Pair]) -> dict[Change, list[bool]]:
    """Per change, whether each pair of configurations that were held back is within what the others tell."""
    drawn = list(drawn)
    told = largest(p for p in drawn if p.base.name not in held and p.other.name not in held)
    found: dict[Change, list[bool]] = defaultdict(list)
    for pair in drawn:
        if pair.base.name in held and pair.other.name in held:
            change = change_of(pair.base.known, pair.other.known)
            found[change].append(pair.learned <= widened(told[change]))
    return found


# Held back a third of them, the others tell less.
@spread("share", [0.25, 0.33], [0.33])
def test_pairs_of_configurations_held_back_are_within_what_the_others_tell(share: float) -> None:
    """At least 95 % of them, over 200 draws of the configurations to hold back, for every kind of change."""
    pairs = all_pairs(RECORDINGS["whole"])
    names = sorted({pair.base.name for pair in pairs})
    draw = random.Random(14)  # noqa: S311 - reproducible, not secret
    inside: dict[Change, list[bool]] = defaultdict(list)
    for _ in some(range(200), 60):
        for change, found in _inside(set(draw.sample(names, round(share * len(names)))), pairs).items():
            inside[change] += found
    covered = {change: sum(found) / len(found) for change, found in inside.items()}
    assert set(covered) == set(CHANGES)
    assert min(covered.values()) >= 0.95, covered


@pytest.mark.parametrize("name", WHOLE)
def test_a_recording_held_back_is_within_what_the_others_tell(name: str) -> None:
    told = largest(all_pairs(other for other in RECORDINGS["whole"] if other != name))
    pairs = pairs_of(name)
    inside = [pair.learned <= widened(told[change_of(pair.base.known, pair.other.known)]) for pair in pairs]
    assert sum(inside) >= 0.95 * len(pairs)
