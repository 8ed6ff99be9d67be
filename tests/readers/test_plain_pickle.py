"""Plain data out of pickles: what Python's own pickle writes, and programs that are none of it."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
from typing import Any

import pytest
from helpers.thorough import drawn
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import MalformedTrace
from tracetool.readers.memory_snapshot import pickle as plain_pickle
from tracetool.readers.memory_snapshot.pickle import is_pickle, plain_data

_LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
_KEYS = st.text() | st.integers(-(2**63), 2**64 - 1)
_PLAIN = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner) | st.dictionaries(_KEYS, inner) | st.lists(inner, max_size=5).map(tuple)
    ),
)  # fmt: skip


@drawn(100, first=4)
@given(_PLAIN, st.integers(3, 5))
def test_what_pickle_writes_is_read(value: Any, protocol: int) -> None:
    assert plain_data(pickle.dumps(value, protocol), "x") == value


@given(st.recursive(st.integers(-100, 2**40) | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)))
def test_what_pickle_writes_in_protocol_2_is_read(value: Any) -> None:
    assert plain_data(pickle.dumps(value, 2), "x") == value


def test_many_values_use_every_form_of_the_memo() -> None:
    """More than 256 memorised values need LONG_BINPUT and LONG_BINGET."""
    texts = [f"text {i}" for i in range(1000)]
    value = {"a": texts, "b": list(reversed(texts)), "c": "x" * 300, "d": [texts] * 3}
    for protocol in range(2, 6):
        assert plain_data(pickle.dumps(value, protocol), "x") == value


class _Calls:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._made = function, arguments

    def __reduce__(self) -> Any:
        return self._made


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_call_is_refused_and_never_made(protocol: int, tmp_path: Any) -> None:
    witness = tmp_path / "made"
    program = pickle.dumps({"segments": _Calls(os.mkdir, str(witness))}, protocol)
    with pytest.raises(MalformedTrace, match=r"byte \d+: (STACK_)?GLOBAL would import or call code \(posix\.mkdir\)"):
        plain_data(program, "x.pickle")
    assert not witness.exists()
    pickle.loads(program)  # noqa: S301 - the program is our own: it shows that the witness is a good one
    assert witness.exists()


class _Plain:
    x = 1


@pytest.mark.parametrize("value", [_Plain(), _Plain, {1}, frozenset({1}), 1j, bytearray(b"x"), range(3), len])
def test_what_is_no_plain_container_is_refused(value: object) -> None:
    for protocol in range(2, 6):
        with pytest.raises(MalformedTrace):
            plain_data(pickle.dumps({"a": value}, protocol), "x")


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (b"\x80\x02}cos\nsystem\n.", "os.system"),
        (b"\x80\x02(S'ls'\nios\nsystem\n.", "protocol 0 or 1"),
        (b"\x80\x02(ios\nsystem\n.", "INST"),
        (b"\x80\x02}R.", "REDUCE"),
        (b"\x80\x02}b.", "BUILD"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02}Q.", "BINPERSID"),
        (b"\x80\x04}\x93.", "STACK_GLOBAL"),
        (b"\x80\x05\x97.", "0x97 is no instruction"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b".", "0x96 is no instruction"),
        (b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.", "cut off"),
        (b"\x80\x02X" + struct.pack("<I", 2**32 - 1) + b"x.", "cut off"),
        (b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"x.", "a number of"),
        (b"\x80\x02\x8b" + struct.pack("<i", -1) + b"x.", "a number of"),
        (b"\x80\x02K", "damaged"),
        (b"\x80\x02}", "cut off"),
        (b"\x80\x02}}.", "2 values are left"),
        (b"\x80\x02.", "0 values are left"),
        (b"\x80\x02h\x07.", "KeyError"),
        (b"\x80\x02e.", "damaged"),
        (b"\x80\x02}K\x01u.", "without their beginning"),
        (b"\x80\x02}(K\x01e.", "no list"),
        (b"\x80\x02](K\x01K\x02u.", "no dict"),
        (b"\x80\x02}(K\x01u.", "no dict"),
        (b"\x80\x02}(]K\x02u.", "neither text nor number"),
        (b"\x80\x02K\x01\x86.", "not there"),
        (b"\x80\x04\x8c\x02\xff\xfe.", "UnicodeDecodeError"),
    ],
)
def test_made_up_programs_are_refused_with_their_place(program: bytes, told: str) -> None:
    with pytest.raises(MalformedTrace, match=told) as caught:
        plain_data(program, "x.pickle")
    assert caught.value.message.startswith("x.pickle: byte ")
    assert caught.value.hint


def test_a_memo_of_a_huge_number_takes_no_room() -> None:
    """LONG_BINPUT of 2**32 - 1: Python's own unpickler makes an array that long."""
    assert plain_data(b"\x80\x02}r\xff\xff\xff\xff.", "x") == {}


def test_deep_nesting_is_no_recursion() -> None:
    depth = 200_000
    value = plain_data(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".", "x")
    for _ in range(depth - 1):
        (value,) = value
    assert value == []


def test_a_value_that_holds_itself_is_read() -> None:
    value: list[Any] = [1]
    value.append(value)
    found = plain_data(pickle.dumps(value, 4), "x")
    assert found[1] is found


def test_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    value = pickle.dumps({"a": [[] for _ in range(100)]})
    for limit, told in (
        ("MOST_BYTES", "more than the 50 that are read"),
        ("MOST_INSTRUCTIONS", "more than 50 instr"),
        ("MOST_CONTAINERS", "more than 50 cont"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(plain_pickle, limit, 50)
            with pytest.raises(MalformedTrace, match=told):
                plain_data(value, "x")
    assert plain_data(value, "x") == pickle.loads(value)  # noqa: S301 - our own


@given(st.data())
def test_a_pickle_cut_anywhere_is_told(data: st.DataObject) -> None:
    whole = pickle.dumps({"segments": [{"address": 2**40, "size": 5}], "device_traces": [["alloc", 1.5, None]]})
    with pytest.raises(MalformedTrace):
        plain_data(whole[: data.draw(st.integers(0, len(whole) - 1))], "x")


@given(st.binary(max_size=200), st.integers(2, 5))
def test_any_bytes_give_a_value_or_an_error_of_ours(content: bytes, protocol: int) -> None:
    with contextlib.suppress(MalformedTrace):
        plain_data(bytes([0x80, protocol]) + content, "x")


def test_pickles_of_dicts_are_known_by_their_beginning() -> None:
    for protocol in range(2, 6):
        assert is_pickle(pickle.dumps({"a": 1}, protocol))
        assert not is_pickle(pickle.dumps([1], protocol))
    assert not is_pickle(pickle.dumps({"a": 1}, 0))
    assert not is_pickle(b"")
    assert not is_pickle(b"PK\x03\x04")
