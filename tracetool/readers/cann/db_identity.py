"""What a profiler's database says about itself: what it is, whose it is, when and where it was recorded."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from tracetool.readers.cann.db import is_database, known, opened, whole

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.readers.cann.db import Database

CAPTURE, ANALYSIS = "database of a capture", "database of an analysis"

# With a column of each: the raw databases below a PROF folder have tables of similar names.
_OF_CAPTURES = (
    ("TASK", "globalTaskId"), ("COMMUNICATION_OP", "opName"), ("CANN_API", "globalTid"), ("PYTORCH_API", "globalTid"),
    ("STEP_TIME", "startNs"), ("MEMORY_RECORD", "component"), ("NPU_MEM", "timestampNs"),
)  # fmt: skip
_OF_ANALYSES = ("StepTraceTime", "CommAnalyzerTime", "CommAnalyzerBandwidth", "CommAnalyzerMatrix")
# What a database is called tells what it was only where its content no longer does.
_CAPTURE_NAME = re.compile(r"^(ascend_(pytorch|mindspore)_profiler(_(?P<rank>\d+))?|msprof_\d+)\.db$")
_ANALYSIS_NAMES = ("analysis.db", "communication_analyzer.db")


@dataclass(slots=True)
class About:
    """What a capture's database says about itself.

    Attributes:
        ranks: Device to rank in ``RANK_DEVICE_MAP``; None where it is -1, as ``msprof`` writes.
        devices: Devices that its tasks ran on, in ascending order.
        metadata: What ``profiler_metadata.json`` would hold.
        host: Host name.
        device_names: Device to model.
        session: First and last moment of the recording, ns.
    """

    ranks: dict[int, int | None] = field(default_factory=dict)
    devices: list[int] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    host: str | None = None
    device_names: dict[int, str] = field(default_factory=dict)
    session: tuple[int, int] | None = None


def kind_of(path: Path) -> str | None:
    """Whether a file is a capture's database or an analysis of one; None for all others."""
    if not is_database(path):
        return None
    about = path.stat()
    return _kind(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=4096)
def _kind(path: Path, *_as_of: int) -> str | None:
    with opened(path) as database:
        return _kind_in(database)


def _kind_in(database: Database) -> str | None:
    if any(database.has(table, column) for table, column in _OF_CAPTURES):
        return CAPTURE
    if any(table in database.tables for table in _OF_ANALYSES):
        return ANALYSIS
    if database.tables and not database.failure:
        return None
    name = database.path.name
    return CAPTURE if _CAPTURE_NAME.match(name) else ANALYSIS if name in _ANALYSIS_NAMES else None


def rank_in_name(path: Path) -> int | None:
    """The rank that a database is named after."""
    match = _CAPTURE_NAME.match(path.name)
    return int(match["rank"]) if match and match["rank"] and len(match["rank"]) < 10 else None


def devices_of(path: Path) -> list[int]:
    """Devices of a capture without ranks; none where ``RANK_DEVICE_MAP`` names one rank."""
    with opened(path) as database:
        about = about_capture(database)
    if len(about.ranks) == 1 and None not in about.ranks.values():
        return []
    return sorted({*about.devices, *(about.ranks if not about.devices else ())})


def about_capture(database: Database) -> About:
    """Everything but its events."""
    about = About()
    for rank, device in database.rows("RANK_DEVICE_MAP", "rankId", "deviceId"):
        if (where := whole(device)) is not None:
            about.ranks[where] = known(rank)
    devices = {known(device) for device in database.distinct("TASK", "deviceId")}
    about.devices = sorted(device for device in devices if device is not None)
    for name, value in database.rows("META_DATA", "name", "value"):
        try:
            about.metadata[str(name)] = msgspec.json.decode(str(value))
        except (msgspec.DecodeError, RecursionError):
            about.metadata[str(name)] = str(value)
    for column, table in (("hostName", "HOST_INFO"), ("hostName", "NPU_INFO")):
        for (name,) in database.rows(table, column):
            about.host = about.host or (str(name) if name else None)
    for device, name in database.rows("NPU_INFO", "id", "name"):
        if (where := whole(device)) is not None and name:
            about.device_names[where] = str(name)
    for start, end in database.rows("SESSION_TIME_INFO", "startTimeNs", "endTimeNs"):
        first, last = whole(start), whole(end)
        if first is not None and last is not None and 0 < first <= last:
            about.session = (first, last)
    return about
