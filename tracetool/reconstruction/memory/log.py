"""The allocator's log of each rank in a step, from whichever source of it tells most, and what lies beside it.

Whether buffers of received messages stand before the step, one per message, or come and go with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import NoticeCode
from tracetool.units import format_duration, format_ranks, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tracetool.model.pipeline import RankProfile
    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.capture.messages import P2POp
    from tracetool.store.run import Run

    Numbers = NDArray[np.int64]
    Bools = NDArray[np.bool_]

NO_BLOCK = -1
SNAPSHOT = "torch snapshot"
ALLOCATORS = ("torch", SNAPSHOT, "PTA")
"""Components that log a caching allocator, the one whose log is believed first."""
_PROCESS = "APP"
_MODULE = "module "
_SAMPLES_PER_ACTION = 10

_STEP_SQL = """
FROM memory AS m
JOIN (SELECT unnest($ranks) AS rank, unnest($first) AS first, unnest($last) AS last) AS step ON step.rank = m.rank
WHERE time_ns >= first AND time_ns < last
"""
_COUNTS_SQL = f"SELECT m.rank, component, count(*) {_STEP_SQL} GROUP BY ALL ORDER BY ALL"
_ROWS_SQL = f"""
SELECT time_ns,
    delta_bytes IS NOT NULL AS changes, coalesce(delta_bytes, 0) AS delta_bytes,
    allocated_bytes IS NOT NULL AS allocates, coalesce(allocated_bytes, 0) AS allocated_bytes,
    reserved_bytes IS NOT NULL AS reserves, coalesce(reserved_bytes, 0) AS reserved_bytes,
    coalesce(block, {NO_BLOCK}) AS block
{_STEP_SQL}
ORDER BY m.rank, component, time_ns, m.allocated_bytes
"""

_SPANS_SQL = """
WITH traced AS (
    SELECT rank, min(start_ns) AS first_ns, max(start_ns + duration_ns) AS last_ns FROM events
    WHERE rank IN (SELECT rank FROM memory WHERE component = $component)
    GROUP BY rank
)
SELECT m.rank, min(m.time_ns), max(m.time_ns), any_value(t.first_ns), any_value(t.last_ns)
FROM memory AS m JOIN traced AS t ON t.rank = m.rank
WHERE m.component = $component
GROUP BY m.rank
HAVING min(m.time_ns) > any_value(t.last_ns) OR max(m.time_ns) < any_value(t.first_ns)
ORDER BY m.rank
"""


class Records(NamedTuple):
    """What a component's records of memory say, in the order of time: 0 bytes, and so marked, where they say none.

    Attributes:
        time_ns: Host times.
        changes: Which say what was allocated or freed.
        delta_bytes: How much.
        allocates: Which say how much is allocated.
        allocated_bytes: How much.
        reserves: Which say how much is reserved.
        reserved_bytes: How much.
        block: What was allocated or freed; ``NO_BLOCK`` where that is not said.
    """

    time_ns: Numbers
    changes: Bools
    delta_bytes: Numbers
    allocates: Bools
    allocated_bytes: Numbers
    reserves: Bools
    reserved_bytes: Numbers
    block: Numbers

    def where(self, mask: Bools) -> Records:
        """Some of them."""
        return Records._make(column[mask] for column in self)

    @property
    def most_reserved_bytes(self) -> int | None:
        """Highest reservation; None if none is said."""
        return int(self.reserved_bytes[self.reserves].max()) if self.reserves.any() else None


class Log(NamedTuple):
    """Changes of one allocator in the order of time.

    Attributes:
        component: Whose log it is.
        time_ns: Host times.
        delta_bytes: What each change adds.
        base_bytes: Allocated before the first of them.
        block: What was allocated or freed; ``NO_BLOCK`` where the log does not say.
        continuous: Share of the changes after which as much is allocated as the log itself says.
        is_samples: Whether it holds levels at some times only, rather than every change.
    """

    component: str
    time_ns: Numbers
    delta_bytes: Numbers
    base_bytes: int
    block: Numbers
    continuous: float
    is_samples: bool

    @property
    def interval_ns(self) -> int:
        """Median time between two records."""
        import numpy as np

        return int(np.median(np.diff(self.time_ns))) if len(self.time_ns) > 1 else 0

    def too_coarse(self, action_ns: int) -> str | None:
        """Why its samples cannot tell what an action of this length holds; None if they can."""
        if not self.is_samples or self.interval_ns * _SAMPLES_PER_ACTION <= action_ns:
            return None
        return (
            f"{self.component}'s levels are samples without the changes between them, and fewer than "
            f"{_SAMPLES_PER_ACTION} of them to the shortest action"
        )


@dataclass(frozen=True, slots=True)
class Beyond:
    """What a rank occupies on its device beyond what its allocator has allocated, at most within a step.

    Attributes:
        peak_allocated_bytes: Highest allocation, as the allocator says.
        reserved_bytes: Highest reservation of the allocator; None if unknown.
        other_bytes: What the process holds besides the allocator's reservation; None if the trace does not tell.
        modules: Bytes of each library, as the driver counts them, largest first.
    """

    peak_allocated_bytes: int
    reserved_bytes: int | None = None
    other_bytes: int | None = None
    modules: tuple[tuple[str, int], ...] = ()

    @property
    def overhead_bytes(self) -> int | None:
        """Device memory needed beyond the highest allocation; None if the reservation is unknown."""
        if self.reserved_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.peak_allocated_bytes) + (self.other_bytes or 0)


def read_logs(run: Run, spans: Mapping[int, tuple[int, int]]) -> dict[int, dict[str, Records]]:
    """All records of memory in a span of each rank's host, per rank and component, in order of time."""
    bounds = list(spans.values())
    step = {"ranks": list(spans), "first": [a for a, _ in bounds], "last": [b for _, b in bounds]}
    records = run.arrow(_ROWS_SQL, step)
    columns = {name: records.column(name).to_numpy() for name in Records._fields}
    logs: dict[int, dict[str, Records]] = {rank: {} for rank in spans}
    first = 0
    for rank, component, count in run.rows(_COUNTS_SQL, step):
        logs[rank][component] = Records(**{name: column[first : first + count] for name, column in columns.items()})
        first += count
    return logs


