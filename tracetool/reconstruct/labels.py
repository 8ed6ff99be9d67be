"""Labels that frameworks write around pipeline actions."""

from __future__ import annotations

import re
from typing import NamedTuple

from tracetool.model.action import ActionKind

SQL_PATTERN = r"^(PP:\d+|Forward \d+$|Backward \d+$)"
"""Names of annotations that label pipeline actions, as a DuckDB regular expression."""

_PP = re.compile(r"^PP:(?P<stage>\d+)(?P<kind>SEND_F|RECV_F|SEND_B|RECV_B|REDUCE_GRAD|[FBIW])(?P<microbatch>\d*)$")
_PLAIN = re.compile(r"^(?P<kind>Forward|Backward) (?P<microbatch>\d+)$")


class Label(NamedTuple):
    """A label's meaning; ``stage`` is None where the name does not tell it."""

    stage: int | None
    kind: ActionKind
    microbatch: int


def parse_label(name: str) -> Label | None:
    """Read ``PP:2F0`` (torch's action runtime) or ``Forward 0`` (torch's GPipe); None for other names."""
    match = _PP.match(name)
    if match is not None:
        kind = ActionKind(match["kind"])
        if not match["microbatch"]:
            return Label(int(match["stage"]), kind, -1) if kind is ActionKind.REDUCE_GRAD else None
        return Label(int(match["stage"]), kind, int(match["microbatch"]))
    match = _PLAIN.match(name)
    if match is not None:
        return Label(None, ActionKind(match["kind"][0]), int(match["microbatch"]))
    return None
