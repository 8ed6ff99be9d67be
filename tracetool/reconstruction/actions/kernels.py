"""Kernels of one rank and step, with what the trace says around them.

Labels that frameworks write around pipeline actions.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import ReconstructError
from tracetool.model.action import COMPUTE_KINDS, Action, ActionKind
from tracetool.reconstruction.actions import Kernel
from tracetool.reconstruction.actions.pieces import Piece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.store.run import Run

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


_OPTIMIZER = re.compile(r"Adam|Sgd|Momentum|Lamb|Muon", re.IGNORECASE)


_CONTEXT = """
nodes AS (
    SELECT event, thread, start_ns, start_ns + duration_ns AS end_ns, sequence_number,
           regexp_replace(name, '^autograd::engine::evaluate_function: (torch::autograd::)?', '') AS name
    FROM events
    WHERE rank = $rank AND category = 'op' AND starts_with(name, 'autograd::engine::evaluate_function')
),
labels AS (
    SELECT start_ns, start_ns + duration_ns AS end_ns, name
    FROM events
    WHERE rank = $rank AND category = 'annotation' AND regexp_matches(name, $labels)
),
optimizers AS (
    SELECT start_ns, start_ns + duration_ns AS end_ns
    FROM events
    WHERE rank = $rank AND category = 'annotation' AND starts_with(name, 'Optimizer.step')
),
"""
"""Common table expressions: what the trace says around launches."""

_NODES_AROUND = """
    arg_max(n.sequence_number, (n.start_ns, -n.end_ns)) AS backward_of,
    arg_min(n.sequence_number, (n.start_ns, -n.end_ns)) AS root_of,
    arg_max(n.event, (n.start_ns, -n.end_ns)) AS node, arg_min(n.event, (n.start_ns, -n.end_ns)) AS root_node,
    arg_max(n.name, (n.start_ns, -n.end_ns)) AS node_name
"""
"""The innermost and the outermost node: they nest where a backward runs another one (reentrant checkpointing). Of nodes
that begin together, as in traces whose times are whole us, the longer one is around the other."""

_AUTOGRAD_SQL = f"""
WITH launched AS (
    SELECT k.event, k.name, k.start_ns, k.start_ns + k.duration_ns AS end_ns, k.stream, k.blocks, k.external_id,
           l.start_ns AS launch_ns, l.thread, k.category = 'memcpy' AS is_copy,
           k.category = 'kernel' AND regexp_matches(lower(k.name), '^(nccl|rccl|mscclpp)') AS is_communication
    FROM events AS k
    JOIN events AS l ON l.rank = k.rank AND l.category = 'launch' AND l.correlation = k.correlation
    WHERE k.rank = $rank AND k.category IN ('kernel', 'memcpy', 'memset')
      AND l.start_ns >= $first AND l.start_ns < $last
),
{_CONTEXT}inside AS (
    SELECT k.event, {_NODES_AROUND}
    FROM launched AS k
    JOIN nodes AS n ON n.thread = k.thread AND n.start_ns <= k.launch_ns AND n.end_ns >= k.launch_ns
      AND n.start_ns < $last AND n.end_ns >= $first  -- follows, and keeps other steps out of the join
    GROUP BY k.event
),
ops AS (
    SELECT external_id, any_value(sequence_number) AS sequence_number, any_value(name) AS name
    FROM events
    WHERE rank = $rank AND category = 'op' AND external_id IS NOT NULL
    GROUP BY external_id
),
numbered AS (
    -- Ops inside a Function of the user run without a graph; the Function around them has the number. Both sides are
    -- narrowed first: a join over intervals is slow.
    SELECT k.event, arg_max(o.sequence_number, (o.start_ns, -o.end_ns)) AS sequence_number
    FROM (
        SELECT event, thread, launch_ns
        FROM launched LEFT JOIN ops USING (external_id)
        WHERE ops.sequence_number IS NULL AND event NOT IN (SELECT event FROM inside)
    ) AS k
    JOIN (
        SELECT thread, start_ns, start_ns + duration_ns AS end_ns, sequence_number
        FROM events
        WHERE rank = $rank AND category = 'op' AND sequence_number IS NOT NULL
          AND start_ns < $last AND start_ns + duration_ns >= $first
    ) AS o ON o.thread = k.thread AND o.start_ns <= k.launch_ns AND o.end_ns >= k.launch_ns
    GROUP BY k.event
),
transfers AS (
    SELECT stream, start_ns, bool_or(operation IN ('send', 'recv')) AS is_p2p,
           bool_or(operation = 'barrier') AS is_barrier
    FROM comms WHERE rank = $rank AND start_ns IS NOT NULL GROUP BY ALL
)
SELECT
    k.start_ns, k.end_ns, k.launch_ns,
    CASE WHEN k.launch_ns <= label.end_ns THEN label.name END AS label,
    coalesce(op.sequence_number, numbered.sequence_number) AS sequence_number,
    inside.event IS NOT NULL AS in_backward,
    inside.backward_of, inside.root_of, inside.node, inside.root_node, inside.node_name, op.name AS op_name,
    k.external_id AS op,
    k.event, k.name, k.stream, k.blocks,
    coalesce(t.is_p2p, false) AS is_p2p,
    coalesce(t.is_barrier, false) AS is_barrier,
    k.is_communication AND NOT coalesce(t.is_p2p OR t.is_barrier, false) AS is_collective,
    NOT k.is_copy AND k.stream = (
        SELECT mode(stream) FROM launched WHERE NOT is_communication AND NOT is_copy
    ) AS is_compute,
    coalesce(k.launch_ns <= opt.end_ns, false) AS is_optimizer
