"""The page and pictures of an exploration: what they hold, and the timelines that they draw."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest
from helpers.drawn_jobs import DEVICE
from helpers.thorough import some

from tracetool.errors import ScenarioError
from tracetool.estimates.training import Training
from tracetool.estimates.transformer import LLAMA_2_13B
from tracetool.explore.answer import Exploration, explore
from tracetool.explore.failures import parse_failure, weigh_failures
from tracetool.explore.judge import Judge
from tracetool.explore.launch import launches
from tracetool.explore.plan import JobPlan, Workload
from tracetool.explore.space import Space
from tracetool.explore.timeline import replayed_plan
from tracetool.model.timeline import measure
from tracetool.network.file import NetworkChoice
from tracetool.network.tiers import Network, Tier
from tracetool.reports.exploration.json import ExplorationFacts
from tracetool.reports.exploration.page import render_page
from tracetool.reports.exploration.picture import overview_picture, timelines_figure

GB = 10**9
TRAINING = Training(tensor=4, stages=2, microbatches=4, batch=1, sequence=4096, efficiency_ratio=0.7, data=4)
TIERS = (
    Tier("hb", 4, 450 * GB, 1_000),
    Tier("dc", 16, 50 * GB, 5_000),
    Tier("wan", 32, 25 * GB, 2_000_000, shared_by="pair"),
)
WORKLOAD = Workload(LLAMA_2_13B, DEVICE, NetworkChoice(Network("two <DCs>", TIERS)), 1 << 60)


@pytest.fixture(scope="module")
def done() -> Exploration:
    given = {"schedule": ("1f1b", "geopipe"), "placement": ("tp in hb, pp across wan", "tp in hb, dp across wan")}
    base = JobPlan(TRAINING, given["placement"][1])
    space = Space(WORKLOAD, base, given, frozenset({"tp", "microbatch", "recompute", "beside", "p2p", "chunks"}))  # type: ignore[arg-type]
    return explore(space)


def test_a_page_says_the_answer_and_how_to_launch_it(done: Exploration) -> None:
    assert done.best is not None
    failing = parse_failure("wan.bandwidth=10%@5%", WORKLOAD.choice.network)
    failures = weigh_failures(done.space, done.results, [failing])
    page = render_page(done, ExplorationFacts("1", "tracetool explore m.toml --network <n>.toml"), failures).decode()
    HTMLParser().feed(page)
    text = " ".join(unescape(re.sub(r"<(style|script)>.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)).split())
    for said in (
        f"Run {done.best.plan.degrees_text} with", "What each choice reaches", "all together", "wan.bandwidth=10%",
        "When the fleet is not whole", "How to reproduce", "tracetool explore m.toml --network <n>.toml",
        *(launch.text for launch in launches(WORKLOAD, done.best.plan)),
    ):  # fmt: skip
        assert said in text, said
    assert "two <DCs>" not in page
    assert page.count("<svg") + page.count("data:image/png") == 2
    assert re.search(r'(src|href)="http', page) is None
    assert len(page) < 1_500_000


def test_the_timelines_are_what_was_judged(done: Exploration) -> None:
    for judged in some(done.results.judged, 4):
        took = measure(replayed_plan(WORKLOAD, judged.plan).timeline)
        assert took.step_ns == pytest.approx(judged.step_ns, rel=1e-6)
        assert took.window_ns == pytest.approx(judged.window_ns, rel=1e-6)
    assert len(timelines_figure(done).axes) == 2


def test_pictures_and_what_is_too_large(done: Exploration) -> None:
    assert overview_picture(done, "png").startswith(b"\x89PNG")
    svg = overview_picture(done, "svg").decode()
    assert "mathdefault" not in svg
    assert "front" in svg
    many = JobPlan(replace(TRAINING, microbatches=100_000), "tp in hb, pp across wan")
    with pytest.raises(ScenarioError, match="400,000 actions"):
        replayed_plan(WORKLOAD, many)
    assert Judge(WORKLOAD).judge([JobPlan(TRAINING, "tp in hb, pp across wan")])[0].runs
