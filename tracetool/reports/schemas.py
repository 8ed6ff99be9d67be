"""Makes the files of ``schemas/`` from the declarations: ``python -m tracetool.reports.schemas schemas``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tracetool.baselines import Value
from tracetool.comparison.report import REPORT_SCHEMA, ReportInfo
from tracetool.estimates.file import ModelFile
from tracetool.estimates.plans import PlansFile
from tracetool.estimates.timings import LayersFile
from tracetool.explore.file import PlanTable
from tracetool.network.fabric import PriceFile
from tracetool.network.file import NetworkFile
from tracetool.overlap.measured import MeasuredVariants
from tracetool.reports.advice.json import AdviceInfo
from tracetool.reports.answer.json import WrittenInfo
from tracetool.reports.checks.overlap_json import OverlapComparisonInfo, OverlapInfo
from tracetool.reports.checks.stragglers import StragglersInfo
from tracetool.reports.checks.trends import TrendsInfo
from tracetool.reports.checks.validation import ValidationInfo
from tracetool.reports.comparison.json import ComparisonInfo
from tracetool.reports.estimate.json import EstimateInfo, PlansInfo
from tracetool.reports.explanation.json import ExplanationInfo
from tracetool.reports.exploration.json import ExplorationInfo
from tracetool.reports.exploration.recorded import RecordedExplorationInfo
from tracetool.reports.network import FabricsInfo, TrafficInfo
from tracetool.reports.recording.catalog import CatalogInfo, OrderInfo, ScheduleInfo
from tracetool.reports.recording.summary import DiscoveryInfo, SummaryInfo
from tracetool.reports.studies.geopipe import GeoPipeInfo
from tracetool.reports.sweep.json import SweepInfo
from tracetool.store.query import examples, macro_docs, sql_text, view_docs, view_statements
from tracetool.sweeps.scenario_file import ScenarioFile
from tracetool.tables.run import SCHEMA_VERSION, TABLES
from tracetool.validation.measured import MeasuredFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.store.query import Example
    from tracetool.tables import Table

_BASE = REPORT_SCHEMA.rpartition(":")[0]
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Contract(NamedTuple):
    """What the tool prints or reads: the name of its schema, the type that it is made from, and when."""

    name: str
    kind: Any
    doc: str


_CONTRACTS = (
    Contract(
        "report", ReportInfo,
        "what `tracetool replay --json` prints\n"
        "  (`recording` in it is what every step measured; a Run keeps the same in `recording.json`)",
    ),
    Contract("advice", AdviceInfo, "what `tracetool advise --json` prints"),
    Contract("stragglers", StragglersInfo, "what `tracetool replay --equalize --json` prints"),
    Contract("explanation", ExplanationInfo, "what `tracetool explain --json` prints"),
    Contract("measured", MeasuredFile, "the file of measured steps that `tracetool validate` reads"),
    Contract("estimate", EstimateInfo, "what `tracetool estimate MODEL.toml --json` prints"),
    Contract("plan-predictions", PlansInfo, "what `tracetool estimate --plans --json` prints"),
    Contract("model", ModelFile, "the model (TOML) that `tracetool estimate` reads; `models/` has an example"),
    Contract("exploration", ExplorationInfo, "what `tracetool explore --json` prints"),
    Contract(
        "recorded-exploration", RecordedExplorationInfo, "what `tracetool explore --json` prints of a recording"
    ),
    Contract("plan", PlanTable, "the plan (TOML) that `tracetool explore --baseline` reads"),
    Contract("layers", LayersFile, "the file of layer timings that `tracetool estimate --layers` reads"),
    Contract("plans", PlansFile, "the file of measured plans that `tracetool estimate --plans` reads"),
    Contract("validation", ValidationInfo, "what `tracetool validate --json` prints"),
    Contract("overlap", OverlapInfo, "what `tracetool overlap --json` prints"),
    Contract("measured-overlap", MeasuredVariants, "the file that `tracetool overlap --measured` reads"),
    Contract("overlap-comparison", OverlapComparisonInfo, "what `tracetool overlap --measured --json` prints"),
    Contract("geopipe", GeoPipeInfo, "what `tracetool paper geopipe --json` prints"),
    Contract("scenario", ScenarioFile, "the file of named what-ifs (TOML) that `tracetool sweep --scenario` reads"),
    Contract(
        "network", NetworkFile,
        "the file of a network (TOML) that `tracetool replay --network` reads; `networks/` holds examples",
    ),
    Contract("traffic", TrafficInfo, "what `tracetool network RUN --json` prints"),
    Contract("fabrics", FabricsInfo, "what `tracetool network --devices --json` prints"),
    Contract(
        "prices", PriceFile,
        "the file of prices (TOML) that `tracetool network --prices` reads; `prices/` holds an example",
    ),
    Contract("sweep", SweepInfo, "what `tracetool sweep --json` prints"),
    Contract("written", WrittenInfo, "what `tracetool report --json` prints"),
    Contract("comparison", ComparisonInfo, "what `tracetool compare --json` prints"),
    Contract("trends", TrendsInfo, "what `tracetool baseline show --json` prints"),
    Contract("history", list[Value], "what `tracetool baseline list --json` prints"),
    Contract("info", SummaryInfo, "what `tracetool info --json` and `tracetool ingest --json` print"),
    Contract("discovery", DiscoveryInfo, "what `tracetool ingest --dry-run --json` prints"),
    Contract("catalog", CatalogInfo, "what `tracetool sql --json` prints without a query"),
    Contract("rows", list[dict[str, Any]], "what `tracetool sql --json` prints of a query: its rows by column name"),
    Contract("schedules", list[ScheduleInfo], "what `tracetool schedules --json` prints"),
    Contract("order", OrderInfo, "what `tracetool schedules NAME --json` prints"),
)  # fmt: skip

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
    files |= {f"{one.name}.schema.json": _dump(_contract(one)) for one in _CONTRACTS}
    files["duckdb.sql"] = _duckdb()
    files["README.md"] = _readme()
    return files


def _table(table: Table) -> dict[str, Any]:
    head = {"$schema": _DIALECT, "$id": f"{_BASE}:table:{table.name}", "title": table.name, "description": table.doc}
    return head | table.json_schema()


def _contract(contract: Contract) -> dict[str, Any]:
    ((top,), schemas) = msgspec.json.schema_components([contract.kind], ref_template="#/$defs/{name}")
    if "$ref" in top:
        top = schemas.pop(top["$ref"].rpartition("/")[2])
    made: dict[str, Any] = _of_any_version({**top, "$defs": schemas})
    return {"$schema": _DIALECT, "$id": f"{_BASE}:{contract.name}", **made}


def _of_any_version(schema: Any) -> Any:
    """Without the names that keys of a mapping may have: msgspec tells them from 0.23 on alone."""
    if isinstance(schema, dict):
        return {key: _of_any_version(value) for key, value in schema.items() if key != "propertyNames"}
    return [_of_any_version(value) for value in schema] if isinstance(schema, list) else schema


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
        "Generated from the declarations of tables, of files that are read, and of results (`tracetool/reports/`)",
        f"(schema version {SCHEMA_VERSION}) by",
        "`python -m tracetool.reports.schemas schemas`; a test compares. Do not edit.",
        "",
        "Units are part of the names: `_ns` nanoseconds, `_bytes`, `_bytes_per_s`, `_ratio` 0..1. Within a major",
        "version columns and keys are only added.",
        "",
        *(f"- `{one.name}.schema.json`: {one.doc}" for one in _CONTRACTS),
        "- `tracetool config --schema` prints that of tracetool.toml and of `[tool.tracetool]` in pyproject.toml",
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
