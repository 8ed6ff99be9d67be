"""What is explored of a recording as page, picture, timelines and front: each is that of the plans."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from helpers.recorded import ROOT, h100, rebuilt
from helpers.thorough import some
from helpers.two_places import fleet_text

import tracetool as tt
from tracetool.cli import run
from tracetool.explore.recorded import explore_recording, tier_bytes
from tracetool.explore.recorded_search import replayed_plan
from tracetool.explore.recorded_space import RecordedSpace
from tracetool.explore.space import read_axes
from tracetool.network.file import NetworkChoice
from tracetool.network.tiers import Network, Tier
from tracetool.reports.exploration.picture import overview_figure

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("asked_once")

TIERS = (Tier("hb", 2, 450 * 10**9), Tier("wan", 4, 10**9, 5_000_000, shared_by="pair"))
FEW = "schedule=1f1b,eager-1f1b,zb-h1"
FLEET = NetworkChoice(Network("two places", TIERS), "tp,pp")


def written(folder: Path) -> Path:
    """The fleet as a file."""
    path = folder / "fleet.toml"
    path.write_text(fleet_text(placement="tp,pp"), "utf-8")
    return path


def test_a_page_a_picture_and_timelines_are_those_of_the_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page says what the screen says, and each plan drawn is replayed to its own step again."""
    asked = [str(h100("tp2pp2_1f1b_m8").path), "--network", str(written(tmp_path)), "--try", FEW]
    page, picture = tmp_path / "e.html", tmp_path / "e.svg"
    assert run(["explore", *asked, "-o", str(page), "-o", str(picture)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    text = " ".join(
        unescape(re.sub(r"<(style|script)>.*?</\1>|<[^>]+>", " ", page.read_text(), flags=re.DOTALL)).split()
    )
    assert shown.partition(" (T0/T1")[0] in text
    assert "The recorded plan and the best one" in text
    assert page.read_text().count("<svg") == 2
    assert "recorded order" in picture.read_text()
    space = RecordedSpace(rebuilt("tp2pp2_1f1b_m8"), FLEET, read_axes([], [FEW]))
    done = explore_recording(space)
    front, choices, _ = overview_figure(done).axes
    bars = [label.get_text() for label in choices.get_yticklabels()]
    assert bars == ["placement", "schedule", "network", "one by one", "all together"]
    # A recording without allocations tells no memory: there is nothing to draw it over.
    assert all(plan.point.needed_bytes is None for plan in done.plans)
    assert not front.axison
    for plan in (done.base, done.best, *some(done.plans, 2)):
        assert plan is not None
        assert replayed_plan(space, plan).step_ns == plan.step_ns


# Fronts are by default those of made plans (test_fleets).
@pytest.mark.thorough
def test_the_front_holds_what_nothing_beats_in_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of every pair of plans in step, memory and bytes over the link; bytes are those of the traffic over its tiers."""
    path = str(h100("tp2pp2_1f1b_m8").path)
    asked = [path, "--network", str(written(tmp_path)), "--try", FEW]
    assert run(["explore", *asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    jsonschema.validate(told, json.loads((ROOT / "schemas" / "recorded-exploration.schema.json").read_text()))
    assert told["base"]["tier_bytes"] == list(tt.traffic(h100("tp2pp2_1f1b_m8"), FLEET).tier_bytes().values())

    def merits(plan: dict[str, Any]) -> tuple[float, ...]:
        known = plan["step_ns"], plan["needed_bytes"], (plan["tier_bytes"] or [None])[-1]
        return tuple(float("inf") if each is None else each for each in known)

    every, front = ([merits(plan) for plan in told[key]] for key in ("plans", "front"))
    assert front
    for ahead in front:
        assert not any(all(a <= b for a, b in zip(one, ahead, strict=True)) and one != ahead for one in every)
    for one in every:
        assert any(all(a <= b for a, b in zip(ahead, one, strict=True)) for ahead in front)


def test_bytes_of_stages_that_are_cut_anew_are_not_known() -> None:
    space = RecordedSpace(rebuilt("rt1f1b_m8"), replace(FLEET, placement="pp"), read_axes([], ["schedule=1f1b,zb-v"]))
    done = explore_recording(space)
    assert {plan.point.schedule for plan in done.plans} == {"1f1b", "zb-v"}
    assert all(tier_bytes(space, plan) is None for plan in done.plans)
