"""The compiled event scanner (``_scan.c``); what it takes and returns is described in ``json_compiled``."""

from collections.abc import Mapping, Sequence
from typing import Literal, final

from tracetool.readers.chrome.compiled import Column, Kind

@final
class Scanner:
    def __new__(
        cls,
        fields: Sequence[tuple[bytes, Kind, bool]],
        wanted: Mapping[bytes, frozenset[bytes] | None],
        unwanted: frozenset[bytes] = ...,
    ) -> Scanner: ...
    def scan(
        self, data: bytes, start: int, stop: int, /
    ) -> tuple[
        int,
        Literal[0, 1, 2],
        int,
        list[Column],
        list[tuple[int, int, bytes]],
        dict[tuple[bytes, bytes], int],
    ]: ...
