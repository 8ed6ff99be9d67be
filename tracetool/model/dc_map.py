"""Which data centre (DC) a rank sits in, however that is written: ranges, host patterns, or a table."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tracetool.errors import BadTopology, Option
from tracetool.model.topology import in_two, parse_dc_map
from tracetool.units import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_RANKS = re.compile(r"\d+(-\d+)?")
_NAME = re.compile(r"^[^\s=>,+-]+$")


def _forms() -> str:
    ranks, hosts, file = (Option.DC(text) for text in ("0-1,2-3", "dc0=gpu-a*,dc1=gpu-b*", "map.csv"))
    return f"as in {ranks} (pipeline ranks), {hosts} (hosts) or {file} (rank or host, dc)"


@dataclass(frozen=True, slots=True)
class DCMap:
    """A map of ranks to DCs; one of its three forms is filled.

    Attributes:
        text: As it was written, for messages.
        by_position: DC of each pipeline rank.
        by_rank: DC of each global rank.
        by_host: Host patterns and their DC.
    """

    text: str
    by_position: tuple[str, ...] = ()
    by_rank: Mapping[int, str] = field(default_factory=dict)
    by_host: tuple[tuple[str, str], ...] = ()

    @property
    def counts(self) -> str:
        """What the map's names are: pipeline ranks, global ranks or hosts."""
        return "pipeline ranks" if self.by_position else "global ranks" if self.by_rank else "hosts"

    def of_pipeline(self, ranks: Sequence[int], hosts: Mapping[int, str | None]) -> tuple[str, ...]:
        """DC of each rank of a pipeline.

        Args:
            ranks: Global ranks in stage order.
            hosts: Host of each rank, where the traces name it.

        Raises:
            BadTopology: If a rank is in no DC or in several.
        """
        if self.by_position:
            return self.by_position
        self._check_all((rank, hosts.get(rank)) for rank in ranks)
        return tuple(self._seat(rank, hosts.get(rank)) for rank in ranks)

    def of_ranks(self, positions: Mapping[int, int | None], hosts: Mapping[int, str | None]) -> dict[int, str]:
        """DC of each global rank.

        Args:
            positions: Pipeline rank of each global rank; None outside of any pipeline.
            hosts: Host of each rank, where the traces name it.

        Raises:
            BadTopology: If a rank is in no DC or in several.
        """
        if not self.by_position:
            known = {rank: hosts.get(rank) for rank in positions}
            self._check_all(known.items())
            return {rank: self._seat(rank, host) for rank, host in known.items()}
        outside = [rank for rank, place in positions.items() if place is None]
        if outside:
            raise BadTopology(
                f"the DC map {self.text!r} counts pipeline ranks, and {format_ranks(outside)} "
                f"{'is' if len(outside) == 1 else 'are'} in no pipeline.",
                hint=f"name global ranks or hosts: {Option.DC('map.csv')} with the columns rank (or host) and dc",
            )
        length = max((place for place in positions.values() if place is not None), default=-1) + 1
        if length != len(self.by_position):
            raise BadTopology(
                f"the DC map covers pipeline ranks 0..{len(self.by_position) - 1}, the pipeline has ranks "
                f"0..{length - 1}.",
                hint=f"name every rank once, as in {Option.DC(in_two(length))} for two DCs",
            )
        return {rank: self.by_position[place] for rank, place in positions.items() if place is not None}

    def of_known(self, positions: Mapping[int, int | None], hosts: Mapping[int, str | None]) -> dict[int, str]:
        """DC of each global rank that the map tells of; others are left out.

        Args:
            positions: Pipeline rank of each global rank; None outside of any pipeline.
            hosts: Host of each rank, where the traces name it.

        Raises:
            BadTopology: If a host is in several DCs.
        """
        if self.by_position:
            places = {rank: place for rank, place in positions.items() if place is not None}
            return {rank: self.by_position[p] for rank, p in places.items() if p < len(self.by_position)}
        return {
            rank: self._seat(rank, hosts.get(rank))
            for rank in positions
            if rank in self.by_rank or self._matching(hosts.get(rank) or "")
        }

    def _ranks_hint(self) -> str:
        """How to name ranks, where hosts cannot be told or ranks were written in their place."""
        patterns = [pattern for pattern, _ in self.by_host]
        if all(_RANKS.fullmatch(pattern) for pattern in patterns):
            written = ",".join(
                "+".join(pattern for pattern, dc in self.by_host if dc == name)
                for name in dict.fromkeys(dc for _, dc in self.by_host)
            )
            return f"pipeline ranks stand without names of DCs, which are dc0, dc1 ...: {Option.DC(written)}"
        return (
            f"name global ranks instead: {Option.DC('map.csv')} with the columns rank and dc (torch 2.13 writes hosts)"
        )

    def _check_all(self, ranks: Iterable[tuple[int, str | None]]) -> None:
        listed = list(ranks)
        if self.by_rank:
            absent = [rank for rank, _ in listed if rank not in self.by_rank]
            if absent:
                raise BadTopology(
                    f"the DC map {self.text} leaves out {format_ranks(absent)}.", hint="give every global rank a row"
                )
            return
        nameless = [rank for rank, host in listed if host is None]
        if nameless:
            raise BadTopology(
                f"the DC map {self.text!r} names hosts, but the "
                f"{'trace' if len(nameless) == 1 else 'traces'} of {format_ranks(nameless)} "
                f"{'does' if len(nameless) == 1 else 'do'} not say on which host they ran.",
                hint=self._ranks_hint(),
            )
        lost: dict[str, list[int]] = defaultdict(list)
        for rank, host in listed:
            if host is not None and not self._matching(host):
                lost[host].append(rank)
        for host, ranks_of in lost.items():
            raise BadTopology(
                f"host {host!r} ({format_ranks(ranks_of)}) is in no DC: it matches none of "
                f"{', '.join(pattern for pattern, _ in self.by_host)}.",
                hint="add a pattern for it; * stands for any text",
            )

    def _matching(self, host: str) -> list[tuple[str, str]]:
        return [(pattern, dc) for pattern, dc in self.by_host if fnmatchcase(host, pattern)]

    def _seat(self, rank: int, host: str | None) -> str:
        if self.by_rank:
            return self.by_rank[rank]
        matches = self._matching(host or "")
        if len({dc for _, dc in matches}) > 1:
            listed = " and ".join(f"{pattern} ({dc})" for pattern, dc in matches)
            raise BadTopology(f"host {host!r} (rank {rank}) matches {listed}.", hint="let each host match one DC")
        return matches[0][1]


