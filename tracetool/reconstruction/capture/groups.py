"""Which ranks form a pipeline, and in which order they hold its stages."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.errors import MissingRank, NoPipeline, Option
from tracetool.model.notice import NoticeCode, SubjectKind
from tracetool.reconstruction.capture import UNCHECKED, Account
from tracetool.reconstruction.capture.messages import read_p2p
from tracetool.reconstruction.capture.process_groups import ProcessGroup, dimension_of, read_groups
from tracetool.reconstruction.capture.stage_order import (
    Votes,
    best_order,
    fits,
    line_of,
    orders_along,
    reach,
    skips_of,
    votes_of,
)
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.reconstruction.capture import Evidence
    from tracetool.reconstruction.capture.exchanges import Ring
    from tracetool.reconstruction.capture.messages import P2POp
    from tracetool.store.run import Run


@dataclass(frozen=True, slots=True)
class PipelineGroup:
    """One pipeline.

    Attributes:
        ranks: Global ranks in stage order.
        inferred: Whether no process group lists them in this order.
        evidence: How the order is known.
        confidence: Share of the first and last messages of steps that agree with it.
        detail: What disagrees.
        skips: Pairs of its pipeline ranks that exchange messages past those between them.
    """

    ranks: tuple[int, ...]
    inferred: bool = False
    evidence: Evidence = "metadata"
    confidence: float = 1.0
    detail: str | None = None
    skips: tuple[tuple[int, int], ...] = ()

    def position(self, rank: int) -> int:
        """Pipeline rank of a global rank."""
        return self.ranks.index(rank)


def _no_messages(run: Run) -> NoPipeline:
    """What there is instead of messages between ranks: absent records are no proof that there were none."""
    ((comms, nameless, unknown),) = run.rows(
        "SELECT count(*), count(*) FILTER (operation IN ('send', 'recv')), "
        "count(*) FILTER (\"group\" = '' AND evidence = 'unknown' AND regexp_matches(operation, ?, 'i')) FROM comms",
        [_MAY_SEND.pattern],
    )
    if nameless:
        what = f"{format_count(nameless, 'send')} and receives without a peer: who exchanges what with whom is unknown"
        hint = (
            "re-record with torch 2.6 or newer, or record_shapes=True (Ascend: Level1 and up; Nsight Systems: "
            "nsys export --include-blobs=true), which name the peers"
        )
    elif unknown:
        kernels = format_count(unknown, "communication kernel")
        what = f"no sends and receives that are named; what {kernels} moved is unknown"
        hint = (
            "re-record with ProfilerActivity.CPU, torch 2.6 or newer (Ascend: Level1 and up; Nsight Systems: "
            "nsys profile -t cuda,nvtx)"
        )
    else:
        missing = len(run.manifest.get("missing_ranks", ()))
        among = f" among the recorded ones ({format_count(missing, 'rank')} of the job missing)" if missing else ""
        what = f"no sends and receives between ranks: no pipeline parallelism to replay{among}"
        hint = _hint_without_messages(run)
        if not comms:
            what = "no communication operations: whether ranks exchanged messages is unknown"
    return NoPipeline(f"{run.name} holds {what}.", hint=hint)


def find_pipelines(
    run: Run,
    *,
    p2p: Mapping[int, Sequence[P2POp]] | None = None,
    groups: Sequence[ProcessGroup] | None = None,
    use_labels: bool = True,
    stages: Mapping[int, int] | None = None,
    rings: Sequence[Ring] = (),
) -> list[PipelineGroup]:
    """All pipelines of the Run, the one with the lowest rank first.

    Ranks joined by sends and receives form a pipeline, with the unrecorded ranks of their process group. The order
    of its stages is that of labels, else that of the process group or of the chain of peers, whichever way round
    the steps' first and last messages say.

    Args:
        run: The Run.
        p2p: Its sends and receives, if they were read before.
        groups: Its process groups, if they were read before.
        use_labels: Whether labels that name stages count.
        stages: Lowest stage that labels name on each rank, if they were read before.
        rings: Ranks whose messages are no pipeline's.

    Raises:
        NoPipeline: If there are no sends and receives with a known peer, or they do not join the ranks of a
            declared pipeline.
        MissingRank: If ranks that were not recorded leave the order open.
    """
    p2p = read_p2p(run) if p2p is None else p2p
    if not any(p2p.values()) and rings:
        named = "; ".join(
            f"ranks {', '.join(map(str, r.ranks))}, {f'group {r.description!r}' if r.description else 'a ring'}"
            for r in rings
        )
        raise NoPipeline(
            f"no pipeline parallelism to replay: all sends and receives of {run.name} are part of actions ({named}).",
            hint="name the traces of ranks of other stages too, if there are any",
        )
    if not any(p2p.values()):
        raise _no_messages(run)
    groups = read_groups(run) if groups is None else groups
    recorded = {rank for (rank,) in run.rows("SELECT rank FROM ranks")}
    declared = [g.ranks for g in groups if dimension_of(g.description) == "pp" and len(g.ranks) > 1]
    carrying = {op.group for ops in p2p.values() for op in ops}
    lists = sorted({(g.name not in carrying, g.ranks) for g in groups if len(g.ranks) > 1})
    if stages is None:
        stages = labelled_stages(run) if use_labels else {}
    votes = votes_of(run, p2p)
    pipelines = []
    left = set(votes.peers)
    while left:
        members = reach(min(left), votes.peers)
        whole = next((g for g in declared if set(g) > members), None)
        if whole is not None and set(whole) <= recorded:
            raise NoPipeline(
                f"ranks {list(whole)} form one pipeline, but in this trace {sorted(members)} exchange no messages "
                f"with {sorted(set(whole) - members)}.",
                hint="transfers outside NCCL, RCCL and HCCL (such as TCP between data centres) are not recorded",
            )
        # Unrecorded ranks hide part of the chain; the pipeline's group still lists them.
        members |= set(whole or ())
        left -= members
        ordered = _ordered(members, [g for _, g in lists if set(g) == members], stages, votes, recorded)
        pipelines.append(replace(ordered, skips=skips_of(ordered.ranks, votes)))
    return sorted(pipelines, key=lambda pipeline: min(pipeline.ranks))


def _hint_without_messages(run: Run) -> str:
    """What could be done about a Run without sends and receives: nothing about one that shows all its communication."""
    operations = {operation for (operation,) in run.rows("SELECT DISTINCT operation FROM comms")}
    if not operations and (why := _why_nothing_is_there(run)):
        return why
    if not operations or any(_MAY_SEND.search(operation or "") for operation in operations):
        return "send and receive records need torch 2.6 or newer, or Ascend Level1 and up"
    listed = ", ".join(sorted(operations))
    return (
        f"all of its communication is collective ({listed}), as without pipeline parallelism; else its ranks hold one "
        "stage alone, or its transfers run outside NCCL, RCCL and HCCL (such as TCP), which are not recorded"
    )


def _why_nothing_is_there(run: Run) -> str | None:
    """Why a Run may hold no communication at all, other than by how it was recorded; None if nothing says so."""
    sources = run.manifest["sources"]
    lost = [(source["path"], reason, n) for source in sources for reason, n in source["dropped"].items()]
    if lost:
        path, reason, _ = max(lost, key=lambda one: one[2])
        records = format_count(sum(n for _, _, n in lost), "record")
        return f"{records} lost in reading, as {reason} ({path}): record or copy those files again"
    if len({source["rank"] for source in sources}) == 1:
        return "one rank is all that was recorded or named: name the traces of all ranks of the pipeline"
    return None


_MAY_SEND = re.compile(r"send|recv|receive|unknown|^$", re.IGNORECASE)
"""Operations that may be sends or receives, where nothing names their peers."""


def chosen_pipeline(pipelines: Sequence[PipelineGroup], number: int, account: Account) -> PipelineGroup:
    """The pipeline of a number, with what there is to say about it and those left out.

    Raises:
        NoPipeline: If there is none of that number.
    """
    if not 0 <= number < len(pipelines):
        listed = "; ".join(f"{n}: {list(g.ranks)}" for n, g in enumerate(pipelines))
        raise NoPipeline(
            f"there is no pipeline {number}; the traces hold {listed}.", hint=f"choose one with {Option.PIPELINE}"
        )
    group = pipelines[number]
    if len(pipelines) > 1:
        others = "; ".join(str(list(g.ranks)) for g in pipelines if g is not group)
        account.note(
            NoticeCode.PIPELINES_LEFT_OUT,
            f"{len(pipelines)} pipelines side by side; this is {list(group.ranks)}, left out: {others}",
        )
    if group.inferred:
        account.note(
            NoticeCode.STAGE_ORDER,
            f"no process group lists the pipeline: the stage order {list(group.ranks)} follows who sends first",
        )
    if group.detail:
        account.note(NoticeCode.STAGE_ORDER, f"stage order {list(group.ranks)}: {group.detail}")
    return group


def record_pipelines(pipelines: Iterable[PipelineGroup], account: Account) -> None:
    """Add a finding for each pipeline."""
    for number, group in enumerate(pipelines):
        order = ", ".join(map(str, group.ranks))
        account.find(
            "pipeline", SubjectKind.PIPELINE(number), f"stages on ranks {order}", group.evidence, group.confidence,
            group.detail,
        )  # fmt: skip


def _ordered(
    members: set[int],
    lists: Sequence[tuple[int, ...]],
    stages: Mapping[int, int],
    votes: Votes,
    recorded: set[int],
) -> PipelineGroup:
    by_label = sorted(members, key=lambda rank: (stages.get(rank, 0), rank))
    if len({stages.get(rank) for rank in members} - {None}) == len(members):
        return PipelineGroup(tuple(by_label), evidence="label")
    listed = next((g for g in lists if fits(g, votes.peers)[0]), None)
    along = line_of(members, votes.peers)
    if listed is not None:
        _, ring = fits(listed, votes.peers)
        candidates = orders_along(listed, ring=ring)
    elif along is not None:
        candidates, ring = orders_along(along[0], ring=along[1]), along[1]
    elif lists and members <= recorded:
        return PipelineGroup(
            lists[0],
            confidence=UNCHECKED,
            detail="messages also go to ranks that are no neighbours in the process group",
        )
    elif lists:
        missing = sorted(members - recorded)
        raise MissingRank(
            f"the messages of the recorded ranks do not follow the order {list(lists[0])} of their process group, and "
            f"the order of the stages cannot be told without ranks {', '.join(map(str, missing))}.",
            hint="add the traces of the missing ranks",
        )
    else:
        raise NoPipeline(
            f"ranks {sorted(members)} exchange messages, but not along a chain, and no process group "
            "lists them in order.",
            hint="record with torch 2.4 or newer, whose traces name the process groups",
        )
    order, share = best_order(candidates, votes.votes, ring=ring)
    if order == listed:
        return PipelineGroup(order, confidence=UNCHECKED if share is None else share, detail=_doubt(share))
    if lists:
        said = f"the process group lists {list(lists[0])}, the steps' first and last messages run in this order"
        return PipelineGroup(order, evidence="messages", confidence=share or 0.0, detail=said)
    return PipelineGroup(
        order,
        inferred=True,
        evidence="messages",
        confidence=UNCHECKED if share is None else share,
        detail=_doubt(share),
    )


def _doubt(share: float | None) -> str | None:
    if share is None:
        return "no message tells which end comes first"
    return f"{1 - share:.0%} of the steps' first and last messages do not fit this order" if share < 1 else None


def labelled_stages(run: Run) -> dict[int, int]:
    """Lowest stage that labels name on each rank."""
    return dict(
        run.rows(
            "SELECT rank, min(CAST(regexp_extract(label, '^(\\d+)', 1) AS INTEGER)) FROM events "
            "WHERE regexp_matches(label, '^\\d+[FBIW]') GROUP BY rank"
        )
    )
