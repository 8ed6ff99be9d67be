"""Whether buffers of received messages stand before the step, one per message, or come and go with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import RankProfile
    from tracetool.reconstruction.capture.account import Account
    from tracetool.reconstruction.capture.messages import P2POp
    from tracetool.reconstruction.memory.log import Log

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
