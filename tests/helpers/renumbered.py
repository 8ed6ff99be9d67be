"""A job of many equal pipelines: a recorded one again and again, under other rank numbers and on other clocks.

Every rank's text is that of the recorded rank of its stage, to the byte but for who it is, whom it talks to and when
its clock starts: what such a job costs to read and to reconstruct is what that many recorded ranks would cost.
"""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

from tracetool.readers.files import ByteStream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_INFO = re.compile(rb'"distributedInfo":(\{.*?\}),"(?=cuda_runtime_version)')
_BASE = re.compile(rb'"baseTimeNanoseconds":(\d+)')
_WHO = re.compile(
    rb'"Group size":(?P<size>\d+),"Rank":(?P<rank>\d+),"Process Group Name":"(?P<name>\d+)",'
    rb'"Process Group Description":"(?P<kind>\w*)"'
    rb'(?:,"Process Group Ranks":"(?P<ranks>\[[^"]*\])")?(?:,"(?P<way>Src|Dst) Rank":(?P<peer>\d+))?'
)


def write_renumbered(
    source: Path, target: Path, pipelines: int, *, clocks_ns: Mapping[int, int] | None = None, plain: bool = False
) -> Path:
    """Write the traces of a job of equal pipelines, a file per rank; pipeline n holds ranks n * p to n * p + p - 1.

    Args:
        source: Folder of a recorded pipeline's Kineto traces, a file per stage in the order of their names.
        target: Folder to write to.
        pipelines: How many pipelines.
        clocks_ns: How far the clock of a rank is ahead; 0 for those that are not named.
        plain: Whether files are written as they are instead of compressed.
    """
    target.mkdir(parents=True, exist_ok=True)
    files = sorted(source.glob("*.json*"))
    world = pipelines * len(files)
    for stage, file in enumerate(files):
        text = b"".join(ByteStream(file).blocks(1 << 20))
        head, _, events = text.partition(b'"traceEvents"')
        parts = _cut(events)
        for number in range(pipelines):
            rank = number * len(files) + stage
            ahead = 0 if clocks_ns is None else clocks_ns.get(rank, 0)
            renamed = _renamed(parts, number * len(files), len(files), world)
            whole = _head(head, number * len(files), world, ahead) + b'"traceEvents"' + renamed
            name = f"rank{rank}.json"
            if plain:
                (target / name).write_bytes(whole)
            else:
                (target / f"{name}.gz").write_bytes(gzip.compress(whole, 1))
    return target


def _head(head: bytes, first: int, world: int, ahead_ns: int) -> bytes:
    """What precedes the events: who the rank is, its groups, and when its clock starts."""

    def info(match: re.Match[bytes]) -> bytes:
        said: dict[str, Any] = json.loads(match[1])
        said |= {"rank": said["rank"] + first, "world_size": world}
        for group in said["pg_config"]:
            whole = group["pg_desc"] == "default_pg"
            group["ranks"] = list(range(world)) if whole else [rank + first for rank in group["ranks"]]
            group["pg_size"] = len(group["ranks"])
        return b'"distributedInfo":' + json.dumps(said, separators=(",", ":")).encode() + b',"'

    found = _INFO.sub(info, head)
    return _BASE.sub(lambda match: b'"baseTimeNanoseconds":%d' % (int(match[1]) + ahead_ns), found)


def _cut(events: bytes) -> list[bytes | re.Match[bytes]]:
    """The text of the events, cut where it names ranks."""
    parts: list[bytes | re.Match[bytes]] = []
    at = 0
    for match in _WHO.finditer(events):
        parts += [events[at : match.start()], match]
        at = match.end()
    return [*parts, events[at:]]


def _renamed(parts: list[bytes | re.Match[bytes]], first: int, size: int, world: int) -> bytes:
    return b"".join(part if isinstance(part, bytes) else _named(part, first, size, world) for part in parts)


def _named(match: re.Match[bytes], first: int, size: int, world: int) -> bytes:
    """Who takes part in an operation of another pipeline; in one of all ranks, those of the whole job do."""
    whole = match["kind"] == b"default_pg"
    text = b'"Group size":%d,"Rank":%d,"Process Group Name":"%s","Process Group Description":"%s"' % (
        world if whole and match["ranks"] != b"[]" else int(match["size"]), int(match["rank"]) + first, match["name"],
        match["kind"],
    )  # fmt: skip
    if match["ranks"] is not None:
        ranks = [first + rank for rank in json.loads(match["ranks"])]
        listed = list(range(world)) if whole and ranks else ranks
        # c10d cuts long lists, and writes three dots.
        shown = ", ".join(map(str, listed[:30])) + (", ..." if len(listed) > 30 else "")
        text += b',"Process Group Ranks":"[%s]"' % shown.encode()
    if match["way"] is not None:
        text += b',"%s Rank":%d' % (match["way"], int(match["peer"]) + first)
    return text
