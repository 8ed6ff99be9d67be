"""tracetool network: traffic of a recording, and networks compared; one screen, JSON by its schema, files."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import jsonschema
import polars as pl
import pytest
from helpers.recorded import ROOT, SAMPLES

from tracetool.cli import run

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = str(SAMPLES / "h100-1f1b")
NETWORK = """\
placement = "pp across dc"
[[tier]]
name = "hb"
size = 1
bandwidth = "450GB/s"
[[tier]]
name = "rail"
size = 2
bandwidth = "400Gbit/s"
latency = "5us"
[[tier]]
name = "dc"
size = 4
shared_by = "pair"
bandwidth = "25Gbit/s"
latency = "10ms"
"""
FABRICS = ["network", "--devices", "32768", "--hb-domain", "16", "--compare", "clos3,rail-optimised,rail-only"]


@pytest.fixture
def network(tmp_path: Path) -> str:
    path = tmp_path / "n.toml"
    path.write_text(NETWORK, encoding="utf-8")
    return str(path)


def schema(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((ROOT / "schemas" / f"{name}.schema.json").read_text("utf-8")))


def test_traffic_of_a_recording(network: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Four stages in two DCs: 3 of 6 pairs are neighbours, and a third of the messages crosses."""
    files = [tmp_path / name for name in ("t.parquet", "t.csv", "t.json")]
    asked = ["network", SAMPLE, "--network", network]
    assert run([*asked, *(word for path in files for word in ("-o", str(path)))]) == 0
    lines = capsys.readouterr().out.replace(str(SAMPLES), "sample_traces").splitlines()
    assert lines[0].startswith("Busiest is dc0-dc1 of tier dc (25 Gbit/s): 42.9 ms of a step of 350.3 ms, mostly")
    assert "50.0% of pairs of ranks exchange nothing." in " ".join(" ".join(lines[:3]).split())
    assert all(len(line) <= 80 for line in lines if not line.startswith("Next"))
    assert len(lines) <= 24
    rows = pl.read_parquet(files[0])
    assert rows.columns == ["src_rank", "dst_rank", "dimension", "tier", "payload_bytes"]
    assert rows.equals(pl.read_csv(files[1], schema=rows.schema))
    assert dict(rows.group_by("tier").agg(pl.len()).iter_rows()) == {"rail": 4, "dc": 2}
    found = json.loads(files[2].read_text("utf-8"))
    schema("traffic").validate(found)
    assert sum(found["by_tier_bytes"].values()) == rows["payload_bytes"].sum() == found["by_dimension_bytes"]["pp"]
    crossing = found["by_tier_bytes"]["dc"] // 2
    busiest = found["resources"][0]
    assert (busiest["name"], busiest["busy_ns"]) == ("dc0-dc1", round(crossing / 3.125))
    assert 0 < found["busiest_when"]["busy_ratio"] <= 1
    assert run(["sql", SAMPLE, "SELECT sum(payload_bytes)::BIGINT AS b FROM traffic GROUP BY step", "--json"]) == 0
    assert {row["b"] for row in json.loads(capsys.readouterr().out)} == {found["by_dimension_bytes"]["pp"]}


def test_the_size_of_hb_domains_that_pays(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["network", SAMPLE, "--network", network, "--sizes", "1,2"]) == 2
    assert "which are not several whole groups of hb (2)" in capsys.readouterr().err
    assert run(["network", SAMPLE, "--network", network, "--sizes", "1"]) == 0
    assert "not known of one size" in capsys.readouterr().out


