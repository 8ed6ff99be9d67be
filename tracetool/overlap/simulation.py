"""Works of a few ranks on their streams, and which of them hold the SMs.

Rules, each seen in recordings of H100 and H200 (torch 2.11, cuBLAS, NCCL 2.28):

- A product's blocks stay until its tiles are done. A communication kernel that comes after it gets SMs when the last
  wave leaves half as many idle as it has blocks (two fit on one), or at its end. A send that begins in such a tail
  takes a fifth longer.
- A communication kernel that came first keeps one SM per block, and since a product's blocks start in pairs on
  neighbouring SMs, about two are lost to a product per block, until it ends. It waits for the slowest rank with them.
- A product of at most two waves gave each block its tiles beforehand: blocks that start late take as long as all.
- Of two works that become ready together, that of the same stream starts before the one that waits for another
  stream's event. Where a communicator's next kernel and the product that waits for the same work are ready together,
  either may come first, on each rank by itself: ranks where it did not keep the others waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.overlap.program import Stream
from tracetool.reconstruction.closeup.slowdown import DEFAULT_FACTORS, FULL_GRID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.overlap.program import Program, StreamWork


@dataclass(frozen=True, slots=True)
class Physics:
    """Times and ratios of the rules.

    Attributes:
        launch_ns: From a launch to a kernel's start on an idle device.
        follow_ns: From a kernel's end to the next one's start on the same stream.
        event_ns: To the start of one on another stream, which waits for it.
        lost_per_block: SMs that a product loses per block of a communication kernel.
        moving_factor: Time of a product beside a communication kernel that moves bytes, over its time alone, at least.
        late_ns: How much later a communicator's next kernel starts where it comes second.
    """

    launch_ns: float = 5_000.0
    follow_ns: float = 1_300.0
    event_ns: float = 5_000.0
    lost_per_block: float = 2.0
    moving_factor: float = DEFAULT_FACTORS[FULL_GRID]
    late_ns: float = 9_000.0


IDEAL = Physics(launch_ns=0, follow_ns=0, event_ns=0, lost_per_block=0, moving_factor=1, late_ns=0)
"""A device on which nothing gets in the way of anything: closed forms hold on it."""


@dataclass(slots=True)
class _Running:
    """A work on one rank.

    Attributes:
        number: Of the work.
        left_ns: What is left of it, alone.
        started_ns: When it got onto the device.
        beside: Communication kernels that hold SMs it was to have.
        slow: Whether it began in a product's last wave.
    """

    number: int
    left_ns: float
    started_ns: float
    beside: frozenset[int] = frozenset()
    slow: bool = False


class _RankStreams:
    """One rank's streams."""

    def __init__(self, works: Sequence[StreamWork], *, late: bool) -> None:
        self.late = late
        self.queues = {stream: [n for n, work in enumerate(works) if work.stream is stream] for stream in Stream}
        self.at = dict.fromkeys(Stream, 0)
        self.ended: dict[int, float] = {}
        self.running: dict[int, _Running] = {}

    def next_of(self, stream: Stream) -> int | None:
        """The work that the stream is to start next; None while one runs, or at the end."""
        queue, at = self.queues[stream], self.at[stream]
        if at == len(queue) or (at and queue[at - 1] not in self.ended):
            return None
        return queue[at]


