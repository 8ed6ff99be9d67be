"""What streams do in one call, and the tail that is left: closed forms on a device where nothing is in the way."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import ROOT
from overlap.test_closed_forms import FAST, SHAPE, SLOW, ideal_ns, machine

from tracetool.cli import run
from tracetool.overlap.answer import answer_for, parse_ways
from tracetool.overlap.program import Stream
from tracetool.overlap.recording import read_recordings
from tracetool.overlap.simulation import IDEAL
from tracetool.overlap.streams import streams_of
from tracetool.reports.checks.layer_picture import layer_figure, render_layer

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.overlap.answer import OverlapAnswer

H200 = ROOT / "tests" / "data" / "h200-overlap" / "traces" / "nvlink"
LAYERS = [H200 / f"8192_4096_2752_{side}_coll" for side in ("ag", "rs")]


@pytest.fixture(scope="module")
def answered() -> OverlapAnswer:
    return answer_for(read_recordings(LAYERS), parse_ways("slice:2,p2p,async-tp,fused"))


@pytest.mark.parametrize("side", ["ag", "rs"])
@pytest.mark.parametrize("slices", [1, 2, 4, 8])
def test_slices_leave_a_tail_of_one_slice(side: str, slices: int) -> None:
    """As it is the whole collective; communication takes less than the product here."""
    of = machine(FAST)
    works = streams_of(f"{side}_sliced{slices}" if slices > 1 else f"{side}_coll", SHAPE, of, IDEAL)
    collective = ideal_ns(f"{side}_only", of)
    assert sum(work.tail_ns for work in works) == pytest.approx(collective / slices)
    assert sum(work.end_ns - work.start_ns for work in works if work.kind == "product") == pytest.approx(
        ideal_ns("gemm1", of)
    )


@pytest.mark.parametrize("side", ["ag", "rs"])
def test_parts_leave_none_where_a_transfer_is_shorter_than_a_part(side: str) -> None:
    assert sum(work.tail_ns for work in streams_of(f"{side}_p2p", SHAPE, machine(FAST), IDEAL)) == pytest.approx(0)
    assert sum(work.tail_ns for work in streams_of(f"{side}_p2p", SHAPE, machine(SLOW), IDEAL)) > 0


def test_a_call_begins_where_the_one_before_ended(answered: OverlapAnswer) -> None:
    shape = answered.sides[0].shape
    for variant, streams in (("rs_sliced4", 2), ("ag_p2p", 2), ("rs_async_tp", 2), ("ag_coll", 1)):
        works = streams_of(variant, shape, answered.machine)
        assert len({work.stream for work in works}) == streams
        assert all(0 <= work.start_ns < work.end_ns for work in works)
        for stream in Stream:
            of_it = [work for work in works if work.stream is stream]
            assert all(one.end_ns <= other.start_ns for one, other in itertools.pairwise(of_it))


# What is drawn is held by its numbers and its texts by default (above, below); here a picture is drawn twice.
@pytest.mark.thorough
def test_the_picture_has_every_way_and_marks_tails(answered: OverlapAnswer) -> None:
    picture = render_layer(answered, "svg")
    assert picture == render_layer(answered, "svg")
    text = picture.decode()
    for told in ("none  compute", "slice:2  compute", "p2p  compute", "async-tp  compute", "copy engine", "tail: "):
        assert told in text
    assert "fused" not in text  # a bound has no streams


def test_no_text_leaves_the_picture_or_lies_on_another(answered: OverlapAnswer) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = layer_figure(answered)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [text for axes in figure.axes for text in axes.texts] + figure.texts
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts if text.get_text()]
    assert len(boxes) == 2 + 2 * 4
    for number, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(other) for other in boxes[:number])


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "layer.pdf"
    asked = ["overlap", *map(str, LAYERS), "--overlap", "slice:2", "-q"]
    assert run([*asked, "-o", str(target)]) == 0
    assert target.read_bytes().startswith(b"%PDF")
    assert run([*asked, "-o", str(target)]) != 0  # it is there
    assert run([*asked, "-o", str(tmp_path / "layer.txt")]) == 2
    assert "use .png, .svg or .pdf" in capsys.readouterr().err
    measured = ["--measured", str(H200.parents[1] / "measured.json")]
    assert run([*asked, *measured, "-o", str(tmp_path / "x.png")]) == 2
    assert not (tmp_path / "x.png").exists()
