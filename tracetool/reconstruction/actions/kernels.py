"""Kernels of one rank and step, with what the trace says around them."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tracetool.reconstruction.actions import Kernel
from tracetool.reconstruction.actions.labels import SQL_PATTERN
from tracetool.reconstruction.steps.reading import SPANS

if TYPE_CHECKING:
    from tracetool.reconstruction.steps.reading import Span, StepReading

_OPTIMIZER = re.compile(r"Adam|Sgd|Momentum|Lamb|Muon", re.IGNORECASE)


def _islands(name: str, rows: str) -> str:
    """SQL: a table of intervals per span and thread, those that overlap on one ``island``.

    A join over intervals compares each with each: on an island there are few.
    """
    in_order = "OVER (PARTITION BY number, thread ORDER BY start_ns, event ROWS BETWEEN UNBOUNDED PRECEDING AND"
    return f"""
{name}_in_order AS (
    SELECT *, coalesce(start_ns > max(end_ns) {in_order} 1 PRECEDING), true) AS is_apart FROM ({rows})
),
{name} AS (SELECT *, count_if(is_apart) {in_order} CURRENT ROW) AS island FROM {name}_in_order)
"""


def _around(rows: str, at: str, until: str, intervals: str, columns: str) -> str:
    """SQL: what of the intervals around each row is asked for, all of them on its thread and within its span.

    Args:
        rows: Those that lie within intervals.
        at: Column of a row that says when it begins.
        until: Column that says when it ends.
        intervals: Made by ``_islands``.
        columns: Of the intervals as ``n``.
    """
    of_row = "n.number = r.number AND n.thread = r.thread"
    return f"""
    SELECT r.number, r.event, {columns}
    FROM (
        SELECT r.number, r.event, r.thread, r.{at} AS at_ns, r.{until} AS until_ns, n.island
        FROM {rows} AS r ASOF JOIN {intervals} AS n ON {of_row} AND n.start_ns <= r.{at}
    ) AS r
    JOIN {intervals} AS n
      ON {of_row} AND n.island = r.island AND n.start_ns <= r.at_ns AND n.end_ns >= r.until_ns
    GROUP BY r.number, r.event
"""


_NODES = _islands(
    "nodes",
    """
    SELECT s.number, e.event, e.thread, e.start_ns, e.start_ns + e.duration_ns AS end_ns, e.sequence_number,
           regexp_replace(e.name, '^autograd::engine::evaluate_function: (torch::autograd::)?', '') AS name
    FROM events AS e
    JOIN spans AS s ON s.rank = e.rank AND e.start_ns < s.last AND e.start_ns + e.duration_ns >= s.first
    WHERE e.category = 'op' AND starts_with(e.name, 'autograd::engine::evaluate_function')
    """,
)
_FUNCTIONS = _islands(
    "functions",
    """
    SELECT s.number, e.event, e.thread, e.start_ns, e.start_ns + e.duration_ns AS end_ns, e.sequence_number
    FROM events AS e
    JOIN spans AS s ON s.rank = e.rank AND e.start_ns < s.last AND e.start_ns + e.duration_ns >= s.first
    WHERE e.category = 'op' AND e.sequence_number IS NOT NULL
    """,
)
_CONTEXT = f"""
{SPANS},
{_NODES},
"""
"""Common table expressions: the autograd nodes of each span."""


def _marked(rows: str, at: str) -> str:
    """SQL: common table expressions of the labels, and of the steps of optimizers, that rows begin in.

    Args:
        rows: Those that begin at some time of their rank.
        at: Column that says when.
    """
    marks = "SELECT rank, start_ns, start_ns + duration_ns AS end_ns, name FROM events"
    of_ranks = "rank IN (SELECT rank FROM spans) AND category = 'annotation'"
    begun = f"(SELECT number, rank, event, {at} AS at_ns FROM {rows}) AS r"
    return f"""
labelled AS (
    SELECT r.number, r.event, m.name AS label
    FROM {begun} ASOF JOIN ({marks} WHERE {of_ranks} AND regexp_matches(name, $labels)) AS m
      ON m.rank = r.rank AND m.start_ns <= r.at_ns
    WHERE r.at_ns <= m.end_ns
),
optimizing AS (
    SELECT r.number, r.event
    FROM {begun} ASOF JOIN ({marks} WHERE {of_ranks} AND starts_with(name, 'Optimizer.step')) AS m
      ON m.rank = r.rank AND m.start_ns <= r.at_ns
    WHERE r.at_ns <= m.end_ns
)
"""


_NODES_AROUND = """
    arg_max(n.sequence_number, (n.start_ns, -n.end_ns)) AS backward_of,
    arg_min(n.sequence_number, (n.start_ns, -n.end_ns)) AS root_of,
    arg_max(n.event, (n.start_ns, -n.end_ns)) AS node, arg_min(n.event, (n.start_ns, -n.end_ns)) AS root_node,
    arg_max(n.name, (n.start_ns, -n.end_ns)) AS node_name
