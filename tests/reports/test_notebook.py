"""Results show themselves: what a cell of a notebook gets, the figures of plot(), and the bar below a cell."""

from __future__ import annotations

import re
import subprocess
import sys
from base64 import b64decode
from functools import cache
from html import unescape
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import ROOT, SAMPLES, looked_at, run_of
from helpers.thorough import spread
from matplotlib.figure import Figure

import tracetool as tt
from tracetool.model.notice import Silent, unasked
from tracetool.reports.advice import sentences
from tracetool.reports.cell import CellBar
from tracetool.sweeps import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NAMES = "1f1b,geopipe"
MODEL, NETWORK = ROOT / "schemas" / "models" / "korthikanti.toml", ROOT / "schemas" / "networks" / "a100.toml"
FOUR = ROOT / "schemas" / "networks" / "four-gpus.toml"


@cache
def result_of(name: str) -> Any:
    """Worked out when a test asks for it."""
    run = run_of(SAMPLES / "h100-1f1b")
    found = looked_at(run)
    scenario = tt.scenario(found, dc="0-1,2-3", link="dc0-dc1=25Gbit/s,10ms")
    grid = tt.grid(found, NAMES, dc="0-1,2-3", bandwidth="25Gbit/s,100Gbit/s", latency="10ms")
    ways: dict[str, Callable[[], Any]] = {
        "answer": lambda: tt.answer(found, NAMES, scenario),
        "result": lambda: result_of("answer").results[1],
        "advice": lambda: tt.advise(found, scenario, NAMES),
        "decided": lambda: tt.decide(found, scenario, "100Gbit/s,10ms=9000EUR/month", NAMES, steps=1000),
        "sweep": lambda: tt.sweep(found, grid, knees=False),
        "explanation": lambda: tt.explain(found, "1f1b", scenario),
        "comparison": lambda: tt.compare(run, run),
        "estimated": lambda: tt.estimate(MODEL, NETWORK, fit="22B selective"),
        "traffic": lambda: tt.traffic(run, FOUR),
    }
    return ways[name]()


# Each result has a table and picture of its own; how they are put into a cell is one function.
@spread(
    ("name", "said"),
    [
        ("answer", "geopipe +2,2,0,0 is best: 319.6 ms ±4% a step, 8.0% ±5% less than 1f1b"),
        ("result", "geopipe +2,2,0,0 with in-order transfers: 319.6 ms (±4%) a step"),
        ("advice", "Over 25 Gbit/s, 10 ms run geopipe +2,2,0,0 (in-order transfers): 319.6 ms (±4%) a step"),
        ("decided", "100 Gbit/s, 10 ms with geopipe +1,1,0,0"),
        ("sweep", "Best of 2 scenarios: "),
        ("explanation", "Ranks idle "),
        ("comparison", "step_ns 246.4 ms"),
        ("estimated", "Step 73.325 s, 54.9% MFU"),
        ("traffic", "50.0% of pairs of ranks exchange nothing"),
    ],
    [("answer", "geopipe +2,2,0,0 is best: 319.6 ms ±4% a step, 8.0% ±5% less than 1f1b")],
)
def test_a_cell_shows_sentence_table_and_picture(name: str, said: str) -> None:
    shown = result_of(name)._repr_html_()
    text = unescape(re.sub(r"<[^>]+>", " ", shown))
    assert said in text
    assert ("<table>" in shown) is (name != "result")
    (pixels,) = re.findall(r'src="data:image/png;base64,([^"]+)"', shown)
    assert b64decode(pixels)[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(shown) < 300_000
    assert isinstance(result_of(name).plot(), Figure)


def test_a_figure_shows_itself() -> None:
    """matplotlib's own figures do so only where pyplot was imported before."""
    figure: Any = result_of("decided").plot()
    assert figure._repr_png_()[:4] == b"\x89PNG"


def test_the_decision_has_a_table() -> None:
    decision = result_of("decided").decision
    rows = tt.to_polars(result_of("decided"))["offers"].to_dicts()
    assert tt.to_arrow(decision)["offers"].to_pylist() == rows
    assert [row["name"] for row in rows] == [offer.name for offer in decision.offers]
    first, other = rows
    bought = decision.bought(decision.offers[1])
    assert (first["saved_ns"], first["fee"], other["fee"]) == (None, None, "9,000 EUR/month")
    assert other["saved_ns"] == first["step_ns"] - other["step_ns"] == bought.saved_ns
    assert other["to_today_ratio"] == decision.to_today(decision.offers[1])
    assert other["run_days"] == pytest.approx(1000 * (other["step_ns"] + decision.today.around_ns) / 86_400e9)
    assert f"{other['step_ns'] / 1e6:.1f} ms" in sentences(decision)[1]


def test_what_has_no_picture_says_so() -> None:
    shown = Sweep((), ())._repr_html_()
    assert "there is nothing to draw" in shown
    with pytest.raises(tt.TraceToolError):
        Sweep((), ()).plot()


def test_names_stay_text() -> None:
    from dataclasses import replace

    hostile = replace(result_of("decided").decision.offers[0], name="<script>alert(1)</script>")
    assert "<script>" not in replace(result_of("decided").decision, offers=(hostile,))._repr_html_()


def test_a_bar_is_shown_in_cells_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(unasked(), Silent)
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    bar = unasked()
    assert isinstance(bar, CellBar)
    monkeypatch.setattr("tracetool.reports.cell._DELAY_S", 0)
    bar.start(200)
    for _ in range(4):
        bar.advance(50)
    said = capsys.readouterr().err
    assert re.search(r"\b0%.*0.00/200", said)
    assert said.endswith("\r")  # it is gone when all is done


# Commands that need none of it do not load it, by default as well (tests/test_packaging).
@pytest.mark.thorough
def test_plots_are_loaded_when_asked_for() -> None:
    code = (
        "import sys, tracetool as tt; tt.Answer, tt.Sweep, tt.Advice, tt.Comparison, tt.Explanation; "
        "sys.exit(any(name in sys.modules for name in ('matplotlib', 'tqdm', 'jinja2', 'tracetool.reports')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
