"""What ``info`` tells of findings and of traffic between data centres; figures are those of the recordings' README."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from helpers.made_job import MadeJob
from helpers.recorded import SAMPLES, data, derived, made

from tracetool.cli import run
from tracetool.errors import Option
from tracetool.reports.recording.findings import finding_lines

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = str(SAMPLES / "h100-1f1b")
MESSAGE_BYTES = 16_777_216


def _facts(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["info", *arguments, "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def test_messages_across_a_boundary_are_counted_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    """8 microbatches: 8 activations there, 8 gradients back, of 16 MiB each; a barrier over all ranks moves nothing."""
    crossing = _facts(capsys, SAMPLE, "--dc", "0-1,2-3")["cross_dc"]
    assert crossing["dcs"] == {"dc0": [0, 1], "dc1": [2, 3]}
    assert crossing["directions"] == [
        {"src_dc": src, "dst_dc": dst, "messages": 8, "payload_bytes": 8 * MESSAGE_BYTES}
        for src, dst in (("dc0", "dc1"), ("dc1", "dc0"))
    ]
    assert [(m["src_rank"], m["dst_rank"]) for m in crossing["messages"]] == [(1, 2), (2, 1)]
    assert {(c["operation"], tuple(c["ranks"])) for c in crossing["collectives"]} == {("barrier", (0, 1, 2, 3))}
    assert run(["info", SAMPLE, "--dc", "0-1,2-3", "-q", "-v"]) == 0
    text = capsys.readouterr().out
    assert "dc0→dc1: 8 messages, 128.00 MiB" in text
    assert "the DC map names pipeline ranks; ranks here are" in text
    assert _facts(capsys, SAMPLE)["cross_dc"] is None


def test_a_slow_rank_is_named_beside_the_figures_of_the_first_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 3 of pipeline 1 computes 1.2 times as long as rank 2, the optimizer aside: 24 ms of actions, 0.5 ms of it.

    In jobs of equal pipelines no rank is named.
    """
    slow, even = (str(made(MadeJob(pp=2, dp=2, microbatches=4, layers=1, slow=of)).path) for of in ({3: 1.2}, {}))
    facts = _facts(capsys, slow)
    (rank,) = facts["slow_ranks"]
    assert (rank["rank"], rank["pipeline"]) == (3, 1)
    assert rank["slower_ratio"] == pytest.approx(0.2 * 24 / 24.5)
    assert run(["info", slow, "-q"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "of pipeline 0's" in text
    assert "slow: rank 3 (pipeline 1): its kernels take 19.6% longer than those of the other ranks of its stage" in text
    assert _facts(capsys, even)["slow_ranks"] == []
    assert run(["info", even, "-q"]) == 0
    assert "slow:" not in capsys.readouterr().out


def test_waits_for_a_slow_peer_are_no_gaps_of_the_host_and_unknown_ones_are_bounds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rank 1 is a half slower than its tensor-parallel peer, whose device has no gaps but those waits.

    Two all-reduces of 0.1 ms for each of 4 microbatches on two ranks of the first pipeline.
    """
    job = MadeJob(pp=2, tp=2, microbatches=4, layers=1, slow={1: 1.5, 3: 1.5})
    paths = [str(made(job, ranks=ranks).path) for ranks in (None, (0, 2))]
    told = [_facts(capsys, path) for path in paths]
    whole, part = (facts["exposed_collectives"][0] for facts in told)
    assert (whole["own_ns"], whole["own_is_bound"]) == (2 * 2 * 4 * 100_000, False)
    assert (part["own_ns"], part["own_is_bound"]) == (part["duration_ns"], True)
    assert whole["duration_ns"] == part["duration_ns"] > 2 * whole["own_ns"]
    gaps = told[0]["host_gaps"]
    assert {gap["kind"] for gap in gaps} == {"F", "B"}
    assert all(gap["gap_ratio"] < 0.01 for gap in gaps)
    assert run(["replay", paths[0], "-q", "-v"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "gaps between kernels" not in text
    assert "the host holds the device back" not in text
    assert run(["explain", paths[0]]) == 0
    assert f"Next: tracetool replay {paths[0]} --equalize" in capsys.readouterr().out


# By default the messages of one pipeline are counted (above), and those of an Ascend capture of two (below).
@pytest.mark.thorough
def test_all_pipelines_count_and_groups_that_span_places_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Global rank = pp * 2 + tp. Cut between the stages: 2 pipelines of 8 messages each way. Cut across the tensor
    parallel groups: no message, but every all-reduce of a step: 1,024 per group and rank in two steps."""
    recording = str(derived(data("h100-pp4", "traces", "tp2pp2_1f1b_m8")).path)
    between = _facts(capsys, recording, "--dc", "0,1")["cross_dc"]
    assert [(d["messages"], d["payload_bytes"]) for d in between["directions"]] == [(16, 16 * MESSAGE_BYTES)] * 2
    table = tmp_path / "map.csv"
    table.write_text("rank,dc\n0,a\n2,a\n1,b\n3,b\n", encoding="utf-8")
    across = _facts(capsys, recording, "--dc", str(table))["cross_dc"]
    assert across["directions"] == []
    reduced = {tuple(c["ranks"]): c for c in across["collectives"] if c["operation"] == "allreduce"}
    assert set(reduced) == {(0, 1), (2, 3)}
    for part in reduced.values():
        assert part["dcs"] == ["a", "b"]
        assert (part["operations"], part["payload_bytes"]) == (256, 256 * MESSAGE_BYTES)


def _level2() -> str:
    return str(derived(data("ascend", "Ascend+msinsight", "test", "st", "level2")).path)


def test_traffic_of_an_ascend_capture(capsys: pytest.CaptureFixture[str]) -> None:
    """By the HCCS links of communication_matrix.json: per pipeline 2 x (0 -> 2) and 2 x (2 -> 0) of 8,388,608 bytes."""
    crossing = _facts(capsys, _level2(), "--dc", "0,1")["cross_dc"]
    assert crossing["step"] == 13
    assert [(m["src_rank"], m["dst_rank"], m["messages"], m["payload_bytes"]) for m in crossing["messages"]] == [
        (src, dst, 2, 2 * 8_388_608) for src, dst in ((0, 2), (1, 3), (2, 0), (3, 1))
    ]


def test_a_collective_is_as_large_as_any_of_its_ranks_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks 0 and 2 of level2 reduce the tied embedding (622,329,856 bytes in both communication.json) and, thrice, 8
    bytes that rank 0 has no size of."""
    crossing = _facts(capsys, _level2(), "--dc", "0,1")["cross_dc"]
    (both,) = (c for c in crossing["collectives"] if tuple(c["ranks"]) == (0, 2))
    assert (both["operations"], both["payload_bytes"]) == (4, 622_329_856 + 3 * 8)


def test_the_vendors_bubble_stands_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours by hand: the window ends with the last backward of rank 0, at 648.01 ms (kernel_details.csv)."""
    level2 = _level2()
    bubbles = {b["rank"]: b for b in _facts(capsys, level2)["vendor_bubble"]}
    assert {b["vendor_bubble_ns"] for b in bubbles.values()} == {0}
    busy = 73.27 + 79.57 + 81.96 + 94.80
    assert bubbles[0]["bubble_ns"] / 1e6 == pytest.approx(648.01 - busy, abs=0.1)
    assert bubbles[1]["bubble_ns"] is None
    assert run(["info", level2, "-q", "-v"]) == 0
    text = capsys.readouterr().out
    assert "step 13, rank 0: Ascend's 0 ns, ours 318.4 ms" in text
    assert "step 13, ranks 1, 3: Ascend's 0 ns, not reconstructed" in text


@pytest.mark.parametrize(
    ("dc", "said"),
    [
        ("0-1,2", "covers pipeline ranks 0..2, the pipeline has ranks 0..3"),
        ("dc0=a*,dc1=b*", "do not say on which host they ran"),
        ("nowhere.csv", "cannot read the DC map nowhere.csv"),
    ],
)
def test_maps_that_do_not_fit_are_refused(dc: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["info", SAMPLE], ["replay", SAMPLE, "--link", "dc0-dc1=25Gbit/s,10ms"]):
        assert run([*command, "--dc", dc]) == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_a_table_replays_like_the_ranges_that_say_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "map.csv"
    table.write_text("rank,dc\n0,dc0\n1,dc0\n2,dc1\n3,dc1\n", encoding="utf-8")
    steps = []
    for dc in ("0-1,2-3", str(table)):
        assert run(["replay", SAMPLE, "--dc", dc, "--link", "dc0-dc1=25Gbit/s,10ms", "--json"]) == 0
        steps.append(json.loads(capsys.readouterr().out)["results"])
    assert steps[0] == steps[1]


# Ranks are copied on request in test_hints by default; here the second pipeline, and one that is not there.
@pytest.mark.thorough
def test_a_pipeline_is_chosen_and_missing_ranks_are_copied_on_request(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = data("h100-pp4", "traces", "tp2pp2_1f1b_m8")
    names = sorted(path.name for path in source.iterdir() if "rank0" in path.name or "rank3" in path.name)
    assert len(names) == 2
    for name in names:
        (tmp_path / name).symlink_to(source / name)
    half = str(tmp_path)
    assert run(["replay", half]) == 2
    assert "--copy-missing-ranks" in capsys.readouterr().err
    assert run(["replay", half, "--copy-missing-ranks", "--pipeline", "1"]) == 0
    assert "rank 1 from 0" in " ".join(capsys.readouterr().out.split())
    assert run(["replay", half, "--copy-missing-ranks", "--pipeline", "2"]) == 2
    assert "there is no pipeline 2; the traces hold 0: [0, 2]; 1: [1, 3]" in " ".join(capsys.readouterr().err.split())


def test_findings_are_folded_over_ranks_and_the_least_sure_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"fact": f, "subject": s, "value": v, "evidence": e, "confidence": c, "detail": d}
        for f, s, v, e, c, d in (
            ("steps", "all", "2 steps", "label", 1.0, None),
            ("clocks", "rank 2", "in step", "messages", 0.8, None),
            ("clocks", "rank 1", "in step", "messages", 0.8, None),
            ("clocks", "rank 3", "off", "messages", 0.9, "a reason"),
            ("pipeline", "pipeline 0", "stages", "metadata", 1.0, None),
        )
    ]
    assert finding_lines(rows) == [
        "  findings, the least sure first:",
        "    clocks, ranks 1-2: in step (messages, confidence 0.80)",
        "    clocks, rank 3: off (messages, confidence 0.90): a reason",
        "    steps: 2 steps (label)",
        "    pipeline 0: stages (metadata)",
    ]
    many = [{**rows[0], "value": f"{n}"} for n in range(9)]
    assert finding_lines(many)[-1] == f"    3 more of steps by label ({Option.JSON} has all)"
    facts = _facts(capsys, SAMPLE)
    assert {f["fact"] for f in facts["findings"]} >= {"steps", "pipeline", "coordinates"}
    assert [c["pp"] for c in facts["coordinates"]] == [0, 1, 2, 3]
    assert [(s["step"], s["status"], s["chosen"]) for s in facts["step_facts"]] == [(1, "complete", True)]
    assert run(["info", SAMPLE, "-q"]) == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80
