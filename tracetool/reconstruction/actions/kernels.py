"""Kernels of one rank and step, with what the trace says around them."""

from __future__ import annotations

import re
from functools import partial
from sys import intern
from typing import TYPE_CHECKING, Any

from tracetool.reconstruction.actions import Kernel
from tracetool.reconstruction.actions.around import begun_last, by_place, holding
from tracetool.reconstruction.actions.labels import SQL_PATTERN
from tracetool.reconstruction.steps.reading import FIRST_NS, LAST_NS, SPANS

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from tracetool.reconstruction.steps.reading import Span, StepReading

_OPTIMIZER = re.compile(r"Adam|Sgd|Momentum|Lamb|Muon", re.IGNORECASE)


_LAUNCHED_SQL = f"""
SELECT rank, k.event, k.start_ns, k.start_ns + k.duration_ns AS end_ns, l.start_ns AS launch_ns, l.thread, k.name,
       k.stream, k.blocks, k.external_id AS op, k.category = 'memcpy' AS is_copy,
       k.category = 'kernel' AND regexp_matches(lower(k.name), '^(nccl|rccl|mscclpp)') AS is_communication
FROM events AS k
JOIN (
    SELECT rank, correlation, start_ns, thread FROM events
    WHERE category = 'launch' AND start_ns >= {FIRST_NS} AND start_ns < {LAST_NS}
) AS l USING (rank, correlation)
WHERE k.category IN ('kernel', 'memcpy', 'memset')
"""

_OPS_SQL = """
SELECT rank, event, external_id AS id, sequence_number, name
FROM events
WHERE list_contains($ranks, rank) AND category = 'op' AND external_id IN (SELECT unnest($ids))
"""

_HOST_SQL = f"""
SELECT rank, event, start_ns, start_ns + duration_ns AS end_ns, thread, name, sequence_number
FROM events
WHERE category = 'op' AND start_ns >= {FIRST_NS} AND start_ns < {LAST_NS}
  AND NOT regexp_matches(name, '^(c10d::|record_param_comms|autograd::engine::)')
"""

_IS_NODE = "starts_with(name, 'autograd::engine::evaluate_function')"
_AUTOGRAD_SQL = f"""
SELECT rank, thread, start_ns, start_ns + duration_ns AS end_ns, event, sequence_number,
       regexp_replace(name, '^autograd::engine::evaluate_function: (torch::autograd::)?', '') AS name
FROM events
WHERE category = 'op' AND {_IS_NODE} AND start_ns < {LAST_NS} AND start_ns + duration_ns >= {FIRST_NS}
"""

_FUNCTIONS_SQL = f"""
SELECT rank, thread, start_ns, start_ns + duration_ns AS end_ns, event, sequence_number
FROM events
WHERE category = 'op' AND sequence_number IS NOT NULL AND NOT {_IS_NODE} AND list_contains($threads, thread)
  AND start_ns < {LAST_NS} AND start_ns + duration_ns >= {FIRST_NS}
"""

_ANNOTATIONS_SQL = f"""
SELECT rank, start_ns, start_ns + duration_ns AS end_ns, event, name,
       starts_with(name, 'Optimizer.step') AS is_optimizer
FROM events
WHERE category = 'annotation' AND start_ns < {LAST_NS}
  AND (starts_with(name, 'Optimizer.step') OR regexp_matches(name, $labels))
"""

