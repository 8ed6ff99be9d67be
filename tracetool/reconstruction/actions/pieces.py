"""Pieces of a rank's work, from autograd: its forwards, and the backwards that name the forward they undo.

A forward is a run of launches outside the autograd engine, a backward one inside it; sends and receives part
them. Every autograd node carries the sequence number of the forward op it undoes, which ties each backward to
its forward. A node that runs a second time computes what the first run left out: the weight gradients of a
backward that is split in two (zero bubble).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from tracetool.reconstruction.actions import Kernel

F, B, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT


@dataclass(slots=True, eq=False)
class Piece:
    """What a rank launched for one microbatch of one stage, forward or (a part of) backward.

    Attributes:
        kind: F, B, I or W.
        forward: Number of its forward on the rank, in order of launch.
        kernels: In launch order.
        stage: Global stage; not there before the piece is placed.
        microbatch: Likewise.
    """

    kind: ActionKind
    forward: int
    kernels: list[Kernel] = field(default_factory=list)
    stage: int = field(init=False, repr=False)
    microbatch: int = field(init=False, repr=False)

    def place(self, stage: int, microbatch: int) -> Piece:
        """Say whose work it is; returns itself."""
        self.stage, self.microbatch = stage, microbatch
        return self

    @property
    def issue_ns(self) -> int:
        """Host time of its first launch."""
        return self.kernels[0].launch_ns


@dataclass(slots=True)
class _Stretch:
    """Launches of one direction without a break between them."""

    is_backward: bool
    after_break: bool
    kernels: list[Kernel] = field(default_factory=list)
    numbers: dict[int, None] = field(default_factory=dict)

    def add(self, kernel: Kernel, number: int | None) -> None:
        self.kernels.append(kernel)
        if number is not None:
            self.numbers[number] = None


def find_pieces(
    kernels: Sequence[Kernel], undone: Container[int], breaks: Sequence[int], sends: Sequence[int] | None = None
) -> tuple[list[Piece], list[Kernel]]:
    """Forwards and backwards of a rank, in order of launch, and the kernels that belong to none.

    Args:
        kernels: Those of a step in launch order, with their autograd context.
        undone: Sequence numbers of all autograd nodes that ran, whether they launched anything or not.
        breaks: Host times, ascending, that part one action from the next: where messages were posted.
        sends: Those of them at which something was sent; if given, forwards that are parts of others join those.

    Returns:
        The pieces, and what is no part of the model's graph: scaling of gradients, optimizer and the like.
    """
    stretches = _stretches(kernels, breaks, undone)
    forwards = _split_at_backwards([s for s in stretches if not s.is_backward], stretches)
    owner = _owners(forwards)
    part_of: dict[int, int] = {}
    if sends is not None:
        part_of = _parts_of_others(forwards, stretches, owner, _Sends([k.launch_ns for k in kernels], sends))
    owner = {number: part_of.get(index, index) for number, index in owner.items()}
    number_of: dict[int, int] = {}
    for index in sorted(set(owner.values())):
        number_of[index] = len(number_of)
    by_first = {id(part.kernels[0]): (index, part) for index, part in enumerate(forwards)}
    grads = _Grads(owner, number_of)
    for at, stretch in enumerate(stretches):
        if stretch.is_backward:
            grads.take(stretch)
            continue
        for index, part in _parts_of(stretch, by_first):
            if index in part_of:
                following = stretches[at + 1] if at + 1 < len(stretches) else None
                grads.join(number_of[part_of[index]], part, following)
                continue
            if index not in number_of:
                grads.hold(part.kernels, after_break=part.after_break)
                continue
            start, end = _ends(part)
            grads.hold(part.kernels[:start], after_break=part.after_break)
            grads.flush()
            grads.out.append(Piece(F, number_of[index], part.kernels[start:end]))
            grads.hold(part.kernels[end:], after_break=False)
    grads.flush()
    return grads.finish()


def _stretches(kernels: Sequence[Kernel], breaks: Sequence[int], undone: Container[int]) -> list[_Stretch]:
    stretches: list[_Stretch] = []
    ran: set[int | None] = set()
    at = 0
    for kernel in kernels:
        parted = at < len(breaks) and breaks[at] <= kernel.launch_ns
        while at < len(breaks) and breaks[at] <= kernel.launch_ns:
            at += 1
        if parted or not stretches or stretches[-1].is_backward is not kernel.in_backward:
            stretches.append(_Stretch(is_backward=kernel.in_backward, after_break=parted or not stretches))
        number = kernel.root_of if kernel.in_backward else kernel.sequence_number
        # What is launched behind a node made none of it: some traces give the optimizer the last node's number.
        made = kernel.in_backward or number not in ran
        ran |= {number} if kernel.in_backward else set()
        stretches[-1].add(kernel, number if made and number in undone else None)
    return stretches


def _split_at_backwards(forwards: Sequence[_Stretch], stretches: Sequence[_Stretch]) -> list[_Stretch]:
    """Part forwards that nothing separates (receives posted ahead) where separate backwards undo them."""
    home = _homes(forwards)
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for backward in stretches:
        if backward.is_backward:
            by_home: dict[int, list[int]] = defaultdict(list)
            for number in backward.numbers:
                if number in home:
                    by_home[home[number]].append(number)
            for index, numbers in by_home.items():
                spans[index].append((min(numbers), max(numbers)))
    parts = []
    for index, forward in enumerate(forwards):
        groups = _disjoint(spans.get(index, ()))
        parts += _cut(forward, [low for low, _ in groups[1:]]) if len(groups) > 1 else [forward]
    return parts


def _disjoint(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans of numbers with overlapping ones joined, ascending."""
    groups: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if groups and low <= groups[-1][1]:
            groups[-1] = (groups[-1][0], max(high, groups[-1][1]))
        else:
            groups.append((low, high))
    return groups


