"""The schedule picture: files of every format, the same bytes each time, and the words in them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers.drawn import figure_of, texts_of, with_idles
from helpers.thorough import spread
from matplotlib import style
from matplotlib.path import Path
from matplotlib.text import Text

from tracetool.causes.cause import Cause, Idle
from tracetool.model.action import ActionKind, CollectiveUse
from tracetool.model.pipeline import ActionCost, Pipeline, RankProfile, StageProfile, TailPart
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape
from tracetool.model.topology import Topology, parse_dc_map, parse_link
from tracetool.reconstruction import Reconstruction
from tracetool.replays import replay
from tracetool.reports import RunFacts
from tracetool.reports.gantt import cells
from tracetool.reports.gantt import picture as gantt
from tracetool.reports.gantt.picture import REPORT, render_gantt
from tracetool.reports.picture import RED, STYLE
from tracetool.schedules import build_schedule
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from matplotlib.patches import Patch

    from tracetool.reports.picture import PictureFormat
    from tracetool.whatif.results import Answer

MS = 10**6
GIB = 2**30
RANKS, MICROBATCHES = 4, 6
HBM = 80 * GIB
TWO_DCS = Topology(parse_dc_map("0-1,2-3"), parse_link("dc0-dc1=25Gbit/s,10ms"))


@cache
def picture_of(
    schedule: str = "geopipe",
    topology: Topology = TWO_DCS,
    *,
    hbm_bytes: int | None = HBM,
    microbatches: int = MICROBATCHES,
    held_bytes: int | None = GIB,
    extra_forwards: tuple[int, ...] | None = (2, 2, 0, 0),
) -> Answer:
    freed = None if held_bytes is None else -held_bytes
    stage = StageProfile(
        0,
        {
            ActionKind.FORWARD: (ActionCost(5 * MS, held_bytes, held_bytes),) * microbatches,
            ActionKind.BACKWARD: (ActionCost(10 * MS, freed, 0 if held_bytes else None),) * microbatches,
        },
        forward_payload_bytes=2**24,
        backward_payload_bytes=2**24,
    )
    static = None if held_bytes is None else 8 * GIB
    tail = (TailPart(ActionKind.REDUCE_GRAD, 2 * MS), TailPart(ActionKind.OPTIMIZER, 3 * MS))
    pipeline = Pipeline(
        stages=tuple(replace(stage, stage=s) for s in range(RANKS)),
        ranks=tuple(RankProfile(rank=rank, static_bytes=static, tail=tail) for rank in range(RANKS)),
        observed=build_schedule("1f1b", PipelineShape(RANKS, microbatches)),
        p2p="posted-ahead",
        step=0,
    )
    observed = replace(replay(pipeline, pipeline.observed, Scenario()).timeline, name="observed")
    found = Reconstruction(pipeline, observed, {}, {}, ())
    what_if = Scenario(topology=topology, hbm_bytes=hbm_bytes)
    return answer(found, [schedule], what_if, extra_forwards=extra_forwards)


def texts(drawn: Answer) -> list[str]:
    """Lines of text of the figure: to draw it takes four times as long as to make it."""
    with style.context(["default", STYLE]):
        found = gantt.gantt_figure(drawn).findobj(Text)
    shown = [text.get_text() for text in found if isinstance(text, Text) and text.get_visible()]
    return [line for text in shown for line in text.splitlines()]


# Commands that need none of it do not load it, by default as well (tests/test_packaging).
@pytest.mark.thorough
def test_import_leaves_matplotlib_alone() -> None:
    code = "import sys, tracetool.reports.gantt.picture; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@cache
def svg() -> bytes:
    return render_gantt(picture_of(), format="svg")


@cache
def words(**how: Any) -> list[str]:
    return texts(picture_of(**how))


# A date or a number that is drawn could be in the PDF alone.
@spread(
    ("name", "magic"),
    [("png", b"\x89PNG\r\n\x1a\n"), ("svg", b"<?xml"), ("pdf", b"%PDF-")],
    [("svg", b"<?xml")],
)
def test_report_writes_the_format_of_its_suffix_the_same_each_time(name: PictureFormat, magic: bytes) -> None:
    drawn, facts = picture_of(), RunFacts("a", "b", "c", "d")
    written = REPORT.render(drawn, facts, f".{name.upper()}")
    assert f".{name}" in REPORT.suffixes
    assert written.startswith(magic)
    assert written == (svg() if name == "svg" else render_gantt(drawn, format=name))


def test_settings_of_the_user_do_not_change_the_picture() -> None:
    import matplotlib as mpl

    drawn, plain = picture_of(), svg()
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "black", "svg.fonttype": "path"}):
        assert render_gantt(drawn, format="svg") == plain


def test_names_schedules_ranks_dcs_and_figures() -> None:
    drawn = picture_of()
    found = texts(drawn)
    for title in ("As recorded: 1f1b", "Baseline: 1f1b", "Result: geopipe"):
        assert found.count(title) == 1
    for rank in range(RANKS):
        assert found.count(f"rank {rank}") == 3
    assert (found.count("dc0"), found.count("dc1")) == (2, 2)
    details = next(t for t in found if "+2 forwards on ranks 0–1" in t)
    assert f"p = {RANKS}, m = {MICROBATCHES}" in details
    assert "posted-ahead transfers" in details
    assert f"bubble {drawn.results[0].metrics.bubble_ratio:.1%}" in details


def test_every_wide_cell_shows_its_microbatch() -> None:
    # Without memory there are no curves, whose axis has numbers too.
    found = words(hbm_bytes=None, held_bytes=None)
    # The time axis says 0 as well.
    for microbatch in range(1, MICROBATCHES):
        assert found.count(str(microbatch)) == 3 * 2 * RANKS


def test_narrow_cells_show_no_microbatch() -> None:
    assert "137" not in words(microbatches=140)


def test_time_saved_is_said() -> None:
    drawn = picture_of()
    base, step = drawn.baseline.metrics.step_ns, drawn.results[0].metrics.step_ns
    assert step < base
    assert any(f"{(base - step) / MS:.1f} ms saved per step" in t for t in texts(drawn))


def test_time_lost_is_said() -> None:
    drawn = picture_of()
    turned = replace(drawn, baseline=drawn.results[0], results=(drawn.baseline,))
    assert any("lost per step (+" in t for t in texts(turned))


def test_result_equal_to_the_baseline_is_drawn_once() -> None:
    found = words(extra_forwards=(0, 0, 0, 0))
    assert "Same as the 1f1b baseline: geopipe" in found
    assert found.count("rank 0") == 2
    assert not any("per step" in t for t in found)


def test_without_dcs_there_are_no_links() -> None:
    found = words(topology=Topology())
    assert "dc0" not in found
    assert not any("link" in t for t in found)


def test_shortage_is_said_in_red() -> None:
    drawn = picture_of(hbm_bytes=10 * GIB)
    assert drawn.results[0].feasible is False
    shown = figure_of(lambda: gantt.gantt_figure(drawn)).findobj(Text)
    said = [text for text in shown if isinstance(text, Text) and text.get_text().startswith("Does not fit")]
    assert [text.get_text() for text in said] == [
        f"Does not fit the HBM limit of 10.00 GiB: rank 0 lacks {short:.2f} GiB" for short in (2, 4)
    ]
    assert {text.get_color() for text in said} == {RED}


def test_what_fits_is_not_called_short() -> None:
    assert not any("HBM limit" in t for t in words(hbm_bytes=None))
    assert not any("Does not fit" in t for t in words())


def test_unknown_memory_is_said() -> None:
    found = words(held_bytes=None)
    assert found.count("HBM limit not checked: memory is unknown") == 2
    assert "peak HBM" not in found


def test_many_cells_become_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = picture_of()
    paths = svg()
    monkeypatch.setattr(gantt, "RASTER_ABOVE", 10)
    pixels = render_gantt(drawn, format="svg")
    assert (paths.count(b"<image"), pixels.count(b"<image")) == (0, 3)


# Each pattern of depths has words of its own.
@spread(
    ("extra", "text"),
    [
        ((1, 0, 0, 0), "+1 forward on rank 0"),
        ((3, 1, 1, 0), "+3 forwards on rank 0, +1 on ranks 1–2"),
        ((3, 2, 1, 0), "up to +3 forwards"),
        ((0, 0, 0, 0), "no extra forwards"),
    ],
    2,
)
def test_extra_forwards_are_named_by_ranks(extra: tuple[int, ...], text: str) -> None:
    assert any(t.startswith(f"{text}  ·") for t in words(extra_forwards=extra))


@pytest.mark.parametrize(
    ("links", "text"),
    [
        ("dc0-dc1=25Gbit/s,10ms", "dc0↔dc1 25 Gbit/s (3.125 GB/s), 10.0 ms"),
        ("dc0->dc1=25Gbit/s,10ms dc1->dc0=10Gbit/s,10ms", "dc0→dc1 25 Gbit/s (3.125 GB/s), 10.0 ms  ·  dc1→dc0"),
    ],
)
def test_links_are_named(links: str, text: str) -> None:
    topology = Topology(TWO_DCS.dcs, tuple(link for part in links.split() for link in parse_link(part)))
    assert any(text in t for t in words(topology=topology))


def test_every_link_is_named() -> None:
    """Three links of one speed together, and any of another speed by itself."""
    links = tuple(link for pair in ("dc0-dc1", "dc1-dc2", "dc2-dc3") for link in parse_link(f"{pair}=25Gbit/s,10ms"))
    map_of_four = parse_dc_map("0,1,2,3")
    equal = words(topology=Topology(map_of_four, links))
    assert any("dc0↔dc1, dc1↔dc2, dc2↔dc3: 25 Gbit/s (3.125 GB/s), 10.0 ms each" in t for t in equal)
    slower = (*links[:4], *parse_link("dc2-dc3=10Gbit/s,1ms"))
    said = " ".join(words(topology=Topology(map_of_four, slower)))
    assert "dc0↔dc1, dc1↔dc2: 25 Gbit/s" in said
    assert "dc2↔dc3 10 Gbit/s (1.25 GB/s), 1.0 ms" in said


def rectangles(patch: Patch) -> int:
    return sum(code == Path.MOVETO for _, code in patch.get_path().iter_segments(simplify=False))


def test_causes_that_occur_are_hatched_and_summed() -> None:
    """Shares are of ranks times window, so that they add up to the bubble ratio."""
    drawn = picture_of()
    result = drawn.results[0]
    last = result.metrics.window_ns
    fill, link = Idle(3, 0, 20 * MS, Cause.FILL), Idle(3, 20 * MS, 30 * MS, Cause.CROSS_DC_LATENCY)
    touching = Idle(3, 30 * MS, 35 * MS, Cause.CROSS_DC_LATENCY)
    base = with_idles(drawn.baseline, "idles", ())
    told = replace(drawn, baseline=base, results=(with_idles(result, "idles", (touching, link, fill)),))
    told = with_idles(told, "observed_idles", ())
    found = texts(told)
    shares = f"fill {20 * MS / (RANKS * last):.1%}, cross-DC latency {15 * MS / (RANKS * last):.1%}"
    assert f"idle by cause: {shares}" in found
    # The other panels' causes are not known.
    assert [t for t in found if t.startswith("idle:")] == ["idle: fill", "idle: cross-DC latency"]
    assert found.count("idle (bubble)") == 1
    panel = figure_of(lambda: gantt.gantt_figure(told)).axes[2]
    hatched = {patch.get_hatch(): rectangles(patch) for patch in panel.patches if patch.get_hatch()}
    # Intervals that touch are one rectangle.
    assert hatched == {Cause.FILL.look.hatch: 1, Cause.CROSS_DC_LATENCY.look.hatch: 1}


def test_collectives_over_links_are_in_their_lanes() -> None:
    """A tied embedding of 2^26 bytes, at 25 Gbit/s 21.475 ms each way, and two hops of 10 ms; the norm hops alone."""
    from matplotlib.colors import to_rgba

    measured = picture_of(extra_forwards=None).pipeline
    sums = (("embedding", 2**26, (0, RANKS - 1)), ("norm", 8, tuple(range(RANKS))))
    uses = [CollectiveUse("allreduce", ranks, size, MS, meeting=name) for name, size, ranks in sums]
    tails = [
        tuple(TailPart(ActionKind.REDUCE_GRAD, MS, u.meeting, (u,)) for u in uses if profile.rank in u.group_ranks)
        for profile in measured.ranks
    ]
    ranks = tuple(replace(profile, tail=tail) for profile, tail in zip(measured.ranks, tails, strict=True))
    tied = replace(measured, ranks=ranks)
    alone = replay(tied, tied.observed, Scenario())
    reconstructed = Reconstruction(tied, replace(alone.timeline, name="observed"), {}, {}, ())
    told = answer(reconstructed, ["1f1b"], Scenario(topology=TWO_DCS))
    window = told.results[0].metrics.window_ns / MS
    panel = figure_of(lambda: gantt.gantt_figure(told)).axes[1]

    def spans(colour: str) -> set[tuple[float, float]]:
        boxes = [
            np.asarray(patch.get_path().vertices) for patch in panel.patches if patch.get_facecolor() == to_rgba(colour)
        ]
        corners = [box[at : at + 4, 0] for box in boxes for at in range(0, len(box), 5)]
        return {(round(min(x), 2), round(max(x), 2)) for x in corners if min(x) >= window}

    over = round(window + 2**26 * 8 / 25e9 * 1e3, 2)
    assert (round(window, 2), over) in spans(cells.LINK_BUSY)
    assert (over, round(over + 20, 2)) in spans(cells.LINK_FLIGHT)
    (norm,) = {span for span in spans(cells.LINK_FLIGHT) if span[0] > over}
    # Four ranks in two DCs: six hops round the ring, three over links, beside what it takes inside one.
    assert norm[1] - norm[0] == pytest.approx(31, abs=0.02)


def test_a_dollar_in_a_name_is_no_formula() -> None:
    drawn = picture_of()
    named = replace(drawn, results=(replace(drawn.results[0], schedule="csv:$a_b$.csv"),))
    assert "Result: csv:$a_b$.csv" in texts(named)


def test_rows_of_a_narrow_picture_keep_their_texts() -> None:
    wide, narrow = words(), figure_of(lambda: gantt.gantt_figure(picture_of(), width_in=4.5))
    found = [text.get_text() for text in texts_of(narrow)]
    for rank in range(RANKS):
        assert found.count(f"rank {rank}") == wide.count(f"rank {rank}") == 3
    assert narrow.get_figwidth() == 4.5
