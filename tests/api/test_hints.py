"""What errors say to do in Python: their hints are run as they stand."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import ROOT, SAMPLES, derived, looked_at, run_of
from helpers.synthetic import found as reconstruction
from helpers.synthetic import pipeline

import tracetool as tt
from tracetool.errors import BadQuery, NotARun, WrongType
from tracetool.model.topology import parse_link
from tracetool.network.link import Link
from tracetool.reconstruction import reconstruct

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAMPLE = SAMPLES / "h100-1f1b"
PY: Any = tt
"""The package as a script without type hints has it."""
RECONSTRUCT: Any = reconstruct


@cache
def _found() -> tt.Reconstruction:
    return looked_at(run_of(SAMPLE))


def _hint(call: Callable[[], object]) -> str:
    with pytest.raises(tt.TraceToolError) as refused:
        call()
    assert refused.value.hint
    return refused.value.hint


def _run(expression: str, **names: object) -> Any:
    """What a hint's expression gives where it is pasted."""
    return eval(expression, {"tt": tt, **names})  # noqa: S307 - what the product says to run


def _options(text: str) -> Any:
    """Arguments as they are pasted into a call."""
    return _run(f"dict({text})")


@pytest.mark.parametrize(
    ("dc", "links"),
    [
        ("0-1,2-3", ()),
        ("0-1,2-3", ("dc0->dc1=25Gbit/s,10ms",)),
        ("0-1,2-3", ("dc1->dc0=12.5MB/s,800km",)),
        ("0,1-2,3", ()),
        ("0,1-2,3", ("dc0-dc1=1Gbit/s,3us", "dc2->dc1=7B/s,1ns")),
        ("0+2,1+3", ()),
    ],
)
def test_a_missing_link_is_named_with_all_that_lack_and_what_was_given_is_kept(dc: str, links: tuple[str, ...]) -> None:
    hint = _hint(lambda: tt.scenario(_found(), dc=dc, link=links))
    scenario = tt.scenario(_found(), dc=dc, **_options(hint.removeprefix("add ")))
    given = {link for text in links for link in parse_link(text)}
    assert given <= set(scenario.topology.links)


@pytest.mark.parametrize("link", [Link("a", "b", 3, 1), Link("a", "b", 3_125_000_000, 10**7), Link("a", "b", 125, 0)])
def test_figures_of_a_link_are_read_back_exactly(link: Link) -> None:
    assert parse_link(f"a->b={link.figures}") == (link,)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_advice_without_links_names_some_that_fit_the_pipeline(ranks: int) -> None:
    found = reconstruction(pipeline(ranks, 4, 10, 20, payload_bytes=1))
    hint = _hint(lambda: tt.advise(found, tt.Scenario()))
    add, inside = hint.removeprefix("add ").split("; inside one data centre, ")
    scenario = tt.scenario(found, **_options(add))
    assert len(scenario.topology.dcs) == ranks
    assert tt.advise(found, scenario, "1f1b").now.schedule == "1f1b"
    assert _run(inside.removesuffix(" compares schedules"), found=found).results


def test_an_order_that_follows_from_costs_is_asked_for_as_the_hint_says() -> None:
    hint = _hint(lambda: tt.build_schedule("greedy", _found().pipeline.observed.shape))
    assert _run(hint, found=_found()).results[0].schedule == "greedy"


def test_names_of_schedules_are_where_the_hint_says() -> None:
    hint = _hint(lambda: tt.answer(_found(), "geopip"))
    assert "geopipe" in _run(hint.split(" lists all")[0], tracetool=tt)


def test_tables_are_listed_as_the_hint_says() -> None:
    run = derived(SAMPLE)
    with pytest.raises(BadQuery) as refused:
        run.query("SELECT * FROM nothing")
    assert refused.value.hint
    rows = _run(refused.value.hint.split(" lists tables")[0], run=run).rows()
    assert "ops" in {row[2] for row in rows}


def test_a_run_is_made_as_the_hint_says(tmp_path: Path) -> None:
    with pytest.raises(NotARun) as refused:
        tt.Run(tmp_path)
    call = str(refused.value.hint).removeprefix("make one: ")
    assert _run(call, traces=ROOT / "tests" / "data" / "zbv", output=tmp_path / "x.run").path.name == "x.run"


@pytest.mark.parametrize(
    ("call", "takes"),
    [
        (lambda found: PY.replay(found, "geopipe"), "replay takes pipeline: Pipeline, not Reconstruction"),
        (lambda found: PY.replay(found.pipeline, "geopipe"), "replay takes schedule: Schedule, not str"),
        (lambda found: PY.answer("geopipe", found), "answer takes recording: Reconstruction, not str"),
        (lambda found: PY.answer(found, tt.Scenario()), "answer takes schedules: str | Sequence[str], not Scenario"),
        (lambda found: PY.answer(found, "1f1b", "dc0-dc1"), "answer takes scenario: Scenario | None, not str"),
        (lambda found: PY.advise(tt.Scenario(), found), "advise takes recording: Reconstruction, not Scenario"),
        (lambda found: PY.explain(found, tt.Scenario()), "explain takes schedule: str | None, not Scenario"),
        (lambda found: PY.grid("1f1b", found), "grid takes recording: Reconstruction, not str"),
        (lambda found: PY.sweep(found, "1f1b"), "sweep takes grids: Grid | Sequence[Grid], not str"),
        (lambda found: PY.scenario(found, hbm=80), "scenario takes hbm: str | None, not int"),
        (PY.measure, "measure takes timeline: Timeline, not Reconstruction"),
        (lambda _: RECONSTRUCT("x.run"), "reconstruct takes run: Run, not str"),
        (lambda _: RECONSTRUCT(None), "reconstruct takes run: Run, not None"),
        (lambda found: PY.build_schedule(found, "1f1b"), "build_schedule takes name: str, not Reconstruction"),
    ],
)  # fmt: skip
def test_what_is_of_another_type_is_refused_with_what_is_taken(call: Callable[[Any], object], takes: str) -> None:
    with pytest.raises(WrongType, match=f"^{re.escape(takes)}") as refused:
        call(_found())
    assert isinstance(refused.value, TypeError)
    assert refused.value.hint


def test_what_a_type_is_made_by_makes_it() -> None:
    found = _found()
    names = {"run": derived(SAMPLE), "found": found, "path": derived(SAMPLE).path, "name": "1f1b"}
    names["schedule"] = tt.build_schedule("1f1b", found.pipeline.observed.shape)
    wrong: list[tuple[Callable[[], object], type]] = [
        (lambda: PY.replay(1, 2), tt.Pipeline),
        (lambda: PY.replay(found.pipeline, 2), tt.Schedule),
        (lambda: PY.answer(found, "1f1b", 1), tt.Scenario),
        (lambda: PY.answer(1, "1f1b"), tt.Reconstruction),
        (lambda: RECONSTRUCT(1), tt.Run),
        (lambda: PY.build_schedule("1f1b", 1), tt.PipelineShape),
        (lambda: PY.measure(1), tt.Timeline),
        (lambda: PY.sweep(found, 1), tt.Grid),
    ]
    for call, kind in wrong:
        expression = re.sub(r" (is one|makes one|opens one)$", "", _hint(call))
        assert isinstance(_run(expression, **names), kind), expression
