"""What a rank's host issues in one call of a layer: works on streams, and what each waits for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracetool.overlap.products import ProductTime

_LAUNCHED_RATIO = 0.3
"""Of a call's time, what is before its kernel's launch: 0.45 to 0.6 in the recordings."""


class Stream(Enum):
    """Where works run in the order they were issued."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWork:
    """One kernel or copy.

    Attributes:
        stream: Where it runs.
        issued_ns: When the host has launched it.
        duration_ns: Time alone, once all ranks are there.
        after: Numbers of works of other streams that it waits for.
        blocks: Thread blocks that communicate, and hold SMs while they do; 0 for what does not communicate.
        product: What it computes; None for what is no product.
        meets: Whether it ends on all ranks together.
        beside_ratio: Its time beside a product, over its time else, and ...
        in_tail_ratio: ... where it began in a product's last wave.
    """

    stream: Stream
    issued_ns: float
    duration_ns: float
    after: tuple[int, ...] = ()
    blocks: int = 0
    product: ProductTime | None = None
    meets: bool = False
    beside_ratio: float = 1.0
    in_tail_ratio: float = 1.0


@dataclass(slots=True)
class Program:
    """Works of one rank, as its host issues them.

    Attributes:
        works: In the order of issue.
        host_ns: When the host is free again.
    """

    works: list[StreamWork] = field(default_factory=list)
    host_ns: float = 0.0
    _last: dict[Stream, int] = field(default_factory=dict)
    _awaited: dict[Stream, tuple[int, ...]] = field(default_factory=dict)

    def issue(
        self, stream: Stream, duration_ns: float, host_ns: float, *, blocks: int = 0,
        product: ProductTime | None = None, meets: bool = False, behind: Stream | None = None,
        beside_ratio: float = 1.0, in_tail_ratio: float = 1.0,
    ) -> int:  # fmt: skip
        """Issue a work, and return its number.

        Args:
            stream: Where it runs.
            duration_ns: Time alone.
            host_ns: What the call takes.
            blocks: Thread blocks that hold SMs.
            product: What it computes.
            meets: Whether it ends on all ranks together.
            behind: A stream whose works issued so far it waits for, as a communicator's works wait for the compute
                stream's.
            beside_ratio: Its time beside a product, over its time else.
            in_tail_ratio: Its time where it began in a product's last wave, over its time else.
        """
        after = self._awaited.pop(stream, ())
        if behind is not None and behind in self._last:
            after += (self._last[behind],)
        launched = self.host_ns + host_ns * _LAUNCHED_RATIO
        self.works.append(
            StreamWork(
                stream=stream,
                issued_ns=launched,
                duration_ns=duration_ns,
                after=after,
                blocks=blocks,
                product=product,
                meets=meets,
                beside_ratio=beside_ratio,
                in_tail_ratio=in_tail_ratio,
            )
        )
        self.host_ns += host_ns
        self._last[stream] = len(self.works) - 1
        return self._last[stream]

    def wait(self, number: int, host_ns: float, stream: Stream = Stream.COMPUTE) -> None:
        """Let what is issued next on a stream wait for a work."""
        self.host_ns += host_ns
        self._awaited[stream] = (*self._awaited.get(stream, ()), number)

    def spend(self, host_ns: float) -> None:
        """Let the host do something that launches nothing."""
        self.host_ns += host_ns

    def awaited(self) -> tuple[int, ...]:
        """Works that the compute stream still waits for, which nothing on it follows."""
        return self._awaited.get(Stream.COMPUTE, ())