"""
"""The innermost and the outermost node: they nest where a backward runs another one (reentrant checkpointing). Of nodes
that begin together, as in traces whose times are whole us, the longer one is around the other."""

_NUMBER = "arg_max(n.sequence_number, (n.start_ns, -n.end_ns)) AS sequence_number"
_AUTOGRAD_SQL = f"""
WITH {_CONTEXT}launched AS (
    SELECT s.number, k.rank, k.event, k.name, k.start_ns, k.start_ns + k.duration_ns AS end_ns, k.stream, k.blocks,
           k.external_id, l.start_ns AS launch_ns, l.thread, k.category = 'memcpy' AS is_copy,
           k.category = 'kernel' AND regexp_matches(lower(k.name), '^(nccl|rccl|mscclpp)') AS is_communication
    FROM events AS k
    JOIN events AS l ON l.rank = k.rank AND l.category = 'launch' AND l.correlation = k.correlation
    JOIN spans AS s ON s.rank = l.rank AND l.start_ns >= s.first AND l.start_ns < s.last
    WHERE k.category IN ('kernel', 'memcpy', 'memset')
),
inside AS ({_around("launched", "launch_ns", "launch_ns", "nodes", _NODES_AROUND)}),
ops AS (
    SELECT rank, external_id, any_value(sequence_number) AS sequence_number, any_value(name) AS name
    FROM events
    WHERE rank IN (SELECT rank FROM spans) AND category = 'op' AND external_id IS NOT NULL
    GROUP BY rank, external_id
),
-- Ops inside a Function of the user run without a graph; the Function around them has the number.
bare AS (
    SELECT number, event, thread, launch_ns
    FROM launched LEFT JOIN ops USING (rank, external_id) ANTI JOIN inside USING (number, event)
    WHERE ops.sequence_number IS NULL
),
{_FUNCTIONS},
numbered AS ({_around("bare", "launch_ns", "launch_ns", "functions", _NUMBER)}),
transfers AS (
    SELECT rank, stream, start_ns, bool_or(operation IN ('send', 'recv')) AS is_p2p,
           bool_or(operation = 'barrier') AS is_barrier
    FROM comms WHERE rank IN (SELECT rank FROM spans) AND start_ns IS NOT NULL GROUP BY ALL
),
streams AS (
    SELECT number, mode(stream) AS stream FROM launched WHERE NOT is_communication AND NOT is_copy GROUP BY number
),
{_marked("launched", "launch_ns")}
SELECT
    k.number, k.start_ns, k.end_ns, k.launch_ns, labelled.label,
    coalesce(op.sequence_number, numbered.sequence_number) AS sequence_number,
    inside.event IS NOT NULL AS in_backward, inside.backward_of,
    coalesce(t.is_p2p, false) AS is_p2p,
    coalesce(t.is_barrier, false) AS is_barrier,
    k.is_communication AND NOT coalesce(t.is_p2p OR t.is_barrier, false) AS is_collective,
    optimizing.event IS NOT NULL AS is_optimizer,
    NULL AS kernel_class,
    NOT k.is_copy AND k.stream = streams.stream AS is_compute,
    k.event, k.name, k.stream, k.blocks,
    inside.node, inside.root_node, inside.node_name, inside.root_of, op.name AS op_name, k.external_id AS op
FROM launched AS k
LEFT JOIN ops AS op ON op.rank = k.rank AND op.external_id = k.external_id
LEFT JOIN transfers AS t ON t.rank = k.rank AND t.stream = k.stream AND t.start_ns = k.start_ns
LEFT JOIN streams ON streams.number = k.number
LEFT JOIN inside ON inside.number = k.number AND inside.event = k.event
LEFT JOIN numbered ON numbered.number = k.number AND numbered.event = k.event
LEFT JOIN labelled ON labelled.number = k.number AND labelled.event = k.event
LEFT JOIN optimizing ON optimizing.number = k.number AND optimizing.event = k.event
"""

_DEVICE_SQL = f"""
WITH {SPANS}
SELECT s.number, e.start_ns, e.start_ns + e.duration_ns AS end_ns, e.kernel_class, false AS is_p2p,
       false AS is_collective, e.event, e.name, e.stream, e.label
FROM events AS e JOIN spans AS s ON s.rank = e.rank AND e.start_ns >= s.first AND e.start_ns < s.last
WHERE e.category = 'kernel'
UNION ALL
SELECT DISTINCT s.number, c.start_ns, c.end_ns, NULL, c.operation IN ('send', 'recv'),
       c.operation NOT IN ('send', 'recv'), NULL, c.operation, c.stream, NULL
