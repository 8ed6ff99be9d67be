"""Which pipelines of a job share the links: counted from where their ranks sit, against maps worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers import synthetic
from helpers.recorded import data, rebuilt

import tracetool as tt
from tracetool.model.action import ActionKind, CollectiveUse
from tracetool.model.dc_map import parse_table
from tracetool.model.pipeline import TailPart
from tracetool.reconstruction.capture.coordinates import Coordinates
from tracetool.whatif.wording import pipelines_on_links, placed

if TYPE_CHECKING:
    from collections.abc import Sequence

LINK = "dc0-dc1=25Gbit/s,10ms"


def _job(dp: int, tp: int, pp: int) -> tuple[list[Coordinates], list[list[int]]]:
    """Ranks numbered as Megatron does, tensor parallelism first and the pipeline last; and the pipelines."""
    ranks = [
        Coordinates(
            rank=p * dp * tp + d * tp + t,
            pipeline=d * tp + t,
            pp=p,
            dp=d,
            tp=t,
            cp=None,
            ep=None,
            recorded=True,
            copied_from=None,
            evidence="metadata",
            confidence=1.0,
        )
        for p in range(pp)
        for d in range(dp)
        for t in range(tp)
    ]
    pipelines = [[c.rank for c in ranks if c.pipeline == number] for number in range(dp * tp)]
    return ranks, pipelines


def _found(dp: int, tp: int, pp: int, groups: Sequence[tuple[int, ...]] = ()) -> tt.Reconstruction:
    """Pipeline 0 of a job; each rank reduces gradients with its group of those given."""
    ranks, pipelines = _job(dp, tp, pp)
    pipe = synthetic.pipeline(pp, 4, 100, 200, p2p="per-edge")
    profiles = []
    for profile, rank in zip(pipe.ranks, pipelines[0], strict=True):
        uses = tuple(CollectiveUse("allreduce", g, 1000, 10, meeting=str(g)) for g in groups if rank in g)
        profiles.append(replace(profile, rank=rank, tail=(TailPart(ActionKind.REDUCE_GRAD, 10, None, uses),)))
    return replace(synthetic.found(replace(pipe, ranks=tuple(profiles))), coordinates=tuple(ranks))


def _count(found: tt.Reconstruction, dcs: dict[int, str]) -> int:
    table = "rank,dc\n" + "".join(f"{rank},{dc}\n" for rank, dc in dcs.items())
    return placed(tt.Topology(), parse_table(table, "map.csv"), found).pipelines


def test_a_map_of_pipeline_ranks_places_all_pipelines_alike() -> None:
    found = _found(2, 2, 4)
    assert tt.scenario(found, dc="0-1,2-3", link=LINK).pipelines_on_link == 4
    assert tt.scenario(found, dc="0-1,2-3", link=LINK, pipelines_on_link=1).pipelines_on_link == 1
    assert tt.scenario(found, dc="0-1,2-3", link=LINK, pipelines_on_link=7).pipelines_on_link == 7
    assert tt.scenario(found).pipelines_on_link == 1


def test_pipelines_that_stay_inside_a_dc_do_not_count() -> None:
    """Pipelines 0 and 1 of four ranks each cross from a to b; 2 lies in a, 3 in b."""
    found, (_, pipelines) = _found(4, 1, 4), _job(4, 1, 4)
    places = {rank: "ab"[n > 1] for number in (0, 1) for n, rank in enumerate(pipelines[number])}
    places |= dict.fromkeys(pipelines[2], "a") | dict.fromkeys(pipelines[3], "b")
    assert _count(found, places) == 2


def test_pipelines_between_other_dcs_do_not_count() -> None:
    """0 crosses a-b-c, 1 a-b, 2 b-c, 3 c-d: two on either pair of 0's, the other way round as well."""
    found, (_, pipelines) = _found(4, 1, 3), _job(4, 1, 3)
    places = {
        rank: dc
        for ranks, dcs in zip(pipelines, ("abc", "bba", "bcc", "ccd"), strict=True)
        for rank, dc in zip(ranks, dcs, strict=True)
    }
    assert _count(found, places) == 2


def test_of_several_links_the_fullest_counts() -> None:
    """0 crosses a-b-c, 1 to 3 b-c alone: four share b-c."""
    found, (_, pipelines) = _found(4, 1, 3), _job(4, 1, 3)
    places = {
        rank: dc
        for ranks, dcs in zip(pipelines, ("abc", "bbc", "bbc", "bcc"), strict=True)
        for rank, dc in zip(ranks, dcs, strict=True)
    }
    assert _count(found, places) == 4


def test_pipelines_in_dcs_of_their_own_share_links_by_their_collectives() -> None:
    """Replicas in a and b: both all-reduces of the two tensor-parallel ranks of a stage cross, of four pipelines."""
    groups = [(0, 2), (1, 3), (4, 6), (5, 7)]
    found, (ranks, _) = _found(2, 2, 2, groups), _job(2, 2, 2)
    assert _count(found, {c.rank: "ab"[c.dp or 0] for c in ranks}) == 4
    # Of tensor-parallel rank 1 both replicas sit in b: only those of rank 0 cross.
    assert _count(found, {c.rank: "b" if c.tp else "ab"[c.dp or 0] for c in ranks}) == 2
    assert _count(found, dict.fromkeys(range(8), "a")) == 1


def test_recorded_pipelines_share_the_link_unless_told_otherwise() -> None:
    """Two pipelines of a tensor-parallel job: as two that are asked for, everywhere, and not as one."""
    data("h100-pp4", "traces", "tp2pp2_1f1b_m8")
    found = rebuilt("tp2pp2_1f1b_m8")
    link = "dc0-dc1=5Gbit/s,2ms"
    told, one, two = (
        tt.answer(found, "1f1b", tt.scenario(found, dc="0,1", link=link, pipelines_on_link=n)) for n in (None, 1, 2)
    )
    assert told.baseline.metrics == two.baseline.metrics
    assert told.baseline.metrics.step_ns > one.baseline.metrics.step_ns
    grid = tt.grid(found, "1f1b", dc="0,1", bandwidth="5Gbit/s", latency="2ms")
    (point,) = tt.sweep(found, grid, knees=False).points
    assert point.step_ns == two.baseline.metrics.step_ns
    assert tt.explain(found, "1f1b", told.scenario).metrics.step_ns == two.baseline.metrics.step_ns


def test_two_opposed_pipelines_say_what_to_do() -> None:
    found = _found(2, 1, 2)
    scenario = tt.scenario(found, dc="0,1", link=LINK)
    with pytest.raises(tt.TraceToolError, match="not modelled") as caught:
        tt.answer(found, "dualpipe", scenario)
    assert "pipelines_on_link=1" in (caught.value.hint or "")
    assert pipelines_on_links(found, tt.Topology()) == 1