_TRANSFERS_SQL = f"""
SELECT DISTINCT rank, stream, start_ns, operation = 'barrier'
FROM comms
WHERE operation IN ('send', 'recv', 'barrier') AND start_ns >= {FIRST_NS} AND start_ns < {LAST_NS}
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

_Kernels = dict[tuple[int, "Span"], list[Kernel]]
_Columns = dict[str, "NDArray[Any]"]


def autograd_kernels(reading: StepReading, rank: int, span: Span) -> list[Kernel]:
    """Kernels launched within the span of host time, in launch order, with their host context."""
    return reading.once(_of_device)[rank, span]


def host_kernels(reading: StepReading, rank: int, span: Span) -> list[Kernel]:
    """Ops of a trace without a device, as if each were a kernel: the host itself computes (nested ops overlap)."""
    return reading.once(_of_host)[rank, span]


def _of_device(reading: StepReading) -> _Kernels:
    rows = _sorted(reading.run.columns(_LAUNCHED_SQL, reading.windows), "rank", "launch_ns", "start_ns", "event")
    rows |= _launching(reading, rows)
    rows |= _in_autograd(reading, rows, rows["launch_ns"])
    rows["sequence_number"] = _with_functions(reading, rows)
    rows |= _moving(reading, rows) | _annotated(reading, rows)
    return _by_span(reading, rows, partial(_is_compute, rows))


def _of_host(reading: StepReading) -> _Kernels:
    import numpy as np

    ops = reading.run.columns(_HOST_SQL, reading.windows)
    rows = _sorted(ops | {"earlier": -ops["end_ns"]}, "rank", "start_ns", "earlier", "event")
    rows |= {"launch_ns": rows["start_ns"], "op": rows["event"], "op_name": rows["name"]}
    rows |= _in_autograd(reading, rows, rows["end_ns"]) | _annotated(reading, rows)
    count = len(rows["event"])
    rows |= dict.fromkeys(("is_p2p", "is_barrier", "is_collective"), np.zeros(count, bool))
    rows |= dict.fromkeys(("stream", "blocks"), np.full(count, None))
    return _by_span(reading, rows, lambda own: [True] * (own.stop - own.start))


def _sorted(rows: _Columns, *by: str) -> _Columns:
    import numpy as np

    order = np.lexsort([rows[name] for name in reversed(by)])
    return {name: column[order] for name, column in rows.items()}


def _by_span(reading: StepReading, rows: _Columns, is_compute: Callable[[slice], list[bool]]) -> _Kernels:
    """Kernels of each span.

    Args:
        reading: What the spans are of.
        rows: Sorted by rank and launch.
        is_compute: Whether the time of those of one span is their action's.
    """
    lists = {name: rows[name].tolist() for name in Kernel._fields if name in rows}
    lists["name"] = list(map(intern, lists["name"]))
    kernels: _Kernels = {}
    for rank, span in reading.spans:
        own = _within(rows["rank"], rows["launch_ns"], rank, span)
        columns = {name: column[own] for name, column in lists.items()}
        columns |= {"is_compute": is_compute(own), "kernel_class": [None] * len(columns["event"])}
        in_order = (columns[name] for name in Kernel._fields)
        kernels[rank, span] = list(map(Kernel._make, zip(*in_order, strict=True)))
    return kernels


def _within(ranks: NDArray[Any], times: NDArray[Any], rank: int, span: Span) -> slice:
    """Which of some rows, sorted by rank and time, are of a rank and begin within a span."""
    import numpy as np

    first, last = np.searchsorted(ranks, [rank, rank + 1])
    begin, end = first + np.searchsorted(times[first:last], span)
    return slice(int(begin), int(end))


def _windows(rows: _Columns, time: str) -> dict[str, list[int]]:
    """Of each rank of some rows, sorted by rank, the time from the first one to the last one, as parameters."""
    import numpy as np

    ranks, firsts = np.unique(rows["rank"], return_index=True)
    first, last = (each.reduceat(rows[time], firsts) if len(ranks) else ranks for each in (np.minimum, np.maximum))
    return {"ranks": ranks.tolist(), "firsts": first.tolist(), "lasts": (last + 1).tolist()}


def _taken(column: NDArray[Any], numbers: NDArray[Any]) -> NDArray[Any]:
    """Values of some rows, masked where there is none: where the number of the row is -1."""
    import numpy as np

    values = column[numbers] if len(column) else np.zeros(len(numbers), column.dtype)
    return np.ma.array(values, mask=numbers < 0)


def _with(rows: _Columns, name: str) -> _Columns:
    """The rows in which a column is not null."""
    has_value = ~_is_null(rows[name])
    return {each: column[has_value] for each, column in rows.items()}


def _is_null(column: NDArray[Any]) -> NDArray[np.bool]:
    import numpy as np

    return np.ma.getmaskarray(column)


def _launching(reading: StepReading, rows: _Columns) -> _Columns:
    """Number and name of the op that launched each kernel: of several of one id, those of the first that has any."""
    import numpy as np

    has_op = np.flatnonzero(~_is_null(rows["op"]))
    wanted = np.ma.getdata(rows["op"])[has_op]
    ids = np.unique(wanted)
    asked = {"ranks": reading.windows["ranks"], "ids": ids.tolist()}
    ops = _sorted(reading.run.columns(_OPS_SQL, asked), "rank", "id", "event")

    def first(some: _Columns) -> NDArray[Any]:
        of_some, of_kernels = (
            ranks.astype(np.int64) * len(ids) + np.searchsorted(ids, of_ranks)
            for ranks, of_ranks in ((some["rank"], some["id"]), (rows["rank"][has_op], wanted))
        )
        places = np.searchsorted(of_some, of_kernels)
        firsts = np.full(len(rows["op"]), -1)
        firsts[has_op] = np.where(np.append(of_some, -1)[places] == of_kernels, places, -1)
        return firsts

    numbered = _with(ops, "sequence_number")
    return {
        "sequence_number": _taken(numbered["sequence_number"], first(numbered)),
        "op_name": _taken(ops["name"], first(ops)),
    }


def _held_by(ops: _Columns, rows: _Columns, until: NDArray[Any]) -> NDArray[Any]:
    """Numbers of the innermost and of the outermost of the ops around each launch, on its thread; -1 where none is."""
    import numpy as np

    around = np.full((2, len(until)), -1)
    of_place = dict(by_place(ops["rank"], ops["thread"]))
    launched = np.flatnonzero(~_is_null(rows["thread"]))
    for place, own in by_place(rows["rank"][launched], np.ma.getdata(rows["thread"])[launched]):
        if (held := of_place.get(place)) is not None:
            moments = launched[own]
            starts, ends, events = (ops[name][held] for name in ("start_ns", "end_ns", "event"))
            numbers = holding(starts, ends, events, rows["launch_ns"][moments], until[moments])
            around[:, moments] = np.where(numbers < 0, -1, held[numbers])
    return around


def _nodes(reading: StepReading) -> _Columns:
    """Autograd nodes of the spans' ranks, sorted by rank and start."""
    return _sorted(reading.run.columns(_AUTOGRAD_SQL, reading.windows), "rank", "start_ns")


