"""What a Run tells without any pipeline in it: messages, clocks, who sits where, who waited for whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.reconstruct.clocks import Clocks
from tracetool.reconstruct.messages import Matched, match_messages, read_p2p

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from tracetool.reconstruct.account import Account
    from tracetool.reconstruct.messages import P2POp
    from tracetool.store import Run


@dataclass(frozen=True, slots=True)
class Survey:
    """What holds for the whole capture.

    Attributes:
        p2p: Every send and receive, per rank in order of posting.
        matched: Which send met which receive.
        clocks: How the ranks' clocks differ.
        tables: Rows of ``coordinates``, ``clocks`` and ``waits``.
    """

    p2p: Mapping[int, list[P2POp]]
    matched: Matched
    clocks: Clocks
    tables: Mapping[str, pa.Table] = field(default_factory=dict)


def survey_run(run: Run, account: Account) -> Survey:
    """Look at the whole capture; works for Runs without a pipeline, too."""
    p2p = read_p2p(run)
    matched = match_messages(p2p)
    del account
    return Survey(p2p, matched, Clocks())
