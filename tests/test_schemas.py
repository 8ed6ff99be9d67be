"""``schemas/`` is what the declarations say, and what the product writes conforms to it."""

from __future__ import annotations

import json

import duckdb
import jsonschema
import pytest
from helpers.recorded import ROOT, SAMPLES, derived

from tracetool.reports.schemas import all_schemas
from tracetool.tables.run import TABLES

SCHEMAS = ROOT / "schemas"


def test_the_folder_equals_what_is_generated() -> None:
    written = {
        str(p.relative_to(SCHEMAS)): p.read_text(encoding="utf-8")
        for p in SCHEMAS.rglob("*")
        if p.is_file() and p.parent.name not in ("networks", "prices", "models")
    }
    assert written == all_schemas(), "run: python -m tracetool.reports.schemas schemas"


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_every_table_conform(name: str) -> None:
    schema = json.loads((SCHEMAS / "tables" / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    rows = derived(SAMPLES / "h100-1f1b").query(f"SELECT * FROM {name} USING SAMPLE 50 ROWS").to_dicts()
    rows += derived(SAMPLES / "ascend-1f1b").query(f"SELECT * FROM {name} USING SAMPLE 50 ROWS").to_dicts()
    assert rows or name in ("vendor_figures", "problems"), "the samples have neither losses nor vendors' analyses"
    for row in rows:
        validator.validate(row)


def test_a_plain_duckdb_client_opens_a_run_with_comments() -> None:
    run = derived(SAMPLES / "h100-1f1b")
    client = duckdb.connect(":memory:")
    client.execute(f"SET VARIABLE run = '{run.path}'")
    client.execute((SCHEMAS / "duckdb.sql").read_text(encoding="utf-8"))
    assert client.execute("SELECT count(*) FROM ops WHERE stage >= 0").fetchone() == (64,)
    bare = client.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal AND comment IS NULL"
    ).fetchall()
    assert bare == []
