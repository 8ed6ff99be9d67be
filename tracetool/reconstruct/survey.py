"""What a Run tells without any pipeline in it: messages, clocks, who sits where, who waited for whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.readers import rows_table
from tracetool.reconstruct.clocks import Clocks, find_clocks
from tracetool.reconstruct.collectives import find_collectives
from tracetool.reconstruct.messages import Matched, match_messages, read_p2p
from tracetool.reconstruct.waits import find_waits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from tracetool.reconstruct.account import Account
    from tracetool.reconstruct.messages import P2POp
    from tracetool.reconstruct.waits import Wait
    from tracetool.store import Run


@dataclass(frozen=True, slots=True)
class Survey:
    """What holds for the whole capture.

    Attributes:
        p2p: Every send and receive, per rank in order of posting.
        matched: Which send met which receive.
        clocks: How the ranks' clocks differ.
        waits: How long each operation waited.
        tables: Rows of ``coordinates``, ``clocks`` and ``waits``.
    """

    p2p: Mapping[int, list[P2POp]]
    matched: Matched
    clocks: Clocks
    waits: Sequence[Wait] = ()
    tables: Mapping[str, pa.Table] = field(default_factory=dict)


def survey_run(run: Run, account: Account) -> Survey:
    """Look at the whole capture; works for Runs without a pipeline, too."""
    p2p = read_p2p(run, account)
    matched = match_messages(p2p, account)
    collectives = find_collectives(run, account)
    ranks = [rank for (rank,) in run.rows("SELECT rank FROM ranks ORDER BY rank")]
    clocks = find_clocks(ranks, matched.messages, collectives, account)
    waits = find_waits(run, matched.messages, collectives, clocks)
    tables = {
        "clocks": rows_table("clocks", _clock_rows(clocks)),
        "waits": rows_table("waits", waits),
    }
    return Survey(p2p, matched, clocks, waits, tables)


def _clock_rows(clocks: Clocks) -> list[tuple[object, ...]]:
    return [
        (
            rank, clocks.reference_rank, c.time_ns, c.offset_ns, c.drift_ppm, c.residual_ns, c.anchors, c.applied,
            "assumed" if c.offset_ns is None else "messages", 0.0 if c.offset_ns is None else 1.0,
        )
        for rank, c in sorted(clocks.by_rank.items())
    ]  # fmt: skip
