"""The panel of a page: other links and limits, replayed beforehand, as sliders show them and as tables hold them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers import synthetic
from helpers.browser import Browser, Parsed
from helpers.drawn import GBIT, GIB, MS, what_if
from helpers.figures import figures_undrawn
from helpers.thorough import is_asked, some, spread

from tracetool.advice import Decided, advise, decide
from tracetool.reports import RunFacts
from tracetool.reports.advice import sentences
from tracetool.reports.html.page import Around, page
from tracetool.sweeps import sweep
from tracetool.sweeps.asked import grid_around

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.whatif.results import Answer

FACTS = RunFacts("x.run", "d" * 64, "9.9", "tracetool report x.run")


NAMES = ["1f1b", "geopipe"]


@pytest.fixture(scope="module")
def shown() -> Answer:
    return what_if(4, 4, [2, 2], hbm_bytes=11 * GIB, causes=False)


@pytest.fixture(scope="module")
def tried(shown: Answer) -> tuple[Decided, Around]:
    """Two offers, and usual links and limits round them."""
    found = synthetic.found(shown.pipeline)
    decided = decide(found, shown.scenario, "30Gbit/s,7ms", NAMES)
    needs = [plan.needed_bytes for one in decided.advice for plan in one.asked.plans]
    grid = grid_around([one.scenario for one in decided.advice], NAMES, [n for n in needs if n is not None])
    return decided, Around(grid, sweep(found, grid, knees=False, beside=()))


@pytest.fixture(scope="module")
def panel(shown: Answer, tried: tuple[Decided, Around], tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "panel.html"
    decided, around = tried
    # Its pictures are looked at where the first screen is, in a thorough run.
    with nullcontext() if is_asked() else figures_undrawn():
        target.write_bytes(page(shown, FACTS, decided=decided, around=around))
    return target


def cells_of(parsed: Parsed) -> dict[str, dict[str, str | None]]:
    return {a["data-at"] or "": a for a in parsed.all("td") if "data-at" in a}


def test_the_panel_holds_what_advise_says_of_each_link_and_limit(
    shown: Answer, tried: tuple[Decided, Around], panel: Path
) -> None:
    """Advice replays each scenario by itself, in full; the panel's numbers come from a sweep."""
    parsed = Parsed(panel.read_text(encoding="utf-8"))
    cells, grid, found = cells_of(parsed), tried[1].grid, synthetic.found(shown.pipeline)
    assert len(cells) == len(grid.bandwidths_bytes_per_s) * len(grid.latencies_ns) * len(grid.hbm_bytes)
    assert {n * GBIT for n in (10, 25, 30, 50, 100, 200, 400, 800)} == set(grid.bandwidths_bytes_per_s)
    assert {n * MS for n in (1, 2, 5, 7, 10, 20, 40)} == set(grid.latencies_ns)
    assert {11 * GIB, None} < set(grid.hbm_bytes)
    every = ("0,0,0", "1,5,1", "3,2,3", f"0,5,{len(grid.hbm_bytes) - 1}", f"2,3,{grid.hbm_bytes.index(11 * GIB)}")
    for at in some(every, 2):
        column, row, limit = map(int, at.split(","))
        links = tuple(
            replace(
                link,
                bandwidth_bytes_per_s=grid.bandwidths_bytes_per_s[column],
                latency_ns=grid.latencies_ns[row],
            )
            for link in shown.scenario.topology.links
        )
        topology = replace(shown.scenario.topology, links=links)
        best = advise(found, replace(shown.scenario, topology=topology, hbm_bytes=grid.hbm_bytes[limit]), NAMES).best
        if best is None:
            assert "nothing fits" in (cells[at]["data-told"] or "")
            assert "data-step" not in cells[at]
            continue
        assert cells[at]["data-run"] == best.label
        assert float(cells[at]["data-step"] or 0) == best.step_ns / MS
        assert f"run {best.label}" in (told := cells[at]["data-told"] or "") or f"keep {best.label}" in told
        assert f"{best.step_ns / MS:.1f} ms" in told
    assert any("data-step" not in cell for cell in cells.values())


