"""Ways to run a layer's collective and product: as they are, sliced, peer to peer, and by copy engines.

Every way moves the same bytes and computes the same product.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tracetool.errors import BadQuery
from tracetool.overlap.machine import IN_TAIL_RATIO
from tracetool.overlap.products import ProductShape
from tracetool.overlap.program import Program, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.overlap.machine import Machine

ELEMENT_BYTES = 2
_STRIDED_RATIO = 0.42
"""Bandwidth of a copy that makes rows contiguous, over that of memory: 1.3 to 1.47 TB/s on H100."""
_BARRIER_NS = 4_000.0
_FUSED_GATHER_CALLS, _FUSED_SCATTER_CALLS = 7.1, 6.4
"""What a call of torch's async tensor parallelism takes, as multiples of a collective's call."""
_UNHIDDEN_PUSH_RATIO = 0.72
"""Of the last push, what is left when the products are done: 126 of 176 us (two H200, 8192 x 8192 x 7168)."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A layer under tensor parallelism with sequence parallelism.

    Attributes:
        tokens: Of all ranks of the group together.
        hidden: Width between layers.
        ffn_per_rank: Columns of the first weight that a rank holds, and rows of the second.
    """

    tokens: int
    hidden: int
    ffn_per_rank: int

    def gathered(self, rows: int) -> ProductShape:
        """The product that eats an all-gather, of so many rows."""
        return ProductShape(rows, self.ffn_per_rank, self.hidden)

    def scattered(self, rows: int) -> ProductShape:
        """The product that feeds a reduce-scatter, of so many rows."""
        return ProductShape(rows, self.hidden, self.ffn_per_rank)


@dataclass(slots=True)
class _Call:
    """One call of a layer, as the host issues it."""

    shape: LayerShape
    ranks: int
    machine: Machine
    program: Program = field(default_factory=Program)

    @property
    def own_rows(self) -> int:
        """Rows that a rank holds between layers."""
        return self.shape.tokens // self.ranks

    def bytes_of(self, rows: float, width: int | None = None) -> float:
        """Bytes of so many rows of activations."""
        return rows * (width or self.shape.hidden) * ELEMENT_BYTES

    def cost(self, calls: float) -> float:
        """Host time of what costs so many times a collective's call."""
        return calls * self.machine.call_ns

    def product(self, shape: ProductShape, *, alone: bool = False) -> int:
        """Issue a product."""
        time = self.machine.products.time(shape, alone=alone)
        return self.program.issue(Stream.COMPUTE, time.alone_ns, self.cost(self.machine.calls.product), product=time)

    def collective(self, rows: float, *, scatter: bool = False, beside: bool = False) -> int:
        """Issue an all-gather or reduce-scatter of so many rows per rank; ``beside`` on the communicator's stream."""
        ring, calls = self.machine.scatter if scatter else self.machine.gather, self.machine.calls
        return self.program.issue(
            Stream.COMMUNICATION if beside else Stream.COMPUTE,
            ring.duration_ns(self.bytes_of(rows)), self.cost(calls.scatter if scatter else calls.gather),
            blocks=ring.blocks, meets=True, behind=Stream.COMPUTE if beside else None, beside_ratio=ring.beside_ratio,
        )  # fmt: skip

    def reduce(self, rows: float, *, beside: bool = False) -> int:
        """Issue an all-reduce of so many rows per rank; ``beside`` on the communicator's stream."""
        ring = self.machine.reduce
        return self.program.issue(
            Stream.COMMUNICATION if beside else Stream.COMPUTE,
            ring.duration_ns(self.bytes_of(rows)), self.cost(self.machine.calls.scatter),
            blocks=ring.blocks, meets=True, behind=Stream.COMPUTE if beside else None, beside_ratio=ring.beside_ratio,
        )  # fmt: skip

    def exchange(self, rows: float) -> int:
        """Issue a batch of one send and one receive of so many rows."""
        ring = self.machine.gather
        return self.program.issue(
            Stream.COMMUNICATION, ring.exchange_ns(self.bytes_of(rows)), self.cost(self.machine.calls.exchange),
            blocks=ring.exchange_blocks, meets=True, behind=Stream.COMPUTE, beside_ratio=ring.beside_ratio,
            in_tail_ratio=IN_TAIL_RATIO,
        )  # fmt: skip

    def wait(self, number: int) -> None:
        """Let the compute stream wait."""
        self.program.wait(number, self.cost(self.machine.calls.wait))

    def through_memory(self, moved_bytes: float, calls: float, *, ratio: float = 0.9, host: bool = True) -> int:
        """Issue a kernel that only reads and writes memory."""
        duration = moved_bytes / (self.machine.memory_bytes_per_ns * ratio)
        return self.program.issue(Stream.COMPUTE, duration, self.cost(calls) if host else 0.0)

    def spend(self, calls: float) -> None:
        """Let the host do what launches nothing."""
        self.program.spend(self.cost(calls))