def _in_autograd(reading: StepReading, rows: _Columns, until: NDArray[Any]) -> _Columns:
    """The innermost and the outermost node: they nest where a backward runs another one (reentrant checkpointing)."""
    nodes = _with(reading.once(_nodes), "thread")
    inner, outer = _held_by(nodes, rows, until)
    numbered = _with(nodes, "sequence_number")
    inner_numbered, outer_numbered = _held_by(numbered, rows, until)
    return {
        "in_backward": inner >= 0,
        "node": _taken(nodes["event"], inner),
        "root_node": _taken(nodes["event"], outer),
        "node_name": _taken(nodes["name"], inner),
        "backward_of": _taken(numbered["sequence_number"], inner_numbered),
        "root_of": _taken(numbered["sequence_number"], outer_numbered),
    }


def _with_functions(reading: StepReading, rows: _Columns) -> NDArray[Any]:
    """Number of the op that launched each kernel, or of the innermost op with any around it outside a backward.

    Ops inside a Function of the user run without a graph; the Function around them has the number.
    """
    import numpy as np

    numbers = rows["sequence_number"]
    bare = np.flatnonzero(_is_null(numbers) & ~rows["in_backward"] & ~_is_null(rows["thread"]))
    if not len(bare):
        return numbers
    of_bare = {name: rows[name][bare] for name in ("rank", "thread", "launch_ns")}
    threads = np.unique(np.ma.getdata(of_bare["thread"])).tolist()
    functions = reading.run.columns(_FUNCTIONS_SQL, {**_windows(of_bare, "launch_ns"), "threads": threads})
    inner, _ = _held_by(functions, of_bare, of_bare["launch_ns"])
    numbers[bare] = _taken(functions["sequence_number"], inner)
    return numbers


