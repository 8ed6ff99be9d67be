"""Sweeps over ways to overlap inside layers, and over links between the ranks of a group."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import jsonschema
import pytest
from helpers.layered import with_all_reduces, with_sequence_parallelism, without_shapes
from helpers.recorded import ROOT, SAMPLES, looked_at, run_of
from helpers.thorough import spread

from tracetool.cli import run as command
from tracetool.costs.rescaled import with_layers
from tracetool.errors import ReconstructError
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionChange, LayerOverlap
from tracetool.overlap.actions import layer_overlaps, read_layers, with_overlap
from tracetool.reconstruction import Reconstruction, reconstruct
from tracetool.reports.sweep.layers import layers_sentences
from tracetool.sweeps.asked import grid
from tracetool.sweeps.run import sweep
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.store.run import Run
    from tracetool.sweeps import Sweep
    from tracetool.sweeps.results import SweptLayers

GB = 10**9
MS = 10**6


@cache
def found() -> Reconstruction:
    return reconstruct(without_shapes())


@cache
def swept() -> Sweep:
    """Ways over three links, of which the last is as fast as what was recorded."""
    overlaps = layer_overlaps(with_sequence_parallelism(), ("none", "slice:2", "p2p"), (GB // 2, 5 * GB, 450 * GB))
    return sweep(found(), replace(grid(found(), "1f1b,gpipe"), overlaps=overlaps.overlaps), jobs=1)


# Slices are between no overlap and parts: other durations by the same means.
@spread("way", ["none", "slice:2", "p2p"], 2)
def test_over_recorded_links_a_point_is_what_replay_says(way: str) -> None:
    replayed = answer(with_overlap(found(), with_sequence_parallelism(), way), "1f1b,gpipe").results
    points = [
        point for point in swept().points if (point.overlap, point.tensor_bandwidth_bytes_per_s) == (way, 450 * GB)
    ]
    assert [(p.schedule, p.step_ns) for p in points] == [(r.schedule, r.step_ns) for r in replayed]


PAIRS, PART_BYTES = 16, 2048 * 4096 * 2 // 2
"""Reduce-scatters in each forward, and what each rank gets of one."""


@pytest.mark.parametrize(("make", "hops"), [(with_sequence_parallelism, 1), (with_all_reduces, 2)])
def test_slower_links_take_what_the_bytes_take_longer(make: Callable[[], Run], hops: int) -> None:
    """Closed form: over links so slow that nothing else counts, bytes over the bandwidth; all-reduces pass it twice."""
    layers = read_layers(make())
    slow, slower = (layers.overlap("none", rate).actions for rate in (5 * GB, GB // 2))
    for one, other in zip(slow, slower, strict=True):
        longer = PAIRS * hops * PART_BYTES * (2.0 - 0.2)
        assert other.change_ns - one.change_ns == pytest.approx(longer, rel=1e-6)
        # Every measured way over another link was within 10 %.
        assert other.link_error_ns == pytest.approx(0.1 * PAIRS * hops * PART_BYTES * 2.0, rel=0.05)
    assert layers.overlap("none", 5 * GB).is_measured is (hops == 1)


def test_links_faster_than_recorded_change_nothing_and_are_said() -> None:
    overlaps, notes = layer_overlaps(with_sequence_parallelism(), ("none",), (25 * GB, 450 * GB, 900 * GB))
    assert [change.change_ns for change in overlaps[2].actions] == [0, 0]
    assert overlaps[1].actions == overlaps[2].actions
    assert "(2 bandwidths) are taken as that" in str(notes[0])


def test_ways_that_cannot_be_are_left_out_and_said() -> None:
    overlaps, notes = layer_overlaps(with_all_reduces(), ("none", "slice:2", "slice:3", "p2p"))
    assert [overlap.way for overlap in overlaps] == ["none", "slice:2"]
    assert ["slice:3" in str(notes[0]), "p2p" in str(notes[1])] == [True, True]
    assert "no multiple of 3 pieces" in str(notes[0])
    _, notes = layer_overlaps(with_sequence_parallelism(), ("none", "slice:2", "async-tp"), (25 * GB,))
    assert "async-tp left out: copy engines" in str(notes[0])
    with pytest.raises(ReconstructError, match="p2p is no way for the collectives"):
        layer_overlaps(with_all_reduces(), ("none", "p2p"))


def test_a_gain_stands_beside_layers_as_they_are_over_the_same_links() -> None:
    plain = {
        point.tensor_bandwidth_bytes_per_s: point.step_ns
        for point in swept().points
        if (point.overlap, point.schedule) == ("none", "1f1b")
    }
    assert len(swept().layers) == 2 * 3
    for each in swept().layers:
        assert each.gain.plain_ns == plain[each.gain.tensor_bandwidth_bytes_per_s]
        assert each.gain.gain_ratio == 1 - each.gain.step_ns / each.gain.plain_ns


def _made_up(way: str, rate: int | None, change_ms: float, error_ms: float) -> LayerOverlap:
    kinds = (ActionKind.FORWARD, ActionKind.BACKWARD)
    changes = [
        ActionChange(stage, kind, round(change_ms * MS), round(error_ms * MS), 0)
        for stage in range(4)
        for kind in kinds
    ]
    return LayerOverlap(way, rate, tuple(changes))


def _gains(*overlaps: LayerOverlap) -> tuple[SweptLayers, ...]:
    pipeline = looked_at(run_of(SAMPLES / "h100-1f1b"))
    return sweep(pipeline, replace(grid(pipeline, "1f1b"), overlaps=overlaps), jobs=1).layers


def test_it_pays_where_it_wins_by_more_than_its_error() -> None:
    """Forwards of 5.7 ms and backwards of 11.5 ms that are 1.5 ms shorter, by so much more or less."""
    none = LayerOverlap()
    (sure,) = _gains(none, _made_up("slice:2", None, -1.5, 0.1))
    (vague,) = _gains(none, _made_up("slice:2", None, -1.5, 1.5))
    (longer,) = _gains(none, _made_up("slice:2", None, 1.5, 0.1))
    (bound,) = _gains(none, _made_up("fused", None, -1.5, 0.0))
    assert [each.gain.pays for each in (sure, vague, longer, bound)] == [True, None, False, None]
    assert sure.gain.gain_ratio == vague.gain.gain_ratio > 0.05
    assert bound.gain.error_ratio is None
    assert sure.gain.error_ratio is not None
    assert vague.gain.error_ratio is not None
    # A whole backward is longer than a forward, whose share of an error decides.
    least = min(c.duration_ns for stage in looked_at(run_of(SAMPLES / "h100-1f1b")).pipeline.stages
                for c in stage.costs[ActionKind.FORWARD])  # fmt: skip
    assert vague.gain.error_ratio - sure.gain.error_ratio == pytest.approx(
        1.5 * MS / (least - 1.5 * MS) - 0.1 * MS / (least - 1.5 * MS), rel=1e-3
    )


def test_where_it_begins_to_pay_is_said() -> None:
    pipeline = looked_at(run_of(SAMPLES / "h100-1f1b"))
    overlaps = [
        change
        for rate, gain in ((25, 3.0), (50, 1.5), (100, -1.0))
        for change in (_made_up("none", rate * GB, 6.0, 0.0), _made_up("p2p", rate * GB, 6.0 - gain, 0.1))
    ]
    done = sweep(pipeline, replace(grid(pipeline, "1f1b"), overlaps=tuple(overlaps)), jobs=1)
    assert [each.gain.pays for each in done.layers] == [True, True, False]
    (told,) = layers_sentences(done)
    assert told.startswith(
        "Overlap inside layers pays by p2p up to 400 Gbit/s (50 GB/s) between two ranks of a group ("
    )


def test_layers_as_recorded_are_the_sweep_without_them() -> None:
    pipeline = looked_at(run_of(SAMPLES / "h100-1f1b"))
    asked = grid(pipeline, "1f1b,geopipe", dc="0-1,2-3", bandwidth="25Gbit/s", latency="10ms")
    plain = sweep(pipeline, asked, jobs=1, knees=False)
    assert sweep(pipeline, replace(asked, overlaps=(LayerOverlap(),)), jobs=1, knees=False).points == plain.points
    assert plain.layers == ()


def test_places_and_layers_combine() -> None:
    """A point over a link is the replay of the changed pipeline over it, and has a knee of its own."""
    pipeline = looked_at(run_of(SAMPLES / "h100-1f1b"))
    asked = grid(pipeline, "1f1b", dc="0-1,2-3", bandwidth="25Gbit/s", latency="10ms")
    overlap = _made_up("slice:2", None, -1.5, 0.1)
    done = sweep(pipeline, replace(asked, overlaps=(LayerOverlap(), overlap)), jobs=1)
    alone = sweep(replace(pipeline, pipeline=with_layers(pipeline.pipeline, overlap)), asked, jobs=1)
    (point,) = [point for point in done.points if point.overlap == "slice:2"]
    assert point.step_ns == alone.points[0].step_ns
    assert [(knee.overlap, knee.schedule) for knee in done.knees] == [("none", "1f1b"), ("slice:2", "1f1b")]
    assert done.knees[1].bandwidth_bytes_per_s == alone.knees[0].bandwidth_bytes_per_s


# What is swept is held to replay by default (above), the report to its schema (tests/reports, tests/cli).
@pytest.mark.thorough
@pytest.mark.usefixtures("asked_once")
def test_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracetool.ingestion.runs.open_run", lambda *_, **__: with_sequence_parallelism())
    asked = ["sweep", "traces", "--schedule", "1f1b,gpipe", "--overlap", "slice:2,p2p,fused"]
    asked += ["--tensor-bandwidth", "500MB/s,5GB/s,450GB/s"]
    assert command([*asked, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "schemas" / "sweep.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(report)
    known = {(p.schedule, p.overlap, p.tensor_bandwidth_bytes_per_s): p.step_ns for p in swept().points}
    told = {(p["schedule"], p["overlap"], p["tensor_bandwidth_bytes_per_s"]): p["step_ns"] for p in report["points"]}
    assert len(told) == 24
    assert known.items() <= told.items()
    for each in report["layers"]:
        assert each["pays"] is None or each["overlap"] != "fused"
        rate = each["tensor_bandwidth_bytes_per_s"]
        assert each["step_ns"] >= told["1f1b", "fused", rate]  # a bound of all ways
    assert command([*asked, "-q"]) == 0
    printed = capsys.readouterr().out
    assert "layers overlap by  pays  does not  open" in printed
    assert "fused" in printed


@pytest.mark.parametrize("words", [["--overlap", "ring"], ["--tensor-bandwidth", "25"]])
def test_what_cannot_be_read_is_refused_before_traces_are(words: list[str]) -> None:
    assert command(["sweep", "no-such-traces", *words, "-q"]) == 2