FROM launched AS k
LEFT JOIN ops AS op USING (external_id)
LEFT JOIN transfers AS t ON t.stream = k.stream AND t.start_ns = k.start_ns
LEFT JOIN inside ON inside.event = k.event
LEFT JOIN numbered ON numbered.event = k.event
ASOF LEFT JOIN labels AS label ON label.start_ns <= k.launch_ns
ASOF LEFT JOIN optimizers AS opt ON opt.start_ns <= k.launch_ns
ORDER BY k.launch_ns, k.start_ns
"""

_DEVICE_SQL = """
SELECT start_ns, start_ns + duration_ns AS end_ns, kernel_class, false AS is_p2p, false AS is_collective,
       event, name, stream, label
FROM events
WHERE rank = $rank AND category = 'kernel' AND start_ns >= $first AND start_ns < $last
UNION ALL
SELECT DISTINCT start_ns, end_ns, NULL, operation IN ('send', 'recv'), operation NOT IN ('send', 'recv'),
       NULL, operation, stream, NULL
FROM comms
WHERE rank = $rank AND start_ns >= $first AND start_ns < $last
ORDER BY start_ns, end_ns
"""


def autograd_kernels(run: Run, rank: int, span: tuple[int, int]) -> list[Kernel]:
    """Kernels launched within the span of host time, in launch order, with their host context."""
    parameters = {"rank": rank, "first": span[0], "last": span[1], "labels": SQL_PATTERN}
    return [Kernel(**row) for row in run.records(_AUTOGRAD_SQL, parameters)]


def launch_threads(run: Run, rank: int, span: tuple[int, int]) -> dict[int, int]:
    """The host thread that launched each kernel within the span of host time, by the kernel's event.

    Those of CUDA graphs are left out: a graph is launched from one thread, whatever is in it.
    """
    rows = run.rows(
        "SELECT k.event, l.thread FROM events AS k JOIN events AS l ON l.rank = k.rank AND l.category = 'launch' "
        "AND l.correlation = k.correlation WHERE k.rank = ? AND k.stream IS NOT NULL AND l.thread IS NOT NULL "
        "AND NOT contains(l.name, 'GraphLaunch') "
        "AND l.start_ns >= ? AND l.start_ns < ?",
        [rank, *span],
    )
    return dict(rows)


_HOST_SQL = f"""
WITH {_CONTEXT}ops AS (
    SELECT event, name, thread, start_ns, start_ns + duration_ns AS end_ns, sequence_number
    FROM events
    WHERE rank = $rank AND category = 'op' AND start_ns >= $first AND start_ns < $last
      AND NOT regexp_matches(name, '^(c10d::|record_param_comms|autograd::engine::)')
),
inside AS (
    SELECT o.event, {_NODES_AROUND}
    FROM ops AS o
    JOIN nodes AS n ON n.thread = o.thread AND n.start_ns <= o.start_ns AND n.end_ns >= o.end_ns
    GROUP BY o.event
)
SELECT
    o.start_ns, o.end_ns, o.start_ns AS launch_ns,
    CASE WHEN o.start_ns <= label.end_ns THEN label.name END AS label,
    o.sequence_number, inside.event IS NOT NULL AS in_backward,
    inside.backward_of, inside.root_of, inside.node, inside.root_node, inside.node_name,
    o.name AS op_name, o.event AS op, o.event, o.name,
    coalesce(o.start_ns <= opt.end_ns, false) AS is_optimizer
FROM ops AS o
LEFT JOIN inside ON inside.event = o.event
ASOF LEFT JOIN labels AS label ON label.start_ns <= o.start_ns
ASOF LEFT JOIN optimizers AS opt ON opt.start_ns <= o.start_ns
ORDER BY o.start_ns, o.end_ns DESC
"""


def host_kernels(run: Run, rank: int, span: tuple[int, int]) -> list[Kernel]:
    """Ops of a trace without a device, as if each were a kernel: the host itself computes (nested ops overlap)."""
    parameters = {"rank": rank, "first": span[0], "last": span[1], "labels": SQL_PATTERN}
    return [Kernel(**row) for row in run.records(_HOST_SQL, parameters)]


def nodes_that_ran(run: Run, rank: int, span: tuple[int, int]) -> set[int]:
    """Sequence numbers of the autograd nodes that ran within the span of host time."""
    rows = run.rows(
        "SELECT DISTINCT sequence_number FROM events WHERE rank = ? AND category = 'op' AND start_ns >= ? "
        "AND start_ns < ? AND starts_with(name, 'autograd::engine::evaluate_function') AND sequence_number IS NOT NULL",
        [rank, *span],
    )
    return {number for (number,) in rows}


def device_kernels(run: Run, rank: int, span: tuple[int, int]) -> list[Kernel]:
    """Kernels that started within the span of device time, in order: traces without host launches."""
    rows = run.rows(_DEVICE_SQL, {"rank": rank, "first": span[0], "last": span[1]})
    return [
        Kernel(
            start, end, start, is_p2p=is_p2p, is_collective=is_collective, kernel_class=kind,
            is_optimizer=_OPTIMIZER.search(kind or "") is not None, event=event, name=name, stream=stream,
            label=label,
        )
        for start, end, kind, is_p2p, is_collective, event, name, stream, label in rows
    ]  # fmt: skip
