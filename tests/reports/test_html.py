"""The page: what it says, that it is whole in itself, and that names in it stay text."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers import synthetic
from helpers.browser import Browser, Parsed
from helpers.recorded import SAMPLES, looked_at, run_of
from helpers.thorough import is_asked, spread

import tracetool as tt
from tracetool.causes.cause import Cause, Idle
from tracetool.model.notice import Notice, SourceCode
from tracetool.model.topology import Topology
from tracetool.reports import RunFacts, report_for
from tracetool.reports.answer.text import compared_results, result_details
from tracetool.reports.html import details, stages
from tracetool.reports.html.page import MOST_BYTES, Picture, advised, fitted, page
from tracetool.reports.html.sections import idle_view
from tracetool.schedules import build_schedule
from tracetool.whatif.answer import answer
from tracetool.whatif.results import Answer, Refused, Result

if TYPE_CHECKING:
    from pathlib import Path

MS = 10**6
GIB = 2**30
RANKS, MICROBATCHES, LATENCY_MS = 4, 8, 30
FACTS = RunFacts("x.run", "d" * 64, "9.9", "tracetool report x.run")
HOSTILE = "<script>hacked=1</script><img src=x onerror=hacked=1>\"' onclick='hacked=1' $x^{$ &amp; ]]>"


def asked(ranks: int = RANKS, microbatches: int = MICROBATCHES, *names: str, hbm_gib: int = 11) -> Answer:
    """Equal stages of 5 and 10 ms, a GiB per microbatch and 6 at rest, two data centres 30 ms apart."""
    measured = synthetic.pipeline(
        ranks, microbatches, 5 * MS, 10 * MS, activation_bytes=GIB, static_bytes=6 * GIB, p2p="posted-ahead"
    )
    topology = synthetic.places([ranks // 2] * 2, latency_ns=LATENCY_MS * MS)
    what_if = synthetic.scenario(topology, hbm_bytes=hbm_gib * GIB)
    # Nothing is known of layers here: interleaved, which needs them, is refused.
    return answer(synthetic.found(measured), names or ("1f1b", "geopipe", "gpipe", "interleaved"), what_if)


@pytest.fixture(scope="module")
def shown() -> Answer:
    return asked()


@pytest.fixture(scope="module")
def drawn(shown: Answer) -> bytes:
    return page(shown, FACTS, _idles)


@pytest.fixture(scope="module")
def parsed(drawn: bytes) -> Parsed:
    return Parsed(drawn.decode())


# Commands that need none of it do not load it, by default as well (tests/test_packaging).
@pytest.mark.thorough
def test_import_leaves_the_template_engine_alone() -> None:
    code = "import sys, tracetool.reports.html.page; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_answer_comes_first_and_is_that_of_the_closed_form(shown: Answer, parsed: Parsed) -> None:
    """1F1B over one boundary: its (m+p-1)(f+b) and 2c for each time that warm-up runs out; geopipe hides all but one.

    With enough extra forwards (2c <= extra (f + b)) the step is (m+p-1)(f+b) + 2c; four hide 60 ms of
    15 each. The memory holds one forward more than 1F1B's on rank 0: 6 + 4 + 1 GiB.
    """
    (geopipe,) = [r for r in shown.results if r.schedule == "geopipe"]
    assert geopipe.extra_forwards == (1, 1, 0, 0)
    (roomy,) = [r for r in asked(hbm_gib=64).results if r.schedule == "geopipe"]
    assert roomy.metrics.step_ns == ((MICROBATCHES + RANKS - 1) * 15 + 2 * LATENCY_MS) * MS
    less = 1 - geopipe.metrics.step_ns / shown.baseline.metrics.step_ns
    headline = f"{less:.1%} less than 1f1b"
    assert headline in parsed.text
    assert f"{geopipe.metrics.step_ns / MS:.1f} ms a step (error unknown)" in parsed.text
    assert parsed.text.index(headline) < parsed.text.index("All schedules in this scenario")
    order = [attributes["id"] for attributes in parsed.all("h2")]
    assert order == ["answer", "why", "schedules", "pictures", "idle", "trust", "inferred", "reproduce"]


def test_every_schedule_is_in_the_table_with_its_figures_or_why_not(shown: Answer, parsed: Parsed) -> None:
    rows = {row[0]: row for row in parsed.rows if row}
    for result in shown.results:
        name = next(n for n in rows if n.startswith(result.schedule))
        assert f"{result.metrics.step_ns / MS:.1f} ms" in rows[name]
        assert f"{result.metrics.bubble_ratio:.1%}" in rows[name]
    # All eight forwards are in flight at once, of memory for five.
    assert rows["gpipe"][2] == "NOrank 0 lacks 3.00 GiB"
    (refused,) = shown.refused
    assert rows["interleaved"] == ["interleaved", f"not replayed: {refused.reason}{refused.hint or ''}"]


def said(text: str) -> Notice:
    return Notice(SourceCode.UNCODED, text)


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without their pictures, which take most of the time: for what is in the text alone."""
    monkeypatch.setattr("tracetool.reports.html.page.pictures", lambda *_: ())


