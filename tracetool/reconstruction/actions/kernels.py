"""Kernels of one rank and step, with what the trace says around them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tracetool.reconstruction.actions.labels import SQL_PATTERN

if TYPE_CHECKING:
    from tracetool.store.run import Run

_ENGINE = re.compile(r"^(autograd::engine::evaluate_function: )?(torch::autograd::)?")
_GRADIENT = re.compile(r"Grad", re.IGNORECASE)
_MARKER = re.compile(r"FlashAttention|RmsNorm|LayerNorm|Softmax|PromptFlash|FusionAttention", re.IGNORECASE)
_CLIPPING = re.compile(r"LpNorm", re.IGNORECASE)
_OPTIMIZER = re.compile(r"Adam|Sgd|Momentum|Lamb|Muon", re.IGNORECASE)


class Kernel(NamedTuple):
    """One kernel.

    Attributes:
        start_ns: Start on the device.
        end_ns: End on the device.
        launch_ns: Host time of its launch (Ascend: its start).
        label: Name of the framework label around the launch; of a trace that lists operations, its action.
        sequence_number: Autograd number of the op that launched it.
        in_backward: Whether an autograd node launched it.
        backward_of: Sequence number of that node: that of the forward op it undoes.
        is_p2p: Whether it sends or receives.
        is_barrier: Whether it belongs to a barrier.
        is_collective: Whether it is a collective.
        is_compute: Whether its time is its action's: it runs on the compute stream and is no copy.
        is_optimizer: Whether it was launched inside the optimizer's step.
        kernel_class: Ascend kernel type.
        event: Number of the event within its rank; -1 for a communication operation that is none.
        name: Name of the kernel.
        stream: Device stream.
        blocks: Thread blocks of its grid.
        node: Event number of the autograd node around its launch, the innermost one; None outside a backward.
        root_node: Event number of the outermost node around its launch.
        node_name: Name of the innermost node, as ``MmBackward0``.
        root_of: Like ``backward_of``, of the outermost node (they differ where a backward runs another one).
        op_name: Name of the op that launched it.
        op: Number of that op: kernels of one call share it.
    """

    start_ns: int
    end_ns: int
    launch_ns: int
    label: str | None = None
    sequence_number: int | None = None
    in_backward: bool = False
    backward_of: int | None = None
    is_p2p: bool = False
    is_barrier: bool = False
    is_collective: bool = False
    is_optimizer: bool = False
    kernel_class: str | None = None
    is_compute: bool = True
    event: int = -1
    name: str = ""
    stream: int | None = None
    blocks: int | None = None
    node: int | None = None
    root_node: int | None = None
    node_name: str | None = None
    root_of: int | None = None
    op_name: str | None = None
    op: int | None = None

    @property
    def issued_ns(self) -> int:
        """Host time at which the host was through with it: an op of the host itself is then over."""
        return self.launch_ns if self.stream is not None or self.launch_ns != self.start_ns else self.end_ns

    @property
    def is_recompute(self) -> bool:
        """Whether it repeats a forward inside the backward: ops get autograd numbers only where a graph is built.

        A node shows a number, too, that of the forward it undoes, and may launch kernels without an op in between.
        """
        return self.in_backward and self.sequence_number is not None and not self._is_of_node

    @property
    def _is_of_node(self) -> bool:
        """Whether the node around the launch launched it itself."""
        return self.node_name is not None and _ENGINE.sub("", self.op_name or "") == self.node_name

    @property
    def is_gradient(self) -> bool:
        """Whether its type names a gradient."""
        return _GRADIENT.search(self.kernel_class or "") is not None

    @property
    def is_clipping(self) -> bool:
        """Whether its type is that of the gradient norm, which follows the last backward."""
        return _CLIPPING.search(self.kernel_class or "") is not None

    @property
    def is_root_gradient(self) -> bool:
        """Whether its type is that of the fill with which autograd starts a backward from the loss."""
        return self.kernel_class == "Fill"

    @property
    def is_marker(self) -> bool:
        """Whether its type exists in a forward and a backward form, so that it tells them apart."""
        return _MARKER.search(self.kernel_class or "") is not None


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
    arg_max(n.sequence_number, n.start_ns) AS backward_of, arg_min(n.sequence_number, n.start_ns) AS root_of,
    arg_max(n.event, n.start_ns) AS node, arg_min(n.event, n.start_ns) AS root_node,
    arg_max(n.name, n.start_ns) AS node_name
"""
"""The innermost and the outermost node: they nest where a backward runs another one (reentrant checkpointing)."""

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
    SELECT k.event, arg_max(o.sequence_number, o.start_ns) AS sequence_number
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
       -1, operation, stream, NULL
FROM comms
WHERE rank = $rank AND start_ns >= $first AND start_ns < $last
ORDER BY start_ns, end_ns
"""


def autograd_kernels(run: Run, rank: int, span: tuple[int, int]) -> list[Kernel]:
    """Kernels launched within the span of host time, in launch order, with their host context."""
    parameters = {"rank": rank, "first": span[0], "last": span[1], "labels": SQL_PATTERN}
    return [Kernel(**row) for row in run.records(_AUTOGRAD_SQL, parameters)]


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
