"""Makes the files of ``schemas/`` from the declarations: ``python -m tracetool.reports.schemas schemas``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tracetool.comparison.config import Config
from tracetool.reports.advice.json import SCHEMA_ID as ADVICE_ID
from tracetool.reports.advice.json import AdviceInfo
from tracetool.reports.answer.json import SCHEMA_ID, ReportInfo
from tracetool.reports.answer.written import SCHEMA_ID as WRITTEN_ID
from tracetool.reports.answer.written import WrittenInfo
from tracetool.reports.checks.stragglers import SCHEMA_ID as STRAGGLERS_ID
from tracetool.reports.checks.stragglers import StragglersInfo
from tracetool.reports.checks.trends import SCHEMA_ID as TRENDS_ID
from tracetool.reports.checks.trends import TrendsInfo
from tracetool.reports.checks.validation import SCHEMA_ID as VALIDATION_ID
from tracetool.reports.checks.validation import ValidationInfo
from tracetool.reports.comparison.json import SCHEMA_ID as COMPARISON_ID
from tracetool.reports.comparison.json import ComparisonInfo
from tracetool.reports.explanation.json import SCHEMA_ID as EXPLANATION_ID
from tracetool.reports.explanation.json import ExplanationInfo
from tracetool.reports.studies.geopipe import SCHEMA_ID as GEOPIPE_ID
from tracetool.reports.studies.geopipe import GeoPipeInfo
from tracetool.reports.sweep.json import SCHEMA_ID as SWEEP_ID
from tracetool.reports.sweep.json import SweepInfo
from tracetool.store.query import examples, macro_docs, sql_text, view_docs, view_statements
from tracetool.sweeps.scenario_file import ScenarioFile
from tracetool.tables.run import SCHEMA_VERSION, TABLES, Column, Table
from tracetool.validation.measured import MeasuredFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.store.query import Example

_BASE = SCHEMA_ID.rpartition(":")[0]
_JSON_TYPES: dict[str, dict[str, Any]] = {
    "int64": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "int32": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "float64": {"type": "number"},
    "bool": {"type": "boolean"},
    "string": {"type": "string"},
    "category": {"type": "string"},
    "list<int32>": {"type": "array", "items": {"type": "integer"}},
}
_UNITS = (("_bytes_per_s", "B/s"), ("_bytes", "B"), ("_ns", "ns"), ("_ratio", "1"))


_SCENARIOS = """\
[[scenario]]
name = "metro"
dc = "0-1,2-3"
bandwidth = "400Gbit/s"
distance = "80km"
hbm = "80GiB"