@pytest.mark.usefixtures("_undrawn")
def test_notes_warnings_and_how_to_reproduce_are_told(shown: Answer) -> None:
    told = replace(shown, warnings=(said("replay misses its own recording"),), notes=(said("a note"),))
    text = Parsed(page(told, FACTS).decode()).text
    for part in ("Warning: replay misses its own recording", "a note", FACTS.command, FACTS.digest, FACTS.tool_version):
        assert part in text
    assert text.index("Warning:") < text.index("Schedules")
    for part in ("dc0: ranks 0-1; dc1: ranks 2-3", "30.0 ms one way", "11.00 GiB (11,811,160,064 bytes)"):
        assert part in text


def test_what_several_results_rest_on_stands_once_below_their_names(shown: Answer) -> None:
    results = tuple(replace(result, remarks=(said("costs are guessed"),)) for result in shown.results)
    alike = replace(shown, results=results)
    cards = details(alike)
    lines = [line for card in cards for line in card.lines]
    every = [line for result in compared_results(alike) for line in result_details(alike, result)]
    assert set(lines) == set(every)
    assert len(lines) == len(set(lines))
    assert every.count("costs are guessed") > 1
    (card,) = (card for card in cards if "costs are guessed" in card.lines)
    assert "," in card.name


def test_the_page_is_one_file_with_sound_structure(parsed: Parsed) -> None:
    for tag, attributes in parsed.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:image/png;base64,")), (tag, target)
    assert not parsed.all("link")
    assert len(parsed.all("script")) == 1
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in parsed.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip([0, *levels], levels, strict=False))
    assert len(parsed.all("caption")) == len(parsed.all("table"))
    assert all("scope" in attributes for attributes in parsed.all("th"))
    pictures = [a for _, a in parsed.elements if a.get("role") == "img"]
    assert [a["aria-label"] for a in pictures if "geopipe +1,1,0,0" in (a["aria-label"] or "")]


@pytest.mark.usefixtures("_undrawn")
def test_equal_input_gives_equal_bytes(shown: Answer) -> None:
    """Pictures do: test_gantt."""
    assert page(shown, FACTS) == page(shown, FACTS)


def test_suffixes_are_known() -> None:
    report = report_for(".HTML")
    assert report is not None
    assert report is report_for(".htm")


def hostile_page(shown: Answer, tmp_path: Path) -> tuple[bytes, str]:
    """Paths, data centres, reasons and the names of schedule files come from anywhere: a page of such, and a file."""
    file = tmp_path / "<img src=x onerror=hacked=1>$x^{$.csv"
    few = asked(RANKS, 2, "1f1b")
    file.write_text(build_schedule("gpipe", few.pipeline.observed.shape).to_csv(), encoding="utf-8")
    dcs = tuple(dc.replace("dc", HOSTILE) for dc in shown.scenario.topology.dcs)
    links = tuple(
        replace(k, src_dc=k.src_dc.replace("dc", HOSTILE), dst_dc=k.dst_dc.replace("dc", HOSTILE))
        for k in shown.scenario.topology.links
    )
    what_if = replace(shown.scenario, topology=Topology(dcs, links))
    found = answer(synthetic.found(few.pipeline), ["1f1b", f"csv:{file}"], what_if)
    found = replace(
        found, notes=(said(HOSTILE),), warnings=(said(HOSTILE),), refused=(Refused(HOSTILE, HOSTILE, HOSTILE),),
        baseline=replace(found.baseline, remarks=(said(HOSTILE),)),
    )  # fmt: skip
    return page(found, RunFacts(HOSTILE, HOSTILE, HOSTILE, HOSTILE)), file.name