def _cut(forward: _Stretch, starts: Sequence[int]) -> list[_Stretch]:
    parts = [_Stretch(is_backward=False, after_break=forward.after_break)]
    at = 0
    for kernel in forward.kernels:
        number = kernel.sequence_number
        while at < len(starts) and number is not None and number in forward.numbers and number >= starts[at]:
            parts.append(_Stretch(is_backward=False, after_break=False))
            at += 1
        parts[-1].add(kernel, number if number in forward.numbers else None)
    return parts


def _homes(forwards: Sequence[_Stretch]) -> dict[int, int]:
    """For each autograd number, the forward it belongs to.

    An op outside any graph shows the number that the next node will get (sums of gradients one of the forward after
    them), so that of all ops with a number the last one made the node.
    """
    return {number: index for index, forward in enumerate(forwards) for number in forward.numbers}


def _owners(forwards: Sequence[_Stretch]) -> dict[int, int]:
    """The same over the forwards that nodes really refer to; what only borrowed its numbers is none."""
    home = _homes(forwards)
    whole = Counter(home.values())
    return {number: index for number, index in home.items() if 2 * whole[index] >= len(forwards[index].numbers)}


class _Sends(NamedTuple):
    """Host times of a rank's launches and sends, both ascending."""

    launches: Sequence[int]
    sends: Sequence[int]

    def follow(self, forward: _Stretch) -> bool:
        """Whether something was sent between the last launch of a forward and the next one of the rank."""
        last = forward.kernels[-1].launch_ns
        after = bisect_right(self.launches, last)
        send = bisect_right(self.sends, last)
        return send < len(self.sends) and (after == len(self.launches) or self.sends[send] <= self.launches[after])


