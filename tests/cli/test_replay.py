"""The main job, end to end, as a user runs it."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from helpers.recorded import ROOT, SAMPLES, data
from helpers.small_pipeline import Job, write

from tracetool.cli import run

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = str(SAMPLES / "h100-1f1b")
LINK = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms"]


def _report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["replay", *arguments, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "schemas" / "report.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(report)
    return report


def test_the_main_job_says_what_was_observed_what_1f1b_and_geopipe_would_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["replay", SAMPLE, "--schedule", "geopipe", *LINK, "--hbm", "80GiB", "-v"]) == 0
    text = capsys.readouterr().out
    for part in ("recorded 1f1b", "baseline", "geopipe +2,2,0,0", "25 Gbit/s (3.125 GB/s), 10.0 ms", "80.00 GiB"):
        assert part in text
    assert "fidelity: the recorded order, replayed" in text
    assert "Next: tracetool" in text
    assert max(len(line) for line in text.splitlines()[1:] if not line.startswith("Next")) <= 80


def test_json_has_the_promised_keys_and_conforms_to_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    report = _report(capsys, SAMPLE, "--schedule", "1f1b,gpipe,geopipe", *LINK)
    assert {"run", "step", "fidelity", "baseline", "results"} <= set(report)
    assert set(report["fidelity"]) == {"observed_ns", "replayed_ns", "error_ratio", "profiler_ns"}
    assert [r["schedule"] for r in report["results"]] == ["1f1b", "gpipe", "geopipe"]
    keys = {
        "schedule", "extra_forwards", "p2p", "microbatches", "feasible", "step_ns", "window_ns", "bubble_ns",
        "bubble_ratio", "cross_dc_bubble_ns", "peak_hbm_bytes", "overhead_bytes", "bubble_reduction",
        "cross_dc_bubble_reduction",
    }  # fmt: skip
    for result in (report["baseline"], *report["results"]):
        assert keys <= set(result)
    assert abs(report["fidelity"]["error_ratio"]) < 0.015


def test_what_the_numbers_of_a_report_mean_holds_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The definitions of ``tracetool help metrics``, recomputed from other fields of the same report."""
    report = _report(capsys, SAMPLE, "--schedule", "1f1b,geopipe", *LINK)
    free = _report(capsys, SAMPLE, "--schedule", "1f1b", "--dc", "0-1,2-3", "--link", "dc0-dc1=100000Pbit/s,0ns")
    base = report["baseline"]
    assert report["results"][0] == base
    assert base["cross_dc_bubble_ns"] == base["window_ns"] - free["results"][0]["window_ns"]
    geopipe = report["results"][1]
    assert geopipe["bubble_reduction"] == pytest.approx(1 - geopipe["bubble_ns"] / base["bubble_ns"])
    assert geopipe["bubble_ratio"] == pytest.approx(geopipe["bubble_ns"] / geopipe["window_ns"], abs=1e-8)


