"""Advice against the closed forms of equal stages, against steps that were measured, and against replays of its own.

One boundary in the middle, receives posted ahead: the window with n extra forwards is
T(n) = (m+p-1)(f+b) + 2c + r max(0, 2c - n(f+b)), r = floor((m-1-k-n)/(n+2)) + 1 if m-1 >= k+n else 0, k = p - s.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import SAMPLES, data, looked_at, run_of
from helpers.synthetic import found, pipeline, places, scenario, window_ns
from helpers.thorough import is_asked, spread
from hypothesis import given, settings
from hypothesis import strategies as st

from tracetool.advice import Advice, advise, decide
from tracetool.errors import BadTopology, ScenarioError
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.model.topology import RankLink, Topology, between_ranks, parse_dc_map, parse_link
from tracetool.replays import replay
from tracetool.reports import RunFacts
from tracetool.reports.advice.json import advice_info, render_json
from tracetool.reports.advice.text import render_text
from tracetool.schedules import build_schedule
from tracetool.whatif.depth import RELEVANT_RATIO
from tracetool.whatif.results import step_change_error

if TYPE_CHECKING:
    from tracetool.advice.plans import Gain
    from tracetool.reconstruction import Reconstruction

P, M, F, B = 4, 12, 1000, 2000
CYCLE = F + B
HELD, STATIC = 10, 500
DEPTHS = range(M)


def closed_ns(extra: int, delay_ns: int, *, m: int = M, cycle: int = CYCLE) -> int:
    depth = P // 2 + 1
    rounds = (m - 1 - depth - extra) // (extra + 2) + 1 if depth + extra <= m - 1 else 0
    return (m + P - 1) * cycle + 2 * delay_ns + rounds * max(0, 2 * delay_ns - extra * cycle)


def worthwhile(delay_ns: int, *, m: int = M, cycle: int = CYCLE, deepest: int | None = None) -> int:
    """The documented rule: the fewest forwards whose step is within 2 % of the shortest."""
    steps = [closed_ns(n, delay_ns, m=m, cycle=cycle) for n in range((deepest if deepest is not None else m - 1) + 1)]
    return next(n for n, step in enumerate(steps) if step - min(steps) <= 0.02 * step)


@cache
def asked(
    delay_ns: int, *, tau_ns: int = 0, hbm_bytes: int | None = None, names: tuple[str, ...] = ("1f1b", "geopipe")
) -> Advice:
    pipe = pipeline(P, M, F, B, p2p="posted-ahead", payload_bytes=tau_ns, activation_bytes=HELD, static_bytes=STATIC)
    return advise(found(pipe), scenario(places([2, 2], latency_ns=delay_ns), hbm_bytes=hbm_bytes), names)


def gain(advice: Advice, text: str) -> Gain:
    return next(g for g in advice.gains if g.more.text.startswith(text))


def depth_of(advice: Advice) -> int:
    assert advice.best is not None
    return (advice.best.result.extra_forwards or (0,))[0]


def test_latency_binds_where_the_closed_form_says_so_and_half_of_it_buys_what_that_says() -> None:
    c = 9000
    advice = asked(c, tau_ns=1)
    now = worthwhile(c + 1)
    assert depth_of(advice) == now > 3
    assert advice.best is not None
    assert advice.best.step_ns == closed_ns(now, c + 1)
    assert advice.binds == "latency"
    half = min(closed_ns(n, c // 2 + 1) for n in (now, worthwhile(c // 2 + 1)))
    assert gain(advice, "latency / 2").gained_ns == closed_ns(now, c + 1) - half
    assert gain(advice, "bandwidth × 2").gain_ratio < 0.001


def test_bandwidth_binds_where_a_message_takes_longer_than_a_forward_and_a_backward() -> None:
    """Below the throughput of the link a step takes m occupancies and what fills the pipeline: no depth helps."""
    tau = 3 * CYCLE
    advice = asked(10, tau_ns=tau)
    assert advice.best is not None
    assert advice.binds == "bandwidth"
    assert M * tau < advice.best.step_ns < M * tau + (P + 3) * (CYCLE + tau)
    doubled = gain(advice, "bandwidth × 2")
    halved = tau // 2
    assert M * halved < doubled.plan.step_ns < M * halved + (P + 3) * (CYCLE + halved)
    assert doubled.gain_ratio == pytest.approx(0.5, abs=0.05)
    assert doubled.gained_ns == advice.best.step_ns - doubled.plan.step_ns


def test_memory_binds_where_the_warm_up_that_hides_the_link_does_not_fit() -> None:
    c = 6000
    hiding = worthwhile(c)
    room = 1  # extra forwards that fit: rank 0 holds p + extra activations
    advice = asked(c, hbm_bytes=STATIC + (P + room) * HELD)
    assert depth_of(advice) == room < hiding
    assert advice.binds == "hbm"
    one, many = gain(advice, "HBM + 1 activation (10.00 B)"), gain(advice, "HBM + 8 GiB")
    assert one.gained_ns == closed_ns(room, c) - closed_ns(room + 1, c)
    assert many.gained_ns == closed_ns(room, c) - closed_ns(hiding, c)
    assert one.plan.result.extra_forwards == (room + 1, room + 1, 0, 0)


def test_compute_binds_where_the_link_costs_next_to_nothing() -> None:
    advice = asked(10)
    assert advice.binds == "compute"
    assert advice.best is not None
    # Of equal steps what needs least memory: 1F1B, whose order is geopipe's without extra forwards.
    assert depth_of(advice) == 0
    cycle = round(F / 1.1) + round(B / 1.1)
    assert gain(advice, "compute").gained_ns == closed_ns(0, 10) - closed_ns(0, 10, cycle=cycle)


def test_a_microbatch_more_counts_by_the_microbatch() -> None:
    c = 3000
    advice = asked(c)
    now, more = depth_of(advice), gain(advice, "1 microbatch")
    longer = min(closed_ns(n, c, m=M + 1) for n in (now, worthwhile(c, m=M + 1)))
    assert more.plan.step_ns == longer
    assert more.gained_ns == closed_ns(now, c) - round(longer * M / (M + 1)) > 0


# What binds is compute here; over the others it is latency, with and without a limit of memory.
@spread(("c", "room"), [(10, None), (3000, 0), (3000, 2)], 1)
def test_every_gain_is_what_replaying_its_plan_gives(c: int, room: int | None) -> None:
    """Each plan replayed here, by itself; never worse than what is best now under the same conditions."""
    limit = None if room is None else STATIC + (P + room) * HELD
    advice = asked(c, tau_ns=100, hbm_bytes=limit, names=("1f1b", "gpipe", "geopipe", "eager-1f1b"))
    assert advice.best is not None
    resources = {"bandwidth", "latency", "compute", "microbatches"} | ({"hbm"} if limit else set())
    assert {g.more.resource for g in advice.gains} == resources
    for g in advice.gains:
        result, there = g.plan.result, g.more
        m = result.microbatches
        shape = replace(there.pipeline.observed.shape, microbatches=m)
        order = build_schedule(g.plan.way.schedule, shape, extra_forwards=result.extra_forwards)
        step = measure(replay(there.pipeline, order, there.scenario).timeline).step_ns
        assert g.plan.step_ns == step
        assert g.gained_ns == advice.best.step_ns - round(step * M / m)
        assert g.same_plan_ns is not None
        assert step <= g.same_plan_ns
    assert all(g.gained_ns >= 0 for g in advice.gains if g.more.resource != "microbatches")


def test_the_shortest_that_fits_is_named_and_of_equals_the_one_that_needs_least_memory() -> None:
    """Per edge GPipe hides any link, in m activations; geopipe is within 2 % of it with fewer."""
    c = 4500
    names = ("1f1b", "gpipe", "geopipe")
    advice = asked(c, names=names)
    assert advice.best is not None
    pipe = pipeline(P, M, F, B, p2p="posted-ahead")
    over = scenario(places([2, 2], latency_ns=c))
    shortest = min(window_ns(pipe, "gpipe", over), *(closed_ns(n, c) for n in DEPTHS))
    allowed = [n for n in DEPTHS if closed_ns(n, c) <= (1 + RELEVANT_RATIO) * shortest]
    assert advice.best.way.schedule == "geopipe"
    assert advice.best.step_ns <= (1 + RELEVANT_RATIO) * shortest
    assert depth_of(advice) <= min(allowed) + 1
    assert "gpipe" in [plan.way.schedule for plan in advice.rivals]


def test_nothing_fits() -> None:
    advice = asked(1500, hbm_bytes=STATIC)
    assert advice.best is None
    assert advice.binds == "hbm"
    assert advice.gains == ()


def test_without_links_it_says_what_to_do() -> None:
    pipe = pipeline(P, M, F, B)
    with pytest.raises(ScenarioError, match="none is given") as refused:
        advise(found(pipe), Scenario())
    assert "link" in (refused.value.hint or "")


def test_each_link_is_also_looked_at_alone() -> None:
    """Three regions: of two links, the one with latency is the one whose latency buys something."""
    pipe = pipeline(6, 12, F, B, p2p="posted-ahead", payload_bytes=1)
    topology = places([2, 2, 2], latency_ns=10)
    far = tuple(replace(k, latency_ns=6000) if "dc2" in k.name else k for k in topology.links)
    advice = advise(found(pipe), scenario(replace(topology, links=far)), ("1f1b",))
    alone = {g.more.link: g.gain_ratio for g in advice.gains if g.more.resource == "latency" and g.more.link}
    assert alone["dc1-dc2"] > 10 * max(alone["dc0-dc1"], 0.001)


@cache
def _sample() -> Reconstruction:
    return looked_at(run_of(SAMPLES / "h100-1f1b"))


def _rows(link: str) -> list[dict[str, Any]]:
    rows = json.loads(data("h100-pp4", "measured.json").read_text(encoding="utf-8"))["results"]
    return [row for row in rows if row["name"].endswith(f"_m8_{link}")]


def _over(row: dict[str, Any]) -> Topology:
    (link,) = row["links"]
    speed = int(link["bandwidth_gbit_per_s"] * 10**9 / 8)
    between = between_ranks(4, [RankLink(1, 2, speed, int(link["latency_ms"] * 10**6))])
    dcs = parse_dc_map("0-1,2-3")
    links = tuple(replace(k, src_dc=dcs[int(k.src_dc[4:])], dst_dc=dcs[int(k.dst_dc[4:])]) for k in between.links)
    return Topology(dcs, links)


# Another measured link.
@spread("link", ["L1", "L2"], 1)
def test_on_the_sample_it_names_the_schedule_that_was_measured_as_the_shortest(link: str) -> None:
    """measured.json, every row over that link: geopipe with two extra forwards over L2, zb-h1 over L1."""
    rows = _rows(link)
    assert len(rows) >= 5
    shortest = min(rows, key=lambda row: row["step_ms"])
    advice = advise(_sample(), Scenario(topology=_over(shortest), hbm_bytes=80 << 30))
    best = advice.best
    assert best is not None
    assert best.way.schedule.replace("-", "") == shortest["schedule"]
    assert list(best.result.extra_forwards or ()) == (shortest["extra_forwards"] or [])
    assert best.result.p2p == shortest["p2p"]
    assert best.step_ns / 1e6 == pytest.approx(shortest["step_ms"], rel=best.result.seen_error_ratio)
    assert advice.lead_is_certain
    # What is named unproven was never run over that link; what was is never named so.
    run = {(row["schedule"], row["p2p"]) for row in rows}
    assert not run & {(p.way.schedule.replace("-", ""), p.result.p2p) for p in advice.unproven}
    assert advice.binds == ("latency" if link == "L2" else "compute")


def test_a_limit_that_nothing_fits_and_refused_schedules_are_answers() -> None:
    """Nine microbatches do not go round in interleaved's groups; that is told where it is asked for."""
    over = Topology(parse_dc_map("0-1,2-3"), parse_link("dc0-dc1=25Gbit/s,10ms"))
    limited = Scenario(topology=over, hbm_bytes=9 << 30, microbatches=9)
    made = decide(_sample(), limited, (), ("1f1b", "interleaved"))
    advice = made.advice[0]
    assert advice.best is None
    assert advice.binds == "hbm"
    facts = RunFacts("x", "", "", "")
    assert [found.schedule for found in advice_info(made, facts).refused] == ["interleaved"]
    lacks = min(plan.result.shortage.missing_bytes for plan in advice.asked.plans if plan.result.shortage)
    for verbose in (False, True):
        text = render_text(made, facts, verbose=verbose).decode()
        assert f"{lacks:,} bytes" in text
        assert ("interleaved: not replayed" in text) == verbose


