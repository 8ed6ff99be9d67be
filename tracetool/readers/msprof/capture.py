"""What the files beside msprof's output say of a capture: host, device, rank, and how its clock relates to the wall.

To CANN 6.3 the output keeps the monotonic clock since boot; ``start_info`` reads both clocks at one moment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tracetool.model.notice import Notices, SourceCode
from tracetool.readers.cann import small_integer, time_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

_CONFIGURATION = re.compile(r"^(?P<kind>info\.json|start_info|end_info)(?:\.(?P<device>\d+))?$")
_KEYS = {
    "info.json": {"hostname", "DeviceInfo", "devices", "pid", "hwtype"},
    "start_info": {"collectionTimeBegin", "clockMonotonicRaw"},
    "end_info": {"collectionTimeEnd", "clockMonotonicRaw"},
}
_LARGEST = 16 << 20
# 1e15 us after 1970 is September 2001; no machine has been up that long.
_WALL_NS = 10**18


@dataclass(frozen=True, slots=True)
class Configuration:
    """One of ``info.json``, ``start_info`` and ``end_info``; ``device`` is None for the host's."""

    path: Path
    kind: str
    device: int | None
    content: dict[str, Any]


@dataclass(slots=True)
class Capture:
    """Facts about one device's capture.

    Attributes:
        host: Host name.
        device: Device, None if nothing says.
        rank: Global rank, None if nothing says.
        offset_ns: Wall clock minus monotonic clock, None if unknown.
        notes: What is worth telling.
    """

    host: str | None = None
    device: int | None = None
    rank: int | None = None
    offset_ns: int | None = None
    notes: Notices = field(default_factory=Notices)


class UnixClock:
    """Turns times of the output into Unix time.

    Args:
        offset_ns: Added to times of the monotonic clock; None if unknown.

    Attributes:
        monotonic: How many times were of the monotonic clock.
    """

    def __init__(self, offset_ns: int | None) -> None:
        self.monotonic = 0
        self._offset = offset_ns

    def __call__(self, time: int) -> int:
        """The wall clock at this time of the file; unchanged if nothing relates the two."""
        if time >= _WALL_NS:
            return time
        self.monotonic += 1
        return time if self._offset is None else time + self._offset

    def all(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same of many times at once."""
        import numpy as np

        monotonic = times < _WALL_NS
        self.monotonic += int(np.count_nonzero(monotonic))
        return times if self._offset is None else np.where(monotonic, times + self._offset, times)


def configuration(path: Path) -> Configuration | None:
    """The file as one of the three, or None if it is none of them."""
    match = _CONFIGURATION.match(path.name)
    if match is None or not 0 < path.stat().st_size <= _LARGEST:
        return None
    content = _mapping_in(path)
    if not _KEYS[match["kind"]] & content.keys():
        return None
    suffix = small_integer(match["device"]) if match["device"] else None
    device = _device(content) if match["kind"] == "info.json" else suffix
    return Configuration(path, match["kind"], device, content)


def is_configuration(path: Path) -> bool:
    """Whether a file is named like one of the three, damaged or not."""
    return _CONFIGURATION.match(path.name) is not None


def capture_of(files: Iterable[Path], device: int | None, tables: Sequence[Path]) -> Capture:
    """What the configuration files say about a device.

    Args:
        files: Configuration files, the device's and the host's.
        device: Which device; None for the only one.
        tables: Rank tables.
    """
    configurations = [c for f in files if (c := configuration(f)) is not None]
    info = _own(configurations, "info.json", device)
    start, end = _own(configurations, "start_info", device), _own(configurations, "end_info", device)
    capture = Capture(device=device)
    for about in (c.content for c in info):
        capture.host = capture.host or _text(about.get("hostname"))
        capture.device = _device(about) if capture.device is None else capture.device
        rank = small_integer(str(about.get("rank_id")))
        capture.rank = rank if capture.rank is None else capture.rank
    if capture.rank is None and capture.device is not None:
        capture.rank = _rank_in(tables, capture.device)
    if start:
        capture.offset_ns = _offset(start[0].content, "collectionTimeBegin")
    if start and not end:
        capture.notes.add(
            SourceCode.CAPTURE_UNFINISHED, "no end_info: the capture is unfinished, its last step may be cut off"
        )
    if end and capture.offset_ns is not None:
        later = _offset(end[0].content, "collectionTimeEnd")
        if later is not None and abs(later - capture.offset_ns) >= 10**6:
            apart = later - capture.offset_ns
            capture.notes.add(
                SourceCode.CLOCK_MOVED,
                f"the wall clock moved by {apart:,} ns against the monotonic clock in the capture",
            )
    return capture


def is_rank_table(path: Path) -> bool:
    """Whether a file lists the rank of each device, as HCCL's rank tables do."""
    if path.suffix != ".json" or not 0 < path.stat().st_size <= _LARGEST:
        return False
    with path.open("rb") as stream:
        return b'"server_list"' in stream.read(1 << 16)


def _own(configurations: Sequence[Configuration], kind: str, device: int | None) -> list[Configuration]:
    """The device's own files first, then the host's."""
    same = [c for c in configurations if c.kind == kind and (device is None or c.device in (device, None))]
    return sorted(same, key=lambda c: c.device is None)


def _offset(content: dict[str, Any], key: str) -> int | None:
    wall, raw = time_ns(str(content.get(key))), str(content.get("clockMonotonicRaw"))
    if wall is None or wall <= 0 or not raw.isdecimal():
        return None
    return wall - int(raw)


def _device(content: dict[str, Any]) -> int | None:
    listed = content.get("DeviceInfo")
    first = listed[0] if isinstance(listed, list) and listed else None
    if isinstance(first, dict) and (device := small_integer(str(first.get("id")))) is not None:
        return device
    return None


def _rank_in(tables: Sequence[Path], device: int) -> int | None:
    """The only rank that a table of one server gives to the device."""
    for path in tables:
        servers = _mapping_in(path).get("server_list")
        if not isinstance(servers, list) or len(servers) != 1 or not isinstance(servers[0], dict):
            continue
        listed = servers[0].get("device")
        entries = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
        ranks = {small_integer(str(e.get("rank_id"))) for e in entries if str(e.get("device_id")) == str(device)}
        if len(ranks) == 1:
            return ranks.pop()
    return None


def _mapping_in(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes().strip(b"\0 \r\n\t"), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