@pytest.mark.parametrize(("hbm", "extra", "feasible"), [("80GiB", 2, True), ("14GiB", 1, True), ("12GiB", 0, False)])
def test_geopipe_takes_the_depth_that_the_memory_allows(
    hbm: str, extra: int, *, feasible: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 holds 12.15 GiB under 1F1B (measured) and 1.20 GiB more per forward in flight."""
    (result,) = _report(capsys, SAMPLE, "--schedule", "geopipe", *LINK, "--hbm", hbm)["results"]
    assert result["extra_forwards"] == [extra, extra, 0, 0]
    assert result["feasible"] is feasible
    if not feasible:
        assert result["shortage"]["rank"] == 0
        needed = result["peak_hbm_bytes"][0] + result["overhead_bytes"][0]
        assert result["shortage"]["missing_bytes"] == needed - 12 * 2**30
    if extra < 2:
        assert "HBM" in result["remark"]


def test_raw_traces_are_ingested_once_and_the_run_is_reused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACETOOL_CACHE", str(tmp_path / "cache"))
        small = write(tmp_path / "small", Job(p=2))
        first = _report(capsys, str(small))
        (cached,) = (tmp_path / "cache").iterdir()
        written = cached.stat().st_mtime_ns
        moved = tmp_path / "moved"
        shutil.copytree(small, moved)
        second = _report(capsys, str(moved))
        assert [p.name for p in (tmp_path / "cache").iterdir()] == [cached.name]
        assert cached.stat().st_mtime_ns == written
        patch.setattr(sys.modules["tracetool.ingestion"], "code_digest", lambda: "0123456789")
        third = _report(capsys, str(moved))
        assert len(list((tmp_path / "cache").iterdir())) == 2, "other code answered from what this code had read"
    assert first["results"] == second["results"] == third["results"]


def test_pictures_and_reports_are_written_beside_the_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    targets = [tmp_path / name for name in ("a.svg", "a.json", "a.txt")]
    outputs = [part for target in targets for part in ("-o", str(target))]
    assert run(["replay", SAMPLE, "--schedule", "geopipe", *LINK, *outputs]) == 0
    capsys.readouterr()
    svg, report, text = (target.read_bytes() for target in targets)
    assert b"<svg" in svg
    assert json.loads(report)["results"][0]["schedule"] == "geopipe"
    assert b"geopipe" in text
    assert run(["replay", SAMPLE, "-o", str(targets[0])]) == 2
    assert "--force" in capsys.readouterr().err
    assert targets[0].read_bytes() == svg


def test_options_without_memory_in_the_trace_give_a_checked_limit(capsys: pytest.CaptureFixture[str]) -> None:
    annotated = str(SAMPLES / "h100-1f1b-annotated")
    (unknown,) = _report(capsys, annotated, "--schedule", "geopipe", *LINK, "--hbm", "20GiB")["results"]
    assert unknown["feasible"] is None
    assert unknown["peak_hbm_bytes"] == [None] * 4
    given = _report(
        capsys, annotated, "--schedule", "1f1b", "--hbm", "20GiB", "--activation", "2GiB", "--static", "6GiB"
    )
    # 1F1B holds p - i microbatches on stage i.
    assert given["results"][0]["peak_hbm_bytes"] == [(6 + 2 * n) * 2**30 for n in (4, 3, 2, 1)]


def test_other_microbatch_counts_follow_the_closed_form_of_growth(capsys: pytest.CaptureFixture[str]) -> None:
    """More microbatches cost at least the slowest stage's compute each."""
    eight = _report(capsys, SAMPLE, "--schedule", "1f1b")["results"][0]
    sixteen = _report(capsys, SAMPLE, "--schedule", "1f1b", "--microbatches", "16")["results"][0]
    assert sixteen["microbatches"] == 16
    # Stage 3 takes about 6.9 + 16.6 ms per microbatch in this recording; at 16 microbatches, sustained load slows
    # them down by up to 3 % (seen in runs of 16).
    assert 23.5 <= (sixteen["window_ns"] - eight["window_ns"]) / 8e6 <= 23.5 * 1.03


def test_a_schedule_file_in_torchs_form_is_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["schedules", "geopipe", "--extra-forwards", "2,2,0,0", "--csv"]) == 0
    path = tmp_path / "order.csv"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    from_file = _report(capsys, SAMPLE, "--schedule", f"csv:{path}", *LINK, "--p2p", "in-order")["results"][0]
    named = _report(capsys, SAMPLE, "--schedule", "geopipe", *LINK, "--p2p", "in-order")["results"][0]
    assert named["extra_forwards"] == [2, 2, 0, 0]
    assert from_file["step_ns"] == named["step_ns"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read the schedule file {path}: No such file or directory."),
        ("", "cannot read the schedule file {path}: Is a directory."),
        (b"\x00\xff\xfe", "the schedule file {path} is no text (not UTF-8)."),
        (b"0F0,0F\n", "{path}: line 1: '0F' is not an action."),
        (b"0F0,1F0,1B0\n", "{path}: schedule 'csv:order.csv', rank 0: 0B0 is missing."),
    ],
)
def test_a_schedule_file_that_is_none_is_refused_by_its_path(
    content: bytes | str | None, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """None: no such file; text: a folder. Refused before the traces are read: there are none here."""
    path = tmp_path / "order.csv"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    assert run(["replay", "nowhere", "--schedule", f"csv:{path}"]) == 2
    error = capsys.readouterr().err
    assert said.format(path=path) in error
    assert "Hint: " in error


def test_greedy_is_made_for_the_link_and_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    """Per edge it is no longer than 1F1B, and it stays within the limit that 1F1B just fits."""
    base = ["--p2p", "per-edge", "--hbm", "13.2GiB"]
    greedy = _report(capsys, SAMPLE, "--schedule", "greedy", *LINK, *base)
    (result,) = greedy["results"]
    assert result["feasible"] is True
    assert result["window_ns"] < greedy["baseline"]["window_ns"]
    assert "memory as torch's split would hold it" in result["remark"]


def test_a_time_limit_without_a_unit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", SAMPLE, "--schedule", "greedy", "--time-limit", "30"]) == 2
    assert "30" in capsys.readouterr().err


def test_a_schedule_that_does_not_fit_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    several = str(ROOT / "tests" / "data" / "interleaved2")
    report = _report(capsys, several, "--schedule", "1f1b,observed,gpipe")
    assert [r["schedule"] for r in report["results"]] == ["observed"]
    assert [(r["schedule"], r["reason"].split(";")[0]) for r in report["refused"]] == [
        ("1f1b", "1f1b needs one stage per rank"),
        ("gpipe", "gpipe needs one stage per rank"),
    ]
    assert run(["replay", several, "--schedule", "1f1b,observed", "-v"]) == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("  1f1b "))
    assert row.split()[1:] == ["not", "replayed"]
    assert "1f1b: not replayed: 1f1b needs one stage per rank" in text


