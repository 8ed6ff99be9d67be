"""The history file and its commands: what goes in comes out, and what is damaged is refused and left alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.recorded import ROOT
from msgspec.structs import asdict, replace

from tracetool.baselines import add_report, read_history
from tracetool.cli import run
from tracetool.errors import AlreadyExists, SchemaVersion, StoreError

if TYPE_CHECKING:
    from pathlib import Path

STORED = ROOT / ".github" / "tracetool" / "h100-1f1b.json"


def written(folder: Path, text: bytes) -> Path:
    path = folder / "report.json"
    path.write_bytes(text)
    return path


def report(**changed: float) -> bytes:
    """The stored report, with figures of its last result multiplied."""
    found: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    for name, factor in changed.items():
        found["results"][-1][name] = round(factor * found["results"][-1][name])
    return json.dumps(found).encode()


def test_what_is_added_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    add_report(path, written(tmp_path, report()), label="one")
    add_report(path, written(tmp_path, report(step_ns=1.5)), label="two", at="yesterday")
    values = read_history(path)
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    steps = [(v.entry, v.label, v.at, v.value) for v in values if v.metric == "step_ns" and v.schedule[:7] == "geopipe"]
    step = stored["results"][-1]["step_ns"]
    assert steps == [(1, "one", None, step), (2, "two", "yesterday", round(1.5 * step))]
    (peak,) = {v.value for v in values if v.metric == "peak_hbm_bytes" and v.schedule == "observed"}
    assert peak == max(stored["step"]["peak_hbm_bytes"])
    assert {v.digest for v in values} == {stored["run"]["digest"]}
    assert pl.read_parquet(path).height == len(values), "any client reads it"
    assert path.stat().st_size < 10_000


def test_equal_input_gives_equal_bytes_and_labels_are_unique(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for label in ("one", "two"):
            add_report(tmp_path / name, written(tmp_path, report()), label=label)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    before = (tmp_path / "a").read_bytes()
    with pytest.raises(AlreadyExists, match="'two'"):
        add_report(tmp_path / "a", written(tmp_path, report()), label="two")
    assert (tmp_path / "a").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "damaged"),
        (b"[]", "holds no report"),
        (b'{"$schema": "urn:tracetool:schema:1:sweep"}', "schema:1:sweep"),
        (report().replace(b'"schema_version": "4', b'"schema_version": "3'), "schema version 3"),
        (report().replace(b'"results"', b'"rezults"'), "damaged"),
        (report().replace(b'"order":0', b'"order":-5').replace(b'"order": 0', b'"order": -5'), "orders that are not"),
    ],
)
def test_a_bad_report_is_refused_and_changes_nothing(text: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    add_report(path, written(tmp_path, report()), label="one")
    before = path.read_bytes()
    with pytest.raises((StoreError, SchemaVersion), match=said):
        add_report(path, written(tmp_path, text), label="two")
    assert path.read_bytes() == before


def test_a_bad_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    with pytest.raises(StoreError, match="there is no history"):
        read_history(path)
    path.write_bytes(b"PAR1 half")
    with pytest.raises(StoreError, match="damaged"):
        add_report(path, written(tmp_path, report()), label="one")
    pl.DataFrame({"x": [1]}).write_parquet(path)
    with pytest.raises(StoreError, match="no history"):
        read_history(path)


def test_a_history_of_version_1_goes_on(tmp_path: Path) -> None:
    """There the variant stood behind the schedule's name, which may have spaces itself."""
    path = tmp_path / "h.parquet"
    add_report(path, written(tmp_path, report()), label="one")
    now = read_history(path)
    table = pq.read_table(path)
    names = [f"{v.schedule} {v.variant}".strip() for v in now]
    assert "geopipe +2,2,0,0 in-order" in names
    older = table.drop_columns(["what_if", "variant"]).set_column(6, "schedule", pa.array(names))
    pq.write_table(older.replace_schema_metadata({b"tracetool_history": b"1"}), path)
    assert read_history(path) == [replace(v, what_if="") for v in now]
    add_report(path, written(tmp_path, report()), label="two")
    unlabelled = [replace(v, entry=0, label="", what_if="") for v in read_history(path)]
    assert unlabelled == [replace(v, entry=0, label="", what_if="") for v in now] * 2
    row = asdict(now[-1]) | {"schedule": "csv:my order.csv +1,0 per-edge"}
    del row["variant"], row["what_if"]
    pq.write_table(pa.Table.from_pylist([row]).replace_schema_metadata({b"tracetool_history": b"1"}), path)
    assert [(v.schedule, v.variant) for v in read_history(path)] == [("csv:my order.csv", "+1,0 per-edge")]


