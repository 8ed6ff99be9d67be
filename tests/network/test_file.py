"""Network files: the examples beside the schema, and what is said of those that cannot be read."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING

import jsonschema
import pytest
from helpers.recorded import ROOT

from tracetool.errors import BadTopology, TraceToolError, UnknownName
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
    "four-gpus": Degrees(tp=2, pp=2),
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_conform_and_place_a_job(path: Path) -> None:
    schema = json.loads((ROOT / "schemas" / "network.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(tomllib.loads(path.read_text(encoding="utf-8")))
    choice = read_network(path)
    placed = choice.place(JOBS[path.stem])
    assert len(set(placed.devices)) == JOBS[path.stem].ranks


OF_FOUR = (Degrees(pp=4), Degrees(tp=2, pp=2), Degrees(dp=2, pp=2), Degrees(tp=2, dp=2))


@pytest.mark.parametrize(
    ("path", "degrees"),
    [(path, each) for path in EXAMPLES for each in OF_FOUR if path.stem != "four-gpus" or each.pp > 1],
)
def test_what_is_said_to_leave_no_tier_unused_does_when_it_is_done(path: Path, degrees: Degrees) -> None:
    """Jobs of four ranks on networks for hundreds: the file is changed as the hint has it."""
    choice = read_network(path)
    try:
        placed = choice.place(degrees)
    except BadTopology as error:
        hint = error.hint or ""
        rule = re.search(r'placement = "(.+?)"', hint)
        sizes = {name: int(size) for name, size in re.findall(r"give tier (\w+) size = (\d+)", hint)}
        left_out = re.findall(r"leave tier (\w+) out", hint)
        assert rule or left_out
        tiers = [
            replace(tier, size=sizes.get(tier.name, tier.size))
            for tier in choice.network.tiers
            if tier.name not in left_out
        ]
        network = replace(choice.network, tiers=tuple(tiers))
        placed = replace(choice, network=network, placement=rule[1] if rule else choice.placement).place(degrees)
    assert len(set(placed.devices)) == 4


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


def test_sizes_that_would_move_the_borders_of_dcs_are_refused() -> None:
    """Where a DC is one HB domain, larger HB domains would be larger DCs; with rails between, DCs stay."""
    choice = read_network(ROOT / "schemas" / "networks" / "two-dcs.toml")
    assert choice.with_figure("hb", "size", 4).place(Degrees(tp=4, dp=16, pp=8)).devices[-1] // 512 == 1
    with pytest.raises(BadTopology, match="another border of each dc") as caught:
        choice.with_figure("rail", "size", 256)
    assert "add a tier between both, of 512 devices" in (caught.value.hint or "")
    assert choice.with_figure("rail", "size", 512) == choice
    spread = replace(read_network(ROOT / "schemas" / "networks" / "rail-only.toml"), placement="pp across rail")
    with pytest.raises(BadTopology, match="another border of each rail"):
        spread.with_figure("hb", "size", 4)


def test_how_collectives_run_is_said_of_one_dimension_or_of_all() -> None:
    choice = read_network(ROOT / "schemas" / "networks" / "one-dc.toml")
    assert choice.algorithms == {"dp": "hierarchical"}
    assert choice.with_collectives(["tp = tree"]).algorithms == {"dp": "hierarchical", "tp": "tree"}
    assert set(choice.with_collectives(["ring"]).algorithms.values()) == {"ring"}
    for text in ("dp=fast", "dq=ring"):
        with pytest.raises(UnknownName):
            choice.with_collectives([text])
