"""Ranks that were not recorded, taken from a recorded rank of the same stage of another pipeline.

Pipelines side by side do the same work. A copy has its source's events and times under its own rank; its peers and
process groups are those at the same place of its own pipeline. It is done where tables are read, so that whatever
asks for a rank gets its copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.errors import MissingRank
from tracetool.model.notice import NoticeCode, SubjectKind
from tracetool.model.scenario import Taken
from tracetool.reconstruction.capture import UNCHECKED
from tracetool.reconstruction.capture.stand_ins import find_stand_ins, nearest, spread_of_copies

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.capture.coordinates import Coordinates
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.capture.process_groups import ProcessGroup
    from tracetool.store.run import Run

_PER_RANK = ("events", "comms", "groups", "steps", "memory", "ranks")
"""Tables of what a rank recorded."""


def find_copies(run: Run, pipelines: Sequence[PipelineGroup], number: int) -> dict[int, int]:
    """For every rank of a pipeline that was not recorded, the recorded rank to copy.

    Raises:
        MissingRank: If no recorded rank holds the same stage.
    """
    recorded = {rank for (rank,) in run.rows("SELECT rank FROM ranks")}
    group = pipelines[number]
    copies = {}
    for place, rank in enumerate(group.ranks):
        if rank in recorded:
            continue
        source = nearest(rank, _alike(group, place, pipelines, recorded))
        if source is None:
            raise MissingRank(
                f"rank {rank} was not recorded, nor any other rank of stage {place}: there is nothing to copy.",
                hint="add the trace of one rank of that stage",
            )
        copies[rank] = source
    return copies


def without_source(
    group: PipelineGroup, pipelines: Sequence[PipelineGroup], recorded: Collection[int]
) -> tuple[int, ...]:
    """Ranks of a pipeline that were not recorded, nor any other rank of their stage: nothing can stand for them."""
    return tuple(
        rank
        for place, rank in enumerate(group.ranks)
        if rank not in recorded and not _alike(group, place, pipelines, recorded)
    )


def _alike(
    group: PipelineGroup, place: int, pipelines: Sequence[PipelineGroup], recorded: Collection[int]
) -> list[int]:
    """Recorded ranks at the same place of pipelines of the same length."""
    return [p.ranks[place] for p in pipelines if len(p.ranks) == len(group.ranks) and p.ranks[place] in recorded]


def taken_copies(run: Run, places: Sequence[Coordinates], copies: Mapping[int, int]) -> Taken:
    """Copies, and how far recorded ranks of their stages are apart."""
    spread = spread_of_copies(find_stand_ins(run, places), copies)
    return Taken(copied_ranks=copies, copied_spread_ratio=spread)


def with_copies(
    run: Run,
    taken: Taken,
    pipelines: Sequence[PipelineGroup],
    groups: Sequence[ProcessGroup],
    account: Account,
) -> Run:
    """The Run with copies of recorded ranks under the names of ranks that were not recorded.

    Args:
        run: The Run.
        taken: Per rank, which one to copy.
        pipelines: Those of the Run.
        groups: Its process groups.
        account: Gets a note, and a finding for each copy.
    """
    copies, spread_ratio = taken.copied_ranks, taken.copied_spread_ratio
    for rank, source in copies.items():
        account.find(
            "ranks", SubjectKind.RANK(rank), f"copied from rank {source}", "copied", UNCHECKED,
            "both hold the same stage; what differs between them, waits above all, is lost",
        )  # fmt: skip
    account.note(
        NoticeCode.RANKS_COPIED,
        "not recorded, hence copied from a rank of the same stage: "
        + ", ".join(f"rank {rank} from {source}" for rank, source in copies.items())
        + (
            "; whether it is slower than its source is unknown, and so is the error of steps"
            if spread_ratio is None
            else f"; recorded ranks of such a stage are up to {spread_ratio:.1%} apart, which ± holds"
        ),
    )
    queries_of: dict[str, list[str]] = {table: ["SELECT * FROM {recorded}"] for table in _PER_RANK}
    for rank, source in copies.items():
        mates = _mates(rank, source, pipelines)
        named = _names(rank, source, mates, groups)
        for table, queries in queries_of.items():
            replaced = [f"CAST({rank} AS INTEGER) AS rank"]
            if table == "comms":
                replaced += [_peer(mates), *_group('"group"', "group_ranks", named)]
            elif table == "groups":
                replaced += _group("name", "ranks", named)
            queries.append(f"SELECT * REPLACE ({', '.join(replaced)}) FROM {{recorded}} WHERE rank = {source}")
    return run.overlay({table: " UNION ALL ".join(queries) for table, queries in queries_of.items()})


def _mates(rank: int, source: int, pipelines: Sequence[PipelineGroup]) -> dict[int, int]:
    """Ranks of the source's pipeline, and who is at the same place in the copy's."""
    own, other = (next(p for p in pipelines if r in p.ranks) for r in (rank, source))
    return dict(zip(other.ranks, own.ranks, strict=True))


def _names(
    rank: int, source: int, mates: Mapping[int, int], groups: Sequence[ProcessGroup]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """By name, which is unique on a rank: process groups of the source, and the copy's at the same place."""
    mine = [g for g in groups if source in g.ranks and rank not in g.ranks]
    named: dict[str, tuple[str, tuple[int, ...]]] = {}
    for group in mine:
        if set(group.ranks) <= set(mates):
            ranks = tuple(mates[r] for r in group.ranks)
            # Several groups of the same ranks correspond in order of their names.
            namesakes = [g.name for g in groups if g.ranks == ranks]
            order = [g.name for g in mine if g.ranks == group.ranks].index(group.name)
            named[group.name] = (namesakes[order] if order < len(namesakes) else group.name, ranks)
            continue
        kind = (group.description, len(group.ranks))
        others = [g for g in groups if rank in g.ranks and (g.description, len(g.ranks)) == kind]
        if group.description and len(others) == 1:
            named[group.name] = (others[0].name, others[0].ranks)
    return named


def _peer(mates: Mapping[int, int]) -> str:
    cases = " ".join(f"WHEN {source} THEN {rank}" for source, rank in mates.items())
    return f"CAST(CASE peer {cases} ELSE peer END AS INTEGER) AS peer"


def _group(name: str, ranks: str, named: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[str]:
    """Replacements of a group's name and ranks."""
    if not named:
        return []
    names = " ".join(f"WHEN {_text(old)} THEN {_text(new)}" for old, (new, _) in named.items())
    lists = " ".join(f"WHEN {_text(old)} THEN {list(members)}::INTEGER[]" for old, (_, members) in named.items())
    return [f"CASE {name} {names} ELSE {name} END AS {name}", f"CASE {name} {lists} ELSE {ranks} END AS {ranks}"]


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