def test_schedules_none_of_which_fits_are_an_error_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    several = str(ROOT / "tests" / "data" / "interleaved2")
    for names in ("1f1b", "1f1b,gpipe"):
        assert run(["replay", several, "--schedule", names]) == 2
        told = capsys.readouterr()
        assert not told.out
        for name in names.split(","):
            assert f"{name} needs one stage per rank" in told.err


def test_a_model_that_misses_its_own_recording_says_so_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Small recordings are all launch overhead and waiting: replay is 28 % off on this one."""
    off = str(ROOT / "tests" / "data" / "zbv")
    report = _report(capsys, off)
    assert abs(report["fidelity"]["error_ratio"]) > 0.05
    assert len(report["warnings"]) == 1
    assert run(["replay", off, "-v"]) == 0
    assert capsys.readouterr().out.startswith("warning: replay misses its own recording by ")
    assert run(["replay", off]) == 0
    assert capsys.readouterr().out.startswith("No step times: replay misses its own recording by ")
    assert _report(capsys, SAMPLE, "--schedule", "1f1b")["warnings"] == []


def test_interference_is_told_and_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """In blocking batches load alone slows down, in order waiting transfers do as well."""
    options = [SAMPLE, "--schedule", "1f1b,geopipe", "--extra-forwards", "2,2,0,0"]
    on, off = _report(capsys, *options), _report(capsys, *options, "--no-interference")
    for slow, fast in zip(on["results"], off["results"], strict=True):
        assert slow["step_ns"] > fast["step_ns"]
        assert slow["p2p"] == fast["p2p"]
        # Memory does not depend on it.
        assert slow["peak_hbm_bytes"] == fast["peak_hbm_bytes"]
    # What was observed is replayed with all that slowed it down, either way.
    assert on["fidelity"] == off["fidelity"]
    said = "slowdown beside communication and under sustained load is left out (--no-interference)"
    assert [said in report["notes"] for report in (on, off)] == [False, True]


def test_jitter_is_reproducible_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    options = [SAMPLE, "--schedule", "1f1b,gpipe", "--jitter"]
    one, again, other = (_report(capsys, *options, seed) for seed in ("1", "1", "2"))
    spreads = [[r["jitter"] for r in report["results"]] for report in (one, again, other)]
    assert spreads[0] == spreads[1] != spreads[2]
    for result in one["results"]:
        spread = result["jitter"]
        assert spread["resamples"] > 1
        assert spread["p50_ns"] <= spread["p95_ns"]
        # Costs of one stage vary by a few percent in this recording.
        assert spread["p50_ns"] == pytest.approx(result["step_ns"], rel=0.05)
    assert run(["replay", *options, "1", "-v"]) == 0
    text = capsys.readouterr().out
    assert f"with costs drawn anew {one['results'][0]['jitter']['resamples']} times: half the steps take up to" in text
    assert text.count("with costs drawn anew") == len(one["results"])
    # The baseline's spread stands there too where it is no result of its own.
    assert run(["replay", SAMPLE, "--schedule", "gpipe", "--jitter", "1", "-v"]) == 0
    text = capsys.readouterr().out
    assert text.count("with costs drawn anew") == 2
    assert "1f1b: baseline, grouped transfers\n    with costs drawn anew" in text


# What is borrowed is tried by default as values (tests/costs/test_borrowed), and memory from the command line (here).
@pytest.mark.thorough
def test_slowdown_from_another_recording(capsys: pytest.CaptureFixture[str]) -> None:
    """The sample is grouped and tells no slowdown; rt1f1b_m8 ran the same stages in order."""
    other = str(data("h100-pp4", "traces", "rt1f1b_m8"))
    options = [SAMPLE, "--schedule", "1f1b,geopipe", *LINK, "--extra-forwards", "2,2,0,0"]
    own, borrowed = _report(capsys, *options), _report(capsys, *options, "--costs-from", other)
    assert [r["p2p"] for r in own["results"]] == ["grouped", "in-order"]
    # It is said whose slowdown it is and how sure, instead of that this trace does not tell.
    assert not [note for note in borrowed["notes"] if "hardly any kernel" in note]
    assert [note for note in own["notes"] if "hardly any kernel" in note]
    (said,) = (note for note in borrowed["notes"] if note.startswith(f"--costs-from {other}: "))
    assert "defaults for 0%" in said
    # In blocking batches nothing is beside a transfer.
    assert borrowed["results"][0]["step_ns"] == own["results"][0]["step_ns"]
    # geo_k2_m8_L2 of measured.json: 311.71 ms.
    errors = [abs(report["results"][1]["step_ns"] / 311.71e6 - 1) for report in (borrowed, own)]
    assert errors[0] < 0.035
    assert errors[0] != errors[1]


@pytest.mark.parametrize(("name", "said"), [("nowhere.run", "nowhere.run"), ("2stages", "has 2 stages, this one 4")])
def test_recordings_that_cannot_stand_for_this_one_are_refused(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = name if name.endswith(".run") else str(ROOT / "tests" / "data" / "ckpt_reentrant")
    assert run(["replay", SAMPLE, "--costs-from", other]) == 2
    output = capsys.readouterr()
    assert said in output.err
    assert output.out == ""


def test_memory_from_another_recording(capsys: pytest.CaptureFixture[str]) -> None:
    """One sample was recorded without memory: the limit and the depth of geopipe go by the other's."""
    timed, weighed = str(SAMPLES / "h100-1f1b-annotated"), SAMPLE
    options = [timed, "--schedule", "geopipe", *LINK, "--hbm", "14GiB"]
    own, borrowed = _report(capsys, *options), _report(capsys, *options, "--memory-from", weighed)
    assert [report["results"][0]["feasible"] for report in (own, borrowed)] == [None, True]
    assert [report["results"][0]["extra_forwards"] for report in (own, borrowed)] == [[2, 2, 0, 0], [1, 1, 0, 0]]
    assert [note for note in borrowed["notes"] if note.startswith(f"--memory-from {weighed}: ")]
    assert [note for note in own["notes"] if "--memory-from" in note]
    assert run(["replay", timed, "--memory-from", str(ROOT / "tests" / "data" / "ckpt_reentrant")]) == 2
    assert "memory figures of another model do not fit: 4 pipeline ranks" in capsys.readouterr().err


def test_pipelines_without_a_link_to_share_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", SAMPLE, "--pipelines-on-link", "4"]) == 2
    assert "4 pipelines are to share links, but there is none" in capsys.readouterr().err


@pytest.mark.parametrize(("hbm", "told"), [("80GiB", False), ("13.1GiB", True)])
def test_maybe_is_explained_where_it_stands(hbm: str, *, told: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", SAMPLE, "--schedule", "1f1b", "--hbm", hbm, "-v"]) == 0
    text = capsys.readouterr().out
    assert [" maybe\n" in text, "note: maybe" in text] == [told, told]
