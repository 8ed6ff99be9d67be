"""How accurate predictions are, on every measured row of the recorded machine, and where those figures stand."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Literal

import pytest
from helpers.accuracy import CHANGES, SPLIT, WHOLE, measure, text_of, validated, validated_small
from helpers.recorded import ROOT
from helpers.thorough import spread

from tracetool.cli.help import topic_text
from tracetool.whatif.accuracy import widened
from tracetool.whatif.seen_errors import FILE, SEEN

if TYPE_CHECKING:
    from tracetool.validation.rows import PredictedRow

TENSOR_PARALLEL = "tp2pp2_1f1b_m8"
RECORDED_H100 = (*WHOLE, SPLIT)
IN_TABLES = (
    ("rt1f1b_m8", "whole"),
    ("rt1f1b_m8", "recut"),
    ("rt1f1b_m8", "per-edge"),
    ("1f1b_m8", "whole"),
    ("gpipe_m8", "whole"),
    ("zbh1_m8", "all"),
    ("megatron 1f1b_m8", "1f1b, gpipe"),
    ("megatron 1f1b_m8", "interleaved"),
    ("megatron vpp2_overlap_m8", "interleaved"),
    ("h200-pp2", "over links"),
    ("deepspeed", "all"),
    ("fsdp", "all"),
    ("three-dcs", "all"),
    ("megatron-vpp2", "all"),
    ("megatron-m4", "all"),
)


def _rows(base: str) -> dict[str, PredictedRow]:
    """All rows that are of the recorded shape, by name; memory comes from the recording that has it."""
    rows = {row.measured.name: row for row in validated(base).rows}
    assert [name for name, row in rows.items() if row.prediction is None] == [TENSOR_PARALLEL]
    del rows[TENSOR_PARALLEL]
    assert len(rows) == 21
    return rows


def _errors(
    rows: dict[str, PredictedRow], *, interleaved: bool | None = None, grouped: bool | None = None
) -> list[float]:
    """Absolute errors of the rows chosen."""
    chosen = [
        row
        for row in rows.values()
        if interleaved in (None, row.measured.schedule == "interleaved")
        and grouped in (None, row.measured.p2p == "grouped")
    ]
    return [abs(row.error_ratio) for row in chosen if row.error_ratio is not None]


def _mean(errors: list[float]) -> float:
    return sum(errors) / len(errors)


def test_everything_from_one_recording_in_order() -> None:
    rows = _rows("rt1f1b_m8")
    plain, interleaved = (_errors(rows, interleaved=kind) for kind in (False, True))
    assert (len(plain), len(interleaved)) == (19, 2)
    assert _mean(plain) <= 0.012
    assert max(plain) <= 0.035
    assert _mean(interleaved) <= 0.025
    assert max(interleaved) <= 0.06
    for row in rows.values():
        peaks = [error for error in row.peak_error_ratios if error is not None]
        assert len(peaks) == 4, row.measured.name
        assert max(map(abs, peaks)) <= 0.005, row.measured.name


def test_everything_from_one_recording_in_blocking_batches() -> None:
    rows = _rows("1f1b_m8")
    grouped, others = (_errors(rows, grouped=kind) for kind in (True, False))
    assert (len(grouped), len(others)) == (3, 18)
    assert max(grouped) <= 0.015
    assert _mean(others) <= 0.04


def test_a_communicator_per_edge_from_one_recording_in_order() -> None:
    """Steps measured with one per pair of ranks and direction, over links and not: within the machine's own scatter."""
    done = validated("rt1f1b_m8", "measured-per-edge.json")
    assert {row.measured.p2p for row in done.rows} == {"per-edge"}
    assert len(done.errors) == len(done.rows) == 8
    assert _mean(list(map(abs, done.errors))) <= 0.007
    assert max(map(abs, done.errors)) <= 0.025


def test_uneven_stages_over_two_links_from_one_recording_without_any() -> None:
    """Three data centres, other numbers of microbatches, all kinds of transfers: what was asked of another model."""
    done = validated_small("three-dcs")
    assert len(done.errors) == len(done.rows) == 40
    assert {row.measured.p2p for row in done.rows} == {"grouped", "in-order", "per-edge"}
    assert {len(row.measured.links) for row in done.rows} == {0, 1, 2}
    assert _mean(list(map(abs, done.errors))) <= 0.01
    assert max(map(abs, done.errors)) <= 0.025


