"""Files of measured steps: what is read from them, and where damaged or incomplete ones are refused."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import jsonschema
import pytest
from helpers.notices import texts
from helpers.recorded import ROOT, data
from hypothesis import given
from hypothesis import strategies as st

from tracetool.cli.help import topic_text
from tracetool.errors import BadMeasurement
from tracetool.model.notice import NoticeCode
from tracetool.model.topology import RankLink
from tracetool.validation.measured import Measurements, read_measurements

ROW = {"name": "a", "schedule": "1f1b", "microbatches": 8, "pipeline_ranks": 4, "step_ms": 246.06}
LINK = {"between_pipeline_ranks": [1, 2], "latency_ms": 2.5, "bandwidth_gbit_per_s": 100}
SPOILERS = (b"1e999", b"-0", b"null", b"\\ud800", b"9" * 30, b"[]", b"{}", b'"', b"\xef\xbb\xbf", b"NaN")
SCHEMA = json.loads((ROOT / "schemas" / "measured.schema.json").read_text(encoding="utf-8"))


def read(folder: Path, content: str | bytes) -> Measurements:
    path = folder / "measured.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_measurements(path)


def rows(folder: Path, *results: Any) -> Measurements:
    return read(folder, json.dumps({"results": results}))


def refused(folder: Path, content: str | bytes) -> str:
    with pytest.raises(BadMeasurement) as caught:
        read(folder, content)
    assert str(folder / "measured.json") in caught.value.message
    return caught.value.message


def test_quantities_are_taken_from_their_digits(tmp_path: Path) -> None:
    (step,) = rows(tmp_path, {**ROW, "links": [LINK], "peak_allocated_gib": [12.149, None]}).steps
    # 100 Gbit/s are 12.5 GB/s; 12.149 * 2^30 = 13,044,889,419.776 bytes.
    assert step.links[0].rank_link() == RankLink(1, 2, 12_500_000_000, 2_500_000)
    assert step.peak_bytes == (13_044_889_420, None)
    assert step.step_ms == 246.06


def test_only_the_configuration_and_its_time_are_required(tmp_path: Path) -> None:
    (step,) = rows(tmp_path, {**ROW, "anything": {"else": [1]}}).steps
    assert (step.tensor_parallel, step.data_parallel, step.links, step.p2p) == (1, 1, [], None)
    assert (step.extra_forwards, step.stages_per_rank, step.nccl, step.peak_bytes) == (None, None, None, ())
    (other,) = rows(tmp_path, {**ROW, "virtual": 2, "nccl": "channels-2"}).steps
    assert (other.stages_per_rank, other.nccl) == (2, "channels-2")


@pytest.mark.parametrize("field", ROW)
def test_a_missing_field_is_named_with_its_row(field: str, tmp_path: Path) -> None:
    lacking = {key: value for key, value in ROW.items() if key != field}
    said = refused(tmp_path, json.dumps({"results": [ROW, lacking]}))
    assert "row 2" in said
    assert f"'{field}'" in said


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"microbatches": "8"}, "microbatches"),
        ({"microbatches": 0}, "microbatches"),
        ({"microbatches": 8.5}, "microbatches"),
        ({"microbatches": True}, "microbatches"),
        ({"step_ms": 0}, "step_ms"),
        ({"step_ms": -3.0}, "step_ms"),
        ({"step_ms": 1e300}, "step_ms"),
        ({"extra_forwards": [1, None]}, "extra_forwards[1]"),
        ({"links": [LINK, {**LINK, "bandwidth_gbit_per_s": 0}]}, "links[1].bandwidth_gbit_per_s"),
        ({"links": [{**LINK, "between_pipeline_ranks": [1]}]}, "links[0].between_pipeline_ranks"),
        ({"links": [{**LINK, "latency_ms": -1}]}, "links[0].latency_ms"),
        ({"peak_allocated_gib": ["12 GiB"]}, "peak_allocated_gib[0]"),
    ],
)
def test_a_bad_value_is_named_with_row_and_field(changed: dict[str, Any], field: str, tmp_path: Path) -> None:
    said = refused(tmp_path, json.dumps({"results": [ROW, {**ROW, **changed}]}))
    assert f"row 2 (a): field {field}: " in said
    # The published schema refuses the same; that 8.0 is a whole number is JSON Schema's own rule.
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate({"results": [{**ROW, **changed}]})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"step_ms": "246ms"}, 'field step_ms: must be a number or null, is "246ms".'),
        ({"step_ms": 0}, "field step_ms: must be a number of at least 0.000001, is 0."),
        ({"microbatches": 8.5}, "field microbatches: must be a whole number, is 8.5."),
        ({"microbatches": 70_000}, "field microbatches: must be a whole number of at most 65,536, is 70000."),
        ({"extra_forwards": [2, None]}, "field extra_forwards[1]: must be a whole number, is null."),
        ({"links": [{**LINK, "bandwidth_gbit_per_s": 0}]}, "must be a number above 0, is 0."),
        ({"links": [{**LINK, "between_pipeline_ranks": [1]}]}, "must be a list of length 2, is [1]."),
        ({"name": ["x" * 50]}, 'field name: must be text in quotes, is ["' + "x" * 38 + " ...."),
    ],
)
def test_what_must_stand_there_and_what_does(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert refused(tmp_path, json.dumps({"results": [{**ROW, **changed}]})).endswith(said)


@pytest.mark.parametrize("row", [None, 3, "1f1b", []])
def test_a_row_that_is_none(row: object, tmp_path: Path) -> None:
    assert "row 1: " in refused(tmp_path, json.dumps({"results": [row]}))


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("", "line 1, column 1:"),
        ("[[scenario]]\nname = 'metro'\n", "A file of measured steps is JSON."),
        ('{"results": [\n  {"name": "a",}\n]}', "line 2, column "),
        ('{"results": [\n\n', "line 3, column 1:"),
        (b'{"results":\n [\xff]}', "line 2, byte 3: not UTF-8"),
        ('{"results": [{"step_ms": NaN}]}', "NaN"),
        ('{"results": [{"step_ms": -Infinity}]}', "-Infinity"),
        ("[" * 100_000, "nested too deeply"),
        ('{"results": [' + "9" * 5000 + "]}", "number that cannot be read"),
        ('{"results": [{"name": "a", "step_ms": 1, "step_ms": 2}]}', "the key 'step_ms' stands twice"),
        ('{"results": [], "about": "\\ud800"}', "half a surrogate pair"),
        ("[]", "no list 'results'"),
        ('{"rows": []}', "no list 'results'"),
        ('{"results": [], "model": 3}', "field model: "),
    ],
)
def test_damaged_files_are_refused_where_they_are_damaged(content: str | bytes, place: str, tmp_path: Path) -> None:
    assert place in refused(tmp_path, content)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(BadMeasurement, match="cannot read"):
            read_measurements(path)


def test_a_key_that_is_nearly_a_known_one_is_pointed_out(tmp_path: Path) -> None:
    found = rows(tmp_path, {**ROW, "extra_forward": [1, 1, 0, 0]}, {**ROW, "steps_ms": [1, 2], "trace": None})
    assert texts(found.notes, NoticeCode.MEASURED_ODD) == [
        "several rows have one name: a",
        "row 1 (a): the key 'extra_forward' is not used; is 'extra_forwards' meant?",
    ]


def test_the_recorded_file_and_the_example_of_the_topic_have_the_form(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    (example,) = re.findall(r"```json\n(.*?)```", topic_text("validation"), flags=re.DOTALL)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(example))
    assert [step.name for step in read(tmp_path, example).steps] == ["1f1b", "geopipe over a link"]
    recorded = data("h100-pp4", "measured.json")
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(recorded.read_bytes()))
    assert len(read_measurements(recorded).steps) == 22
    assert read_measurements(recorded).notes == ()


@given(at=st.integers(0, 10_000), cut=st.integers(0, 3), put=st.binary(max_size=3) | st.sampled_from(SPOILERS))
def test_a_file_spoiled_anywhere_is_read_or_refused(at: int, cut: int, put: bytes) -> None:
    row = {**ROW, "links": [LINK], "peak_allocated_gib": [12.149]}
    whole = json.dumps({"results": [row], "model": {"h": 1}}).encode()
    at %= len(whole)
    folder = Path(mkdtemp())
    with suppress(BadMeasurement):
        # Whatever is read holds one row or none: nothing is made up.
        assert len(read(folder, whole[:at] + put + whole[at + cut :]).steps) <= 1
