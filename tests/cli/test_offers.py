"""25 or 100 Gbit/s, and change the schedule or not? Asked of every face: the same plan, step and error."""

from __future__ import annotations

import html
import json
import re
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from helpers.recorded import ROOT, SAMPLES, looked_at, run_of
from helpers.thorough import is_asked, spread

import tracetool as tt
from tracetool.advice import decide
from tracetool.cli import run
from tracetool.reports.sweep import best_sentences
from tracetool.whatif.depth import RELEVANT_RATIO

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("coarse_knees")

SAMPLE = str(SAMPLES / "h100-1f1b")
NAMES = ["--schedule", "1f1b,geopipe,zb-h1"]
OVER = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms"]
ASKED = [*OVER, "--or", "100Gbit/s,10ms=9000EUR/month"]
TWO = """scenario = [
    {name = "25 Gbit/s, 10 ms", dc = "0-1,2-3", links = ["dc0-dc1=25Gbit/s,10ms"]},
    {name = "100 Gbit/s, 10 ms", dc = "0-1,2-3", links = ["dc0-dc1=100Gbit/s,10ms"]},
    ]"""
FIGURES = ["schedule", "extra_forwards", "p2p", "step_ns", "seen_error_ratio"]


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What ``advise --json`` says; the others are held against it."""
    with redirect_stdout(StringIO()) as out:
        assert run(["advise", SAMPLE, *NAMES, *ASKED, "--json"]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    schema = json.loads((ROOT / "schemas" / "advice.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(found)
    return found


def _figures(plan: dict[str, Any]) -> list[Any]:
    return [plan[name] for name in FIGURES]


# The first offer is told as the second one is.
@spread("at", [0, 1], [1])
def test_each_offer_is_what_advise_says_of_it_alone(
    told: dict[str, Any], at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    link = ("25Gbit/s", "100Gbit/s")[at]
    assert run(["advise", SAMPLE, *NAMES, "--dc", "0-1,2-3", "--link", f"dc0-dc1={link},10ms", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    offer = told["offers"][at]
    assert _figures(offer["best"]) == _figures(alone["best"])
    assert offer["binds"] == alone["binds"]
    assert offer["to_today_ratio"] == pytest.approx(alone["best"]["step_ns"] / alone["step"]["step_ns"] - 1)
    assert told["today_ns"] == alone["step"]["step_ns"]


def test_the_sentence_has_plans_steps_errors_and_the_price_of_a_millisecond(
    told: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["advise", SAMPLE, *NAMES, *ASKED]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 24
    text = " ".join(out.split())
    assert text.startswith(told["headline"].replace("  ", " "))
    for offer in told["offers"]:
        best = offer["best"]
        assert f"{best['step_ns'] / 1e6:.1f} ms (±{best['seen_error_ratio']:.0%})" in told["headline"]
        assert f"{best['schedule']}" in told["headline"]
    bought = told["offers"][1]["bought"]
    first, second = (offer["best"]["step_ns"] for offer in told["offers"])
    assert bought["saved_ns"] == first - second
    assert f"{9000 / ((first - second) / 1e6):,.0f} EUR/month per ms" in told["headline"]


# The page has its sentence and its offers from the answer that JSON and text have, which are tried by default.
@pytest.mark.thorough
def test_the_page_begins_with_it_and_names_offers_places_and_today(
    told: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "a.html"
    assert run(["report", SAMPLE, *NAMES, *ASKED, "-o", str(target), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["headline"] == told["headline"]
    assert _figures(written["best"]) == _figures(told["offers"][0]["best"])
    page = html.unescape(target.read_text(encoding="utf-8"))
    begins = [re.sub(r"\s+", " ", part) for part in re.findall(r"<(?:h1|p class=\"lead\")>(.*?)</", page, re.DOTALL)]
    assert " ".join(begins) == told["headline"]
    name = re.sub(r"<[^>]+>", "", page[page.index('<p class="name">') : page.index("<h1>")])
    assert "25 Gbit/s, 10 ms or 100 Gbit/s, 10 ms · dc0: ranks 0-1; dc1: ranks 2-3 · today 246.4 ms a step" in name
    table = page[page.index("What to run over each offer") :]
    assert "9,000 EUR/month" in table[: table.index("</table>")]


def test_sweep_python_and_sql_say_the_same(
    told: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scenarios = tmp_path / "two.toml"
    scenarios.write_text(TWO)
    assert run(["sweep", SAMPLE, *NAMES, "--scenario", str(scenarios), "--json"]) == 0
    swept = json.loads(capsys.readouterr().out)
    found = looked_at(run_of(SAMPLES / "h100-1f1b"))
    scenario = tt.scenario(found, dc="0-1,2-3", link="dc0-dc1=25Gbit/s,10ms")
    offers = decide(found, scenario, "100Gbit/s,10ms=9000EUR/month", "1f1b,geopipe,zb-h1").decision.offers
    for at, offer in enumerate(told["offers"]):
        best = offer["best"]
        assert _figures(swept["best"][at]) == _figures(best)
        said = f"{best['schedule']}", f"{best['step_ns'] / 1e6:.1f} ms (±{best['seen_error_ratio']:.0%})"
        assert [part for part in said if part not in swept["headline"]] == []
        mine = offers[at].best
        assert mine is not None
        assert (mine.schedule, mine.step_ns) == (best["schedule"], best["step_ns"])
        assert mine.known_error is not None
        assert mine.known_error.step_ratio == best["seen_error_ratio"]
        assert list(mine.extra_forwards or ()) == (best["extra_forwards"] or [])
        target = str(tmp_path / f"{at}.run")
        links = ["--dc", "0-1,2-3", "--link", f"dc0-dc1={('25', '100')[at]}Gbit/s,10ms"]
        assert run(["replay", SAMPLE, "--schedule", best["schedule"], *links, "--run", target]) == 0
        capsys.readouterr()
        figures = ["step_ns", "seen_error_ratio", "p2p"]
        query = f"SELECT {', '.join(figures)} FROM schedule_comparison WHERE timeline = '{best['schedule']}'"
        assert run(["sql", target, query, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert rows == [{name: best[name] for name in figures}]


def test_where_another_plan_is_best_the_first_one_is_told_beside_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Over 50 Gbit/s zb-h1 is shortest for certain, but nearer to geopipe over 40 Gbit/s than the error."""
    over = ["--dc", "0-1,2-3", "--link", "dc0-dc1=40Gbit/s,10ms", "--or", "50Gbit/s,10ms"]
    assert run(["advise", SAMPLE, *NAMES, *over, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["offers"]
    assert (first["best"]["schedule"], second["best"]["schedule"]) == ("geopipe", "zb-h1")
    assert not second["bought"]["is_certain"]
    link = ["--dc", "0-1,2-3", "--link", "dc0-dc1=50Gbit/s,10ms"]
    assert run(["advise", SAMPLE, *NAMES, *link, "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    deepest = min(p["step_ns"] for p in plans if p["schedule"] == "geopipe" and p["p2p"] == first["best"]["p2p"])
    assert second["first_plan"]["step_ns"] == deepest
    assert run(["advise", SAMPLE, *NAMES, *over]) == 0
    assert f"there {deepest / 1e6:.1f} ms" in " ".join(capsys.readouterr().out.split())
    if not is_asked():
        # That a sweep has the plans and words of advise is tried above.
        return
    scenarios = tmp_path / "two.toml"
    scenarios.write_text(TWO.replace("25", "40").replace("100", "50"))
    assert run(["sweep", SAMPLE, *NAMES, "--scenario", str(scenarios), "--json"]) == 0
    assert f"there {deepest / 1e6:.1f} ms" in json.loads(capsys.readouterr().out)["headline"]


# By default the same is tried of pairs of links as values (below).
@pytest.mark.thorough
# Asked the other way round, what is bought of the second offer costs time.
@spread("order", [(0, 1), (1, 0)], [(0, 1)])
def test_the_recorded_order_is_not_kept_over_one_offer_where_the_plan_of_another_is_shorter(
    order: tuple[int, int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """geopipe leads 1f1b over 100 Gbit/s by less than the error, so that 1f1b is kept there if nothing is compared."""
    names = ["--schedule", "1f1b,geopipe"]
    links = ("25Gbit/s,10ms", "100Gbit/s,10ms")
    alone = []
    for link in links:
        assert run(["advise", SAMPLE, *names, "--dc", "0-1,2-3", "--link", f"dc0-dc1={link}", "--json"]) == 0
        alone.append(json.loads(capsys.readouterr().out))
    assert [one["best"]["schedule"] for one in alone] == ["geopipe", "1f1b"]
    first, second = (links[at] for at in order)
    asked = [*names, "--dc", "0-1,2-3", "--link", f"dc0-dc1={first}", "--or", second]
    assert run(["advise", SAMPLE, *asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    offers = [told["offers"][at] for at in order]
    assert [offer["best"]["schedule"] for offer in offers] == ["geopipe", "geopipe"]
    assert _figures(offers[0]["best"]) == _figures(alone[0]["best"])
    (one,) = [p for p in alone[1]["as_good"] if p["step_ns"] == offers[1]["best"]["step_ns"]]
    assert one["schedule"] == "geopipe"
    assert one["step_ns"] < alone[1]["best"]["step_ns"]
    bought = told["offers"][1]["bought"]
    assert bought["is_certain"]
    assert (bought["saved_ns"] > 0) == (order == (0, 1))

    target = tmp_path / "a.html"
    assert run(["report", SAMPLE, *asked, "-o", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["headline"] == told["headline"]
    panel = html.unescape(target.read_text(encoding="utf-8"))
    cells = dict(re.findall(r'data-told="Over (\d+ Gbit/s, 10 ms) (.*?)"', panel))
    for link, offer in zip(("25 Gbit/s, 10 ms", "100 Gbit/s, 10 ms"), offers, strict=True):
        assert cells[link].startswith("run geopipe")
        assert f"{offer['best']['step_ns'] / 1e6:.1f} ms" in cells[link]

    scenarios = tmp_path / "two.toml"
    scenarios.write_text(TWO)
    assert run(["sweep", SAMPLE, *names, "--scenario", str(scenarios), "--json"]) == 0
    swept = json.loads(capsys.readouterr().out)["best"]
    assert [_figures(best) for best in swept] == [_figures(offer["best"]) for offer in offers]


def test_over_a_faster_link_no_step_is_longer_because_the_recorded_order_was_kept() -> None:
    """Pairs of links, one of which is no worse in anything; depths alone may differ by what is relevant."""
    found = looked_at(run_of(SAMPLES / "h100-1f1b"))
    grid = tt.grid(
        found,
        "1f1b,geopipe",
        dc="0-1,2-3",
        bandwidth=",".join(f"{gbit_per_s}Gbit/s" for gbit_per_s in (10, 25, 40, 100, 400)),
        latency=",".join(f"{ms}ms" for ms in (0, 2, 5, 8, 10, 15)),
    )
    swept = tt.sweep(found, grid, knees=False)
    best = [each.point for each in swept.best if each.point is not None]
    figures = [(p.bandwidth_bytes_per_s or 0, -(p.latency_ns or 0), p.step_ns or 0, p.schedule) for p in best]
    assert {"1f1b", "geopipe"} <= {schedule for *_, schedule in figures}
    steps = [step_ns / 1e6 for *_, step_ns, schedule in figures if schedule == "geopipe"]
    (told,) = best_sentences(swept)
    assert told.startswith("Best of 30 scenarios: ")
    assert f"geopipe in {len(steps)} ({min(steps):.1f} ms to {max(steps):.1f} ms a step, " in told
    for wide, near, step_ns, schedule in figures:
        for other_wide, other_near, other_ns, _ in figures:
            if wide >= other_wide and near >= other_near:
                assert step_ns <= other_ns * (1 if schedule == "1f1b" else 1 + RELEVANT_RATIO)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--or", "100Gbit/s"], "needs a bandwidth and then a latency"),
        (["--or", "dc1-dc2=100Gbit/s,10ms"], "none of the links"),
        (["--or", "100Gbit/s,10ms=9000EUR"], "no price"),
        (["--or", "100Gbit/s,10ms=9USD/day", "--or", "200Gbit/s,10ms=9EUR/day"], "USD and EUR"),
    ],
)
def test_offers_that_cannot_be_read_are_refused(more: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", SAMPLE, "--schedule", "1f1b", *OVER, *more]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
