"""Forwards and backwards from autograd's numbers; launches are written out by hand as torch makes them.

A forward op carries the number of the node it makes, a backward kernel that of the node around it; outside a
graph an op shows the number that the next node will get.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracetool.reconstruction.actions import Kernel
from tracetool.reconstruction.actions.pieces import Piece, find_pieces


class Host:
    """Writes launches one after another."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.breaks: list[int] = []
        self.sends: list[int] = []
        self.undone: set[int] = set()
        self._time = 0
        self._node = 100

    def message(self, *, sent: bool = False) -> None:
        self._time += 1
        self.breaks.append(self._time)
        if sent:
            self.sends.append(self._time)

    def forward(self, *numbers: int | None, op: str = "aten::mm") -> None:
        for number in numbers:
            self._launch(sequence_number=number, op_name=op)

    def backward(self, *numbers: int, kernels: int = 1, op: str | None = None) -> None:
        for number in numbers:
            self._node += 1
            self.undone.add(number)
            for _ in range(kernels):
                self._launch(
                    in_backward=True, backward_of=number, root_of=number, node=self._node, root_node=self._node,
                    op_name=op,
                )  # fmt: skip

    def recompute(self, number: int, fresh: int) -> None:
        """An op that repeats a forward, inside the node of another one: it makes a node of its own."""
        self._launch(
            in_backward=True, backward_of=number, root_of=number, node=self._node, root_node=self._node,
            sequence_number=fresh,
        )  # fmt: skip

    def nested(self, root: int, number: int) -> None:
        """A node that runs inside another one (reentrant checkpointing)."""
        outer = max(k.root_node or 0 for k in self.kernels if k.root_of == root)
        self._node += 1
        self._launch(in_backward=True, backward_of=number, root_of=root, node=self._node, root_node=outer)

    def _launch(self, **context: object) -> None:
        self._time += 1
        self.kernels.append(Kernel(self._time, self._time + 1, self._time, stream=7, event=self._time, **context))  # type: ignore[arg-type]

    def pieces(self, *, joined: bool = False) -> tuple[list[str], list[int]]:
        found, loose = find_pieces(self.kernels, self.undone, self.breaks, self.sends if joined else None)
        assert sum(len(p.kernels) for p in found) + len(loose) == len(self.kernels)
        return [_text(p) for p in found], [k.launch_ns for k in loose]


def _text(piece: Piece) -> str:
    return f"{piece.kind.value}{piece.forward}x{len(piece.kernels)}"


def test_a_backward_is_tied_to_its_forward_whatever_comes_between() -> None:
    host = Host()
    for numbers in ((1, 2, 3), (4, 5, 6)):
        host.forward(*numbers)
        host.message()
    host.backward(6, 5, 4)
    host.message()
    host.backward(3, 2, 1)
    assert host.pieces() == (["F0x3", "F1x3", "B1x3", "B0x3"], [])


def test_nodes_that_run_again_are_weight_gradients_and_sums_between_them_belong_to_them() -> None:
    host = Host()
    host.forward(1, 2)
    host.message()
    host.backward(2, 1)
    host.message()
    host.forward(3, op="aten::add")  # a sum ahead of the first weight shows the next node's number
    host.backward(1)
    host.forward(3, op="aten::add_")
    host.backward(2)
    host.forward(3, op="aten::add_")
    host.forward(3, 4)
    host.message()
    host.backward(4, 3)
    assert host.pieces() == (["F0x2", "I0x2", "W0x5", "F1x2", "B1x2"], [])


def test_a_graph_that_is_kept_for_a_second_loss_is_no_split_backward() -> None:
    """torch's ``MmBackward0`` makes one product where only one gradient is asked for, else two."""
    for kernels, expected in ((2, ["F0x3", "B0x12"]), (1, ["F0x3", "I0x3", "W0x3"])):
        host = Host()
        host.forward(1, 2, 3)
        host.backward(3, 2, 1, kernels=kernels, op="aten::mm")
        host.backward(3, 2, 1, kernels=kernels, op="aten::mm")
        assert host.pieces() == (expected, [])


def test_without_products_what_runs_again_in_the_same_order_is_no_split_backward() -> None:
    for again, expected in (((3, 2, 1), ["F0x3", "B0x6"]), ((3, 1), ["F0x3", "I0x3", "W0x2"])):
        host = Host()
        host.forward(1, 2, 3)
        host.backward(3, 2, 1)
        host.backward(*again)
        assert host.pieces() == (expected, [])


def test_the_fill_of_the_loss_gradient_opens_the_backward() -> None:
    host = Host()
    host.forward(1, 2)
    host.forward(None, op="aten::fill_")
    host.backward(2, 1)
    assert host.pieces() == (["F0x2", "B0x3"], [])


