"""What a Run tells without any pipeline in it: messages, clocks, who sits where, who waited for whom."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from tracetool.errors import MissingRank, NoPipeline
from tracetool.model.notice import NoticeCode
from tracetool.readers import rows_table
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.clocks import Clocks, find_clocks
from tracetool.reconstruction.capture.collectives import find_collectives
from tracetool.reconstruction.capture.coordinates import Coordinates, find_coordinates
from tracetool.reconstruction.capture.exchanges import Ring, find_rings, overlay_exchanges, record_rings, without_rings
from tracetool.reconstruction.capture.groups import PipelineGroup, find_pipelines, labelled_stages, record_pipelines
from tracetool.reconstruction.capture.messages import Matched, match_messages, read_p2p, record_shapes
from tracetool.reconstruction.capture.peers import infer_peers
from tracetool.reconstruction.capture.process_groups import ProcessGroup, read_groups
from tracetool.reconstruction.capture.waits import find_waits, read_ops, record_waits
from tracetool.units import format_duration, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from tracetool.model.notice import Notice
    from tracetool.reconstruction.capture import Finding
    from tracetool.reconstruction.capture.collectives import Collective
    from tracetool.reconstruction.capture.messages import P2POp
    from tracetool.reconstruction.capture.waits import Place, Wait
    from tracetool.store.run import Run


_DAY_NS = 86_400 * 10**9
_MOST_GAPS = 4
_WINDOWS_SQL = """
SELECT rank, min(least(posted_ns, start_ns)) AS begin_ns, max(greatest(posted_ns, end_ns)) AS end_ns
FROM comms GROUP BY rank ORDER BY begin_ns, rank
"""

KEPT = "survey"
"""What a Run keeps its survey as, with what it noted."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What holds for the whole capture.

    Attributes:
        run: The Run, messages that are part of actions seen as ``exchange`` in ``comms``.
        p2p: Every send and receive of pipelines, per rank in order of posting.
        matched: Which send met which receive.
        clocks: How the ranks' clocks differ.
        waits: How long each operation waited.
        kernels: How many kernels each rank's trace holds; no entry for none.
        pipelines: All pipelines; none where they cannot be told.
        groups: Process groups with all their members.
        coordinates: Where each rank of the job sits.
        collectives: Collectives, each on all of its recorded ranks.
        rings: Ranks whose messages are part of their actions.
        lists_actions: Whether operations are listed by action (NDTimeline, straggler analysis) instead of kernels.
        has_memory: Whether there is any record of memory.
    """

    run: Run
    p2p: Mapping[int, list[P2POp]]
    matched: Matched
    clocks: Clocks
    waits: Sequence[Wait] = ()
    kernels: Mapping[int, int] = field(default_factory=dict)
    pipelines: tuple[PipelineGroup, ...] = ()
    groups: tuple[ProcessGroup, ...] = ()
    coordinates: tuple[Coordinates, ...] = ()
    collectives: tuple[Collective, ...] = ()
    rings: tuple[Ring, ...] = ()
    lists_actions: bool = False
    has_memory: bool = False

    @cached_property
    def sent(self) -> dict[Place, int]:
        """By the send of each message, which of the matched ones it is."""
        return {(message.send.rank, message.send.position): n for n, message in enumerate(self.matched.messages)}

    @cached_property
    def met_in(self) -> dict[Place, int]:
        """By operation, which of the collectives it is part of."""
        return {(op.rank, op.position): n for n, one in enumerate(self.collectives) for op in one.ops}

    @cached_property
    def moved_ns(self) -> dict[Place, int]:
        """How long each operation that met others moved bytes."""
        return {(wait.rank, wait.position): wait.transfer_ns for wait in self.waits if wait.pair is not None}

    @cached_property
    def _posted_ns(self) -> dict[int, list[int]]:
        """Per rank, when its sends and receives were posted, where that is their order."""
        times = {rank: [op.posted_ns for op in ops] for rank, ops in self.p2p.items()}
        return {rank: of_rank for rank, of_rank in times.items() if all(a <= b for a, b in pairwise(of_rank))}

    def posted_within(self, rank: int, span: tuple[int, int]) -> tuple[P2POp, ...]:
        """The sends and receives that a rank posted in a span of its time, in order of posting."""
        ops, times = self.p2p.get(rank, ()), self._posted_ns.get(rank)
        if times is None:
            return tuple(op for op in ops if span[0] <= op.posted_ns < span[1])
        return tuple(ops[bisect_left(times, span[0]) : bisect_left(times, span[1])])


def survey_run(
    run: Run,
    account: Account,
    *,
    use_labels: bool = True,
    copies: Mapping[int, int] | None = None,
    kernels: Mapping[int, int] | None = None,
) -> Survey:
    """Look at the whole capture; works for Runs without a pipeline, too.

    Args:
        run: The Run.
        account: Takes up how things were found.
        use_labels: Off hides the framework's own labels.
        copies: Ranks that are copies, and of which recorded one.
        kernels: How many kernels each rank's trace holds, if they were counted before.
    """
    if use_labels and not copies and (kept := kept_survey(run)) is not None:
        survey, noted = kept
        account.take_up(noted)
        return survey
    collectives = find_collectives(run, account)
    run = infer_peers(run, collectives, account)
    every = read_p2p(run)
    record_shapes(run, account)
    matched = match_messages(every, account, collectives)
    _note_windows(run, account)
    ranks = [rank for (rank,) in run.rows("SELECT rank FROM ranks ORDER BY rank")]
    clocks = find_clocks(ranks, matched.messages, collectives, account)
    ops = read_ops(run)
    kernels = kernels_of(run) if kernels is None else kernels
    waits = find_waits(run, ops, matched.messages, collectives, clocks)
    record_waits(waits, ops, kernels, account)
    groups = read_groups(run, account)
    rings = find_rings(run, every, groups)
    record_rings(rings, account)
    run, p2p = overlay_exchanges(run, rings), without_rings(every, rings)
    stages = labelled_stages(run) if use_labels else {}
    pipelines: list[PipelineGroup] = []
    # What stands in the way of a pipeline is for reconstruction to say.
    with suppress(NoPipeline, MissingRank):
        pipelines = find_pipelines(run, p2p=p2p, groups=groups, stages=stages, rings=rings)
        record_pipelines(pipelines, account)
    coordinates = find_coordinates(run, pipelines, groups, account, copies=copies, stages=stages, rings=rings)
    return Survey(
        run=run, p2p=p2p, matched=matched, clocks=clocks, waits=waits, kernels=kernels, pipelines=tuple(pipelines),
        groups=tuple(groups), coordinates=tuple(coordinates), collectives=tuple(collectives), rings=tuple(rings),
        lists_actions=bool(run.rows("SELECT 1 FROM events WHERE category = 'kernel' AND label IS NOT NULL LIMIT 1")),
        has_memory=bool(run.rows("SELECT 1 FROM memory LIMIT 1")),
    )  # fmt: skip


def _note_windows(run: Run, account: Account) -> None:
    """Say which ranks communicated at no time together, before any clock is set right."""
    together: list[tuple[int, int, list[int]]] = []
    for rank, begin, end in run.rows(_WINDOWS_SQL):
        if together and begin <= together[-1][1]:
            first, last, ranks = together[-1]
            together[-1] = first, max(last, end), [*ranks, rank]
        else:
            together.append((begin, end, [rank]))
    if len(together) < 2:
        return
    gaps = [
        f"{format_ranks(later)} {_long(begin - end)} after {format_ranks(earlier)}"
        for (_, end, earlier), (begin, _, later) in pairwise(together[: _MOST_GAPS + 1])
    ]
    account.note(
        NoticeCode.CAPTURES_APART,
        f"by their clocks, ranks were recorded at no time together: {', '.join(gaps)}"
        + (" ..." if len(together) > len(gaps) + 1 else "")
        + ". Unless clocks were set as far apart, these are captures of different steps, laid beside each other",
    )


def _long(duration_ns: int) -> str:
    return f"{duration_ns / _DAY_NS:.1f} days" if duration_ns >= _DAY_NS else format_duration(duration_ns)


def kept_survey(run: Run) -> tuple[Survey, Account] | None:
    """The survey that a Run keeps, and what it noted; None if it keeps none."""
    kept = run.kept(KEPT)
    if kept is None:
        return None
    survey, notes, findings = cast("tuple[Survey, list[Notice], list[Finding]]", kept)
    noted = Account(findings=findings)
    for note in notes:
        noted.notes.add(note.code, note.text, hint=note.hint, subject=note.subject)
    run = infer_peers(run, survey.collectives, Account())
    return replace(survey, run=overlay_exchanges(run, survey.rings)), noted


def keep_survey(survey: Survey, account: Account) -> None:
    """Have the Run keep its survey, for ``survey_run``.

    Args:
        survey: Of the Run, its labels used.
        account: What the survey noted, and nothing else.
    """
    # The Run itself is where it is kept.
    bare = replace(survey, run=cast("Run", None))
    survey.run.keep(KEPT, (bare, list(account.notes), list(account.findings)))


def kernels_of(run: Run) -> dict[int, int]:
    """How many kernels each rank's trace holds; no entry for none."""
    return dict(run.rows("SELECT rank, count(*) FROM events WHERE category = 'kernel' GROUP BY rank"))


def survey_tables(survey: Survey) -> dict[str, pa.Table]:
    """The tables ``coordinates``, ``clocks`` and ``waits``."""
    return {
        "coordinates": rows_table("coordinates", survey.coordinates),
        "clocks": rows_table("clocks", _clock_rows(survey.clocks)),
        "waits": rows_table("waits", survey.waits),
    }


def _clock_rows(clocks: Clocks) -> list[tuple[object, ...]]:
    return [
        (
            rank, c.reference_rank, c.time_ns, c.offset_ns, c.drift_ppm, c.residual_ns, c.anchors, c.applied,
            c.evidence, c.confidence,
        )
        for rank, c in sorted(clocks.by_rank.items())
    ]  # fmt: skip
