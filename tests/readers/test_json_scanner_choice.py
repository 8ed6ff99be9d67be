"""Which event scanner is used."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from tracetool.errors import TraceToolError, UnknownName
from tracetool.readers.json_columns import Field
from tracetool.readers.json_compiled import CompiledScanner, available


@pytest.mark.skipif(find_spec("tracetool.readers._scan") is None, reason="the compiled scanner was not built")
def test_it_is_used_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACETOOL_SCANNER", raising=False)
    assert available()
    monkeypatch.setenv("TRACETOOL_SCANNER", "compiled")
    assert available()


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACETOOL_SCANNER", "plain")
    assert not available()
    monkeypatch.setenv("TRACETOOL_SCANNER", "plane")
    with pytest.raises(UnknownName, match="plane"):
        available()


def test_without_it_the_environment_may_insist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tracetool.readers._scan", None)
    monkeypatch.delenv("TRACETOOL_SCANNER", raising=False)
    assert not available()
    with pytest.raises(TraceToolError, match="not there"):
        CompiledScanner([Field("ph", "text"), Field("cat", "text")], {})
    monkeypatch.setenv("TRACETOOL_SCANNER", "compiled")
    with pytest.raises(TraceToolError, match="not there"):
        available()