def _moving(reading: StepReading, rows: _Columns) -> _Columns:
    """Which kernels are messages, barriers and collectives; those that a record tells began with it on their stream."""
    import numpy as np

    recorded: dict[bool, set[tuple[int, int | None, int]]] = {False: set(), True: set()}
    for rank, stream, start, is_barrier in reading.run.rows(_TRANSFERS_SQL, _windows(rows, "start_ns")):
        recorded[is_barrier].add((rank, stream, start))
    starts = [start for places in recorded.values() for *_, start in places]
    likely = np.flatnonzero(np.isin(rows["start_ns"], starts))
    places = list(zip(*(rows[name][likely].tolist() for name in ("rank", "stream", "start_ns")), strict=True))
    is_p2p, is_barrier = np.zeros((2, len(rows["start_ns"])), bool)
    is_p2p[likely] = [place in recorded[False] for place in places]
    is_barrier[likely] = [place in recorded[True] for place in places]
    is_collective = rows["is_communication"] & ~is_p2p & ~is_barrier
    return {"is_p2p": is_p2p, "is_barrier": is_barrier, "is_collective": is_collective}


def _annotated(reading: StepReading, rows: _Columns) -> _Columns:
    """The label that each launch is in, and whether it is in the step of an optimizer: of each, what began last."""
    import numpy as np

    asked = {name: reading.windows[name] for name in ("ranks", "lasts")}
    marks = reading.run.columns(_ANNOTATIONS_SQL, {**asked, "labels": SQL_PATTERN})
    around = np.full((2, len(rows["rank"])), -1)
    of_rank = dict(by_place(rows["rank"]))
    for (rank, is_optimizer), own in by_place(marks["rank"], marks["is_optimizer"]):
        if (launches := of_rank.get((rank,))) is not None:
            starts, ends, events = (marks[name][own] for name in ("start_ns", "end_ns", "event"))
            numbers = begun_last(starts, ends, events, rows["launch_ns"][launches])
            around[is_optimizer, launches] = np.where(numbers < 0, -1, own[numbers])
    return {"label": _taken(marks["name"], around[0]), "is_optimizer": around[1] >= 0}


def _is_compute(rows: _Columns, own: slice) -> list[bool]:
    """Which of some kernels are no copies and on the stream on which most ran that neither copy nor communicate.

    Of several such streams that of the first event.
    """
    import numpy as np

    columns = (rows[name][own] for name in ("stream", "event", "is_copy", "is_communication"))
    streams, events, is_copy, is_communication = columns
    has_stream = ~_is_null(streams)
    streams = np.ma.getdata(streams)
    computes = has_stream & ~is_copy & ~is_communication
    used, counts = np.unique(streams[computes], return_counts=True)
    if not len(used):
        return [False] * len(streams)
    usual = computes & np.isin(streams, used[counts == counts.max()])
    stream = streams[usual][np.argmin(events[usual])]
    is_compute: list[bool] = (has_stream & ~is_copy & (streams == stream)).tolist()
    return is_compute


def launch_threads(reading: StepReading, rank: int, span: Span) -> dict[int, int]:
    """The host thread that launched each kernel within the span of host time, by the kernel's event.

    Those of CUDA graphs are left out: a graph is launched from one thread, whatever is in it.
    """
    return dict(reading.rows(_THREADS_SQL, rank, span))


def nodes_that_ran(reading: StepReading, rank: int, span: Span) -> set[int]:
    """Sequence numbers of the autograd nodes that ran within the span of host time."""
    nodes = reading.once(_nodes)
    own = _within(nodes["rank"], nodes["start_ns"], rank, span)
    numbers: list[int | None] = nodes["sequence_number"][own].tolist()
    return {number for number in numbers if number is not None}


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
