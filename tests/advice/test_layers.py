"""Advice with layers that overlap otherwise: the plan for each offer, replayed with each way."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest
from helpers.recorded import ROOT, SAMPLES, looked_at, run_of

from tracetool.advice import decide
from tracetool.cli import run as command
from tracetool.costs.rescaled import with_layers
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionChange, LayerOverlap
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology, parse_link
from tracetool.replays.evaluation import evaluate
from tracetool.whatif.layers import gain_text

MS = 10**6
OVER_A_LINK = Scenario(Topology(("dc0", "dc0", "dc1", "dc1"), tuple(parse_link("dc0-dc1=25Gbit/s,10ms"))))


def _made_up(way: str, change_ms: float, error_ms: float) -> LayerOverlap:
    kinds = (ActionKind.FORWARD, ActionKind.BACKWARD)
    return LayerOverlap(
        way,
        None,
        tuple(
            ActionChange(s, kind, round(change_ms * MS), round(error_ms * MS), 0) for s in range(4) for kind in kinds
        ),
    )


WAYS = (LayerOverlap(), _made_up("slice:2", -1.5, 0.1), _made_up("p2p", -0.2, 1.0), _made_up("slice:8", 2.0, 0.1))


def test_what_is_to_be_run_over_each_offer_is_replayed_with_each_way() -> None:
    found = looked_at(run_of(SAMPLES / "h100-1f1b"))
    decided = decide(found, OVER_A_LINK, ["100Gbit/s,10ms"], "1f1b", overlaps=WAYS)
    assert [[gain.way for gain in gains] for gains in decided.layers] == [["slice:2", "p2p", "slice:8"]] * 2
    for advice, gains in zip(decided.advice, decided.layers, strict=True):
        assert advice.best is not None
        assert [gain.pays for gain in gains] == [True, None, False]
        order = advice.best.result.replayed.schedule
        for overlap, gain in zip(WAYS[1:], gains, strict=True):
            there = evaluate(with_layers(found.pipeline, overlap), order, advice.scenario).metrics
            assert (gain.plain_ns, gain.step_ns) == (advice.best.step_ns, there.step_ns)
    plain = decide(found, OVER_A_LINK, ["100Gbit/s,10ms"], "1f1b")
    assert plain.layers == ((), ())
    assert plain.decision.offers[0].best is not None
    assert decided.decision.offers[0].best is not None
    assert plain.decision.offers[0].best.step_ns == decided.decision.offers[0].best.step_ns


def test_words_say_whether_it_pays() -> None:
    found = looked_at(run_of(SAMPLES / "h100-1f1b"))
    (gains,) = decide(found, OVER_A_LINK, (), "1f1b", overlaps=WAYS).layers
    texts = list(map(gain_text, gains))
    assert ["(pays)" in texts[0], "(open whether it pays)" in texts[1], "(does not pay)" in texts[2]] == [True] * 3
    assert ["shorter" in texts[0], "longer" in texts[2]] == [True, True]
    bound = replace(gains[0], is_bound=True, way="fused")
    assert gain_text(bound).endswith("shorter (a bound)")
    assert bound.pays is None


# The answers are held by default (above); here the command prints them.
@pytest.mark.thorough
@pytest.mark.usefixtures("asked_once")
def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Two stages of one microbatch under tensor parallelism, whose products have shapes."""
    recording = ROOT / "tests" / "data" / "h200-tp" / "nvlink" / "m_sp_none"
    asked = ["advise", str(recording), "--schedule", "1f1b", "--dc", "0,1", "--link", "dc0-dc1=25Gbit/s,10ms"]
    asked += ["--overlap", "slice:2,p2p,fused"]
    assert command([*asked, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "schemas" / "advice.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(report)
    (offer,) = report["offers"]
    assert [(gain["overlap"], gain["is_bound"]) for gain in offer["layers"]] == [
        ("slice:2", False), ("p2p", False), ("fused", True),
    ]  # fmt: skip
    assert all(gain["plain_ns"] == report["best"]["step_ns"] for gain in offer["layers"])
    assert command(asked) == 0
    printed = capsys.readouterr()
    assert "  layers    overlap inside layers would make this step: " in printed.out
    assert "--overlap" not in printed.out.partition("Next:")[2] + printed.err.partition("Next:")[2]