def test_names_stay_text(shown: Answer, parsed: Parsed, tmp_path: Path) -> None:
    data, file = hostile_page(shown, tmp_path)
    hostile = Parsed(data.decode())
    assert {tag for tag, _ in hostile.elements} <= {tag for tag, _ in parsed.elements} | {"p", "strong"}
    assert len(hostile.all("script")) == 1
    assert not [a for _, a in hostile.elements if any(name.startswith("on") for name in a)]
    assert hostile.text.count(" ".join(HOSTILE.split())) > 10
    assert f"csv:{file}" in hostile.text


# The elements and attributes of the same page are looked through above.
@pytest.mark.thorough
def test_a_browser_runs_nothing_that_names_hold(shown: Answer, browser_: Browser, tmp_path: Path) -> None:
    target = tmp_path / "hostile.html"
    target.write_bytes(hostile_page(shown, tmp_path)[0])
    seen = browser_.open(target, width=1280, run=("typeof hacked",))
    assert (seen.answers, seen.complaints, seen.requests) == (["undefined"], [], [])


# A picture that is too large is left out by default (below).
@pytest.mark.thorough
def test_sixty_four_ranks_fit_a_small_file() -> None:
    found = asked(64, 32, "gpipe")
    data = page(found, FACTS)
    assert len(data) < MOST_BYTES
    text = Parsed(data.decode()).text
    assert "rank 63" in text
    assert "Left out" not in text


def test_ranks_that_are_not_listed_are_counted() -> None:
    found = asked(130, 2, "gpipe", hbm_gib=200)
    assert idle_view(found, found.results[0], _idles).ranks.after == ("2 more ranks are not listed.",)
    assert stages(found).after == ("2 more stages are not listed.",)


def test_the_first_form_of_a_picture_that_fits_is_taken() -> None:
    svg, png = b"<svg xmlns='http://www.w3.org/2000/svg' version='1.1'><g id='a'/></svg>", bytes(30)
    taken = [
        fitted(Picture("x", "", "", ""), {"svg": svg, "png": png}.__getitem__, most_bytes)
        for most_bytes in (1_000, 70, 50)
    ]
    assert [(bool(one.markup), bool(one.pixels)) for one in taken] == [(True, False), (False, True), (False, False)]
    # 30 bytes are 40 in base64, behind the 22 that say so.
    assert (taken[2].left_out or "").startswith("It would take 62 bytes")