def _parts_of_others(
    forwards: Sequence[_Stretch], stretches: Sequence[_Stretch], owner: Mapping[int, int], sends: _Sends
) -> dict[int, int]:
    """Forwards that are no action of their own (the loss and its scaling), each with the one that they belong to.

    One uninterrupted run of the autograd engine undoes one forward, the end of its graph first. So what is undone right
    ahead of an earlier forward, whenever it is, is the end of that one's graph: a forward of another microbatch would
    have been sent on, or the gradient that its backward makes.
    """
    followers: dict[int, set[int | None]] = defaultdict(set)
    for stretch in stretches:
        if stretch.is_backward:
            undone = [index for index, _ in groupby(owner[n] for n in stretch.numbers if n in owner)]
            for index, following in zip_longest(undone, undone[1:]):
                followers[index].add(following)
    owners: dict[int, int] = {}
    for index, after in sorted(followers.items()):
        whole = next(iter(after))
        if len(after) > 1 or whole is None or whole > index or sends.follow(forwards[index]):
            continue
        if len(forwards[index].numbers) < len(forwards[whole].numbers):
            owners[index] = owners.get(whole, whole)
    return owners


def _parts_of(stretch: _Stretch, by_first: Mapping[int, tuple[int, _Stretch]]) -> Iterator[tuple[int, _Stretch]]:
    at = 0
    while at < len(stretch.kernels):
        index, part = by_first[id(stretch.kernels[at])]
        yield index, part
        at += len(part.kernels)


_ROOT_GRADIENT_OPS = ("aten::ones_like", "aten::fill_", "aten::empty_like", "aten::empty_strided")
GRADIENT_SUM_OP = "aten::add_"
SCALING_OPS = ("aten::div_", "aten::mul_")
PRODUCT_OPS = re.compile(r"(mm|matmul|linear)$")
"""Names of the ops that multiply matrices."""


def _ends(part: _Stretch) -> tuple[int, int]:
    """Where a forward begins and ends within a run of launches outside the autograd engine.

    Ahead of it may stand sums of the weight gradients before it (they show the number of its first node);
    behind it what prepares a backward: the fill of the loss gradient, launched before the engine starts.
    """
    kernels = part.kernels
    last = max(i for i, k in enumerate(kernels) if k.sequence_number in part.numbers)
    after = (
        i for i in range(last + 1, len(kernels))
        if _is_root_gradient(kernels[i]) and kernels[i].launch_ns >= kernels[last].issued_ns
    )  # fmt: skip
    end = next(after, len(kernels))
    start = next((i for i, k in enumerate(kernels[:last]) if k.op_name != GRADIENT_SUM_OP), last)
    return start, end


def _is_root_gradient(kernel: Kernel) -> bool:
    return kernel.sequence_number is None and kernel.op_name in _ROOT_GRADIENT_OPS


