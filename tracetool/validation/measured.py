"""The form of a file of measured steps, and how it is read.

The structs below are the form: ``schemas/measured.schema.json`` is made from them. Keys beyond theirs are allowed.

What is wrong with a value of a file of measured steps, in words.

P2P modes as files of measured steps write them.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec

from tracetool.errors import BadMeasurement, ScenarioError
from tracetool.model.notice import Notice, NoticeCode, Notices
from tracetool.model.pipeline import P2P_MODE_NAMES, P2P_MODES
from tracetool.model.topology import RankLink
from tracetool.schedules.names import normalised
from tracetool.tables.fields import doc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tracetool.model.pipeline import P2PMode

FORM = "schemas/measured.schema.json and 'tracetool help validation' have the form"

_TYPES = {
    "float": "a number", "int": "a whole number", "str": "text in quotes", "array": "a list", "object": "an object",
    "bool": "true or false", "null": "null",
}  # fmt: skip
_LIMITS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below", "of length": "of length"}
_EXPECTED = re.compile(r"Expected `(?P<types>[^`]+)`(?: (?P<limit>>=|<=|>|<|of length) (?P<bound>[^,]+))?")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
_STEPS = re.compile(r"[^.\[\]]+")
_LONGEST = 40


def fault(error: msgspec.ValidationError, value: Any) -> str:
    """What msgspec found, with the field in front and what stands there behind.

    Args:
        error: Its words, such as ``Expected `float` >= 1e-06 - at `$.step_ms```.
        value: The object that was read.
    """
    text, _, place = str(error).partition(" - at ")
    field = place.strip("`").removeprefix("$").removeprefix(".")
    missing, expected = _MISSING.match(text), _EXPECTED.match(text)
    at = f"field {field}: " if field else ""
    if missing is not None:
        return f"{at}the field {missing['field']!r} is missing"
    if expected is None:
        return at + text.rstrip(".").replace("`", "'")
    types = " or ".join(_TYPES.get(name, name) for name in expected["types"].split(" | "))
    limit = f" {_LIMITS[expected['limit']]} {_number(expected['bound'])}" if expected["limit"] else ""
    return f"{at}must be {types}{limit}, is {_shown(_at(value, field))}"


def _number(text: str) -> str:
    return f"{Decimal(text).normalize():,f}"


def _at(value: Any, field: str) -> Any:
    for step in _STEPS.findall(field):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


_MOST = 1e12
"""Beyond any figure of this form, and far from where decimal digits are lost."""
_Positive = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]
_Time = Annotated[float, msgspec.Meta(ge=1e-6, le=_MOST)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
_Rank = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class MeasuredLink(msgspec.Struct, kw_only=True):
    """A link between two pipeline ranks, both ways: a message occupies it for payload / bandwidth, then the latency."""

    between_pipeline_ranks: Annotated[tuple[_Rank, _Rank], doc("The two pipeline ranks.")]
    latency_ms: Annotated[float, msgspec.Meta(ge=0, le=_MOST, description="One-way latency.")]
    bandwidth_gbit_per_s: Annotated[_Positive, doc("Bandwidth of either direction, in 10^9 bit/s.")]

    def rank_link(self) -> RankLink:
        """The link in bytes and nanoseconds."""
        return RankLink(
            *self.between_pipeline_ranks,
            max(1, _rounded(self.bandwidth_gbit_per_s, Fraction(10**9, 8))),
            _rounded(self.latency_ms, Fraction(10**6)),
        )


class MeasuredStep(msgspec.Struct, kw_only=True):
    """One measured configuration."""

    name: Annotated[str, doc("What it is called in results.")]
    schedule: Annotated[str, doc("Schedule, as tracetool or torch names it; csv:FILE for orders in a file.")]
    microbatches: Annotated[_Count, doc("Microbatches per step.")]
    pipeline_ranks: Annotated[_Count, doc("Pipeline ranks.")]
    step_ms: Annotated[_Time | None, doc("Time of a step without profiler; null if it was not measured.")]
    extra_forwards: Annotated[
        list[int] | None, doc("geopipe: warm-up forwards per pipeline rank beyond 1F1B's p - 1 - r.")
    ] = None
    p2p: Annotated[str | None, doc(f"How transfers were issued: {P2P_MODE_NAMES}; null: as in the Run.")] = None
    tensor_parallel: Annotated[_Count, doc("Tensor-parallel ranks.")] = 1
    data_parallel: Annotated[_Count, doc("Data-parallel ranks.")] = 1
    pipelines_on_link: Annotated[
        _Count | None, doc("Pipelines that shared the links; null: all, tensor_parallel x data_parallel.")
    ] = None
    chunks: Annotated[_Count | None, doc("Stages per rank; null: as many as the schedule needs.")] = None
    virtual: Annotated[_Count | None, doc("The same under another name.")] = None
    links: Annotated[list[MeasuredLink], doc("Slow links; all other pairs of ranks are as in the Run.")] = []
    nccl: Annotated[str | None, doc("How communication was set up, such as nccl-default or channels-2.")] = None
    peak_allocated_gib: Annotated[
        list[_Positive | None] | None, doc("Highest allocation of each (global) rank, in 2^30 bytes.")
    ] = None
    static_allocated_gib: Annotated[
        list[_Positive | None] | None, doc("What each (global) rank has allocated between steps, in 2^30 bytes.")
    ] = None
    model: Annotated[dict[str, Any] | None, doc("What differs from the file's model in this row.")] = None

    @property
    def stages_per_rank(self) -> int | None:
        """Stages per rank, if the row says it."""
        return self.chunks if self.chunks is not None else self.virtual

    @property
    def peak_bytes(self) -> tuple[int | None, ...]:
        """The measured peak of each rank; empty if none was measured."""
        return _bytes(self.peak_allocated_gib)

    @property
    def static_bytes(self) -> tuple[int | None, ...]:
        """What each rank has allocated between steps; empty if it was not measured."""
        return _bytes(self.static_allocated_gib)


class MeasuredFile(msgspec.Struct, kw_only=True):
    """Measured steps of one model on one machine."""

    results: Annotated[list[MeasuredStep], doc("One per configuration.")]
    model: Annotated[
        dict[str, Any], doc("The model: layers, h, seq, mbs (micro-batch size), dtype; compared with the Run.")
    ] = {}
    about: Annotated[str | None, doc("Where the figures come from.")] = None


@dataclass(frozen=True, slots=True)
class Measurements:
    """A file of measured steps, as read.

    Attributes:
        steps: One per row.
        model: What the file says about the model.
        digest: SHA-256 over the file's bytes.
        folder: Where it lies: ``csv:FILE`` is sought from there.
        notes: What looks wrong but was left as it is.
    """

    steps: tuple[MeasuredStep, ...]
    model: Mapping[str, Any]
    digest: str = ""
    folder: Path | None = None
    notes: tuple[Notice, ...] = ()


def _rounded(value: float, factor: Fraction) -> int:
    """A decimal number of the file in whole small units, from its digits."""
    return int(Fraction(str(value)) * factor + Fraction(1, 2))


def _bytes(sizes_gib: Sequence[float | None] | None) -> tuple[int | None, ...]:
    return tuple(None if gib is None else _rounded(gib, Fraction(2**30)) for gib in sizes_gib or ())


def read_measurements(path: Path) -> Measurements:
    """Read a file of measured steps.

    Raises:
        BadMeasurement: If it is unreadable, damaged (with line and column), or a row lacks or misspells a field.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadMeasurement(f"cannot read {path}: {error.strerror or error}.") from error
    name = str(path)
    document = _json(data, name)
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise BadMeasurement(f"{name} is no file of measured steps: it has no list 'results'.", hint=FORM)
    rows = document["results"]
    steps = tuple(_row(row, number, name) for number, row in enumerate(rows, 1))
    try:
        whole = msgspec.convert({**document, "results": []}, MeasuredFile)
    except msgspec.ValidationError as error:
        raise BadMeasurement(f"{name}: {fault(error, document)}.", hint=FORM) from error
    return Measurements(
        steps,
        whole.model,
        hashlib.sha256(data).hexdigest(),
        path.parent,
        (*_repeated(steps), *_misspelt(rows)),
    )