def test_a_series_goes_on_where_its_variant_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h.parquet"
    before = [(label, [2, 2, 0, 0], 1) for label in "xyz"]
    for label, depth, factor in (*before, ("c", [3, 3, 0, 0], 1.1)):
        made = json.loads(report(step_ns=factor))
        made["results"][-1]["extra_forwards"] = depth
        add_report(path, written(tmp_path, json.dumps(made).encode()), label=label)
    assert run(["baseline", "show", "step_ns", "--schedule", "geopipe", "--history", str(path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "+10.0% at c (regressed, +2,2,0,0 in-order → +3,3,0,0 in-order)" in told


def test_what_ifs_of_one_schedule_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Entries a and c over one link, b over another: a bar stands where its entry does, and each row says its link."""
    path = tmp_path / "h.parquet"
    for label, bandwidth in (("a", 3_125_000_000), ("b", 12_500_000_000), ("c", 3_125_000_000)):
        made = json.loads(report(step_ns=0.8 if label == "b" else 1.0))
        for link in made["scenario"]["links"]:
            link["bandwidth_bytes_per_s"] = bandwidth
        add_report(path, written(tmp_path, json.dumps(made).encode()), label=label)
    assert run(["baseline", "show", "step_ns", "--schedule", "geopipe", "--history", str(path)]) == 0
    rows = capsys.readouterr().out
    (slow,) = [row.split() for row in rows.splitlines() if "[1]" in row and "step_ns" in row]
    (fast,) = [row.split() for row in rows.splitlines() if "[2]" in row and "step_ns" in row]
    assert slow[3:] == ["319.6", "ms", "▅·▅", "none"]
    assert fast[3:] == ["255.7", "ms", "at", "b", "·▅·", "none"]
    told = " ".join(rows.split())
    assert "[1] dc0→dc1 25 Gbit/s 10.0 ms, dc1→dc0 25 Gbit/s 10.0 ms, HBM 80.00 GiB, 8 microbatches" in told
    assert "[2] dc0→dc1 100 Gbit/s 10.0 ms" in told
    assert run(["baseline", "show", "step_ns", "--last", "2", "--history", str(path), "--json"]) == 0
    trends = json.loads(capsys.readouterr().out)["trends"]
    assert {entry["label"] for trend in trends for entry in trend["entries"]} == {"b", "c"}


def test_the_commands_add_list_show_and_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = ["--history", str(tmp_path / "h.parquet")]
    for number, factor in enumerate((1, 1, 1, 1.1)):
        (tmp_path / "report.json").write_bytes(report(step_ns=factor))
        assert run(["baseline", "add", str(tmp_path / "report.json"), "--label", f"c{number}", *history]) == 0
    capsys.readouterr()
    assert run(["baseline", "list", *history]) == 0
    rows = map(str.split, capsys.readouterr().out.splitlines())
    assert [row[:2] for row in rows if row and row[0].isdigit()] == [[f"{n + 1}", f"c{n}"] for n in range(4)]
    assert run(["baseline", "show", "step_ns", "--schedule", "geopipe", *history, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "schemas" / "trends.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(found)
    (trend,) = found["trends"]
    assert (trend["step"]["label"], trend["step"]["is_regression"]) == ("c3", True)
    assert trend["step"]["change_ratio"] == pytest.approx(0.1)
    picture = tmp_path / "trend.png"
    assert run(["baseline", "show", *history, "-o", str(picture), "--fail-on-step"]) == 1
    told = capsys.readouterr()
    assert "geopipe step_ns" in told.err
    assert max(map(len, told.out.splitlines()[:-1])) <= 80
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run(["baseline", "show", "stepns", *history]) == 2
    assert "step_ns" in capsys.readouterr().err
    assert run(["baseline", "show", "--schedule", "gpipe", *history]) == 2
    assert "it is about observed, 1f1b, geopipe." in capsys.readouterr().err