def parse_map(text: str) -> DCMap:
    """Read ``0-1,2-3`` (pipeline ranks, see :func:`parse_dc_map`) or ``dc0=gpu-a*+gpu-c*,dc1=gpu-b*`` (hosts).

    Raises:
        BadTopology: If the text is malformed, or a rank is named twice or left out.
    """
    if "=" not in text:
        return DCMap(text, by_position=parse_dc_map(text))
    hosts: list[tuple[str, str]] = []
    for part in text.split(","):
        name, is_pair, patterns = (piece.strip() for piece in part.partition("="))
        if not is_pair or not patterns:
            raise BadTopology(
                f"DC map {text!r}: {part.strip()!r} does not say which hosts are in which DC.", hint=_forms()
            )
        _check_name(name, f"DC map {text!r}")
        for pattern in patterns.split("+"):
            if not pattern.strip():
                raise BadTopology(f"DC map {text!r}: {part.strip()!r} holds an empty pattern.", hint=_forms())
            hosts.append((pattern.strip(), name))
    return DCMap(text, by_host=tuple(hosts))


def parse_table(text: str, name: str) -> DCMap:
    """Read CSV with the columns ``rank`` (global rank) or ``host`` (a name or pattern), and ``dc``.

    Args:
        text: The file's content.
        name: What to call it in messages.

    Raises:
        BadTopology: If a column or cell is missing or malformed, or a rank has several rows.
    """
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), skipinitialspace=True)
    columns = [column.strip().lower() for column in rows.fieldnames or ()]
    rows.fieldnames = columns
    key = next((column for column in ("rank", "host") if column in columns), None)
    if key is None or "dc" not in columns:
        raise BadTopology(
            f"{name} needs the columns rank (or host) and dc; found {', '.join(columns) or 'none'}.",
            hint="write a first line: rank,dc",
        )
    by_rank: dict[int, str] = {}
    by_host: dict[str, str] = {}
    for row in rows:
        where = f"{name}, line {rows.line_num}"
        cell, dc = ((row[column] or "").strip() for column in (key, "dc"))
        if not cell or not dc:
            raise BadTopology(f"{where}: the {'dc' if cell else key} is missing.")
        _check_name(dc, where)
        if key == "host":
            if by_host.setdefault(cell, dc) != dc:
                raise BadTopology(f"{where}: host {cell!r} is in {by_host[cell]} and in {dc}.")
            continue
        if not (cell.isascii() and cell.isdecimal()):
            raise BadTopology(f"{where}: {cell!r} is no global rank.", hint="ranks are whole numbers from 0")
        if int(cell) in by_rank:
            raise BadTopology(f"{where}: rank {cell} is listed before, in {by_rank[int(cell)]}.")
        by_rank[int(cell)] = dc
    if not by_rank and not by_host:
        raise BadTopology(f"{name} lists no {key}.")
    return DCMap(name, by_rank=by_rank, by_host=tuple(by_host.items()))


def _check_name(name: str, where: str) -> None:
    if not _NAME.match(name):
        raise BadTopology(
            f"{where}: {name!r} cannot be the name of a DC: {Option.LINK} could not name it.",
            hint="use letters, digits, . and _ (no spaces and none of - = > , +)",
        )
