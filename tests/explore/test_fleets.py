"""The same job on several fleets, and what a step costs there: figures by hand, and the front of step and price."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import pytest
from helpers.recorded import ROOT
from helpers.thorough import spread

from tracetool.cli import run
from tracetool.errors import ScenarioError
from tracetool.network.file import FleetPrice, read_network

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("asked_once")

MODEL = """
model = {name = "small", layers = 8, hidden = 4096, heads = 16, ffn = 8192, vocabulary = 32000, gated = true}
training = {sequence = 2048, microbatches = 8, tensor = 2, pipeline = 2, data = 2}
device = {name = "X", peak_tflops = 300, hbm = "80GB", efficiency = "60%"}
"""
FLEET = """
name = "two regions"
placement = "tp,dp,pp"
price = "36USD/h"
[[tier]]
name = "hb"
size = 2
bandwidth = "300GB/s"
[[tier]]
name = "wan"
size = 8
shared_by = "pair"
bandwidth = "10GB/s"
latency = "1ms"
price = "0.001 USD/GB"
"""
DEARER = FLEET.replace("two regions", "one region").replace("36USD", "720USD").replace("10GB/s", "200GB/s")
FEW = ["--try", "schedule=1f1b,zb-h1", "--leave", "microbatch,recompute,sharing,beside,cp,chunks,p2p"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "model.toml").write_text(MODEL)
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "dearer.toml").write_text(DEARER.replace("0.001 USD", "0USD"))
    return [str(tmp_path / "model.toml"), "--network", str(tmp_path / "fleet.toml")]


def test_a_step_costs_its_time_and_its_bytes(files: list[str], tmp_path: Path) -> None:
    price = read_network(tmp_path / "fleet.toml").price
    assert price == FleetPrice(36.0, (0.0, 0.001), "USD")
    assert files
    # A second of 36 USD an hour is a cent; 2,500 GB over the outermost tier are 2.5 USD.
    assert price.of_step(10**9, (10**12, 2_500_000_000_000)) == pytest.approx(0.01 + 2.5)


def test_the_front_of_step_and_price_over_two_fleets(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each plan of it is cheaper than all that are faster; prices are those of its own step, bytes and fleet."""
    asked = ["explore", *files, "--or", str(tmp_path / "dearer.toml"), *FEW]
    assert run([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    jsonschema.validate(told, json.loads((ROOT / "schemas" / "exploration.schema.json").read_text()))
    assert [one["network"] for one in told["others"]] == ["one region"]
    front = told["price_front"]
    assert len({one["network"] for one in front}) == 2
    per_hour, per_gigabyte = {"two regions": 36, "one region": 720}, {"two regions": 0.001, "one region": 0.0}
    for one in front:
        best, name = one["best"], one["network"]
        cost = per_hour[name] * best["step_ns"] / 3.6e12 + per_gigabyte[name] * best["tier_bytes"][-1] / 1e9
        assert one["price"] == pytest.approx(cost)
    steps, prices = [one["best"]["step_ns"] for one in front], [one["price"] for one in front]
    assert steps == sorted(steps)
    assert prices == sorted(prices, reverse=True)
    assert steps[0] == min(told["best"]["step_ns"], told["others"][0]["best"]["step_ns"])
    assert run(asked) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{told['price']:.4g} USD a step" in shown
    assert "on one region: " in shown


# Where bytes cost nothing, none is named.
@spread("per_gigabyte", ["0", "1"], ["1"])
def test_a_plan_that_is_as_good_and_much_cheaper_is_named_beside_the_fastest(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], per_gigabyte: str
) -> None:
    """The last of the front of step and price within 2 % of the fastest, as JSON has it: over dear bytes alone."""
    wide = FLEET.replace("0.001 USD", f"{per_gigabyte}USD").replace("10GB/s", "2000GB/s").replace("1ms", "1us")
    (tmp_path / "fleet.toml").write_text(wide)
    asked = ["explore", *files, *FEW]
    assert run([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    near = [one for one in told["price_front"] if one["best"]["step_ns"] <= 1.02 * told["best"]["step_ns"]]
    saved = 1 - min(one["price"] for one in near) / told["price"]
    assert run(asked) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (saved >= 0.05) == (per_gigabyte == "1")
    assert (f"For {saved:.0%} less money, within the error of it" in shown) == (saved >= 0.05)


# Two fleets are searched once more, for what is not said.
@pytest.mark.thorough
def test_without_prices_there_is_no_front_of_them(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = FLEET.replace('price = "36USD/h"', "").replace('price = "0.001 USD/GB"', "")
    (tmp_path / "fleet.toml").write_text(plain)
    assert run(["explore", *files, *FEW, "--or", str(tmp_path / "dearer.toml"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["price"], told["currency"], told["price_front"]) == (None, None, [])
    assert told["others"][0]["price"] > 0
    assert run(["explore", *files, *FEW, "--or", str(tmp_path / "dearer.toml")]) == 0
    assert "no plan is named for its price: two regions has none" in capsys.readouterr().out


def test_prices_in_several_currencies_are_refused_ahead_of_the_search(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dearer.toml").write_text(DEARER.replace("USD", "EUR"))
    assert run(["explore", *files, *FEW, "--or", str(tmp_path / "dearer.toml")]) == 2
    assert "two regions in USD, one region in EUR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("36USD/h", "36 dollars", "no price per h"),
        ("36USD/h", "36USD/GB", "no price per h"),
        ("0.001 USD/GB", "1EUR/GB", "prices in EUR and USD"),
    ],
)
def test_prices_that_cannot_be_read(files: list[str], tmp_path: Path, old: str, new: str, said: str) -> None:
    assert files
    (tmp_path / "fleet.toml").write_text(FLEET.replace(old, new))
    with pytest.raises(ScenarioError, match=said):
        read_network(tmp_path / "fleet.toml")