def _json(data: bytes, name: str) -> Any:
    def refuse(word: str) -> NoReturn:
        raise BadMeasurement(f"{name} holds {word}, which is no JSON number.", hint="write null where nothing is known")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(values := dict(pairs)) < len(pairs):
            twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise BadMeasurement(f"{name}: the key {twice!r} stands twice in one object.", hint="leave one of them")
        return values

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        raise BadMeasurement(f"{name}, line {line}, byte {column}: not UTF-8.") from error
    try:
        document = json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
        if "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadMeasurement(f"{name} holds half a surrogate pair (\\ud800 to \\udfff), which is no text.") from error
    except json.JSONDecodeError as error:
        raise BadMeasurement(
            f"{name}, line {error.lineno}, column {error.colno}: {error.msg}. A file of measured steps is JSON.",
            hint=FORM,
        ) from error
    except RecursionError as error:
        raise BadMeasurement(f"{name} is nested too deeply to be a file of measured steps.") from error
    except ValueError as error:
        raise BadMeasurement(f"{name} holds a number that cannot be read: {error}.") from error
    return document


def _row(row: Any, number: int, name: str) -> MeasuredStep:
    try:
        return msgspec.convert(row, MeasuredStep)
    except msgspec.ValidationError as error:
        called = row.get("name") if isinstance(row, dict) else None
        title = f"row {number}" + (f" ({called})" if isinstance(called, str) else "")
        raise BadMeasurement(f"{name}, {title}: {fault(error, row)}.", hint=FORM) from error


def _repeated(steps: Sequence[MeasuredStep]) -> list[Notice]:
    named = Counter(step.name for step in steps)
    repeated = [name for name, count in named.items() if count > 1]
    return [Notice(NoticeCode.MEASURED_ODD, f"several rows have one name: {', '.join(repeated)}")] if repeated else []


def _misspelt(rows: Sequence[Mapping[str, Any]]) -> list[Notice]:
    """Keys that are not known but nearly one that is and that the row lacks."""
    known = MeasuredStep.__struct_fields__
    notes = Notices()
    for number, row in enumerate(rows, 1):
        for key in row:
            close = [] if key in known else difflib.get_close_matches(key, known, n=1, cutoff=0.85)
            if close and close[0] not in row:
                notes.add(
                    NoticeCode.MEASURED_ODD,
                    f"row {number} ({row['name']}): the key {key!r} is not used; is {close[0]!r} meant?",
                )
    return notes


def p2p_mode(name: str | None) -> P2PMode | None:
    """The p2p mode that a word stands for; None stays None.

    Raises:
        ScenarioError: If there is no such mode.
    """
    if name is None:
        return None
    for mode in P2P_MODES:
        if normalised(mode) == normalised(name):
            return mode
    raise ScenarioError(f"no p2p mode named {name!r}; known: {', '.join(P2P_MODES)}.")