def _product_alone(shape: Callable[[LayerShape, int], ProductShape], *, part: bool) -> Callable[[_Call], None]:
    def issue(call: _Call) -> None:
        call.product(shape(call.shape, call.own_rows if part else call.shape.tokens), alone=not part)

    return issue


def _collective_alone(*, scatter: bool) -> Callable[[_Call], None]:
    def issue(call: _Call) -> None:
        call.collective(call.own_rows, scatter=scatter)

    return issue


def _exchange_alone(call: _Call) -> None:
    call.wait(call.exchange(call.own_rows))


def _gather_plain(call: _Call) -> None:
    call.collective(call.own_rows)
    call.product(call.shape.gathered(call.shape.tokens))


def _scatter_plain(call: _Call) -> None:
    call.product(call.shape.scattered(call.shape.tokens))
    call.collective(call.own_rows, scatter=True)


def _gather_sliced(call: _Call, slices: int) -> None:
    """All collectives at once; each slice's product behind its own."""
    works = [call.collective(call.own_rows / slices, beside=True) for _ in range(slices)]
    for work in works:
        call.wait(work)
        call.product(call.shape.gathered(call.shape.tokens // slices))
    call.through_memory(2 * call.bytes_of(call.shape.tokens, call.shape.ffn_per_rank), call.machine.calls.concatenation)


def _scatter_sliced(call: _Call, slices: int) -> None:
    """Rows of all ranks are brought together per slice, multiplied, and scattered beside the next slice's product."""
    rows, calls = call.shape.tokens // slices, call.machine.calls
    works = []
    for _ in range(slices):
        call.spend(calls.slice)
        call.through_memory(2 * call.bytes_of(rows, call.shape.ffn_per_rank), calls.copy, ratio=_STRIDED_RATIO)
        call.product(call.shape.scattered(rows))
        call.spend(2 * calls.allocation)
        works.append(call.collective(call.own_rows / slices, scatter=True, beside=True))
    for work in works:
        call.wait(work)
    call.through_memory(2 * call.bytes_of(call.own_rows), calls.concatenation)


def _reduce_plain(call: _Call) -> None:
    call.product(call.shape.scattered(call.shape.tokens))
    call.reduce(call.own_rows)


def _reduce_sliced(call: _Call, slices: int) -> None:
    """Rows are multiplied slice by slice, each summed beside the next one's product; no row moves in memory."""
    works = []
    for _ in range(slices):
        call.spend(call.machine.calls.slice)
        call.product(call.shape.scattered(call.shape.tokens // slices))
        works.append(call.reduce(call.own_rows / slices, beside=True))
    for work in works:
        call.wait(work)


def _gather_peers(call: _Call, slices: int) -> None:
    """Every other rank's part comes by a send and receive of its own; the own part is multiplied meanwhile."""
    pending = [
        call.exchange(call.own_rows / slices) for _ in range(slices) for _ in range(call.ranks - 1)
    ]  # fmt: skip
    call.product(call.shape.gathered(call.own_rows))
    for work in pending:
        call.wait(work)
        call.product(call.shape.gathered(call.own_rows // slices))


def _scatter_peers(call: _Call, slices: int) -> None:
    """Parts of the others are multiplied and sent first, the own one last; what arrives is added."""
    calls = call.machine.calls
    pending = []
    for _ in range(call.ranks - 1):
        call.spend(calls.slice)
        call.product(call.shape.scattered(call.own_rows))
        pending += [call.exchange(call.own_rows / slices) for _ in range(slices)]
    call.spend(calls.slice)
    call.product(call.shape.scattered(call.own_rows))
    for work in pending:
        call.wait(work)
        call.through_memory(3 * call.bytes_of(call.own_rows / slices), calls.addition)


def _gather_engines(call: _Call) -> None:
    """What torch's fused_all_gather_matmul does: copy engines pull parts from symmetric memory beside the products."""
    program, step = call.program, call.cost(_FUSED_GATHER_CALLS) / (2 * call.ranks + 4)
    part = call.bytes_of(call.own_rows)
    copy = 2 * part / (0.9 * call.machine.memory_bytes_per_ns)
    for duration in (_BARRIER_NS, copy):
        program.issue(Stream.COMPUTE, duration, step)
    there = program.issue(Stream.COMPUTE, _BARRIER_NS, step, meets=True)
    call.program.wait(there, 0.0, Stream.COPY)
    pulled = [program.issue(Stream.COPY, call.machine.engine_ns(part), step) for _ in range(call.ranks - 1)]
    time = call.machine.products.time(call.shape.gathered(call.own_rows))
    program.issue(Stream.COMPUTE, time.alone_ns, step, product=time)
    for work in pulled:
        program.wait(work, 0.0)
        program.issue(Stream.COMPUTE, time.alone_ns, step, product=time)
    program.issue(Stream.COMPUTE, copy, step)
    program.issue(Stream.COMPUTE, _BARRIER_NS, step, meets=True)


def _scatter_engines(call: _Call) -> None:
    """What torch's fused_matmul_reduce_scatter does: parts are pushed by copy engines, and summed at the end.

    Products of two streams share the device, so that the last part of the others is done hardly before the own one:
    most of its copy has nothing beside it.
    """
    program, step = call.program, call.cost(_FUSED_SCATTER_CALLS) / (3 * call.ranks + 1)
    part = call.bytes_of(call.own_rows)
    time = call.machine.products.time(call.shape.scattered(call.own_rows))
    program.issue(Stream.COMPUTE, time.alone_ns, step, product=time)
    pushed = []
    for _ in range(call.ranks - 1):
        number = program.issue(Stream.COMPUTE, time.alone_ns, step, product=time)
        program.issue(Stream.COMPUTE, _BARRIER_NS, step, meets=True)
        program.wait(number, 0.0, Stream.COPY)
        pushed.append(program.issue(Stream.COPY, call.machine.engine_ns(part) * _UNHIDDEN_PUSH_RATIO, step))
    for work in pushed:
        program.wait(work, 0.0)
    summed = (call.ranks + 1) * part / (0.9 * call.machine.memory_bytes_per_ns)
    program.issue(Stream.COMPUTE, summed, step)
    program.issue(Stream.COMPUTE, _BARRIER_NS, step, meets=True)


def _fused(side: Literal["ag", "rs", "ar"]) -> Callable[[_Call], None]:
    """One kernel that computes the product and moves each tile as it is done, or computes it as its rows arrive.

    A bound, no prediction: of the SMs none is held for communication, and bytes cross as in the collective. A
    reduction has nothing to send before the first wave of tiles is done, and its last wave to send afterwards; a
    product that eats what arrives has its last wave to compute when all is there.
    """

    def issue(call: _Call) -> None:
        tokens, machine = call.shape.tokens, call.machine
        shape = call.shape.gathered(tokens) if side == "ag" else call.shape.scattered(tokens)
        ring = {"ag": machine.gather, "rs": machine.scatter, "ar": machine.reduce}[side]
        product, moved_ns = machine.products.time(shape), ring.duration_ns(call.bytes_of(call.own_rows))
        wave, share_ns = product.alone_ns / product.waves, moved_ns / product.waves
        duration = max(product.alone_ns + (0.0 if side == "ag" else share_ns), moved_ns + wave)
        call.program.issue(Stream.COMPUTE, duration, call.cost(machine.calls.product), meets=True)

    return issue


_FIXED: dict[str, Callable[[_Call], None]] = {
    "gemm1": _product_alone(LayerShape.gathered, part=False),
    "gemm2": _product_alone(LayerShape.scattered, part=False),
    "gemm1_part": _product_alone(LayerShape.gathered, part=True),
    "gemm2_part": _product_alone(LayerShape.scattered, part=True),
    "ag_only": _collective_alone(scatter=False),
    "rs_only": _collective_alone(scatter=True),
    "p2p_only": _exchange_alone,
    "ag_coll": _gather_plain,
    "rs_coll": _scatter_plain,
    "ar_coll": _reduce_plain,
    "ag_fused": _fused("ag"),
    "rs_fused": _fused("rs"),
    "ar_fused": _fused("ar"),
    "ag_async_tp": _gather_engines,
    "rs_async_tp": _scatter_engines,
}
_COUNTED: dict[str, Callable[[_Call, int], None]] = {
    "ag_sliced": _gather_sliced,
    "rs_sliced": _scatter_sliced,
    "ar_sliced": _reduce_sliced,
    "ag_p2p": _gather_peers,
    "rs_p2p": _scatter_peers,
}
_NAME = re.compile(r"(?P<way>\w+?)(?P<count>\d*)$")
_MOST_PIECES = 99
_PARTS_OF_A_LAYER = re.compile(r"(gemm|.*_only$|.*_part$)")


def side_of(variant: str) -> str | None:
    """The side of a layer that a variant runs whole: ag, rs, or ar (all-reduce); None for what is only a part."""
    side = variant.partition("_")[0]
    return None if _PARTS_OF_A_LAYER.match(variant) or side not in {"ag", "rs", "ar"} else side


def parts_of(variant: str, ranks: int) -> int:
    """How many parts a variant computes its product in, at most: what is sent piece by piece is multiplied so."""
    match = _NAME.match(variant)
    count = int(match["count"] or 1) if match else 1
    return count * ranks if match and match["way"].endswith(("_p2p", "_async_tp")) else count


def refusal(variant: str, shape: LayerShape, ranks: int) -> str | None:
    """Why a variant cannot be run; None if it can.

    Args:
        variant: Its name, as in files of measured variants.
        shape: The layer.
        ranks: Of the group.
    """
    match = _NAME.match(variant)
    if shape.tokens % ranks:
        return f"{shape.tokens} tokens are no multiple of {ranks} ranks"
    if variant in _FIXED:
        return None
    if match is None or match["way"] not in _COUNTED:
        return f"no variant is named {variant}"
    count, rows = int(match["count"] or 1), shape.tokens // ranks
    if not 1 <= count <= _MOST_PIECES:
        return f"{variant} has {count} pieces: 1 to {_MOST_PIECES} are known"
    return f"a rank's {rows} rows are no multiple of {count} pieces" if rows % count else None


def issue_calls(variant: str, shape: LayerShape, machine: Machine, *, calls: int, ahead_ns: float) -> Program:
    """What a rank's host issues when a variant is called so many times in a row.

    Args:
        variant: Its name, as in files of measured variants.
        shape: The layer.
        machine: What runs it.
        calls: How often.
        ahead_ns: How long the device is kept busy before the first call, so that the host runs ahead.

    Returns:
        The works.

    Raises:
        BadQuery: If this cannot be run; see ``refusal``.
    """
    why_not = refusal(variant, shape, machine.gather.ranks)
    if why_not is not None:
        raise BadQuery(f"{variant}: {why_not}.")
    call = _Call(shape, machine.gather.ranks, machine)
    if ahead_ns:
        call.program.issue(Stream.COMPUTE, ahead_ns, 0.0)
    match = _NAME.match(variant)
    for _ in range(calls):
        if variant in _FIXED:
            _FIXED[variant](call)
        elif match is not None:
            _COUNTED[match["way"]](call, int(match["count"] or 1))
    return call.program