def test_scaling_of_gradients_and_the_optimizer_belong_to_no_action() -> None:
    host = Host()
    host.forward(1, 2)
    host.message()
    host.backward(2, 1)
    host.forward(None, None, op="aten::div_")
    host.forward(None, op="aten::_fused_adamw_")
    pieces, loose = host.pieces()
    assert pieces == ["F0x2", "B0x2"]
    assert len(loose) == 3


def test_recomputed_forwards_are_part_of_the_backward_and_told_apart() -> None:
    host = Host()
    host.forward(1, 2)
    host.message()
    host.backward(2)
    host.recompute(2, 9)
    host.recompute(2, 10)
    host.backward(1)
    found, _ = find_pieces(host.kernels, host.undone, host.breaks)
    assert [_text(p) for p in found] == ["F0x2", "B0x4"]
    assert [k.is_recompute for k in found[1].kernels] == [False, True, True, False]


def test_a_backward_inside_a_backward_belongs_to_the_outer_ones_forward() -> None:
    """Reentrant checkpointing: the forward made one node, the numbers inside are of the recomputed ops."""
    host = Host()
    host.forward(1, None, None, 2)
    host.message()
    host.backward(2)
    host.recompute(2, 9)
    host.nested(2, 9)
    host.nested(2, 8)
    host.backward(1)
    assert host.pieces() == (["F0x4", "B0x5"], [])


def test_forwards_that_nothing_parts_are_parted_by_their_backwards() -> None:
    """Receives posted ahead of time leave no message between the forwards of the last stage in GPipe."""
    host = Host()
    host.forward(1, 2, 3, 4, 5, 6)
    for numbers in ((6, 5), (4, 3), (2, 1)):
        host.backward(*numbers)
        host.message()
    assert host.pieces() == (["F0x2", "F1x2", "F2x2", "B2x2", "B1x2", "B0x2"], [])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_every_order_of_backwards_finds_its_forwards(sizes: list[int], random: object) -> None:
    host, numbers, at = Host(), [], 1
    for size in sizes:
        numbers.append(list(range(at, at + size)))
        at += size
        host.forward(*numbers[-1])
        host.message()
    order = list(range(len(sizes)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for index in order:
        host.backward(*reversed(numbers[index]))
        host.message()
    pieces, loose = host.pieces()
    assert loose == []
    expected = [f"F{i}x{n}" for i, n in enumerate(sizes)] + [f"B{i}x{sizes[i]}" for i in order]
    assert pieces == expected


def test_a_loss_that_is_scaled_apart_belongs_to_its_backward() -> None:
    """Megatron interleaved: the next receive is posted between a forward and the scaling of its loss."""
    host = Host()
    host.forward(1, 2, 3)
    host.message()
    host.forward(4, op="aten::mul")
    host.forward(None, op="aten::fill_")
    host.backward(4, 3, 2, 1)
    assert host.pieces(joined=True) == (["F0x3", "B0x6"], [])


def test_losses_scaled_in_gpipe_order_belong_to_the_backward_of_their_own_microbatch() -> None:
    host = Host()
    for numbers in ((1, 2, 3), (4, 5, 6), (7, 8, 9)):
        host.message()
        host.forward(*numbers)
    for scaled, numbers in ((10, (3, 2, 1)), (11, (6, 5, 4)), (12, (9, 8, 7))):
        host.forward(scaled, op="aten::mul")  # nothing parts the first one from the last forward
        host.backward(scaled, *numbers)
        host.message(sent=True)
    assert host.pieces(joined=True) == (["F0x3", "F1x3", "F2x3", "B0x5", "B1x5", "B2x5"], [])


def test_a_loss_in_several_parts_joins_the_forward_that_it_stands_behind_or_else_the_backward() -> None:
    host = Host()
    for numbers, loss in (((1, 2, 3), (4, 5)), ((6, 7, 8), (9, 10))):
        host.message()
        host.forward(*numbers)
        host.message()
        host.forward(*loss, op="aten::div")  # the mean over tokens, right behind the forward
    host.message()
    host.forward(11, op="aten::mul")  # over the number of microbatches
    host.backward(11, 5, 4, 3, 2, 1)
    host.message(sent=True)
    host.forward(12, op="aten::mul")
    host.backward(12, 10, 9, 8, 7, 6)
    assert host.pieces(joined=True) == (["F0x5", "F1x5", "B0x7", "B1x7"], [])


def test_backwards_that_nothing_parts_stay_apart_where_their_forwards_were_sent_on() -> None:
    """The backwards of a first stage send nothing: with receives posted ahead of time one follows the other."""
    host = Host()
    for numbers in ((1, 2, 3), (4, 5)):
        host.forward(*numbers)
        host.message(sent=True)
    host.backward(5, 4)
    host.backward(3, 2, 1)
    assert host.pieces(joined=True) == (["F0x3", "F1x2", "B1x2", "B0x3"], [])
