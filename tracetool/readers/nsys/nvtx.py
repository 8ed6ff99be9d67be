"""NVTX ranges: their texts, domains, payloads, and what their names mean."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracetool.readers.cann.db import whole
from tracetool.readers.cuda import action_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tracetool.readers.nsys.columns import Numbers
    from tracetool.readers.nsys.stored import Stored

_HEADER = struct.Struct("<4Q")
_COMMUNICATOR, _BYTES, _PEER = "NCCL communicator ID", "Message size [bytes]", "Peer rank"
_SIZE, _RANK = "No. of ranks", "Rank"
# Types of payload entries: NVTX_PAYLOAD_ENTRY_TYPE_*.
_FORMATS = {
    3: "<h", 4: "<H", 5: "<i", 6: "<I", 7: "<q", 8: "<Q", 9: "<q", 10: "<Q", 11: "<b", 12: "<B", 13: "<h", 14: "<H",
    15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q",
}  # fmt: skip
_HEXADECIMAL = re.compile(r"^0x[0-9a-fA-F]{1,16}$")
_MOST_BYTES = 2**58
_MOST_RANKS = 2**31
_MOST_NAMES = 1 << 12

_APPENDED = (", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ")
_SEQUENCE = re.compile(rb", seq = (\d{1,18})(?=,|$)")
_MOST_DIGITS = 18
_NOWHERE = 2**31 - 1
# Kineto calls them annotations too: user scopes, which emit_nvtx numbers like ops.
_ANNOTATION = re.compile(
    r"^(PP:|ProfilerStep#|Optimizer\.|nccl:|gloo:|FSDP::|DistributedDataParallel|enumerate\(DataLoader\)|"
    r"(Forward|Backward) \d+$|iter_\d|[FBWR]\d+\.\d+|pre_(send|recv)|##)"
)
_OP = re.compile(r"^(aten|c10d|c10|autograd|torch|record_param_comms)(::|$)")
_STEP = re.compile(r"^(?:ProfilerStep#|iteration |iter_\d{1,9}_)(\d{1,9})$")
_C10D = re.compile(r"^nccl:(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})$")


class Named(NamedTuple):
    """What the text of a range says.

    Attributes:
        category: op or annotation.
        name: Without what ``emit_nvtx`` appends.
        label: Pipeline action.
        step: Number of the step that it marks.
    """

    category: str
    name: str
    label: str | None = None
    step: int | None = None


class RangeNames(NamedTuple):
    """What the texts of ranges say.

    Attributes:
        named: All different meanings.
        codes: Which of them each range has.
        sequence: Autograd's number of each, -1 without.
    """

    named: list[Named]
    codes: NDArray[np.intp]
    sequence: Numbers


def read_names(texts: pa.Array) -> RangeNames:
    """What ranges of the program's own domain are, by their texts as bytes; none of them may be null."""
    places = [pc.find_substring(texts, suffix).to_numpy(zero_copy_only=False) for suffix in _APPENDED]
    ends = np.min([np.where(at < 0, _NOWHERE, at) for at in places], axis=0)
    begun = zip(texts.to_pylist(), ends.tolist(), strict=True)
    bare = pa.array([text[:end] for text, end in begun], pa.binary()).dictionary_encode()
    sequence = _sequences(texts, places[0])
    # Of each name: whether autograd numbers it, whether anything is appended to it.
    shapes, codes = np.unique(
        bare.indices.to_numpy() * 4 + (sequence >= 0) * 2 + (ends < _NOWHERE), return_inverse=True
    )
    names = [name.decode("utf-8", "replace") for name in bare.dictionary.to_pylist()]
    named = [
        _kind_of(names[shape >> 2], is_numbered=bool(shape & 2), is_appended_to=bool(shape & 1))
        for shape in shapes.tolist()
    ]
    return RangeNames(named, codes, sequence)


def _sequences(texts: pa.Array, at: NDArray[np.int32]) -> Numbers:
    """The number behind the first ``seq =`` that has one, -1 without; ``at`` is where the first one stands."""
    sequence = np.full(len(texts), -1, np.int64)
    rows = np.flatnonzero(at >= 0)
    if not len(rows):
        return sequence
    _, offsets, data = texts.buffers()
    limits = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    letters = np.append(np.frombuffer(data, np.uint8), np.uint8(ord(",")))
    place, until = limits[rows].astype(np.int64) + at[rows] + len(_APPENDED[0]), limits[rows + 1]
    first, number = place.copy(), np.zeros(len(rows), np.int64)
    for _ in range(_MOST_DIGITS):
        digit = letters[place].astype(np.int64) - ord("0")
        goes_on = (place < until) & (digit >= 0) & (digit <= 9)
        if not goes_on.any():
            break
        number = np.where(goes_on, number * 10 + digit, number)
        place += goes_on
    is_number = (place > first) & ((place == until) | (letters[place] == ord(",")))
    sequence[rows[is_number]] = number[is_number]
    for row in rows[~is_number].tolist():
        match = _SEQUENCE.search(texts[row].as_py())
        sequence[row] = int(match[1]) if match is not None else -1
    return sequence


@lru_cache(maxsize=_MOST_NAMES)
def _kind_of(name: str, *, is_numbered: bool, is_appended_to: bool) -> Named:
    if is_numbered or _OP.match(name) or (is_appended_to and not _ANNOTATION.match(name)):
        return Named("op", name)
    step = _STEP.match(name)
    return Named("annotation", name, action_in(name), int(step[1]) if step is not None else None)


def labelled_message(name: str) -> tuple[str, int] | None:
    """Direction and peer within the group that c10d's annotation ``nccl:send 0->1`` or ``nccl:recv 0<-1`` names."""
    match = _C10D.match(name)
    return (match[1], int(match[3])) if match is not None else None


