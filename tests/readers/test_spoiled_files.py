"""Ascend text and databases, labelled tables and timelines, spoiled in every way: told, never raised, soon done."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import pytest
from helpers.spoiled_files import FORMATS, labelled_table, read_all, spoil
from helpers.thorough import drawn
from hypothesis import Phase, given
from hypothesis import strategies as st

_WHOLE: dict[str, Path] = {}


def _whole(name: str) -> Path:
    if name not in _WHOLE:
        _WHOLE[name] = Path(mkdtemp(prefix="tracetool-whole-"))
        FORMATS[name](_WHOLE[name])
    return _WHOLE[name]


@pytest.mark.parametrize("name", FORMATS)
@drawn(60, first=4, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 2**32))
def test_spoiled_files_are_told(name: str, seed: int) -> None:
    random = Random(seed)  # noqa: S311 - cases of a test, repeatable
    folder = Path(mkdtemp(prefix="tracetool-spoiled-"))
    try:
        shutil.copytree(_whole(name), folder / "traces")
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        for _ in range(random.choice([1, 1, 2])):
            spoil(random.choice(files), random)
        read_all(folder / "traces")
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", FORMATS)
def test_whole_files_are_read(name: str) -> None:
    rows, refused = read_all(_whole(name))
    assert rows["events"] > 0
    assert rows["comms"] > 0
    assert refused == []


def test_damaged_names_in_a_tables_footer_are_told(tmp_path: Path) -> None:
    labelled_table(tmp_path)
    path = tmp_path / "table.parquet"
    whole = path.read_bytes()
    footer = len(whole) - int.from_bytes(whole[-8:-4], "little") - 8
    for match in re.finditer(rb"rank|stage|optype", whole[footer:]):
        for at in range(footer + match.start(), footer + match.end()):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
            read_all(tmp_path)