class Simulation:
    """Works of ranks that do the same, of which some are late where either of two works may come first."""

    def __init__(self, program: Program, physics: Physics, late: Sequence[bool]) -> None:
        self._works = program.works
        self._physics = physics
        self._ranks = [_RankStreams(self._works, late=each) for each in late]
        self._now = 0.0

    @property
    def _as_one_ns(self) -> float:
        """Times that differ by less are the same: what is left of a float's digits that far into a call."""
        return max(1e-6, 1e-13 * self._now)

    def run(self) -> list[dict[int, tuple[float, float]]]:
        """Per rank, start and end of every work."""
        spans: list[dict[int, tuple[float, float]]] = [{} for _ in self._ranks]
        while any(len(rank.ended) < len(self._works) for rank in self._ranks):
            self._start()
            self._advance()
            for rank, of_rank in zip(self._ranks, spans, strict=True):
                for number, ended in rank.ended.items():
                    if number not in of_rank:
                        of_rank[number] = (rank.running.pop(number).started_ns, ended)
        return spans

    def _ready_ns(self, rank: _RankStreams, number: int) -> float | None:
        """When a work at the head of its stream may start as far as streams go; None if it cannot be told yet."""
        work, physics = self._works[number], self._physics
        if any(other not in rank.ended for other in work.after):
            return None
        at = rank.at[work.stream]
        ready = work.issued_ns + physics.launch_ns
        if at:
            before = rank.queues[work.stream][at - 1]
            behind = physics.follow_ns
            if work.blocks and self._works[before].blocks and rank.late:
                behind += physics.late_ns
            ready = max(ready, rank.ended[before] + behind)
        ready = max([ready, *(rank.ended[other] + physics.event_ns for other in work.after)])
        return ready + (0.0 if work.product is None or not physics.follow_ns else work.product.before_ns)

    def _start(self) -> None:
        started = True
        while started:
            started = False
            for rank in self._ranks:
                waiting = [
                    (ready, number)
                    for stream in Stream
                    if (number := rank.next_of(stream)) is not None
                    and number not in rank.running
                    and (ready := self._ready_ns(rank, number)) is not None
                    and ready <= self._now + self._as_one_ns
                ]
                for _, number in sorted(waiting):
                    if self._put_on(rank, number):
                        started = True
                        break

    def _put_on(self, rank: _RankStreams, number: int) -> bool:
        """Start a work if it gets SMs."""
        work = self._works[number]
        product = self._product_on(rank)
        beside: frozenset[int] = frozenset()
        slow = False
        if work.product is not None:
            if product is not None:
                return False
            beside = frozenset(n for n in rank.running if self._works[n].blocks)
        elif work.blocks and product is not None:
            if self._physics.lost_per_block and self._for_comm_ns(product, work) > self._as_one_ns:
                return False
            slow = bool(self._physics.lost_per_block)
        elif work.blocks and self._physics.lost_per_block and self._is_filled(rank):
            return False
        rank.running[number] = _Running(number, work.duration_ns, self._now, beside, slow)
        rank.at[work.stream] += 1
        return True

    def _product_on(self, rank: _RankStreams) -> _Running | None:
        return next((each for n, each in rank.running.items() if self._works[n].product is not None), None)

    def _is_filled(self, rank: _RankStreams) -> bool:
        """Whether a kernel that only moves memory has the device: its blocks come before those of later kernels."""
        return any(
            self._works[n].stream is Stream.COMPUTE and not self._works[n].meets and n not in rank.ended
            for n in rank.running
        )

    def _for_comm_ns(self, running: _Running, work: StreamWork) -> float:
        """What a product still has to do before a communication kernel gets SMs beside it."""
        product = self._works[running.number].product
        if product is None or 2 * product.idle_in_last_wave < work.blocks:
            return running.left_ns
        return max(0.0, running.left_ns - product.last_wave_ns)

    def _speed(self, rank: _RankStreams, running: _Running) -> float:
        work = self._works[running.number]
        if work.meets:
            return self._meeting_speed(running.number)
        beside = [n for n in running.beside if n in rank.running and n not in rank.ended]
        if work.product is None or not beside or not self._physics.lost_per_block:
            return 1.0
        if work.product.is_static:
            return 0.0 if self._now < running.started_ns + work.duration_ns - self._as_one_ns else 1.0
        held = sum(self._works[n].blocks for n in beside)
        speed = work.product.speed_ratio(round(held * self._physics.lost_per_block))
        return min(speed, 1 / self._physics.moving_factor) if any(map(self._is_moving, beside)) else speed

    def _meeting_speed(self, number: int) -> float:
        """Speed of a work that ends on all ranks together: none before they are all there."""
        work = self._works[number]
        if not self._is_moving(number):
            return 0.0
        if not self._physics.lost_per_block:
            return 1.0
        in_tail = any(rank.running[number].slow for rank in self._ranks)
        contended = any(self._product_on(rank) is not None for rank in self._ranks)
        return 1 / ((work.in_tail_ratio if in_tail else 1.0) * (work.beside_ratio if contended else 1.0))

    def _is_moving(self, number: int) -> bool:
        """Whether a communication kernel waits for no rank any more."""
        return not self._works[number].meets or all(number in rank.running for rank in self._ranks)

    def _advance(self) -> None:
        """Go on to the next time at which anything changes."""
        times: list[float] = []
        speeds: list[tuple[_RankStreams, _Running, float]] = []
        for rank in self._ranks:
            for running in rank.running.values():
                if running.number in rank.ended:
                    continue
                speed = self._speed(rank, running)
                speeds.append((rank, running, speed))
                work = self._works[running.number]
                if speed:
                    times.append(self._now + running.left_ns / speed)
                elif work.product is not None:
                    times.append(running.started_ns + work.duration_ns)
            times += self._starts_of(rank)
        then = min(time for time in times if time > self._now - self._as_one_ns)
        for rank, running, speed in speeds:
            running.left_ns -= speed * (then - self._now)
            if running.left_ns <= 1e3 * self._as_one_ns:
                rank.ended[running.number] = then
        self._now = max(then, self._now)

    def _starts_of(self, rank: _RankStreams) -> list[float]:
        """Times at which works of a rank may start."""
        times = []
        product = self._product_on(rank)
        for stream in Stream:
            number = rank.next_of(stream)
            if number is None or number in rank.running:
                continue
            ready = self._ready_ns(rank, number)
            if ready is not None and ready > self._now + self._as_one_ns:
                times.append(ready)
            elif ready is not None and product is not None and self._works[number].blocks:
                speed = self._speed(rank, product)
                if speed:
                    times.append(self._now + self._for_comm_ns(product, self._works[number]) / speed)
        return [time for time in times if time > self._now + self._as_one_ns]
