"""What-ifs on a network: the short form gives the same to the ns, tiers bind where they are narrow, and are told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import SAMPLES, data, looked_at, rebuilt, run_of
from helpers.thorough import some

from tracetool.advice import advise, decide
from tracetool.cli import run as command
from tracetool.costs.over_links import over_links
from tracetool.errors import BadTopology, ScenarioError, UnknownName
from tracetool.explanation import explain
from tracetool.model.action import CollectiveUse
from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.network.file import NetworkChoice
from tracetool.network.seating import Seating
from tracetool.network.tiers import Network, SharedBy, Tier
from tracetool.replays import replay
from tracetool.replays.scenarios import replay_many
from tracetool.schedules import build_schedule
from tracetool.sweeps import sweep
from tracetool.sweeps.asked import grid, over_tiers
from tracetool.whatif.answer import answer
from tracetool.whatif.on_network import busiest_time, job_traffic, seated
from tracetool.whatif.remarks import collective_notes
from tracetool.whatif.wording import scenario

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.network.collectives import Algorithm

GBIT = 125_000_000
PLACES = {0: "hb0", 1: "hb0", 2: "hb1", 3: "hb1"}
MS = 1_000_000


def two_dcs(placement: str, tp: Algorithm = "ring") -> NetworkChoice:
    """Two pairs of devices and one link of 25 Gbit/s and 10 ms between them."""
    tiers = Tier("hb", 2, 450 * 10**9), Tier("dc", 4, 25 * GBIT, 10 * MS, "pair")
    return NetworkChoice(Network("two pairs", tiers), placement, algorithms={"tp": tp})


@pytest.mark.parametrize("name", ["1f1b", "geopipe", "gpipe", "zb-h1"])
def test_two_tiers_give_what_the_short_form_gives(name: str) -> None:
    found = rebuilt("rt1f1b_m8")
    order = build_schedule(name, found.pipeline.observed.shape)
    short = scenario(found, dc="0-1,2-3", link="dc0-dc1=25Gbit/s,10ms")
    tiers = scenario(found, network=two_dcs("pp across dc"))
    one, other = (replay(found.pipeline, order, each).timeline for each in (short, tiers))
    assert measure(one) == measure(other)
    assert [t.end_ns for t in one.transfers] == [t.end_ns for t in other.transfers]


@pytest.mark.parametrize(
    ("placement", "ranks"), [("tp in hb, pp across dc", "0011"), ("pp in hb, tp across dc", "0101")]
)
def test_collectives_of_two_tiers_take_what_they_take_over_links(placement: str, ranks: str, tmp_path: Path) -> None:
    """Messages cross in the one, tensor parallel collectives in the other, of two pipelines that share the links."""
    places = tmp_path / "map.csv"
    places.write_text("rank,dc\n" + "".join(f"{rank},dc{dc}\n" for rank, dc in enumerate(ranks)), encoding="utf-8")
    found = rebuilt("tp2pp2_1f1b_m8")
    order = build_schedule("1f1b", found.pipeline.observed.shape)
    short = scenario(found, dc=str(places), link="dc0-dc1=25Gbit/s,10ms")
    tiers = scenario(found, network=two_dcs(placement))
    if ranks == "0011":
        assert short.pipelines_on_link == tiers.pipelines_on_link == 2
    one, other = (measure(replay(found.pipeline, order, each).timeline) for each in (short, tiers))
    assert one == other
    recorded = measure(found.observed)
    assert other.step_ns > recorded.step_ns + 10 * MS


def test_where_only_collectives_cross_free_links_are_free() -> None:
    """No message of the pipeline passes the tier: without its delays the collectives take what was measured."""
    found = rebuilt("tp2pp2_1f1b_m8")
    given = answer(found, "1f1b", scenario(found, network=two_dcs("pp in hb, tp across dc")))
    result = given.baseline
    assert not given.scenario.topology.links
    measured = answer(found, "1f1b").baseline
    assert result.metrics.window_ns - result.cross_dc_bubble_ns == measured.metrics.window_ns
    assert result.cross_dc_bubble_ns > 10 * MS


def rails(uplink: int = 100 * GBIT, shared_by: SharedBy = "pair") -> NetworkChoice:
    tiers = (
        Tier("gpu", 1, 450 * 10**9),
        Tier("rail", 2, 400 * GBIT, 5_000),
        Tier("dc", 4, uplink, 2 * MS, shared_by),
    )
    return NetworkChoice(Network("rails", tiers), "pp across dc")


def test_a_sweep_replays_together_what_replay_gives_alone() -> None:
    """Figures of tiers, of one order, compiled once: paths of three resources."""
    found = rebuilt("rt1f1b_m8")
    order = build_schedule("1f1b", found.pipeline.observed.shape)
    asked = [scenario(found, network=rails(gbit * GBIT)) for gbit in (10, 40, 160, 640)]
    together = replay_many(found.pipeline, order, asked)
    alone = [measure(replay(found.pipeline, order, each).timeline).step_ns for each in asked]
    assert [each.step_ns for each in together] == alone
    assert alone == sorted(alone, reverse=True)
    assert alone[0] > alone[-1]


def test_figures_of_tiers_are_axes() -> None:
    found = rebuilt("rt1f1b_m8")
    grids = over_tiers(grid(found, "1f1b"), rails(), ["dc.bandwidth=10..40Gbit/s*1", "dc.latency=1ms,10ms"], found)
    assert [each.name for each in grids][:2] == ["dc 10 Gbit/s, dc 1 ms", "dc 10 Gbit/s, dc 10 ms"]
    assert len(grids) == 6
    points = sweep(found, grids, knees=False).points
    steps = {point.scenario: point.step_ns for point in points}
    assert len(steps) == 6
    alone = scenario(found, network=rails(40 * GBIT).with_figure("dc", "latency", 10 * MS))
    order = build_schedule("1f1b", found.pipeline.observed.shape)
    assert steps["dc 40 Gbit/s, dc 10 ms"] == measure(replay(found.pipeline, order, alone).timeline).step_ns


@pytest.mark.parametrize(
    ("axis", "fault"),
    [
        ("dc", "no figure of a tier"),
        ("dc.speed=1", "speed"),
        ("wan.bandwidth=1Gbit/s", "wan"),
        ("dc.oversubscription=0", "is '0'"),
    ],
)
def test_an_axis_that_is_none_is_said(axis: str, fault: str) -> None:
    found = rebuilt("rt1f1b_m8")
    with pytest.raises((ScenarioError, UnknownName), match=fault):
        over_tiers(grid(found, "1f1b"), rails(), axis, found)


def test_an_explanation_tells_which_tier(tmp_path: Path) -> None:
    found = rebuilt("rt1f1b_m8")
    told = explain(found, "1f1b", scenario(found, network=rails(10 * GBIT)))
    assert list(told.tiers) == ["dc", "rail"]
    gone = {name: removal.step_ns for name, removal in told.tiers.items()}
    assert gone["dc"] is not None
    assert gone["rail"] is not None
    assert gone["dc"] < gone["rail"] <= told.metrics.step_ns
    assert not explain(found, "1f1b", scenario(found, dc="0-1,2-3", link="dc0-dc1=25Gbit/s,10ms")).tiers


def test_a_network_and_its_short_form_are_not_given_together() -> None:
    found = rebuilt("rt1f1b_m8")
    with pytest.raises(BadTopology, match="short"):
        scenario(found, dc="0-1,2-3", network=rails())
    unused = NetworkChoice(Network("large", (Tier("hb", 4, 1), Tier("dc", 64, 1))), "")
    with pytest.raises(BadTopology, match="nothing uses tier dc"):
        scenario(found, network=unused)


def test_data_parallel_collectives_of_two_tiers_run_as_they_are_asked_to() -> None:
    """Groups of four over two pairs: hierarchical hands a half across, a ring three quarters twice, trees a half each.

    64 MiB at 1 GB/s across: a ring's edge carries 2 · 3/4 V, both hierarchical rings across 2 · 1/2 · V/2 each, and
    each of two trees V/2 up and as much down.
    """
    tiers = Tier("hb", 2, 450 * 10**9), Tier("dc", 4, 10**9, 0, "pair")
    seats = Seating(Network("n", tiers), ((0, 1, 2, 3),), tuple((rank, rank) for rank in range(4)))
    use = CollectiveUse("allreduce", (0, 1, 2, 3), 64 << 20, own_ns=600_000)
    payload = 64 << 20
    ring_ns, layered_ns, trees_ns = (
        over_links(
            use, Topology(dcs=("hb0",), seating=replace(seats, algorithms=((frozenset(range(4)), how),))), PLACES
        )
        for how in ("ring", "hierarchical", "tree")
    )
    assert ring_ns is not None
    assert layered_ns is not None
    assert trees_ns is not None
    assert ring_ns.occupied_ns == round(2 * 3 / 4 * payload)
    # Reduce-scatter and all-gather inside pairs take (1/2) / (3/4) of what the ring over four took.
    assert layered_ns.duration_ns == 2 * round(1 / 2 * payload) + 400_000
    auto = over_links(use, Topology(dcs=("hb0",), seating=seats), PLACES)
    assert auto is not None
    assert trees_ns.occupied_ns == payload
    assert auto.duration_ns == trees_ns.duration_ns < min(ring_ns.duration_ns, layered_ns.duration_ns)


def test_more_of_a_tier_is_more_for_messages_and_collectives_alike() -> None:
    """What advice and explanations change of a tier: as if its file had said so."""
    found = rebuilt("tp2pp2_1f1b_m8")
    order = build_schedule("1f1b", found.pipeline.observed.shape)

    def step_ns(topology: Topology) -> int:
        return measure(replay(found.pipeline, order, Scenario(topology=topology)).timeline).step_ns

    for placement in ("tp in hb, pp across dc", "pp in hb, tp across dc"):
        choice = two_dcs(placement)
        topology = scenario(found, network=choice).topology
        twice = topology.changed(lambda link: link.at(2 * link.bandwidth_bytes_per_s), "dc")
        assert step_ns(twice) == step_ns(
            scenario(found, network=choice.with_figure("dc", "bandwidth", 50 * GBIT)).topology
        )
        near = topology.changed(lambda link: replace(link, latency_ns=0))
        assert step_ns(near) == step_ns(scenario(found, network=choice.with_figure("dc", "latency", 0)).topology)
        assert topology.changed(lambda link: link.at(1), "rail") == topology
        assert step_ns(topology) > step_ns(twice) > 0
        half = topology.divided(2)
        assert step_ns(half) == step_ns(
            scenario(found, network=choice.with_figure("dc", "bandwidth", 12.5 * GBIT)).topology
        )


def test_explanations_and_advice_see_tiers_that_only_collectives_cross() -> None:
    found = rebuilt("tp2pp2_1f1b_m8")
    asked = scenario(found, network=two_dcs("pp in hb, tp across dc"))
    told = explain(found, None, asked)
    assert not told.is_recorded
    gone = told.tiers["dc"].step_ns
    assert gone is not None
    assert gone < told.metrics.step_ns / 10
    advice = advise(found, asked, "1f1b")
    assert advice.best is not None
    assert advice.binds == "latency"
    sooner = scenario(found, network=two_dcs("pp in hb, tp across dc").with_figure("dc", "latency", 5 * MS))
    gain = advice.gain_of("latency")
    assert gain is not None
    assert gain.same_plan_ns == measure(replay(found.pipeline, found.pipeline.observed, sooner).timeline).step_ns


def test_offers_are_of_links() -> None:
    found = rebuilt("rt1f1b_m8")
    with pytest.raises(ScenarioError, match="a network says what lies between"):
        decide(found, scenario(found, network=rails()), "100Gbit/s,10ms", "1f1b")
    pays = decide(found, scenario(found, network=two_dcs("pp across dc")), (), "1f1b").decision.pays_until
    assert pays is None


def test_an_embedding_is_summed_when_the_step_ends() -> None:
    """All-reduces between stages are none of the pipeline's messages; the link has them after the last backward.

    It is occupied by 1.16 GiB at 3.125 GB/s, which is longer than a tenth of the step: one in its second half is full.
    """
    run = run_of(data("ascend", "Ascend+msinsight", "test", "st", "level2"))
    found = looked_at(run)
    topology = seated(two_dcs("tp in hb, pp across dc"), found)
    seating = topology.seating
    assert seating is not None
    traffic = job_traffic(run, found).traffic
    busiest = traffic.busiest(seating.network, [seating.device_of[rank] for rank in range(4)])[0]
    assert (busiest.link.name, busiest.mostly) == ("dc0-dc1", "embedding")
    embedding = busiest.by_dimension["embedding"]
    # Two pipelines send 16 MiB each a boundary.
    assert busiest.by_dimension["pp"] == 32 << 20
    when = busiest_time(found, Scenario(topology=topology), busiest)
    assert when.busy_ratio == pytest.approx(1)
    assert when.start_ns is not None
    assert when.end_ns is not None
    assert when.start_ns > when.step_ns / 2
    assert when.end_ns - when.start_ns < embedding / 3.125
    order = found.pipeline.observed
    assert when.step_ns == measure(replay(found.pipeline, order, Scenario(topology=topology)).timeline).step_ns


def test_what_passes_within_computes_has_no_time() -> None:
    """Tensor parallel collectives over the link run inside computes: the replay does not tell when."""
    found = looked_at(run := run_of(data("h100-pp4", "traces", "tp2pp2_1f1b_m8")))
    topology = seated(two_dcs("pp in hb, tp across dc"), found)
    seating = topology.seating
    assert seating is not None
    busiest = job_traffic(run, found).traffic.busiest(seating.network, [seating.device_of[rank] for rank in range(4)])[
        0
    ]
    assert busiest.mostly == "tp"
    when = busiest_time(found, Scenario(topology=topology), busiest)
    assert when.step_ns > 0
    assert when.start_ns is when.end_ns is when.busy_ratio is None


@pytest.mark.parametrize(("choice", "is_said"), [("dp=ring", True), ("tp=ring", False), ("ring", False)])
def test_an_algorithm_that_nothing_runs_says_so(choice: str, *, is_said: bool) -> None:
    """Two tensor groups of two ranks, each across DCs, and no data parallelism."""
    found = looked_at(run_of(data("h100-pp4", "traces", "tp2pp2_1f1b_m8")))
    topology = seated(replace(two_dcs("pp in hb, tp across dc"), algorithms={}).with_collectives([choice]), found)
    notes = collective_notes(found.pipeline, Scenario(topology=topology))
    assert (NoticeCode.ALGORITHM_UNUSED in [note.code for note in notes]) == is_said


def test_a_network_of_which_nothing_is_passed_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of the sample in one group of the innermost tier: every command says that its figures change nothing."""
    network = tmp_path / "one.toml"
    network.write_text(
        'name = "one"\n[[tier]]\nname = "site"\nsize = 4\nbandwidth = "25Gbit/s"\nlatency = "10ms"\n', encoding="utf-8"
    )
    # Each command says it by itself.
    for words in some((["replay"], ["sweep", "--schedule", "1f1b"], ["advise"], ["explore"]), 1):
        assert command([words[0], str(SAMPLES / "h100-1f1b"), *words[1:], "--network", str(network)]) == 0
        assert "sit in one group of tier site" in " ".join(capsys.readouterr().out.split()), words
