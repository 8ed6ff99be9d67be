"""Labels that frameworks write around pipeline actions."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import ReconstructError
from tracetool.model.action import COMPUTE_KINDS, Action, ActionKind
from tracetool.reconstruction.actions.pieces import Piece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruction.actions import Kernel

SQL_PATTERN = r"^(PP:(\d+|\()|Forward \d+$|Backward \d+$)"
"""Names of annotations that label pipeline actions, as a DuckDB regular expression."""

_PP = re.compile(r"^(?P<stage>\d+)(?P<kind>SEND_F|RECV_F|SEND_B|RECV_B|REDUCE_GRAD|[FBIW])(?P<microbatch>\d*)$")
_OVERLAP = re.compile(r"^PP:\((?P<actions>[^)]*)\)OVERLAP_F_B$")
_PLAIN = re.compile(r"^(?P<kind>Forward|Backward) (?P<microbatch>\d+)$")


class Label(NamedTuple):
    """A label's meaning; ``stage`` is None where the name does not tell it, ``microbatch`` where it is of all."""

    stage: int | None
    kind: ActionKind
    microbatch: int | None


def parse_label(name: str) -> Label | None:
    """Read ``PP:2F0`` (torch's action runtime) or ``Forward 0`` (torch's GPipe); None for other names."""
    if name.startswith("PP:"):
        return _parse_action(name.removeprefix("PP:"))
    match = _PLAIN.match(name)
    if match is not None:
        return Label(None, ActionKind(match["kind"][0]), int(match["microbatch"]))
    return None


def parse_labels(name: str) -> tuple[Label, ...]:
    """The same, also for two actions under one name: ``PP:(3F4;4B0)OVERLAP_F_B``."""
    overlap = _OVERLAP.match(name)
    parts = [parse_label(name)] if overlap is None else [_parse_action(a) for a in overlap["actions"].split(";")]
    return tuple(label for label in parts if label is not None)


def _parse_action(text: str) -> Label | None:
    match = _PP.match(text)
    if match is None:
        return None
    kind = ActionKind(match["kind"])
    if not match["microbatch"]:
        return Label(int(match["stage"]), kind, None) if kind is ActionKind.REDUCE_GRAD else None
    return Label(int(match["stage"]), kind, int(match["microbatch"]))


def label_of(kernels: Sequence[Kernel], *, is_forward: bool) -> Label | None:
    """The label that most of a piece's kernels were launched in."""
    names = Counter(k.label for k in kernels if k.label)
    if not names:
        return None
    ((name, _),) = names.most_common(1)
    labels = [label for label in parse_labels(name) if label.kind.value in COMPUTE_KINDS]
    return next((label for label in labels if (label.kind is ActionKind.FORWARD) is is_forward), None)


def pieces_of_actions(kernels: Sequence[Kernel]) -> tuple[list[Piece], list[Kernel]]:
    """Operations that the trace itself lists by action (NDTimeline, straggler analysis), a piece each.

    Returns:
        The pieces with stage and microbatch, and the operations that belong to none.
    """
    pieces: dict[Action, Piece] = {}
    forwards: dict[tuple[int, int], int] = {}
    loose: list[Kernel] = []
    for kernel in kernels:
        if kernel.label is None:
            loose.append(kernel)
            continue
        action = Action.parse(kernel.label)
        stage, kind, microbatch = action
        forward = forwards.setdefault((stage, microbatch), len(forwards))
        pieces.setdefault(action, Piece(kind, forward).place(stage, microbatch)).kernels.append(kernel)
    return list(pieces.values()), loose


def _check_labels(kernels: Sequence[Kernel]) -> None:
    names = [name for name, _ in groupby(k.label for k in kernels if k.label) if name]
    again = next((name for name, count in Counter(names).items() if count > 1), None)
    if again is not None:
        raise ReconstructError(
            f"the step holds more than one action labelled '{again}': it is several steps that nothing parts.",
            hint="record with profiler.step() after every step, evaluations too",
        )


def pieces_by_label(kernels: Sequence[Kernel], position: int) -> tuple[list[Piece], list[Kernel]]:
    """Kernels launched inside a label belong to its action.

    Labels leave parts out (GPipe's ``Forward 0`` ends before the loss): an unlabelled kernel of the
    autograd graph belongs to the action labelled before it.

    Returns:
        The pieces with stage and microbatch, and the kernels that belong to none.

    Raises:
        ReconstructError: If an action is labelled more than once: the kernels are of several steps.
    """
    _check_labels(kernels)
    backward_numbers = {k.backward_of for k in kernels if k.backward_of is not None}
    pieces: dict[Action, Piece] = {}
    forwards: dict[tuple[int, int], int] = {}
    loose: list[Kernel] = []
    current: Piece | None = None
    for kernel in kernels:
        labels = parse_labels(kernel.label) if kernel.label else ()
        computes = [
            Action(position if stage is None else stage, kind, microbatch)
            for stage, kind, microbatch in labels
            if kind.value in COMPUTE_KINDS and microbatch is not None
        ]
        if computes:
            action = next(
                (c for c in computes if (c.kind is not ActionKind.FORWARD) is kernel.in_backward), computes[0]
            )
            stage, kind, microbatch = action
            forward = forwards.setdefault((stage, microbatch), len(forwards))
            current = pieces.setdefault(action, Piece(kind, forward).place(stage, microbatch))
            current.kernels.append(kernel)
            continue
        in_forward = kernel.sequence_number in backward_numbers and not kernel.in_backward
        if not labels and current is not None and (
            in_forward if current.kind is ActionKind.FORWARD else kernel.in_backward
        ):  # fmt: skip
            current.kernels.append(kernel)
        else:
            loose.append(kernel)
    return list(pieces.values()), loose