def test_without_memory_figures_the_recorded_order_is_kept_where_it_is_as_short_and_nothing_is_said_of_hbm() -> None:
    pipe = pipeline(P, M, F, B, p2p="posted-ahead")
    over = scenario(places([2, 2], latency_ns=10), hbm_bytes=10**6)
    made = decide(found(pipe), over, (), ("gpipe", "eager-1f1b", "geopipe", "1f1b"))
    advice = made.advice[0]
    assert advice.best is not None
    assert advice.best.way.schedule == "1f1b"
    assert advice.gain_of("hbm") is None
    text = render_text(made, RunFacts("x", "", "", ""), verbose=True).decode()
    assert "what more HBM" in text
    assert "the recorded order" in text


def test_a_lead_within_the_error_is_told() -> None:
    over = Topology(parse_dc_map("0-1,2-3"), parse_link("dc0-dc1=400Gbit/s,100us"))
    advice = advise(_sample(), Scenario(topology=over), ("1f1b", "gpipe"))
    assert not advice.lead_is_certain
    assert [plan.way.schedule for plan in advice.rivals] == ["gpipe"]


LIMITS = [STATIC + P * HELD + HELD * n // 2 for n in range(-2, 2 * 9)]


@given(st.sampled_from([700, 3000]), st.integers(0, len(LIMITS) - 2))
@settings(max_examples=4 if is_asked() else 2, deadline=None)
def test_what_more_memory_buys_is_what_is_advised_where_there_is_so_much(c: int, at: int) -> None:
    """Each HBM gain against advice asked under the larger limit; and more memory never means a longer step."""
    names = ("1f1b", "gpipe", "geopipe")
    here = asked(c, hbm_bytes=LIMITS[at], names=names)
    roomier = asked(c, hbm_bytes=LIMITS[at + 1], names=names)
    if here.best is None:
        return
    assert roomier.best is not None
    assert roomier.best.step_ns <= here.best.step_ns
    bought = [g for g in here.gains if g.more.resource == "hbm"]
    assert len(bought) == 2
    for one in bought:
        there = asked(c, hbm_bytes=one.more.scenario.hbm_bytes, names=names)
        assert there.best is not None
        assert one.plan.label == there.best.label
        assert one.gained_ns == here.best.step_ns - there.best.step_ns


# Another limit, below which another order is best.
@spread("gib", [14.0, 15.3], [15.3])
def test_on_the_sample_an_activation_more_buys_what_is_advised_with_it(gib: float) -> None:
    over = Topology(parse_dc_map("0-1,2-3"), parse_link("dc0-dc1=25Gbit/s,10ms"))
    limited = Scenario(topology=over, hbm_bytes=int(gib * 2**30))
    names = ("1f1b", "zb-h1", "geopipe")
    one = gain(advise(_sample(), limited, names), "HBM + 1 activation")
    there = advise(_sample(), one.more.scenario, names)
    assert there.best is not None
    assert (one.plan.label, one.plan.step_ns) == (there.best.label, there.best.step_ns)


def test_schedules_that_lack_a_link_are_refused_and_the_others_advised_on() -> None:
    """Three DCs in a chain: what goes round from the last stage to the first needs dc2-dc0, which is not given."""
    links = (*parse_link("dc0-dc1=25Gbit/s,10ms"), *parse_link("dc1-dc2=100Gbit/s,2ms"))
    chain = Scenario(topology=Topology(parse_dc_map("0,1-2,3"), links))
    advice = advise(_sample(), chain, ("1f1b", "interleaved"))
    assert advice.best is not None
    (turned_down,) = advice.asked.refused
    assert turned_down.schedule == "interleaved"
    assert "dc2-dc0" in turned_down.reason
    assert {plan.way.schedule for plan in advice.asked.plans} == {"1f1b"}
    with pytest.raises(BadTopology, match="dc2-dc0"):
        advise(_sample(), chain, ("interleaved",))
    unlinked = Scenario(topology=replace(chain.topology, links=links[:2]))
    with pytest.raises(BadTopology, match="dc1-dc2"):
        advise(_sample(), unlinked)


# Another recording under the rule that is tried on the sample by default.
@pytest.mark.thorough
def test_advice_on_a_recording_of_several_stages_per_rank() -> None:
    """geopipe takes one stage per rank: that is a refusal, not the answer."""
    over = Topology(parse_dc_map("0-1,2-3"), parse_link("dc0-dc1=25Gbit/s,10ms"))
    found_here = looked_at(run_of(data("h100-pp4", "traces", "interleaved_m8")))
    advice = advise(found_here, Scenario(topology=over), ("geopipe", "interleaved", "looped-bfs"))
    assert advice.best is not None
    assert "one stage per rank" in {r.schedule: r.reason for r in advice.asked.refused}["geopipe"]


def test_the_recorded_order_is_kept_where_the_lead_over_it_is_within_the_error() -> None:
    """A lead of a few percent that another order has is not one where such differences are off by as much."""
    over = Topology(parse_dc_map("0-1,2-3"), parse_link("dc0-dc1=100Gbit/s,9ms"))
    advice = advise(_sample(), Scenario(topology=over), ("1f1b", "geopipe"))
    assert advice.best is not None
    recorded = [plan for plan in advice.asked.plans if plan.evidence == "recorded" and plan.way.p2p is None]
    shortest = min(recorded, key=lambda plan: plan.step_ns)
    lead = 1 - shortest.step_ns / advice.now.metrics.step_ns
    assert RELEVANT_RATIO < lead < (step_change_error(advice.now, shortest.result) or 0)
    assert advice.best.way.schedule == "1f1b"
    assert advice.best.result.p2p == advice.asked.answer.pipeline.p2p
    assert shortest in advice.rivals


def test_errors_are_those_of_the_recording_whatever_is_bought() -> None:
    """Compute made faster on purpose is nothing that replay misses: its error is unknown, that of links as before."""
    over = Topology(parse_dc_map("0-1,2-3"), parse_link("dc0-dc1=25Gbit/s,10ms"))
    made = decide(_sample(), Scenario(topology=over), (), ("1f1b", "geopipe"))
    advice = made.advice[0]
    assert advice.best is not None
    errors = {gain.more.text: gain.plan.result.seen_error_ratio for gain in advice.gains}
    assert errors["compute 10% faster"] is None
    assert errors["latency / 2"] == errors["bandwidth × 2"] == advice.best.result.seen_error_ratio == 0.04
    told = json.loads(render_json(made, RunFacts("x", "", "", "")))
    assert told["change_ratio"] == advice.best.step_ns / advice.now.metrics.step_ns - 1
    assert told["change_error_ratio"] == advice.change_error_ratio == step_change_error(advice.now, advice.best.result)
    assert told["lead_is_certain"] == (abs(told["change_ratio"]) > told["change_error_ratio"])


def test_texts_say_maybe_near_the_limit_and_compare_every_schedule_with_the_recorded_order() -> None:
    over = Topology(parse_dc_map("0-1,2-3"), parse_link("dc0-dc1=25Gbit/s,10ms"))
    made = decide(_sample(), Scenario(topology=over, hbm_bytes=14 << 30), (), ("1f1b", "geopipe"))
    advice = made.advice[0]
    text = render_text(made, RunFacts("x", "", "", ""), verbose=True).decode()
    (needs,) = {p.needed_bytes for p in advice.asked.plans if p.label == "geopipe +1,1,0,0"}
    assert needs is not None
    assert 0.96 < needs / (14 << 30) <= 1
    rows = [line.split() for line in text.splitlines() if line.startswith("  geopipe +1,1,0,0")]
    assert rows
    assert all("maybe" in row for row in rows)
    made = decide(_sample(), Scenario(topology=over), (), ("1f1b", "zb-h2"))
    advice = made.advice[0]
    text = render_text(made, RunFacts("x", "", "", "")).decode()
    (one,) = advice.unproven
    assert f"may be better: {one.label} {one.step_ns / advice.now.metrics.step_ns - 1:+.1%}" in " ".join(text.split())
