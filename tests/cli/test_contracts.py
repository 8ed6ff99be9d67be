"""What commands print with ``--json`` is what their schemas declare: no key more, none less, of the declared types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
from helpers.recorded import ROOT, SAMPLES
from helpers.thorough import spread

from tracetool.cli import run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

H100, ASCEND = (str(SAMPLES / name) for name in ("h100-1f1b", "ascend-1f1b"))


def _closed(schema: Any) -> Any:
    """The same schema, which takes no keys that it does not name."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return closed | ({"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {})


def _conforms(name: str, printed: object) -> None:
    schema = json.loads((ROOT / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(_closed(schema)).validate(printed)


# Each schema once; other recordings and values have other members of the same.
@spread(
    ("name", "words"),
    [
        ("info", ["info", H100, "--dc", "0-1,2-3"]),
        ("info", ["info", ASCEND]),
        ("discovery", ["ingest", H100, "--dry-run"]),
        ("discovery", ["ingest", ASCEND, "--dry-run"]),
        ("catalog", ["sql", H100]),
        ("catalog", ["sql", f"{H100},{ASCEND}"]),
        ("rows", ["sql", H100, "select * from stages"]),
        (
            "rows",
            ["sql", H100, "select [1] as a, 1.5::DECIMAL(5, 2) as b, null as c, 'a'::BLOB as d"],
        ),
        ("schedules", ["schedules"]),
        ("order", ["schedules", "dualpipe", "--stages", "4", "--microbatches", "8"]),
    ],
    [
        ("info", ["info", H100, "--dc", "0-1,2-3"]),
        ("discovery", ["ingest", H100, "--dry-run"]),
        ("catalog", ["sql", H100]),
        ("rows", ["sql", H100, "select * from stages"]),
        ("schedules", ["schedules"]),
        ("order", ["schedules", "dualpipe", "--stages", "4", "--microbatches", "8"]),
    ],
)
def test_what_a_command_prints_conforms(name: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--json"]) == 0
    _conforms(name, json.loads(capsys.readouterr().out))


def test_what_ingest_prints_conforms_with_losses_and_replayed_timelines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    for path in (ROOT / "tests" / "data" / "ckpt_reentrant").glob("rank*"):
        (traces / path.name).symlink_to(path)
    (traces / "rank9.json").write_text('{"traceEvents": [', encoding="utf-8")
    (traces / "notes.txt").write_text("what we did", encoding="utf-8")
    assert run(["ingest", str(traces), "-o", str(tmp_path / "x.run"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["failed"] + printed["left"]
    assert "cross_dc" not in printed
    _conforms("info", printed)
    assert run(["replay", str(tmp_path / "x.run"), "--schedule", "gpipe", "--run", str(tmp_path / "y.run")]) == 0
    capsys.readouterr()
    assert run(["info", str(tmp_path / "y.run"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "gpipe" in printed["replayed"]["timelines"]
    _conforms("info", printed)


def test_what_a_history_lists_conforms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, history = tmp_path / "report.json", str(tmp_path / "history.parquet")
    assert run(["replay", H100, "--schedule", "1f1b", "-o", str(report)]) == 0
    assert run(["baseline", "add", str(report), "--label", "v1", "--history", history]) == 0
    capsys.readouterr()
    assert run(["baseline", "list", "--history", history, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {row["schedule"] for row in printed} == {"observed", "1f1b"}
    _conforms("history", printed)