class Payload(NamedTuple):
    """What NCCL attached to a range; None where it did not say.

    Attributes:
        communicator: Id, as unsigned decimal text.
        size_bytes: Bytes of one message.
        peer: Rank of the other side within the communicator.
        size: Ranks in a communicator that is joined.
        rank: The process' rank within it.
    """

    communicator: str | None = None
    size_bytes: int | None = None
    peer: int | None = None
    size: int | None = None
    rank: int | None = None


_NOTHING = Payload()


class Payloads:
    """Decodes payloads by the schemas that the capture lists.

    Args:
        stored: The capture.
    """

    def __init__(self, stored: Stored) -> None:
        self._entries: dict[tuple[int, int], dict[str, tuple[int, str]]] = defaultdict(dict)
        columns = ("domainId", "schemaId", "type", "name", "offset")
        for domain, schema, kind, name, offset in stored.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES", *columns):
            place = whole(offset) or 0
            layout = _FORMATS.get(whole(kind) or 0)
            if isinstance(domain, int) and isinstance(schema, int) and layout and 0 <= place < 1 << 16:
                self._entries[domain, schema][_called(name)] = place, layout

    def decoded(self, blob: object, json_text: object) -> Payload:
        """What a payload says; of one that cannot be read nothing."""
        if isinstance(blob, bytes) and len(blob) > _HEADER.size:
            values = self._of_blob(blob)
        elif isinstance(json_text, str) and json_text:
            values = _of_json(json_text)
        else:
            return _NOTHING
        identifier, size = values.get(_COMMUNICATOR), values.get(_BYTES)
        if size is None and _COUNT in values and _TYPE in values:
            size = values[_COUNT] * values[_TYPE]
        return Payload(
            None if not identifier else str(identifier % 2**64),
            _within(size, _MOST_BYTES),
            _within(values.get(_PEER), _MOST_RANKS),
            _within(values.get(_SIZE), _MOST_RANKS),
            _within(values.get(_RANK), _MOST_RANKS),
        )

    def _of_blob(self, blob: bytes) -> Mapping[str, int]:
        domain, schema, size, _ = _HEADER.unpack_from(blob)
        body = blob[_HEADER.size : _HEADER.size + size]
        values = {}
        for name, (offset, layout) in self._entries.get((domain, schema), {}).items():
            if offset + struct.calcsize(layout) <= len(body):
                (values[name],) = struct.unpack_from(layout, body, offset)
        return values


def _of_json(text: str) -> Mapping[str, int]:
    """Numbers of a payload as JSON, by name, however deep they are."""
    try:
        waiting = [msgspec.json.decode(text)]
    except (msgspec.DecodeError, RecursionError):
        return {}
    values: dict[str, int] = {}
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            named = one.get("name"), one.get("value")
            for name, value in (*one.items(), named):
                called = _called(name)
                number = _number_in(value) if called != _TYPE else _TYPE_BYTES.get(str(value).lower())
                if number is not None:
                    values.setdefault(called, number)
                elif isinstance(value, (dict, list)):
                    waiting.append(value)
    return values


def _number_in(value: object) -> int | None:
    """A number as such, or as text: decimal, or as NCCL prints ids of communicators."""
    is_hexadecimal = isinstance(value, str) and _HEXADECIMAL.match(value) is not None
    return int(str(value), 16) if is_hexadecimal else whole(value)


def _called(name: object) -> str:
    """A figure of a payload by its name in NCCL 2.25, whoever wrote it."""
    return _SAME.get(str(name).lower(), str(name))


_COUNT, _TYPE = "count", "datatype"
_SAME = {
    "commhash": _COMMUNICATOR, "peer": _PEER, "bytes": _BYTES, "nranks": _SIZE, "rank": _RANK, _COUNT: _COUNT,
    _TYPE: _TYPE,
}  # fmt: skip
"""RangeNames of the advanced trace of NCCL, and of sends and receives before NCCL 2.25."""
_TYPES: tuple[tuple[int, tuple[str, ...]], ...] = (  # ncclDataType_t in its order: bytes and names
    (1, ("int8", "char")), (1, ("uint8",)), (4, ("int32", "int")), (4, ("uint32",)), (8, ("int64",)), (8, ("uint64",)),
    (2, ("float16", "half")), (4, ("float32", "float")), (8, ("float64", "double")), (2, ("bfloat16",)),
    (1, ("float8e4m3",)), (1, ("float8e5m2",)),
)  # fmt: skip
_TYPE_BYTES = {str(number): size for number, (size, _) in enumerate(_TYPES)}
_TYPE_BYTES |= {f"{prefix}{name}": size for size, names in _TYPES for name in names for prefix in ("", "nccl")}


def _within(value: int | None, limit: int) -> int | None:
    return value if value is not None and 0 <= value < limit else None


class ProcessDomains(NamedTuple):
    """Which domains of a process are whose.

    Attributes:
        nccl: Numbers of NCCL's.
        named: Numbers of all whose names the capture holds.
    """

    nccl: frozenset[int] = frozenset()
    named: frozenset[int] = frozenset()

    def is_nccl(self, domain: object, name: str) -> bool:
        """Whether a range is NCCL's own; by its name where the capture lost what its domain is called."""
        if domain in self.nccl:
            return True
        return domain not in (0, None) and domain not in self.named and name.startswith("nccl")


NO_DOMAINS = ProcessDomains()


class EventType(IntEnum):
    """Kinds of NVTX events."""

    MARK = 34
    THREAD = 39
    NESTED = 59
    FREE = 60
    CREATED = 75
