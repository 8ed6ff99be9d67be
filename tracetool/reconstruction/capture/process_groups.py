"""Process groups with all their members, and the parallel dimension that each serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from tracetool.model.notice import NoticeCode
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruction.capture import Account
    from tracetool.store.run import Run

Dimension = Literal["pp", "dp", "tp", "cp", "ep"]
DIMENSIONS: tuple[Dimension, ...] = ("pp", "dp", "tp", "cp", "ep")

_CUT_AT = 30
"""c10d writes so many members of a group into its records, and then three dots."""

_HASH_DIGITS = 8
"""Names of this many digits are hashes of a communicator, and of no other one; shorter ones are counters."""

_WORDS: dict[str, Dimension] = {
    "pp": "pp", "pipe": "pp", "pipeline": "pp", "pp_new_stream": "pp",
    "tp": "tp", "tensor": "tp",
    "dp": "dp", "data": "dp", "dp_replicate": "dp", "dp_shard": "dp", "fsdp": "dp",
    "cp": "cp", "context": "cp",
    "ep": "ep", "exp": "ep", "expert": "ep",
}  # fmt: skip
_WITH_CONTEXT = ("dp_cp", "data_parallel_group_with_cp", "dp_shard_cp")


class ProcessGroup(NamedTuple):
    """A process group.

    Attributes:
        name: Its name in the trace.
        description: What the trace says it is for; empty if it says nothing.
        ranks: Global ranks in group order.
    """

    name: str
    description: str
    ranks: tuple[int, ...]


def dimension_of(description: str) -> Dimension | None:
    """The dimension that a group's description names.

    Known are the names of torch's DeviceMesh (``mesh_tp``), Megatron-LM (``TENSOR_MODEL_PARALLEL_GROUP``),
    MindSpeed (``exp``) and the short ones; data parallel groups that span the context parallel ranks are not
    among them, see :func:`spans_context`.
    """
    word = description.strip().lower()
    if word in _WITH_CONTEXT:
        return None
    word = word.removeprefix("mesh_").removesuffix("_group").removesuffix("_parallel").removesuffix("_model")
    return _WORDS.get(word, "pp" if word.startswith(("pp_", "pp-")) else None)


def spans_context(description: str) -> bool:
    """Whether it is a data parallel group over the context parallel ranks too."""
    return description.strip().lower().removeprefix("mesh_") in _WITH_CONTEXT


# A group lists its ranks in each of its operations: they are read once.
_USERS_SQL = """
SELECT "group", coalesce(group_ranks, []) AS ranks, list(DISTINCT rank ORDER BY rank) AS users
FROM comms GROUP BY ALL ORDER BY users[1], "group", ranks
"""


def read_groups(run: Run, account: Account | None = None) -> list[ProcessGroup]:
    """All process groups that the trace lists or uses, with full lists of ranks.

    A list that was cut is completed from another rank that has it whole; else by those ranks that use the group.
    A communicator that the trace does not list (Ascend: a hash alone) has the ranks that use it.
    """
    listed = [
        ProcessGroup(n, d, tuple(r)) for n, d, r in run.rows("SELECT DISTINCT name, description, ranks FROM groups")
    ]
    users: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for name, ranks, of_group in run.rows(_USERS_SQL):
        users[name, tuple(ranks)] = of_group
    named = {(g.name, g.ranks) for g in listed}
    groups_in_use = [
        *listed,
        *(ProcessGroup(name, "", ranks) for name, ranks in users if ranks and (name, ranks) not in named),
    ]
    whole: list[ProcessGroup] = []
    mended = 0
    for group in groups_in_use:
        members = _full(group, groups_in_use, users.get((group.name, group.ranks), ()))
        mended += members != group.ranks
        whole.append(group._replace(ranks=members))
    hidden = [
        ProcessGroup(name, "", tuple(ranks))
        for (name, members), ranks in users.items()
        if not members and len(name) >= _HASH_DIGITS and (name.isdecimal() or "%" in name)
    ]
    if account is not None and mended:
        account.note(
            NoticeCode.GROUPS_MENDED,
            f"{format_count(mended, 'list')} of ranks of process groups were cut, and completed from other ranks",
        )
    if account is not None and hidden:
        account.note(
            NoticeCode.GROUPS_HIDDEN,
            f"{format_count(len(hidden), 'communicator')} that the trace does not list: "
            "their members are the ranks that use them",
        )
    return sorted({*whole, *hidden}, key=lambda g: (g.ranks, _natural(g.name), g.description))


def _natural(name: str) -> tuple[int, str]:
    return (len(name), name)


def _full(group: ProcessGroup, known: Sequence[ProcessGroup], users: Sequence[int]) -> tuple[int, ...]:
    if len(group.ranks) != _CUT_AT:
        return group.ranks
    longer = {
        g.ranks for g in known if g.name == group.name and len(g.ranks) > _CUT_AT and g.ranks[:_CUT_AT] == group.ranks
    }
    if len(longer) == 1:
        return longer.pop()
    return group.ranks + tuple(sorted(set(users) - set(group.ranks)))
