"""A figure of a step that is declared stands in every face without another word about it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.recorded import ROOT, SAMPLES, derived

from tracetool.comparison.report import ReportInfo, ResultInfo, StepInfo
from tracetool.ingestion.recording import StepRecord
from tracetool.tables.metrics import IN_REPORTS, METRICS, OF_RANK, OF_STEP

SCRIPT = """
import json, sys
from click.testing import CliRunner
from tracetool.tables import metrics

declared = metrics.METRICS.items()
metrics.METRICS["toy_ns"] = metrics.Metric("toy_ns", "ns", "lower", "Twice the step.", "step")
for name in ("OF_STEP", "IN_REPORTS"):
    setattr(metrics, name, (*getattr(metrics, name), "toy_ns"))
metrics.OF_REPLAY = (*metrics.IN_REPORTS, "cross_dc_bubble_ns")

from tracetool.model.timeline import Metrics
Metrics.toy_ns = property(lambda self: 2 * self.step_ns)

import tracetool as tt
from tracetool.cli import cli

def said(*words):
    done = CliRunner().invoke(cli, [*map(str, words)], obj=[*map(str, words)])
    assert done.exit_code == 0, (words, done.output, repr(done.exception))
    return done.stdout

traces, folder = sys.argv[1:]
run, report = f"{folder}/x.run", f"{folder}/report.json"
said("ingest", traces, "-o", run)
said("replay", run, "--schedule", "gpipe", "-o", report)
made = json.loads(open(report).read())
asked = json.loads(said("sql", run, "select toy_ns, step_ns from schedule_comparison", "--json"))
compared = json.loads(said("compare", report, report, "--json"))
said("baseline", "add", report, "--label", "one", "--history", f"{folder}/history.parquet")
kept = json.loads(said("baseline", "list", "--history", f"{folder}/history.parquet", "--json"))
answer = tt.answer(tt.reconstruct(tt.Run(run)), ["gpipe"])
print(json.dumps({
    "json": [[of["toy_ns"], of["step_ns"]] for of in (made["step"], made["baseline"], *made["results"])],
    "recording": [[step["toy_ns"], step["step_ns"]] for step in made["recording"]["steps"]],
    "sql": [[row["toy_ns"], row["step_ns"]] for row in asked],
    "table": tt.to_arrow(answer)["results"].select(["toy_ns", "step_ns"]).to_pydict(),
    "compared": sorted(line["name"] for line in compared["lines"] if "toy_ns" in line["name"]),
    "kept": sorted(row["schedule"] for row in kept if row["metric"] == "toy_ns"),
}))
"""


# A process in which a figure is declared anew; that structs and views have all of them is tried by default (below).
@pytest.mark.thorough
def test_a_figure_is_declared_in_one_place(tmp_path: object) -> None:
    """One of twice the step is twice the step in JSON, the recording, SQL, tables, comparison and histories."""
    import json

    command = [sys.executable, "-c", SCRIPT, str(SAMPLES / "h100-1f1b"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    table = found["table"]
    pairs = [*found["json"], *found["recording"], *found["sql"], *zip(table["toy_ns"], table["step_ns"], strict=True)]
    assert len(pairs) == 8
    assert all(toy == 2 * step for toy, step in pairs)
    assert found["compared"] == ["toy_ns", "toy_ns/gpipe"]
    assert found["kept"] == ["1f1b", "gpipe", "observed"]


def test_structs_have_the_figures_that_are_declared() -> None:
    assert set(IN_REPORTS) < set(OF_STEP)
    for struct, names in ((StepInfo, IN_REPORTS), (ResultInfo, IN_REPORTS), (StepRecord, OF_STEP)):
        assert {*names, *OF_RANK} <= set(struct.__struct_fields__)
    assert "compute_ns" not in StepInfo.__struct_fields__
    assert ReportInfo.__struct_fields__[-1] == "recording"
    view = derived(SAMPLES / "h100-1f1b").query("SELECT * FROM schedule_comparison")
    assert [name for name in view.columns if name in METRICS] == [*IN_REPORTS, "peak_hbm_bytes", "cross_dc_bubble_ns"]
