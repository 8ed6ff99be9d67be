"""Offers side by side: fees, what the dearer one buys and what a run costs, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracetool.errors import BadTopology, ScenarioError
from tracetool.model.topology import parse_link
from tracetool.reports.advice import sentences
from tracetool.sweeps.results import SweepPoint
from tracetool.whatif.accuracy import change_error_ratio
from tracetool.whatif.decision import (
    Decision,
    Fee,
    Offer,
    Today,
    check_all_priced,
    directions,
    offered_fee,
    parse_fee,
    split_fee,
    total_fee,
    without_fees,
)
from tracetool.whatif.wording import links_text, offered_links

MS = 10**6


def _plan(step_ms: float, needed_bytes: int | None = None) -> SweepPoint:
    return SweepPoint("1f1b", None, 8, "in-order", step_ns=int(step_ms * MS), needed_bytes=needed_bytes, feasible=True)


def _decision(*offers: Offer, steps: int | None = None) -> Decision:
    today = Today(step_ns=200 * MS, schedule="1f1b", p2p="in-order", microbatches=8)
    return Decision(today=today, offers=offers, steps=steps)


def _offer(name: str, step_ms: float, fee: Fee | None = None, microbatches: int = 8) -> Offer:
    plan = _plan(step_ms)
    return Offer(name=name, fee=fee, microbatches=microbatches, best=plan, now=plan)


def test_fees_are_read_and_taken_from_one_another_over_the_same_time() -> None:
    """A Julian year has 365.25 days, a month a twelfth of it."""
    monthly = parse_fee("9000 EUR/month")
    assert (monthly.amount, monthly.unit, str(monthly)) == (9000, "EUR/month", "9,000 EUR/month")
    assert monthly.per_day == pytest.approx(9000 * 12 / 365.25)
    assert monthly.beyond(parse_fee("100EUR/day")).amount == pytest.approx(9000 - 100 * 365.25 / 12)
    assert monthly.beyond(None) == monthly
    assert parse_fee("1_200.5€/year").amount == 1200.5
    assert str(parse_fee("0.25 USD/hour")) == "0.25 USD/hour"


@pytest.mark.parametrize(
    "text", ["9000EUR", "EUR/month", "9000/month", "9000EUR/decade", "-3EUR/day", "9.000EUR/month", "9kEUR/month", ""]
)
def test_what_is_no_fee_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        parse_fee(text)
    assert "9000EUR/month" in (refused.value.hint or "")


def test_a_fee_stands_behind_figures_with_or_without_the_name_of_a_link() -> None:
    fee = Fee(9.0, "EUR", "day")
    assert split_fee("dc0-dc1=25Gbit/s,10ms=9EUR/day") == ("dc0-dc1=25Gbit/s,10ms", fee)
    assert split_fee("100Gbit/s,10ms=9EUR/day") == ("100Gbit/s,10ms", fee)
    assert split_fee("dc0-dc1=25Gbit/s,10ms") == ("dc0-dc1=25Gbit/s,10ms", None)
    assert split_fee("100Gbit/s,10ms") == ("100Gbit/s,10ms", None)
    links, fees = without_fees(["a-b=1Gbit/s,1ms=9EUR/day", "b-c=1Gbit/s,1ms=365.25eur/year", "a-c=1Gbit/s,1ms"])
    assert links == ("a-b=1Gbit/s,1ms", "b-c=1Gbit/s,1ms", "a-c=1Gbit/s,1ms")
    total = total_fee(fees.values())
    assert total is not None
    assert total.amount == pytest.approx(10)
    assert total.period == "day"
    with pytest.raises(ScenarioError, match="EUR and USD"):
        without_fees(["a-b=1Gbit/s,1ms=9EUR/day", "b-c=1Gbit/s,1ms=9USD/day"])


def test_an_offer_is_for_all_links_or_for_the_pair_that_it_names() -> None:
    links = (*parse_link("a-b=25Gbit/s,10ms"), *parse_link("b-c=40Gbit/s,2ms"))
    for text, told in (
        ("b-c=100Gbit/s,10ms", "a-b 25 Gbit/s, 10 ms; b-c 100 Gbit/s, 10 ms"),
        ("a-b=100Gbit/s,1ms; b-c=100Gbit/s,1ms", "100 Gbit/s, 1 ms"),
        ("a->b=100Gbit/s,10ms", "a->b 100 Gbit/s, 10 ms; b->a 25 Gbit/s, 10 ms; b-c 40 Gbit/s, 2 ms"),
    ):
        offered, _ = offered_links(text, links)
        assert [(link.src_dc, link.dst_dc) for link in offered] == [(link.src_dc, link.dst_dc) for link in links]
        assert links_text(offered) == told
    with pytest.raises(BadTopology, match="none of the links"):
        offered_links("a-c=100Gbit/s,1ms", links)
    with pytest.raises(BadTopology, match="names no link, and theirs have different figures"):
        offered_links("100Gbit/s,800km", links)
    assert links_text(offered_links("100Gbit/s,800km", links[:2])[0]) == "100 Gbit/s, 4 ms"


def test_an_offer_for_some_links_keeps_the_price_of_the_others() -> None:
    """1,000 and 1,500 a month; the first is replaced by one of 9,000: 10,500, which is 8,000 more."""
    _, fees = without_fees(["a-b=25Gbit/s,10ms=1000EUR/month", "b-c=25Gbit/s,10ms=1500EUR/month"])
    replaced = directions(parse_link("a-b=100Gbit/s,10ms"))
    fee = offered_fee(parse_fee("9000EUR/month"), replaced, fees)
    assert fee is not None
    assert fee.amount == pytest.approx(10_500)
    assert fee.beyond(total_fee(fees.values())).amount == pytest.approx(8_000)
    assert offered_fee(None, replaced, fees) is None
    with pytest.raises(ScenarioError, match="of which an offer replaces a part"):
        offered_fee(parse_fee("9000EUR/month"), directions(parse_link("a->b=100Gbit/s,10ms")), fees)


def test_what_the_dearer_one_buys_is_counted_for_the_same_work() -> None:
    """250 ms to 200 ms: a fifth, 50 ms; a day has 432,000 steps instead of 345,600."""
    slow, fast = _offer("slow", 250, Fee(1000, "EUR", "month")), _offer("fast", 200, Fee(6000, "EUR", "month"))
    bought = _decision(slow, fast).bought(fast)
    assert bought is not None
    assert (bought.saved_ns, bought.is_certain) == (50 * MS, True)
    assert bought.saved_ratio == pytest.approx(0.2)
    assert bought.fee == Fee(5000, "EUR", "month")
    assert bought.fee_per_ms == pytest.approx(100)
    assert bought.steps_per_day == pytest.approx(432_000 - 345_600)
    assert _decision(slow, fast).bought(slow) is None
    twice = _offer("fast", 400, microbatches=16)
    bought = _decision(slow, twice).bought(twice)
    assert bought is not None
    assert bought.saved_ns == 100 * MS
    assert bought.saved_ratio == pytest.approx(0.2)
    assert _decision(slow, twice).to_today(twice) == pytest.approx(0)


def test_a_difference_within_the_error_buys_nothing_that_has_a_price() -> None:
    """Nothing is known of either: steps within 2 %, by which repeated ones scatter, are the same."""
    slow, fast = _offer("slow", 202), _offer("fast", 200, Fee(6000, "EUR", "month"))
    bought = _decision(slow, fast).bought(fast)
    assert bought is not None
    assert not bought.is_certain
    assert bought.fee_per_ms is None
    assert bought.error_ratio is change_error_ratio(None, None, -0.01) is None
    assert "within the scatter of repeated steps, 2%, for 6,000 EUR/month" in sentences(_decision(slow, fast))[1]


def test_runs_and_days_are_of_whole_steps() -> None:
    """A mark of 250 ms around a recorded step of 200 ms: steps of 250 and 200 ms take 300 and 250 ms of a run."""
    slow, fast = _offer("slow", 250), _offer("fast", 200, Fee(100, "EUR", "day"))
    plain = _decision(slow, fast, steps=864_000)
    decision = replace(plain, today=replace(plain.today, around_ns=50 * MS))
    assert (decision.run_days(slow), decision.run_days(fast)) == (3.0, 2.5)
    assert decision.run_fee(fast) == 250.0
    bought = decision.bought(fast)
    assert bought is not None
    assert bought.saved_ns == 50 * MS
    assert bought.steps_per_day == pytest.approx(345_600 - 288_000)
    assert "than today's 200.0 ms as recorded (250.0 ms as marked)" in sentences(decision)[0]
    assert "as marked" not in sentences(plain)[0]


def test_a_run_takes_so_long_and_its_links_cost_so_much() -> None:
    """864,000 steps of 200 ms are two days; of 250 ms two and a half."""
    slow, fast = _offer("slow", 250, Fee(100, "EUR", "day")), _offer("fast", 200, Fee(3652.5, "EUR", "year"))
    decision = _decision(slow, fast, steps=864_000)
    assert (decision.run_days(slow), decision.run_days(fast)) == (2.5, 2.0)
    assert decision.run_fee(slow) == 250.0
    assert decision.run_fee(fast) == pytest.approx(20)
    first, second = sentences(decision)
    assert first.startswith(
        "Over slow for 100 EUR/day keep 1f1b: 250.0 ms (± unknown, costs as measured, no recorded step was like it) "
    )
    assert first.endswith(
        "25% longer than today's 200.0 ms as recorded; 864,000 steps take 2.5 days and cost 250 EUR for links."
    )
    assert second.endswith("864,000 steps take 2.0 days instead of 2.5 days and cost -230 EUR for links.")


def test_what_does_not_fit_and_what_may_not_is_said() -> None:
    needs = _plan(250, needed_bytes=79 << 30)
    close = replace(_offer("close", 250), hbm_bytes=80 << 30, is_near_the_limit=True, best=needs)
    none = replace(_offer("none", 250), best=None, hbm_bytes=8 << 30)
    decision = _decision(close, none)
    assert ", if it fits: it needs 79.00 GiB of 80.00 GiB, " in sentences(decision)[0]
    assert sentences(decision)[1] == "Over none nothing fits the memory."
    assert decision.bought(none) is None
    unknown = replace(_offer("unknown", 250), hbm_bytes=8 << 30)
    assert "not checked against 8.00 GiB of HBM" in sentences(_decision(unknown))[0]


def test_a_cheaper_offer_costs_less_and_has_no_price_per_ms() -> None:
    dear, cheap = Fee(6000, "EUR", "month"), Fee(1000, "EUR", "month")
    shorter, longer = (
        "buys 50.0 ms a step (20.0%, error unknown) for 5,000 EUR/month less; ",
        "for 5,000 EUR/month less; a day has 57,600 steps fewer.",
    )
    for step_ms, says in ((200, shorter), (300, longer)):
        decision = _decision(_offer("first", 250, dear), _offer("other", step_ms, cheap))
        bought = decision.bought(decision.offers[1])
        assert bought is not None
        assert bought.fee_per_ms is None
        assert says in sentences(decision)[1]
    assert "50.0 ms longer (+20.0%, error unknown)" in sentences(decision)[1]


def test_where_the_first_offer_fits_nothing_another_is_told_for_itself() -> None:
    first = replace(_offer("first", 250), best=None)
    told = sentences(_decision(first, _offer("other", 200)))
    assert told[0] == "Over first nothing fits the memory."
    assert told[1].startswith("other with 1f1b: 200.0 ms ")


def test_what_the_first_offer_costs_is_not_taken_to_be_nothing_without_a_word() -> None:
    """3,652.5 a year for 50 ms are 73.05 per ms if the first is free; two days of it cost 20."""
    decision = _decision(_offer("first", 250), _offer("other", 200, Fee(3652.5, "EUR", "year")), steps=864_000)
    assert "for 3,652 EUR/year, 73.05 EUR/year per ms if the first costs nothing; " in sentences(decision)[1]
    assert sentences(decision)[1].endswith("and cost 20 EUR for links.")


def test_prices_are_known_of_all_links_or_of_none() -> None:
    links = (*parse_link("a-b=25Gbit/s,10ms"), *parse_link("b-c=40Gbit/s,2ms"))
    _, some = without_fees(["a-b=25Gbit/s,10ms=9EUR/day"])
    with pytest.raises(ScenarioError, match="none of b->c, c->b"):
        check_all_priced(some, links)
    check_all_priced({}, links)
    check_all_priced(without_fees(["a-b=25Gbit/s,10ms=9EUR/day", "b-c=40Gbit/s,2ms=0EUR/day"])[1], links)


def test_a_third_offer_is_also_told_beyond_the_second() -> None:
    """300, 250 and 200 ms for 1,000, 2,000 and 9,000 a month: 20 for each ms of the first 50, 140 for the next 50."""
    fees = [Fee(amount, "EUR", "month") for amount in (1000.0, 2000.0, 9000.0)]
    decision = _decision(*(_offer(n, ms, fee) for n, ms, fee in zip("ABC", (300, 250, 200), fees, strict=True)))
    told = sentences(decision)
    assert "50.0 ms a step (16.7%, error unknown) for 1,000 EUR/month more, 20.00 EUR/month per ms" in told[1]
    assert "100.0 ms a step (33.3%, error unknown) for 8,000 EUR/month more, 80 EUR/month per ms" in told[2]
    assert told[3] == "Beyond B, C buys 50.0 ms (20.0%, error unknown) for 7,000 EUR/month more, 140 EUR/month per ms."
    assert len(told) == 4
    assert len(sentences(_decision(*decision.offers[:2]))) == 2, "of two offers there is nothing between"


def test_further_offers_that_are_as_good_or_longer_are_told_so() -> None:
    told = sentences(_decision(_offer("A", 300), _offer("B", 200), _offer("C", 200), _offer("D", 250)))
    assert told[4] == "C and B are within the scatter of repeated steps, 2% (+0.0%, error unknown)."
    assert told[5] == "Over D a step is 50.0 ms longer (+25.0%, error unknown) than over C."


def test_a_price_that_only_one_offer_has_is_told() -> None:
    priced, free = _offer("first", 250, Fee(4000, "EUR", "month")), _offer("other", 200)
    first, second, *_ = sentences(_decision(priced, free, steps=864_000))
    assert first.startswith("Over first for 4,000 EUR/month keep 1f1b: ")
    assert first.endswith("864,000 steps take 2.5 days and cost 329 EUR for links."), (
        "2.5 * 4,000 * 12 / 365.25 = 328.5"
    )
    assert "(20.0%, error unknown), its price not given" in second
    (alone,) = sentences(_decision(priced, steps=864_000))
    assert alone == first
    same = replace(priced, name="same")
    assert " for the same 4,000 EUR/month (+0.0%, error unknown)" in sentences(_decision(priced, same))[1]


def test_a_run_is_told_of_an_offer_whose_step_is_as_long_too() -> None:
    """864,000 steps of 202 ms are 2.02 days, of 200 ms 2: for 100 and 150 a day 202 and 300."""
    slow, fast = _offer("slow", 202, Fee(100, "EUR", "day")), _offer("fast", 200, Fee(150, "EUR", "day"))
    told = sentences(_decision(slow, fast, steps=864_000))[1]
    assert told.endswith("864,000 steps take 2.0 days instead of 2.0 days and cost +98 EUR for links.")
    assert "steps more" not in sentences(_decision(slow, fast))[1]


def test_schedule_or_link_is_told_by_what_each_changes_alone() -> None:
    """1f1b takes 300 and 240 ms, geopipe 270 and 210: 30 of 300 ms by the schedule, 60 by the link, 90 by both."""
    offers = []
    for name, now_ms, best_ms in (("A", 300, 270), ("B", 240, 210)):
        now, best = replace(_plan(now_ms), order_digest="now"), replace(_plan(best_ms), schedule="geopipe")
        offers.append(Offer(name=name, microbatches=8, best=replace(best, order_digest="geo"), now=now))
    assert sentences(_decision(*offers))[2] == (
        "Schedule or link, against 1f1b over A: geopipe there -30.0 ms (-10.0%, error unknown), "
        "B with 1f1b -60.0 ms (-20.0%, error unknown), both -90.0 ms (-30.0%, error unknown)."
    )
    kept = replace(offers[0], best=offers[0].now)
    assert not any("Schedule or link" in told for told in sentences(_decision(kept, offers[1])))