def test_the_panel_opens_with_the_first_offer(tried: tuple[Decided, Around], panel: Path) -> None:
    """In the words of advise, but for what binds: that is not sought at every link."""
    parsed = Parsed(panel.read_text(encoding="utf-8"))
    decision = tried[0].decision
    (told,) = sentences(replace(decision, offers=(replace(decision.offers[0], binds=None),), pays_until=None))
    assert told.removesuffix(".") in parsed.text
    sliders = parsed.all("input")
    start = cells_of(parsed)[",".join(slider["value"] or "" for slider in sliders)]
    assert start["data-told"] == told
    assert [slider["aria-valuetext"] for slider in sliders] == ["25 Gbit/s", "10 ms", "11.00 GiB"]
    labels = {label["for"] for label in parsed.all("label")}
    assert labels == {slider["id"] for slider in sliders}


MOVE = """(() => {
    const slider = document.getElementById("bandwidth");
    slider.value = slider.max;
    slider.dispatchEvent(new Event("input", {bubbles: true}));
    const at = Array.from(document.querySelectorAll(".sliders input"), one => one.value).join(",");
    const cell = document.querySelector(`td[data-at="${at}"]`);
    return [slider.getAttribute("aria-valuetext"), document.querySelector("output[for=bandwidth]").textContent,
            document.querySelector(".told").textContent === cell.dataset.told, cell.classList.contains("here"),
            document.querySelectorAll("td.here").length,
            document.querySelector(".curve svg").ariaLabel.includes(Number(cell.dataset.step).toFixed(1)),
            document.querySelectorAll(".curve circle").length, document.querySelector(".told").ariaLive];
})()"""
UNNAMED = """Array.from(document.querySelectorAll("input, button, summary, [tabindex]"))
    .filter(one => !(one.labels?.length || one.textContent.trim() || one.ariaLabel)).length"""
UNSEEN = """(() => {
    const plain = [];
    for (const one of document.querySelectorAll("input, button, summary, a, [tabindex]")) {
        if (!one.checkVisibility()) continue;
        one.focus({focusVisible: true});
        if (getComputedStyle(one).outlineStyle === "none") plain.push(one.outerHTML.slice(0, 80));
    }
    return plain;
})()"""


# The panel is laid out in columns from 1280 up: a phone has the other layout.
@spread("width", [1920, 1280, 390], [390])
def test_sliders_show_what_the_tables_hold(browser_: Browser, panel: Path, width: int) -> None:
    seen = browser_.open(panel, width=width, run=(MOVE, UNNAMED, UNSEEN))
    assert (seen.overflow_px, seen.requests, seen.complaints) == (0, [], [])
    moved, unnamed, unseen = seen.answers
    assert moved == ["800 Gbit/s", "800 Gbit/s", True, True, 1, True, 8, "polite"]
    assert (unnamed, unseen) == (0, [])


# The tables are read without a browser by default.
@pytest.mark.thorough
def test_without_scripts_the_panel_is_tables(browser_: Browser, panel: Path) -> None:
    shown = """[document.querySelector(".panel").checkVisibility(), document.querySelector("details").open,
        Array.from(document.querySelectorAll("td[data-at]")).every(cell => cell.checkVisibility())]"""
    assert browser_.open(panel, width=1280, scripts=False, run=(shown,)).answers == [[False, True, True]]
    assert browser_.open(panel, width=1280, run=(shown,)).answers == [[True, False, False]]


# Where parts of the page stand follows from its style, which seldom changes.
@pytest.mark.thorough
def test_the_first_screen_has_sentence_offers_and_both_timelines(browser_: Browser, panel: Path) -> None:
    """What stands below the fold of a laptop is not seen by those it is sent to."""
    ends = """["h1", ".offers", "figure.pair"].map(one => document.querySelector(one).getBoundingClientRect().bottom)"""
    (places,) = browser_.open(panel, width=1280, run=(ends,)).answers
    assert places == sorted(places)
    assert places[-1] < 900
