"""What errors predictions have on recorded steps: ``python -m helpers.accuracy`` writes the package's file of them."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import asdict
from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

from helpers.recorded import ROOT, data, looked_at, rebuilt, run_of, small
from helpers.shared import once
from helpers.synthetic import pipeline

from tracetool.costs.rescaled import MicrobatchSize, fixed_by_fit, with_batch
from tracetool.model.action import ActionKind
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology, between_ranks
from tracetool.validation import Sources, Validation, validate
from tracetool.validation.measured import read_measurements
from tracetool.whatif.accuracy import KnownError, change_of, known_error
from tracetool.whatif.seen_errors import FILE, SEEN, ChangeErrors, PeakErrors, SeenErrors, StepErrors

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tracetool.model.pipeline import Pipeline
    from tracetool.validation.rows import PredictedRow
    from tracetool.whatif.seen_errors import Backwards, Change, StepKind

WHOLE = ("rt1f1b_m8", "1f1b_m8", "gpipe_m8")
SPLIT = "zbh1_m8"
CHANGES: tuple[Change, ...] = ("inside", "links", "scenario")
FILES = ("measured.json", "measured-per-edge.json")
H200_PP2 = "h200-pp2"
OTHER_RUNTIMES = ("deepspeed", "fsdp", "three-dcs", "megatron-vpp2", "megatron-m4")
H200_MEMORY = "h200-memory"
RECORDINGS: dict[Backwards, tuple[str, ...]] = {"whole": (*WHOLE, H200_PP2), "split": (SPLIT,)}
"""Which recordings the errors of a change are learned from."""


def _own(name: str) -> Path:
    return ROOT / "tests" / "data" / name / "measured.json"


@cache
def validated(base: str, file: str = "measured.json") -> Validation:
    """Every row of a file, predicted from a recording of ``h100-pp4``; memory comes from the one that has it."""
    path = _own(file) if file == H200_MEMORY else data("h100-pp4", file)
    sources = Sources(rebuilt(base), rebuilt("1f1b_m8_mem"))
    return once(lambda: validate(sources, read_measurements(path)), "validated", base, file)


@cache
def validated_small(name: str, file: str = "measured.json") -> Validation:
    """Every row of a file beside a recording of two H200 in tests/data, predicted from it."""
    return validate(Sources(looked_at(small(name))), read_measurements(ROOT / "tests" / "data" / name / file))


@cache
def validated_megatron(name: str, step: int) -> Validation:
    """Every row of megatron-core, predicted from one step of the recording beside it."""
    folder = data("megatron", name)
    sources = Sources(looked_at(run_of(folder), step=step))
    return once(lambda: validate(sources, read_measurements(folder / "measured.json")), "validated", name, step)


class Step(NamedTuple):
    """A row of a file of measured steps, predicted from a recording."""

    recording: str
    name: str
    known: KnownError
    predicted_ns: int
    measured_ns: float

    @property
    def error(self) -> float:
        return abs(self.predicted_ns / self.measured_ns - 1)


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


def _steps(name: str, done: Iterable[Validation], *, is_like: bool = True) -> list[Step]:
    """What is measured and predicted of all rows whose error the tool gives; of another machine, of all rows."""
    rows = {row.measured.name: (row, of.sources.run.pipeline) for of in done for row in of.rows}
    steps = []
    for row, recorded in rows.values():
        predicted, measured = row.prediction, row.measured
        if predicted is None or measured.step_ms is None:
            continue
        topology = between_ranks(4, [link.rank_link() for link in measured.links]) if measured.links else Topology()
        asked = Scenario(topology=topology, p2p=predicted.p2p)
        known = known_error(recorded, predicted.schedule, predicted.p2p, asked, 0.0)
        if known is None and not is_like:
            known = KnownError(0.0, 0.0, topology, measured.microbatches)
        if known is not None:
            steps.append(Step(name, measured.name, known, predicted.metrics.step_ns, measured.step_ms * 1e6))
    return steps


@cache
def pairs_of(name: str) -> tuple[Pair, ...]:
    """All pairs of a recording, both ways."""
    if name == H200_PP2:
        steps = _steps(name, [validated_small(H200_PP2)], is_like=False)
        assert len(steps) == 8
    else:
        steps = _steps(name, [validated(name, file) for file in FILES])
        assert len(steps) == 27
    return tuple(Pair(base, other) for base, other in permutations(steps, 2))


def all_pairs(recordings: Iterable[str]) -> list[Pair]:
    """All pairs of some recordings."""
    return [pair for name in recordings for pair in pairs_of(name)]


def largest(of: Iterable[Pair]) -> dict[Change, float]:
    """The largest error for every kind of change."""
    found: dict[Change, float] = defaultdict(float)
    for pair in of:
        change = change_of(pair.base.known, pair.other.known)
        found[change] = max(found[change], pair.learned)
    return found


def sizes_errors(*, by_fit: bool) -> list[float]:
    """How far off a forward and backward of other sizes are, of layers of one H200, from the smallest batch of 2048.

    Args:
        by_fit: Whether what does not grow is told from a second recording; else by its kernels.
    """
    text = (ROOT / "tests" / "data" / "batches" / "h200.json").read_text(encoding="utf-8")
    rows = {MicrobatchSize(row["mbs"], row["seq"]): row for row in json.loads(text)["rows"]}
    base, second, hidden = MicrobatchSize(1, 2048), MicrobatchSize(4, 2048), 4096

    def recorded(batch: MicrobatchSize) -> Pipeline:
        row = rows[batch]
        return pipeline(1, 2, row["forward_ns"], row["both_ns"] - row["forward_ns"])

    fixed = {(0, ActionKind.BACKWARD, 1): rows[base]["sums_ns"]}
    if by_fit:
        fixed = fixed_by_fit(recorded(base), base, recorded(second), second, hidden=hidden)
    errors = []
    for batch, row in rows.items():
        if batch.tokens <= 4 * base.tokens and batch.length <= 2 * base.length:
            ours = with_batch(recorded(base), base, batch, hidden=hidden, fixed_ns=fixed)
            both_ns = sum(costs[1].duration_ns for costs in ours.stages[0].costs.values())
            errors.append(abs(both_ns / row["both_ns"] - 1))
    assert len(errors) == 9
    return errors


def _up(ratio: float) -> float:
    return math.ceil(round(ratio * 10_000, 6)) / 10_000


def _of_steps(recorded: str, predicted: str, rows: Iterable[PredictedRow]) -> StepErrors:
    errors = [abs(row.error_ratio) for row in rows if row.error_ratio is not None]
    return StepErrors(
        recorded=recorded,
        predicted=predicted,
        steps=len(errors),
        mean_ratio=round(sum(errors) / len(errors), 4),
        largest_ratio=_up(max(errors)),
    )


def _given(base: str, file: str) -> list[PredictedRow]:
    """The rows whose error the tool gives."""
    names = {pair.base.name for pair in pairs_of(base)}
    return [row for row in validated(base, file).rows if row.measured.name in names]


def _step_errors() -> Iterable[StepErrors]:
    plain, per_edge = FILES
    for base in WHOLE:
        rows = _given(base, plain)
        yield _of_steps(base, "whole", [row for row in rows if row.measured.schedule != "interleaved"])
        yield _of_steps(base, "recut", [row for row in rows if row.measured.schedule == "interleaved"])
        yield _of_steps(base, "per-edge", _given(base, per_edge))
    yield _of_steps(SPLIT, "all", {row.measured.name: row for file in FILES for row in _given(SPLIT, file)}.values())
    yield _of_steps(H200_PP2, "all", validated_small(H200_PP2).rows)
    yield _of_steps(H200_PP2, "over links", validated_small(H200_PP2, "links.json").rows)
    for name in OTHER_RUNTIMES:
        yield _of_steps(name, "all", validated_small(name).rows)
    rows = list(validated_megatron("1f1b_m8", 2).rows)
    yield _of_steps("megatron 1f1b_m8", "1f1b, gpipe", [r for r in rows if r.measured.schedule in ("1f1b", "gpipe")])
    yield _of_steps("megatron 1f1b_m8", "geopipe", [r for r in rows if r.measured.schedule == "geopipe"])
    yield _of_steps("megatron 1f1b_m8", "interleaved", [r for r in rows if r.measured.schedule == "interleaved"])
    yield _of_steps("megatron vpp2_overlap_m8", "interleaved", validated_megatron("vpp2_overlap_m8", 1).rows)


def _change_errors() -> Iterable[ChangeErrors]:
    for backwards, recordings in RECORDINGS.items():
        of = all_pairs(recordings)
        seen = largest(of)
        for change in CHANGES:
            both_ways = sum(change_of(pair.base.known, pair.other.known) == change for pair in of)
            yield ChangeErrors(
                backwards=backwards, change=change, pairs=both_ways // 2, largest_ratio=_up(seen[change])
            )


def _peak_errors() -> Iterable[PeakErrors]:
    for recorded, files in (("h100-pp4", FILES), (H200_MEMORY, (H200_MEMORY,))):
        rows = [row for file in files for row in validated(WHOLE[0], file).rows]
        peaks = [(row.measured.name, abs(e)) for row in rows for e in row.peak_error_ratios if e is not None]
        yield PeakErrors(
            recorded=recorded,
            configurations=len({name for name, _ in peaks}),
            largest_ratio=_up(max(error for _, error in peaks)),
        )


def measure() -> SeenErrors:
    """All of them, from the recordings; what is given is kept, and raised where more was seen."""
    steps = tuple(_step_errors())
    given = dict(SEEN.given_step_ratio)
    worst: dict[StepKind, list[float]] = {kind: [] for kind in given}
    for base in (*WHOLE, SPLIT):
        for step in {pair.base for pair in pairs_of(base)}:
            kind: StepKind = "split" if base == SPLIT else "recut" if step.name.startswith("interleaved") else "whole"
            worst[kind].append(step.error)
    sizes = max(sizes_errors(by_fit=False))
    return SeenErrors(
        given_step_ratio={kind: max(ratio, _up(max(worst[kind]))) for kind, ratio in given.items()},
        given_peak_ratio=SEEN.given_peak_ratio,
        given_sizes_ratio=max(SEEN.given_sizes_ratio, _up(sizes)),
        sizes_ratio=_up(sizes),
        steps=steps,
        changes=tuple(_change_errors()),
        peaks=tuple(_peak_errors()),
    )


def text_of(seen: SeenErrors) -> str:
    """The file as it is kept: one row of figures per line."""
    fields: dict[str, Any] = asdict(seen)
    lines = []
    for name, value in fields.items():
        rows = isinstance(value, tuple)
        shown = "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]" if rows else json.dumps(value)
        lines.append(f"  {json.dumps(name)}: {shown}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text_of(measure()), encoding="utf-8")