@spread("base", ["rt1f1b_m8", "1f1b_m8", "gpipe_m8"], ["rt1f1b_m8", "1f1b_m8"])
def test_a_recording_replays_to_itself_within_half_a_percent(base: str) -> None:
    """What is taken out of its times for load and interference is what replay puts back in."""
    done = validated(base)
    assert done.replayed_ns == pytest.approx(done.recorded_ns, rel=0.005)


# From another recording; from those in order and in blocking batches by default (above).
@pytest.mark.thorough
def test_a_recording_whose_hosts_were_held_up_predicts_orders_that_were_not() -> None:
    """ZB-H1's two backwards per microbatch kept hosts under the profiler busy; figures as seen, rounded up."""
    rows = _rows("zbh1_m8")
    errors = _errors(rows)
    assert _mean(errors) <= 0.03
    assert max(errors) <= 0.05


def test_the_file_of_errors_is_what_the_recordings_give() -> None:
    assert FILE.read_text(encoding="utf-8") == text_of(measure()), "run in tests: python -m helpers.accuracy"


def test_what_is_given_covers_what_was_seen() -> None:
    for errors in SEEN.steps:
        if errors.recorded in RECORDED_H100:
            kind: Literal["whole", "recut", "split"] = (
                "split" if errors.predicted == "all" else "recut" if errors.predicted == "recut" else "whole"
            )
            assert errors.largest_ratio <= SEEN.given_step_ratio[kind], errors
    assert SEEN.sizes_ratio <= SEEN.given_sizes_ratio
    assert all(errors.largest_ratio <= SEEN.given_peak_ratio for errors in SEEN.peaks)
    assert [(e.backwards, e.change) for e in SEEN.changes] == [(b, c) for b in ("whole", "split") for c in CHANGES]


def _tables(text: str) -> list[list[list[str]]]:
    """Tables of a document, as cells."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in block[2:]] for block in blocks]


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.1f} %"


def _at_most_percent(ratio: float) -> str:
    """Of errors that others are given by: never rounded down."""
    return f"{ceil(round(ratio * 1000, 6)) / 10} %"


def test_the_topic_and_readme_have_the_figures_of_the_file() -> None:
    """Each row of their tables is a row of the file, in this order."""
    steps = {(e.recorded, e.predicted): [_percent(e.mean_ratio), _percent(e.largest_ratio)] for e in SEEN.steps}
    four, two, others, changes = _tables(topic_text("accuracy"))
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## How accurate it is\n")[2]
    (in_readme,) = _tables(section.partition("\n## ")[0])
    assert [cells[2:] for cells in in_readme] == [cells[2:] for cells in four]
    assert [cells[2:] for cells in four] == [steps[row] for row in IN_TABLES[:6]]
    assert [cells[2:] for cells in two] == [steps[row] for row in IN_TABLES[6:9]]
    assert [cells[2:] for cells in others] == [steps[row] for row in IN_TABLES[9:]]
    whole, split = ([e for e in SEEN.changes if e.backwards == backwards] for backwards in ("whole", "split"))
    assert [cells[1:] for cells in changes[:3]] == [
        [str(e.pairs), _at_most_percent(e.largest_ratio), f"{widened(e.largest_ratio) * 100:g} %"] for e in whole
    ]
    given = sorted(widened(e.largest_ratio) * 100 for e in split)
    assert changes[3][1:] == [
        str(sum(e.pairs for e in split)),
        _at_most_percent(max(e.largest_ratio for e in split)),
        f"{given[0]:g} to {given[-1]:g} %",
    ]


def test_the_topic_has_the_peaks_of_the_file() -> None:
    text = " ".join(topic_text("memory").split())
    four, one = SEEN.peaks
    assert f"within {_percent(four.largest_ratio)} of {four.configurations} measured configurations" in text
    assert f"within {_percent(one.largest_ratio)} of {one.configurations} of one H200" in text
    assert f"up to {SEEN.given_peak_ratio * 100:g} % too low" in text
