"""How much of a gap each cause has: by how much what the chains of a rank's actions were spent with grew meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.causes.cause import ON_CHAINS, Cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracetool.causes.chain import ChainPiece, Chains, OrderPlace
    from tracetool.model.timeline import Transfer

KINDS: tuple[Cause | None, ...] = (None, *ON_CHAINS)
"""What a chain may do: compute, or wait for one of these."""

_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


class Spent(NamedTuple):
    """What a chain was spent with from the start of the window on.

    Attributes:
        ns: Time by ``KINDS``; together the time since the start of the window.
        messages: The last message of each.
    """

    ns: tuple[int, ...]
    messages: tuple[Transfer | None, ...]


_NOTHING = Spent((0,) * len(KINDS), (None,) * len(KINDS))


class Ledger:
    """What the chains of all actions were spent with."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self._spent: dict[OrderPlace, Spent] = {}

    def until(self, place: OrderPlace | None) -> Spent:
        """What the chain of an action was spent with until the action began; None for the end of the window."""
        if place is None:
            last = self._chains.last
            return self._after(last, self._chains.op(last).end_ns)
        waiting = []
        at: OrderPlace | None = place
        while at is not None and at not in self._spent:
            waiting.append(at)
            at = self._chains.way(at).after
        for waited in reversed(waiting):
            self._spent[waited] = self._spent_until(waited)
        return self._spent[place]

    def _spent_until(self, place: OrderPlace) -> Spent:
        way = self._chains.way(place)
        now = way.pieces[-1].start_ns if way.pieces else self._chains.op(place).start_ns
        if way.after is not None:
            before = self._after(way.after, now)
        else:
            before = _with(_NOTHING, [(Cause.HOST, now - self._chains.start_ns, None)])
        return _with(before, [(p.cause, p.end_ns - p.start_ns, p.transfer) for p in reversed(way.pieces)])

    def _after(self, place: OrderPlace, now: int) -> Spent:
        """What a chain was spent with that computed until a moment."""
        # Clocks of ranks may differ a little: what comes to less than nothing is made up for later.
        return _with(self.until(place), [(None, now - self._chains.op(place).start_ns, None)])


def _with(spent: Spent, more: list[tuple[Cause | None, int, Transfer | None]]) -> Spent:
    ns, messages = list(spent.ns), list(spent.messages)
    for kind, duration, message in more:
        ns[_NUMBERS[kind]] += duration
        messages[_NUMBERS[kind]] = message
    return Spent(tuple(ns), tuple(messages))


class Balance:
    """Shares out the gaps of one rank, from its first to its last.

    From one action of a rank to the next one passes as much time as the chain of the second is longer than that of the
    first. What the rank computed meanwhile the chain's computes are set off against; the gap is what the chain is
    longer besides. A delay that every microbatch had is in both, and in no gap; a delay that comes with every
    microbatch anew is in every gap of every rank behind it, though the message was elsewhere by then.
    """

    def __init__(self) -> None:
        self._open = [0] * len(KINDS)
        self._before = _NOTHING

    def pass_on(self, spent: Spent, gap_ns: int) -> list[int]:
        """Go on to a rank's next action.

        Args:
            spent: What its chain was spent with.
            gap_ns: The rank's idle time ahead of it.

        Returns:
            The gap by ``KINDS``, in proportion; what is more than the gap is left for later ones.
        """
        balance = self._open
        elapsed = 0
        for number, (now, then) in enumerate(zip(spent.ns, self._before.ns, strict=True)):
            balance[number] += now - then
            elapsed += now - then
        balance[0] -= elapsed - gap_ns
        self._before = spent
        shares = _shared(gap_ns, balance)
        for number, share in enumerate(shares):
            balance[number] -= share
        return shares

    def settle(self) -> None:
        """Set computes of the rank that covered delays off against these, in proportion: they are in no later gap."""
        covered = min(-self._open[0], sum(max(0, ns) for ns in self._open))
        if covered > 0:
            for number, share in enumerate(_shared(covered, self._open)):
                self._open[number] -= share
            self._open[0] += covered


def _shared(total_ns: int, balance: list[int]) -> list[int]:
    """A time in proportion to what is positive in a balance, at least that much; the rest of a ns to the largest."""
    positive = [max(0, ns) for ns in balance]
    whole = sum(positive)
    shares = [ns * total_ns // whole if whole else 0 for ns in positive]
    for number in sorted(range(len(balance)), key=lambda n: -positive[n]):
        more = min(total_ns - sum(shares), positive[number] - shares[number])
        shares[number] += more
    return shares


class GapPart(NamedTuple):
    """A part of a gap: what held the rank back then, None for computes elsewhere."""

    start_ns: int
    end_ns: int
    kind: Cause | None
    transfer: Transfer | None


def laid_out(pieces: list[ChainPiece], shares: list[int], messages: tuple[Transfer | None, ...]) -> list[GapPart]:
    """The shares of a gap in time: where the chain did that, as far as it did, and elsewhere the others.

    Args:
        pieces: The chain within the gap, latest first.
        shares: The gap by ``KINDS``.
        messages: The last message of each.
    """
    left = list(shares)
    parts: list[GapPart] = []
    free: list[tuple[int, int]] = []
    for piece in pieces:
        number = _NUMBERS[piece.cause]
        cut = piece.end_ns - min(left[number], piece.end_ns - piece.start_ns)
        left[number] -= piece.end_ns - cut
        if cut < piece.end_ns:
            parts.append(GapPart(cut, piece.end_ns, piece.cause, piece.transfer))
        if piece.start_ns < cut:
            until = free.pop()[1] if free and free[-1][0] == cut else cut
            free.append((piece.start_ns, until))
    for start, end in free:
        parts += _filled(start, end, left, messages)
    return sorted(parts, key=lambda part: part.start_ns)


def _filled(start: int, end: int, left: list[int], messages: tuple[Transfer | None, ...]) -> Iterator[GapPart]:
    """Parts for a time, by what is left of the shares."""
    for number, kind in enumerate(KINDS):
        until = min(end, start + left[number])
        if until > start:
            left[number] -= until - start
            yield GapPart(start, until, kind, messages[number])
            start = until
