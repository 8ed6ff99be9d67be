"""tracetool overlap: whether overlap pays for recorded layers, and predictions beside measured ones."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import ROOT

from tracetool.cli import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("asked_once")

H200 = ROOT / "tests" / "data" / "h200-overlap"
LAYERS = [str(H200 / "traces" / "nvlink" / f"8192_4096_2752_{side}_coll") for side in ("ag", "rs")]


def test_answer_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["overlap", *LAYERS, "--overlap", "slice:2,async-tp", "-q"]
    assert run(asked) == 0
    assert capsys.readouterr().out.startswith("Whether overlap pays is open in all 2 sides of layers: ")
    assert run(["overlap", *LAYERS, "-q"]) == 0
    assert capsys.readouterr().out.startswith("Overlap pays in 1 of 2 sides of layers; the error leaves 1 open.")
    assert run([*asked, "-v"]) == 0
    printed = capsys.readouterr().out
    assert "\n8192 x 4096 x 2752 on 2 ranks, all-gather, then product: " in printed
    assert "If hosts took no time (CUDA graphs), async-tp would be" in " ".join(printed.split())
    assert "slice:4" not in printed
    assert "the host's calls rest on 2 recordings; four give" in " ".join(printed.split())


# Recordings of another transport are read for it; that copy engines need NVLink is tried by default (tests/overlap).
@pytest.mark.thorough
def test_copy_engines_are_not_tried_where_collectives_go_through_host_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They were timed over NVLink: a link of 25 GB/s does not move 380 GB/s."""
    host = [str(H200 / "traces" / "host" / f"8192_4096_2752_{side}_coll") for side in ("ag", "rs")]
    assert run(["overlap", *host, "--overlap", "slice:2,async-tp", "--json", "-q"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [[way["way"] for way in side["ways"]] for side in printed["layers"]] == [["none", "slice:2"]] * 2
    assert any("async-tp left out" in note for note in printed["notes"])
    assert run(["overlap", *host, "-q"]) == 0
    text = capsys.readouterr().out
    assert "note: async-tp left out: the collectives did not run over NVLink" in text


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["overlap", *LAYERS, "--overlap", "slice:2,async-tp", "--json", "-q"]) == 0
    printed = json.loads(capsys.readouterr().out)
    gather, scatter = printed["layers"]
    assert (gather["side"], scatter["side"], scatter["best"], scatter["pays"]) == ("ag", "rs", "none", None)
    assert scatter["ways"][2]["host_bound"] is True
    # The host bounds it, of which two recordings tell little: what was measured lies within.
    assert scatter["ways"][2]["rests_on"] == "host-bound, few"
    assert scatter["ways"][2]["gain_ratio"] + scatter["ways"][2]["gain_error_ratio"] > 1 - 0.3275 / 0.4130
    # Measured where the host ran ahead: as it is 0.4130 ms, with async tensor parallelism 0.3275 ms.
    assert scatter["ways"][2]["device_ms"] < 0.9 * scatter["ways"][0]["device_ms"]
    assert [way["way"] for way in gather["ways"]] == ["none", "slice:2", "async-tp"]
    for way in gather["ways"]:
        assert way["gain_ratio"] == pytest.approx(1 - way["call_ms"] / gather["ways"][0]["call_ms"])
        product_ns = 2 * 8192 * 4096 * 2752 / (way["mfu_ratio"] * 989_000)
        assert way["call_ms"] == pytest.approx(product_ns / 1e6)
        assert way["device_ms"] <= way["call_ms"]


def test_where_it_begins_to_pay(capsys: pytest.CaptureFixture[str]) -> None:
    """Measured as it is through host memory, which moves 25 GB/s: 1.611 and 1.593 ms, best in four slices."""
    asked = ["overlap", *LAYERS, "--overlap", "slice:2,slice:4", "--bandwidth", "25GB/s,1000GB/s", "-q"]
    assert run([*asked, "--json"]) == 0
    gather, scatter = json.loads(capsys.readouterr().out)["layers"]
    slow, fast = scatter["over"]
    assert (slow["bandwidth_bytes_per_s"], slow["best"]) == (25 * 10**9, "slice:4")
    assert slow["call_ms"] == pytest.approx(1.593, rel=0.02)
    assert gather["over"][0]["call_ms"] == pytest.approx(1.611, rel=0.02)
    assert fast["call_ms"] == pytest.approx(scatter["ways"][0]["call_ms"])
    assert run(asked) == 0
    assert re.search(r"at 200 Gbit/s +1.6 ms +slice:4 ", capsys.readouterr().out)
    assert run([*asked, "-v"]) == 0
    assert "over 200 Gbit/s (25 GB/s): 1.6 ms as it is; overlap" in capsys.readouterr().out


def test_rows_of_measured_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = {"tokens": 8192, "hidden": 4096, "ffn_per_rank": 2752}
    rows = [
        {"shape": shape, "group_size": size, "transport": "nvlink", "variant": variant, "measured_ms": ms}
        for size, variant, ms in ((2, "ag_coll", 0.4129), (2, "ag_p2p", 0.3832), (4, "ag_p2p", 1.0), (2, "tree", 1.0))
    ]
    file = tmp_path / "measured.json"
    file.write_text(json.dumps({"results": rows, "timing": {"calls": 6, "host_ahead_ms": 1.01}}))
    assert run(["overlap", *LAYERS, "--measured", str(file), "--json", "-q"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["predicted_ms"] is None for row in printed["rows"]] == [False, False, True, True]
    assert printed["rows"][2]["reason"] == "recorded are groups of 2 ranks"
    assert printed["rows"][3]["reason"] == "no variant is named tree"
    (winner,) = printed["winners"]
    assert (winner["measured"], winner["predicted"], winner["right"]) == ("ag_p2p", "ag_p2p", True)
    errors = [row["error_ratio"] for row in printed["rows"][:2]]
    assert printed["mape_ratio"] == pytest.approx(sum(map(abs, errors)) / 2)


@pytest.mark.parametrize("ways", ["slice", "ring", "none:2", "async-tp:2", "slice:0", "slice:1"])
def test_no_way_is_refused(ways: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["overlap", *LAYERS, "--overlap", ways, "-q"]) == 2
    assert "is no way to overlap" in capsys.readouterr().err


def test_a_recording_without_layers_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    product = str(H200 / "traces" / "nvlink" / "8192_4096_2752_gemm1")
    assert run(["overlap", product, "-q"]) == 2
    assert "no layer with a collective and a matrix product" in capsys.readouterr().err