FROM comms AS c JOIN spans AS s ON s.rank = c.rank AND c.start_ns >= s.first AND c.start_ns < s.last
ORDER BY number, start_ns, end_ns
"""

_THREADS_SQL = f"""
WITH {SPANS}
SELECT s.number, k.event, l.thread
FROM events AS k
JOIN events AS l ON l.rank = k.rank AND l.category = 'launch' AND l.correlation = k.correlation
JOIN spans AS s ON s.rank = l.rank AND l.start_ns >= s.first AND l.start_ns < s.last
WHERE k.stream IS NOT NULL AND l.thread IS NOT NULL AND NOT contains(l.name, 'GraphLaunch')
ORDER BY s.number
"""

_NODES_SQL = f"""
WITH {SPANS}
SELECT DISTINCT s.number, e.sequence_number
FROM events AS e JOIN spans AS s ON s.rank = e.rank AND e.start_ns >= s.first AND e.start_ns < s.last
WHERE e.category = 'op' AND starts_with(e.name, 'autograd::engine::evaluate_function')
  AND e.sequence_number IS NOT NULL
ORDER BY s.number
"""

_HOST_SQL = f"""
WITH {_CONTEXT}ops AS (
    SELECT s.number, e.rank, e.event, e.name, e.thread, e.start_ns, e.start_ns + e.duration_ns AS end_ns,
           e.sequence_number
    FROM events AS e JOIN spans AS s ON s.rank = e.rank AND e.start_ns >= s.first AND e.start_ns < s.last
    WHERE e.category = 'op' AND NOT regexp_matches(e.name, '^(c10d::|record_param_comms|autograd::engine::)')
),
inside AS ({_around("ops", "start_ns", "end_ns", "nodes", _NODES_AROUND)}),
{_marked("ops", "start_ns")}
SELECT
    o.number, o.start_ns, o.end_ns, o.start_ns AS launch_ns, labelled.label,
    o.sequence_number, inside.event IS NOT NULL AS in_backward, inside.backward_of,
    false AS is_p2p, false AS is_barrier, false AS is_collective,
    optimizing.event IS NOT NULL AS is_optimizer, NULL AS kernel_class, true AS is_compute,
    o.event, o.name, NULL AS stream, NULL AS blocks,
    inside.node, inside.root_node, inside.node_name, inside.root_of, o.name AS op_name, o.event AS op
FROM ops AS o
LEFT JOIN inside ON inside.number = o.number AND inside.event = o.event
LEFT JOIN labelled ON labelled.number = o.number AND labelled.event = o.event
LEFT JOIN optimizing ON optimizing.number = o.number AND optimizing.event = o.event
"""


def autograd_kernels(reading: StepReading, rank: int, span: Span) -> list[Kernel]:
    """Kernels launched within the span of host time, in launch order, with their host context."""
    kernels = reading.rows(_AUTOGRAD_SQL, rank, span, Kernel._make, labels=SQL_PATTERN)
    return sorted(kernels, key=attrgetter("launch_ns", "start_ns", "event"))


def launch_threads(reading: StepReading, rank: int, span: Span) -> dict[int, int]:
    """The host thread that launched each kernel within the span of host time, by the kernel's event.

    Those of CUDA graphs are left out: a graph is launched from one thread, whatever is in it.
    """
    return dict(reading.rows(_THREADS_SQL, rank, span))


def host_kernels(reading: StepReading, rank: int, span: Span) -> list[Kernel]:
    """Ops of a trace without a device, as if each were a kernel: the host itself computes (nested ops overlap)."""
    ops = reading.rows(_HOST_SQL, rank, span, Kernel._make, labels=SQL_PATTERN)
    return sorted(ops, key=lambda op: (op.start_ns, -op.end_ns, op.event))


def nodes_that_ran(reading: StepReading, rank: int, span: Span) -> set[int]:
    """Sequence numbers of the autograd nodes that ran within the span of host time."""
    return {number for (number,) in reading.rows(_NODES_SQL, rank, span)}


def device_kernels(reading: StepReading, rank: int, span: Span) -> list[Kernel]:
    """Kernels that started within the span of device time, in order: traces without host launches."""
    return list(reading.rows(_DEVICE_SQL, rank, span, _on_device))


def _on_device(row: tuple[Any, ...]) -> Kernel:
    start, end, kind, is_p2p, is_collective, event, name, stream, label = row
    return Kernel(
        start, end, start, is_p2p=is_p2p, is_collective=is_collective, kernel_class=kind,
        is_optimizer=_OPTIMIZER.search(kind or "") is not None, event=event, name=name, stream=stream, label=label,
    )  # fmt: skip


_CUTS_SQL = f"""
WITH {SPANS}
SELECT s.number, e.start_ns
FROM events AS e JOIN spans AS s ON s.rank = e.rank AND e.start_ns >= s.first AND e.start_ns < s.last
WHERE e.category = 'op' AND e.name = 'aten::detach' AND e.sequence_number IS NOT NULL
ORDER BY s.number, e.start_ns
"""


def graph_cuts(reading: StepReading, rank: int, span: Span) -> list[int]:
    """Host times at which an activation was detached from its graph: where torch hands it to the next stage."""
    return [time for (time,) in reading.rows(_CUTS_SQL, rank, span)]