class _Grads:
    """Sorts backward launches by the forward that they undo, and into input and weight gradients."""

    def __init__(self, owner: Mapping[int, int], number_of: Mapping[int, int]) -> None:
        self.out: list[Piece] = []
        self._owner = owner
        self._number_of = number_of
        self._nodes: dict[int, dict[int, int]] = defaultdict(dict)  # per forward: number -> node that ran it first
        self._second: set[int] = set()  # forwards whose nodes run for the second time
        self._held: list[Kernel] = []  # launches between backwards, for the next one
        self._opening: list[Kernel] = []  # launches that the next backward begins with, whatever parts them from it
        self._loose: list[Kernel] = []
        self._parted = False  # whether messages were posted since the last backward

    def hold(self, kernels: Sequence[Kernel], *, after_break: bool) -> None:
        """Launches outside the graph: part of a backward if they stand before or within one."""
        if after_break:
            self.flush()
            self._parted = True
        self._loose += [k for k in kernels if k.op_name in SCALING_OPS]  # of gradients that are complete
        self._held += [k for k in kernels if k.op_name not in SCALING_OPS]

    def join(self, forward: int, part: _Stretch, following: _Stretch | None) -> None:
        """Launches of the end of a forward's graph: the backward begins with them, or they end the forward itself."""
        if following is not None and any(self._forward_of(k) == forward for k in following.kernels):
            self.flush()
            self._opening = part.kernels
        elif self.out and self.out[-1].kind is F and self.out[-1].forward == forward:
            self.out[-1].kernels += part.kernels
        else:
            self._loose += part.kernels

    def flush(self) -> None:
        """Give up what is held: no backward follows that it could belong to."""
        self._settle_sums()
        self._loose += self._held
        self._held = []

    def _settle_sums(self) -> None:
        """Sums right behind weight gradients belong to those."""
        if self.out and self.out[-1].kind is W:
            summed = next((i for i, k in enumerate(self._held) if k.op_name != GRADIENT_SUM_OP), len(self._held))
            self.out[-1].kernels += self._held[:summed]
            del self._held[:summed]

    def take(self, stretch: _Stretch) -> None:
        """Add a stretch of backward launches."""
        fresh = stretch.after_break or bool(self._opening)
        if fresh:
            self.flush()
        fresh = fresh or self._parted
        self._parted = False
        self._held += self._opening
        self._opening = []
        for kernel in stretch.kernels:
            forward = self._forward_of(kernel)
            piece = self.out[-1] if self.out else None
            if forward is None:
                if piece is None or piece.kind is F or fresh:
                    self._held.append(kernel)
                else:
                    self._put(piece, kernel)
                continue
            second = self._is_second(forward, kernel)
            kind = W if second else B
            if piece is None or fresh or piece.forward != forward or piece.kind is not kind:
                self._settle_sums()
                piece = Piece(kind, forward)
                self.out.append(piece)
                fresh = False
            self._put(piece, kernel)

    def _put(self, piece: Piece, kernel: Kernel) -> None:
        piece.kernels += [*self._held, kernel]
        self._held = []

    def _forward_of(self, kernel: Kernel) -> int | None:
        for number in (kernel.root_of, kernel.backward_of):
            if number is not None and number in self._owner:
                return self._number_of[self._owner[number]]
        return None

    def _is_second(self, forward: int, kernel: Kernel) -> bool:
        """Whether the node around a launch ran for its forward before."""
        number, node = kernel.root_of, kernel.root_node
        if number is not None and node is not None and self._nodes[forward].setdefault(number, node) != node:
            self._second.add(forward)
        return forward in self._second

    def finish(self) -> tuple[list[Piece], list[Kernel]]:
        """Pieces of one action joined, and named input or whole backward by whether a second run exists."""
        repeated = {forward for forward in self._second if self._is_repeated(forward)}
        for piece in self.out:
            if piece.kind is W and piece.forward in repeated:
                piece.kind = B
        self._second -= repeated
        pieces: list[Piece] = []
        by_action: dict[tuple[ActionKind, int], Piece] = {}
        for piece in self.out:
            if piece.kind is B and piece.forward in self._second:
                piece.kind = ActionKind.BACKWARD_INPUT
            known = by_action.get((piece.kind, piece.forward))
            if known is not None and piece.kind is not F:
                known.kernels += piece.kernels
                continue
            by_action[piece.kind, piece.forward] = piece
            pieces.append(piece)
        return pieces, self._loose

    def _is_repeated(self, forward: int) -> bool:
        """Whether the second run of a backward does what the first one did, instead of what that left out.

        A split linear layer makes one product in each run, an unsplit one two. Without linear layers, a split leaves
        the nodes that lead to no parameter out of its second run, and goes from parameter to parameter.
        """
        first, second = (
            [k for p in self.out if p.kind is kind and p.forward == forward for k in p.kernels if not k.is_recompute]
            for kind in (B, W)
        )
        again = {k.root_of for k in second} - {None}
        products: dict[int | None, set[int | None]] = defaultdict(set)
        for k in first:
            if k.root_of in again and PRODUCT_OPS.search(k.op_name or ""):
                products[k.root_of].add(k.event if k.op is None else k.op)
        if products:
            return 2 * sum(len(ops) > 1 for ops in products.values()) > len(products)
        one, two = (list(dict.fromkeys(k.root_of for k in run)) for run in (first, second))
        return len(one) > 1 and one == two
