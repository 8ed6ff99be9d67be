"""Network files: the examples beside the schema, and what is said of those that cannot be read."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

import jsonschema
import pytest
from helpers.recorded import ROOT

from tracetool.errors import TraceToolError, UnknownName
from tracetool.network.file import read_network
from tracetool.network.placement import Degrees

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = sorted((ROOT / "schemas" / "networks").glob("*.toml"))
JOBS = {
    "one-dc": Degrees(tp=8, dp=16, pp=16),
    "two-dcs": Degrees(tp=8, dp=16, pp=8),
    "rail-only": Degrees(tp=8, dp=64, pp=2),
    "gh200": Degrees(tp=4, dp=2, pp=8),
    "a100": Degrees(tp=8, pp=64),
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_conform_and_place_a_job(path: Path) -> None:
    schema = json.loads((ROOT / "schemas" / "network.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(tomllib.loads(path.read_text(encoding="utf-8")))
    choice = read_network(path)
    placed = choice.place(JOBS[path.stem])
    assert len(set(placed.devices)) == JOBS[path.stem].ranks


def test_every_kind_of_machine_is_an_example() -> None:
    assert {path.stem for path in EXAMPLES} == JOBS.keys()


def test_the_measured_machine_takes_what_was_measured() -> None:
    """Sailor's table: 16 MB at 20.4 GB/s between nodes, 47.5 GB/s of 4 MB inside one."""
    network = read_network(ROOT / "schemas" / "networks" / "gh200.toml").network
    assert network.transfer_ns(16_000_000, 0, 4) == pytest.approx(16e6 / 20.4, abs=1)
    assert network.transfer_ns(4_000_000, 0, 1) == pytest.approx(4e6 / 47.5, abs=1)


TIER = '[[tier]]\nname = "hb"\nsize = 8\nbandwidth = "450GB/s"\n'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "tier"),
        (TIER + 'bandwith = "1GB/s"\n', "is 'bandwidth' meant?"),
        (TIER.replace("450GB/s", "450"), r"tier\[0\]\.bandwidth: '450' has no unit"),
        (TIER + 'latency = "5"\n', r"tier\[0\]\.latency: '5' has no unit"),
        (TIER + 'shared_by = "port"\n', "shared_by"),
        (TIER + 'shared_by = "group"\noversubscription = 2\n', "about ports of devices"),
        (TIER.replace('"450GB/s"', '{ "1MB" = "10GB/s", "2MB" = "90GB/s" }'), "larger messages|would take"),
        (TIER.replace('"450GB/s"', '{ "1MB" = "10GB/s" }\nconnections = 2'), "as one connection was measured"),
        (TIER + TIER.replace("hb", "rail"), "not several whole groups"),
        ('placement = "p.csv"\n' + TIER, "cannot read the placement"),
    ],
)
def test_files_that_cannot_be_read_say_where(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceToolError, match=fault):
        read_network(path)


def test_a_placement_may_be_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("rank,device\n0,7\n1,0\n", encoding="utf-8")
    (tmp_path / "n.toml").write_text('placement = "p.csv"\n' + TIER, encoding="utf-8")
    assert read_network(tmp_path / "n.toml").place(Degrees(tp=2)).devices == (7, 0)


def test_a_figure_of_a_tier_can_be_another(tmp_path: Path) -> None:
    path = ROOT / "schemas" / "networks" / "two-dcs.toml"
    choice = read_network(path).with_figure("dc", "bandwidth", 12.5e9).with_figure("dc", "latency", 7e6)
    assert choice.network.tiers[2].bandwidth_bytes_per_s == 12_500_000_000
    assert choice.network.path(0, 512).latency_ns == 7_005_000


def test_how_collectives_run_is_said_of_one_dimension_or_of_all() -> None:
    choice = read_network(ROOT / "schemas" / "networks" / "one-dc.toml")
    assert choice.algorithms == {"dp": "hierarchical"}
    assert choice.with_collectives(["tp = tree"]).algorithms == {"dp": "hierarchical", "tp": "tree"}
    assert set(choice.with_collectives(["ring"]).algorithms.values()) == {"ring"}
    for text in ("dp=fast", "dq=ring"):
        with pytest.raises(UnknownName):
            choice.with_collectives([text])