# Which form is taken is tried above of bytes; here each picture is drawn in both.
@pytest.mark.thorough
def test_a_picture_too_large_is_left_out_and_that_is_said(shown: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracetool.reports.html.page.MOST_BYTES", 60_000)
    data = page(shown, FACTS)
    assert len(data) < 60_000
    assert "Left out: It would take" in Parsed(data.decode()).text


def _idles(result: Result) -> list[Idle]:
    """All idle time of a rank as one interval: hand-made, fill on even ranks and latency on odd ones."""
    causes = (Cause.FILL, Cause.CROSS_DC_LATENCY)
    window = result.metrics.window_ns
    return [Idle(rank, busy, window, causes[rank % 2]) for rank, busy in enumerate(result.metrics.rank_compute_ns)]


@pytest.mark.usefixtures("_undrawn")
def test_idle_time_is_told_by_cause_and_sums_to_the_bubble(shown: Answer) -> None:
    """Equal stages: every rank computes m (f + b), so that each of two causes has half of the mean."""
    told = Parsed(page(shown, FACTS, _idles).decode())
    rows = {row[0]: row for row in told.rows if row}
    (geopipe,) = [r for r in shown.results if r.schedule == "geopipe"]
    idle_ms = geopipe.metrics.step_ns / MS - MICROBATCHES * 15
    for cause, name in ((Cause.FILL, "fill"), (Cause.CROSS_DC_LATENCY, "cross-DC latency")):
        assert rows[name][-2:] == [f"{idle_ms / 2:.1f} ms", cause.words.meaning]
    assert rows["bubble, all causes"][-2] == f"{idle_ms:.1f} ms"
    assert rows["rank 1 (dc0)"][1:] == ["120.0 ms", f"{idle_ms:.1f} ms", "0", f"{idle_ms:.1f} ms"]
    widths = [float(found[1]) for a in told.all("i") if (found := re.match(r"width:([\d.]+)%", a.get("style") or ""))]
    assert len(widths) == 2 * RANKS
    assert sum(widths) == pytest.approx(100 * RANKS, abs=0.02 * RANKS)


@pytest.fixture(scope="module")
def written(drawn: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "x.html"
    target.write_bytes(drawn)
    return target


FIRST_COLUMN = "Array.from(document.querySelector('table').tBodies[0].rows, r => r.cells[0].firstChild.data)"
CLICK = "document.querySelectorAll('thead button')[1].click()"


# Each width in each scheme: what does not fit, or cannot be read, in one pair of them alone.
# What a page refers to is read from its text by default; here a browser shows it.
@pytest.mark.thorough
@spread(
    ("width", "scheme"),
    [(1280, "light"), (390, "dark"), (1920, "light"), (390, "light"), (1280, "dark"), (1920, "dark")],
    [(390, "dark")],
)
def test_a_browser_shows_it_whole_without_network_or_complaint(
    browser_: Browser, written: Path, width: int, scheme: str
) -> None:
    seen = browser_.open(
        written, width=width, scheme="dark" if scheme == "dark" else "light", pictured=True,
        run=("getComputedStyle(document.body).backgroundColor", FIRST_COLUMN, CLICK, FIRST_COLUMN),
    )  # fmt: skip
    assert (seen.overflow_px, seen.requests, seen.complaints) == (0, [], [])
    assert seen.screenshot[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(seen.screenshot[16:20], "big") == width
    assert int.from_bytes(seen.screenshot[20:24], "big") > 2_000
    ground, before, _, after = seen.answers
    assert ground == ("rgb(15, 20, 25)" if scheme == "dark" else "rgb(255, 255, 255)")
    assert before == ["as recorded", "1f1b", "geopipe +1,1,0,0", "gpipe", "interleaved"]
    # By step: posted-ahead gpipe hides the link but for its fill and drain; the one not replayed stays last.
    assert after == ["as recorded", "gpipe", "geopipe +1,1,0,0", "1f1b", "interleaved"]


def test_without_scripts_nothing_is_missing(browser_: Browser, written: Path) -> None:
    seen = browser_.open(written, width=390, scripts=False)
    assert (seen.overflow_px, seen.requests, seen.complaints) == (0, [], [])
    if is_asked():
        # That it can be printed by a browser at all.
        assert browser_.print_pdf(written).startswith(b"%PDF")


def test_the_browser_would_have_told(browser_: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!DOCTYPE html><meta name=viewport content='width=device-width'><img src=missing.png>"
        "<div style='width:2000px'>wide</div><script>console.error('said'); nothing()</script>",
        encoding="utf-8",
    )
    seen = browser_.open(bad, width=1280)
    assert seen.overflow_px > 700
    assert [url.rpartition("/")[2] for url in seen.requests] == ["missing.png"]
    assert any("said" in text for text in seen.complaints)
    assert any("nothing is not defined" in text for text in seen.complaints)


def test_of_more_microbatches_the_page_has_the_step_for_as_many_as_the_plan_has() -> None:
    """As ``advise -v`` has it: the plan's step less the gain, with a star and what it is of."""
    found = looked_at(run_of(SAMPLES / "h100-1f1b"))
    scenario = tt.scenario(found, dc="0-1,2-3", link="dc0-dc1=25Gbit/s,10ms")
    advice = tt.advise(found, scenario, "1f1b,geopipe")
    assert advice.best is not None
    table = advised(advice.asked.answer, advice)
    (gain,) = [gain for gain in advice.gains if gain.plan.result.microbatches == 9]
    assert table.gains is not None
    (row,) = [row for row in table.gains.rows if row.head.text == gain.more.text]
    per_microbatch = gain.plan.step_ns * 8 / 9
    assert row.cells[2].text == f"{per_microbatch / 1e6:.1f} ms*"
    assert advice.best.step_ns - per_microbatch == pytest.approx(gain.gained_ns, abs=1)
    assert "*: of every 8 microbatches, with 9 in a step." in table.lines