def choose_log(components: Mapping[str, Records]) -> Log | None:
    """The log of the allocator, the surest that the trace holds; None if there is none of it.

    A log that names each change comes before one that only gives levels.
    """
    logs = [log for name in ALLOCATORS if name in components and (log := _log(name, components[name])) is not None]
    return min(logs, key=lambda log: log.is_samples, default=None)


def _log(component: str, records: Records) -> Log | None:
    import numpy as np

    known = records.where(records.allocates)
    if not len(known.time_ns):
        return None
    base = int(known.allocated_bytes[0] - known.delta_bytes[0])
    delta = np.diff(known.allocated_bytes, prepend=base)
    agree = (known.delta_bytes == delta)[known.changes]
    return Log(
        component,
        known.time_ns,
        delta,
        base,
        known.block,
        float(agree.mean()) if len(agree) else 0.0,
        is_samples=not known.changes.any(),
    )


def beyond_allocations(components: Mapping[str, Records], log: Log) -> Beyond:
    """What lies beside the allocator's own memory, within the records of a step."""
    import numpy as np

    records = components[log.component]
    peak = int(records.allocated_bytes[records.allocates].max(initial=0))
    reserved = records.most_reserved_bytes
    modules = {
        name.removeprefix(_MODULE): part.most_reserved_bytes or 0
        for name, part in components.items()
        if name.startswith(_MODULE) and name != _MODULE + _PROCESS
    }
    listed = tuple(sorted(((n, size) for n, size in modules.items() if size), key=lambda item: (-item[1], item[0])))
    if reserved is None:
        return Beyond(peak, modules=listed)
    process = components.get(_PROCESS)
    other = None
    if process is not None:
        held, mine = process.where(process.reserves), records.where(records.reserves)
        at = np.searchsorted(mine.time_ns, held.time_ns, "right") - 1
        together = held.reserved_bytes - mine.reserved_bytes[np.maximum(at, 0)]
        other = max(0, int(together.max())) if len(together) else None
    return Beyond(peak, reserved, other, listed)


def record_snapshots_apart_in_time(run: Run, account: Account) -> None:
    """Say which ranks' memory snapshots were recorded at another time than their traces."""
    for rank, first, last, traced_first, traced_last in run.rows(_SPANS_SQL, {"component": SNAPSHOT}):
        if last < traced_first:
            where = f"ends {format_duration(traced_first - last)} before its trace begins"
        else:
            where = f"begins {format_duration(first - traced_last)} after its trace ends"
        account.note(
            NoticeCode.SNAPSHOT_UNUSED,
            f"{format_ranks([rank])}: its memory snapshot {where}, so it is not used: another run, another time base, "
            "or a history too short to reach back",
        )


_JUST_BEFORE_NS = 300_000
_ROUNDING_BYTES = 2**21
_FEW = 0.2


def standing_buffer_bytes(posts: Sequence[P2POp], log: Log | None, launched_ns: Sequence[int]) -> int | None:
    """Bytes of the messages a rank receives in a step, where their buffers stand before it.

    Torch's pipelining allocates one for each message of a step once; Megatron one after another, just ahead of each
    receive. So a log with hardly any allocation of a message's size ahead of the receives has the standing kind.
    What was allocated ahead of the last launch is what that kernel writes: activations are as large as messages.

    Args:
        posts: Sends and receives of the rank in the step.
        log: The allocator's log of the rank, on the host's clock.
        launched_ns: Host times of launches of the rank's actions.

    Returns:
        0 where buffers come and go; None where log or sizes do not tell.
    """
    import numpy as np

    received = [op for op in posts if not op.is_send]
    if log is None or log.is_samples or any(op.payload_bytes is None for op in received):
        return None
    sizes = np.array([op.payload_bytes for op in received], np.int64)
    posted = np.array([op.posted_ns for op in received], np.int64)
    launches = np.sort(np.array([-(2**62), *launched_ns], np.int64))
    launched = launches[np.searchsorted(launches, posted) - 1]
    first = np.searchsorted(log.time_ns, np.maximum(posted - _JUST_BEFORE_NS, launched))
    last = np.searchsorted(log.time_ns, posted, "right")
    fresh = sum(
        bool(((log.delta_bytes[a:b] >= size) & (log.delta_bytes[a:b] < size + _ROUNDING_BYTES)).any())
        for a, b, size in zip(first.tolist(), last.tolist(), sizes.tolist(), strict=True)
    )
    return int(sizes.sum()) if fresh <= _FEW * len(received) else 0


def record_standing_buffers(ranks: Sequence[RankProfile], account: Account) -> None:
    """Say which static memory is buffers, since a replay of more microbatches or messages takes more of it."""
    standing = {r.rank: r.receive_buffer_bytes for r in ranks if r.receive_buffer_bytes}
    if standing:
        account.find(
            "receive buffers", "all",
            "one per message of a step among the static bytes: "
            + ", ".join(f"rank {rank} {format_size(size)}" for rank, size in standing.items()),
            "inferred", len(standing) / len(ranks),
        )  # fmt: skip