def test_a_domain_that_holds_all_of_a_dc_ends_what_pays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two stages a DC over slow rails: domains of two spare their messages the rails, larger ones nothing more.

    The size that the file has is tried as well, and DCs keep their borders: what was 8 devices of one stays.
    """
    path = tmp_path / "n.toml"
    rails = NETWORK.replace("size = 4", "size = 16").replace("size = 2", "size = 8").replace("400Gbit/s", "2Gbit/s")
    path.write_text(rails, encoding="utf-8")
    assert run(["network", SAMPLE, "--network", str(path), "--sizes", "2,4"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("HB domains larger than 2 do not pay")
    assert len(out.splitlines()) <= 24
    assert max(map(len, out.splitlines()[:-1])) <= 80
    assert "(tried 1, 2, 4)" in " ".join(out.split())
    steps = dict(line.split(maxsplit=1) for line in out.splitlines() if line.strip()[:2] in {"1 ", "2 ", "4 "})
    assert steps["1"] != steps["2"]
    assert steps["2"] == steps["4"]
    assert run(["network", SAMPLE, "--network", str(path), "--sizes", "1,2"]) == 0
    assert "HB domains up to 2 pay" in capsys.readouterr().out
    short = ROOT / "schemas" / "networks" / "four-gpus.toml"
    assert run(["network", SAMPLE, "--network", str(short), "--sizes", "1,2,4"]) == 2
    assert "another border of each dc" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_a_job_from_shapes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """GPT-1T of the example: shares with their definition, what is silent, and the size of HB domains that pays."""
    schemas, picture = ROOT / "schemas", tmp_path / "t.png"
    path = tmp_path / "n.toml"
    nodes = (schemas / "networks" / "a100.toml").read_text("utf-8")
    path.write_text(nodes.replace('placement = "tp in node"', ""), encoding="utf-8")
    model = str(schemas / "models" / "korthikanti.toml")
    words = ["network", model, "--network", str(path)]
    assert run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    text = " ".join(" ".join(lines).split())
    assert "99.4% of pairs of ranks exchange nothing" in text
    assert "tp 350.00 TiB 98.3% pp 6.15 TiB 1.7%" in text
    assert "of collectives what rings carry, of all-to-alls straight sends" in text
    assert run([*words, "--fit", "22B selective", "--sizes", "4,16", "-o", str(picture), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    schema("traffic").validate(found)
    assert found["shapes"] == "GPT-1T, tp 8 · pp 64"
    assert ([one["devices"] for one in found["hb_domains"]], found["hb_domain_knee"]) == ([4, 8, 16], 8)
    assert sum(found["by_dimension_bytes"].values()) == sum(found["by_tier_bytes"].values())
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run([*words, "--sizes", "4"]) == 2
    assert "does not say how efficient A100 80GB is" in capsys.readouterr().err


FOUR = ["--network", str(ROOT / "schemas" / "networks" / "four-gpus.toml"), "--schedule", "1f1b,geopipe"]


# That a network of two tiers replays as its short form does is tried by default (tests/whatif/test_on_network).
@pytest.mark.thorough
def test_advice_is_that_of_the_short_form(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two tiers and one link per pair: the same plan, the same figures, and what more buys."""
    short = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms", *FOUR[2:]]
    told = []
    for words in (FOUR, short):
        assert run(["advise", SAMPLE, *words, "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    tiers, links = (one["offers"][0] for one in told)
    assert {name for name in links if tiers[name] != links[name]} == {"name"}
    page = tmp_path / "r.html"
    assert run(["report", SAMPLE, *FOUR, "-o", str(page)]) == 0
    assert capsys.readouterr().out.startswith("Over two DCs of two GPUs run geopipe +2,2,0,0")


@pytest.mark.parametrize("verb", ["advise", "report"])
def test_offers_beside_a_network_are_refused_with_the_sweep_that_compares(
    verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([verb, SAMPLE, *FOUR, "--or", "100Gbit/s,10ms=9000EUR/month"]) == 2
    hint = capsys.readouterr().err.partition("Hint: ")[2]
    command = shlex.split(hint)[0]
    assert command.endswith("--tier dc.bandwidth=25Gbit/s,100Gbit/s")
    if verb == "advise":
        assert run(shlex.split(command)[1:]) == 0
        assert "dc 100 Gbit/s" in capsys.readouterr().out


def test_networks_are_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prices = ROOT / "schemas" / "prices" / "example.toml"
    picture = tmp_path / "f.svg"
    assert run([*FABRICS, "--prices", str(prices), "-o", str(picture)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Against clos3 rail-only saves 40% of the switches, 33% of the links")
    assert "1 tier with HB domains of 512" in " ".join(out.split())
    assert len(out.splitlines()) <= 24
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("Next"))
    assert picture.read_bytes().startswith(b"<?xml")
    following = f"tracetool network --devices 32768 --hb-domain 32 --radix 64 --compare {FABRICS[-1]} --prices {prices}"
    assert following in out
    assert run([*FABRICS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    schema("fabrics").validate(found)
    assert [one["switches"] for one in found["fabrics"]] == [2560, 2560, 1536]
    assert found["hb_domain_for_tiers"] == {"3": 1, "2": 16, "1": 512}


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["network"], "takes a recording or a MODEL.toml and --network, or --devices alone"),
        (["network", SAMPLE], "which network is not said"),
        (["network", SAMPLE, "--devices", "8"], "takes a recording"),
        (["network", "--devices", "64", "--sizes", "1,2"], "--sizes is for recordings and models"),
        (["network", SAMPLE, "--radix", "64"], "--radix is for --devices"),
        (["network", SAMPLE, "--network", "n.toml", "--fit", "x"], "--fit is for models"),
        ([*FABRICS[:5], "--compare", "torus"], "torus"),
        (["network", "--devices", "64", "-o", "x.txt"], "is not written to .txt"),
    ],
)
def test_what_does_not_go_together(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert fault in capsys.readouterr().err