[[scenario]]
name = "leased line"
dc = "0-1,2-3"
links = ["dc0-dc1=25Gbit/s,10ms"]
microbatches = 16
p2p = "per-edge"
"""


def all_schemas() -> dict[str, str]:
    """Every generated file: path below ``schemas/`` to text."""
    files = {f"tables/{name}.schema.json": _dump(_table(table)) for name, table in TABLES.items()}
    files["report.schema.json"] = _dump(_struct(ReportInfo, SCHEMA_ID))
    files["advice.schema.json"] = _dump(_struct(AdviceInfo, ADVICE_ID))
    files["stragglers.schema.json"] = _dump(_struct(StragglersInfo, STRAGGLERS_ID))
    files["explanation.schema.json"] = _dump(_struct(ExplanationInfo, EXPLANATION_ID))
    files["measured.schema.json"] = _dump(_struct(MeasuredFile, f"{_BASE}:measured"))
    files["validation.schema.json"] = _dump(_struct(ValidationInfo, VALIDATION_ID))
    files["geopipe.schema.json"] = _dump(_struct(GeoPipeInfo, GEOPIPE_ID))
    files["sweep.schema.json"] = _dump(_struct(SweepInfo, SWEEP_ID))
    files["comparison.schema.json"] = _dump(_struct(ComparisonInfo, COMPARISON_ID))
    files["trends.schema.json"] = _dump(_struct(TrendsInfo, TRENDS_ID))
    files["config.schema.json"] = _dump(_struct(Config, f"{_BASE}:config"))
    files["scenario.schema.json"] = _dump(_struct(ScenarioFile, f"{_BASE}:scenario"))
    files["written.schema.json"] = _dump(_struct(WrittenInfo, WRITTEN_ID))
    files["duckdb.sql"] = _duckdb()
    files["README.md"] = _readme()
    return files


def _table(table: Table) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{_BASE}:table:{table.name}",
        "title": table.name,
        "description": table.doc,
        "type": "object",
        "additionalProperties": False,
        "required": [c.name for c in table.columns],
        "properties": {c.name: _column(c) for c in table.columns},
    }


def _column(column: Column) -> dict[str, Any]:
    kind = dict(_JSON_TYPES[column.type])
    if column.nullable:
        kind["type"] = [kind["type"], "null"]
    kind |= {"description": column.doc, "x-arrow-type": column.type}
    unit = next((unit for suffix, unit in _UNITS if column.name.endswith(suffix)), None)
    return kind | ({"x-unit": unit} if unit else {})


def _struct(kind: type[msgspec.Struct], identifier: str) -> dict[str, Any]:
    (_, schemas) = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    top = schemas.pop(kind.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": identifier,
        **top,
        "$defs": schemas,
    }


def _duckdb() -> str:
    sources = {name: f"read_parquet(getvariable('run') || '/{name}/*.parquet')" for name in TABLES}
    return (
        "-- Opens a Run in any DuckDB client.\n"
        "--   SET VARIABLE run = 'path/to/x.run';\n"
        "--   .read schemas/duckdb.sql\n" + sql_text("macros") + view_statements(sources)
    )


def _readme() -> str:
    lines = [
        "# schemas",
        "",
        "Generated from `tracetool/tables/run.py`, `tracetool/ingestion/recording.py`,",
        "`tracetool/validation/measured.py`, `tracetool/comparison/config.py`, `tracetool/sweeps/scenario_file.py` and",
        "`tracetool/reports/`",
        f"(schema version {SCHEMA_VERSION}) by",
        "`python -m tracetool.reports.schemas schemas`; a test compares. Do not edit.",
        "",
        "Units are part of the names: `_ns` nanoseconds, `_bytes`, `_bytes_per_s`, `_ratio` 0..1. Within a major",
        "version columns and keys are only added.",
        "",
        "- `report.schema.json`: what `tracetool replay --json` prints",
        "  (`recording` in it is what every step measured; a Run keeps the same in `recording.json`)",
        "- `advice.schema.json`: what `tracetool advise --json` prints",
        "- `stragglers.schema.json`: what `tracetool replay --equalize --json` prints",
        "- `explanation.schema.json`: what `tracetool explain --json` prints",
        "- `measured.schema.json`: the file of measured steps that `tracetool validate` reads",
        "- `validation.schema.json`: what `tracetool validate --json` prints",
        "- `geopipe.schema.json`: what `tracetool paper geopipe --json` prints",
        "- `scenario.schema.json`: the file of named what-ifs (TOML) that `tracetool sweep --scenario` reads",
        "- `sweep.schema.json`: what `tracetool sweep --json` prints",
        "- `written.schema.json`: what `tracetool report --json` prints",
        "- `comparison.schema.json`: what `tracetool compare --json` prints",
        "- `trends.schema.json`: what `tracetool baseline show --json` prints",
        "- `config.schema.json`: the settings under `[tool.tracetool]` in pyproject.toml, or of a file for `--config`",
        "- `duckdb.sql`: opens a Run in any DuckDB client (`SET VARIABLE run = 'x.run';` first)",
        "- `tables/`: one JSON Schema per table of a Run",
        "",
        "A file of named what-ifs; what a scenario leaves out is as the command line says:",
        "",
        "```toml",
        *_SCENARIOS.splitlines(),
        "```",
        "",
        "| table | a row is |",
        "|---|---|",
        *(f"| `{t.name}` | {t.doc} |" for t in TABLES.values()),
        "",
        "| view | a row is |",
        "|---|---|",
        *(f"| `{name}` | {doc} |" for name, doc in view_docs().items()),
        "",
        "| macro | what it gives |",
        "|---|---|",
        *(f"| `{name}` | {doc} |" for name, doc in macro_docs().items()),
        "",
        "## Cookbook",
        "",
        'For `tracetool sql x.run "..."` and any DuckDB client alike; a test runs each of them.',
        *_recipes(examples()),
        "",
        "### Several Runs",
        "",
        "For `tracetool sql a.run,b.run`, whose tables have a column `run`, and for what `--save` wrote of them. Leave",
        "that column out, and rows of all Runs are taken together; one Run alone is `a.step_breakdown`.",
        *_recipes(examples("several")),
    ]
    return "\n".join(lines) + "\n"


def _recipes(listed: Sequence[Example]) -> list[str]:
    return [line for one in listed for line in ("", one.question, "", "```sql", one.query, "```")]


def _dump(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2) + "\n"


def main(folder: Path) -> None:
    """Write every generated file below a folder."""
    for name, text in all_schemas().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
