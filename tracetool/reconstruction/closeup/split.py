"""Which kernels of a backward compute the gradient of its input, and which those of its weights.

A schedule may run the two apart (I and W); a trace of an unsplit backward tells what each would cost:

- A node of autograd that makes the gradient of a parameter is followed by ``AccumulateGrad``: that node has the
  highest priority of all, so it runs as soon as its gradient is there, at most after views and casts of it.
- torch generates a node's code with its derivatives sorted by the argument's name (``load_derivatives.py``):
  ``MmBackward0`` computes ``mat2`` (the weight of a linear layer) ahead of ``self``, ``AddmmBackward0`` ``mat1``
  (its input) ahead of ``mat2``, then ``self`` (its bias). Megatron's own node computes the input's first.
- A norm computes both by kernels whose names say which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

from tracetool.reconstruction.actions import ACCUMULATE_NODE
from tracetool.reconstruction.actions.pieces import PRODUCT_OPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruction.actions import Kernel
    from tracetool.store.run import Run

Part = Literal["input", "weight", "recompute"]

_VIEWS = frozenset(
    f"{name}Backward0"
    for name in ("T", "View", "UnsafeView", "Reshape", "ReshapeAlias", "Transpose", "Permute", "Expand", "ToCopy",
                 "Clone", "Contiguous", "Squeeze", "Unsqueeze")
)  # fmt: skip
_TURNS = frozenset(("TBackward0", "TransposeBackward0", "PermuteBackward0"))
_LINEAR: dict[str, tuple[Part, Part]] = {
    "MmBackward0": ("weight", "input"),
    "AddmmBackward0": ("input", "weight"),
    "LinearWithGradAccumulationAndAsyncCommunicationBackward": ("input", "weight"),
}
"""Per node, the order of its two products."""
_BUFFER_SUM = frozenset(("aten::add", "aten::add_"))
_NORM = re.compile(r"Norm.*Backward")
_NORM_WEIGHT = re.compile(r"gamma|beta|PartGrad", re.IGNORECASE)
_NORM_INPUT = re.compile(r"grad_?input|GradInput", re.IGNORECASE)

_NODES_SQL = """
SELECT rank, event,
       regexp_replace(name, '^autograd::engine::evaluate_function: (torch::autograd::)?', '') AS name
FROM events
WHERE list_contains($ranks, rank) AND category = 'op' AND starts_with(name, 'autograd::engine::evaluate_function')
  AND start_ns >= $first AND start_ns < $last
ORDER BY rank, thread, start_ns, event
"""


def read_feeders(run: Run, ranks: Sequence[int], first_ns: int, last_ns: int) -> dict[int, frozenset[int]]:
    """Per rank, the autograd nodes (event numbers) between two times that make gradients of parameters."""
    by_rank = dict.fromkeys(ranks, frozenset[int]())
    rows = run.rows(_NODES_SQL, {"ranks": list(ranks), "first": first_ns, "last": last_ns})
    for rank, nodes in groupby(rows, key=itemgetter(0)):
        by_rank[rank] = feeders([(event, name) for _, event, name in nodes])
    return by_rank


def feeders(nodes: Sequence[tuple[int, str]]) -> frozenset[int]:
    """Nodes whose gradient goes to a parameter: those right ahead of an ``AccumulateGrad``, and its views.

    Args:
        nodes: Event number and name, in the order in which a thread ran them.
    """
    events: set[int] = set()
    for index, (_, name) in enumerate(nodes):
        if name != ACCUMULATE_NODE:
            continue
        at, turned = index - 1, False
        while at >= 0 and (nodes[at][1] == ACCUMULATE_NODE or nodes[at][1] in _VIEWS):
            # What lies between a linear layer and the turning of its weight's gradient is on its input's path.
            if nodes[at][1] in _VIEWS and not turned:
                events.add(nodes[at][0])
            turned = turned or nodes[at][1] in _TURNS
            at -= 1
        if at >= 0:
            events.add(nodes[at][0])
    return frozenset(events)


def takes_gradient(name: str) -> bool:
    """Whether a node that makes the gradient of a parameter takes one that comes from the loss, and no view of it."""
    return name != ACCUMULATE_NODE and name not in _VIEWS


def gradient_parts(kernels: Sequence[Kernel], weights: frozenset[int]) -> list[Part | None]:
    """What each kernel of an unsplit backward computes; None where nothing tells.

    Args:
        kernels: Those of one action, in launch order.
        weights: Nodes that make gradients of parameters (:func:`read_feeders`).
    """
    parts: list[Part | None] = []
    begun = False
    for node, group in groupby(kernels, key=lambda k: k.node):
        of_node = list(group)
        if node is None:
            # Ahead of the first node is the gradient of the loss, which all others come from.
            parts += [None if begun else "input"] * len(of_node)
        else:
            begun = True
            parts += _parts_of_feeder(of_node) if node in weights else [_part_of_path(k) for k in of_node]
    return parts


def _part_of_path(kernel: Kernel) -> Part:
    """Part of a kernel whose node feeds no parameter; gradients of parameters end in ``AccumulateGrad``."""
    if kernel.node_name == ACCUMULATE_NODE:
        return "weight"
    return "recompute" if kernel.is_recompute else "input"


def _parts_of_feeder(kernels: Sequence[Kernel]) -> list[Part | None]:
    """Parts within a node that makes the gradient of a parameter, and mostly one of its input besides."""
    name = kernels[0].node_name or ""
    if name not in _LINEAR:
        return [_part_of_other(k, name) for k in kernels]
    own = iter(_parts_of_linear([k for k in kernels if not k.is_recompute], name))
    return ["recompute" if k.is_recompute else next(own) for k in kernels]


def _parts_of_linear(kernels: Sequence[Kernel], name: str) -> list[Part | None]:
    """Parts within the node of a linear layer: its products by their order, its sums by what they are for."""
    products = list(dict.fromkeys(k.op for k in kernels if PRODUCT_OPS.search(k.op_name or "")))
    parts: dict[int | None, Part] = {}
    if len(products) == 2:
        parts = dict(zip(products, _LINEAR[name], strict=True))
    elif len(products) == 1 and name.endswith("Backward0"):
        # It feeds a parameter and its input needs no gradient.
        parts = {products[0]: "weight"}
    backwards: list[Part | None] = []
    ahead: Part | None = None
    for kernel in reversed(kernels):
        if kernel.op in parts:
            ahead = parts[kernel.op]
        if kernel.op_name in _BUFFER_SUM:
            backwards.append("input")
        elif kernel.op_name == "aten::sum":
            backwards.append("weight")
        else:
            # Copies that make an operand contiguous go with the product after them.
            backwards.append(ahead)
    return backwards[::-1]


def _part_of_other(kernel: Kernel, name: str) -> Part | None:
    """Part of a kernel in another node that makes the gradient of a parameter."""
    if kernel.is_recompute:
        return "recompute"
    if kernel.op_name in _BUFFER_SUM:
        return "input"
    if name in _VIEWS or name.startswith("Embedding") or kernel.op_name == "aten::sum":
        return "weight"
    if _NORM.search(name):
        if _NORM_INPUT.search(kernel.name):
            return "input"
        return "weight" if _NORM_WEIGHT.search(kernel.name) else None
    return None


@dataclass(frozen=True, slots=True)
class HalfTimes:
    """An unsplit backward's time by what it went into.

    Attributes:
        input_ns: For the gradient of the input, recomputed activations included.
        weight_ns: For the gradients of weights.
        rest_ns: By kernels that do not tell; the three sum to the action's duration.
    """

    input_ns: int
    weight_ns: int
    rest_ns: int


def halves(parts: Sequence[Part | None], times_ns: Sequence[int]) -> HalfTimes:
    """Sum what each kernel adds to its action's time by the part it belongs to."""
    sums = {"input": 0, "weight": 0, None: 0}
    for part, time in zip(parts, times_ns, strict=True):
        sums["input" if part == "recompute" else part] += time
    return HalfTimes(sums["input"], sums["weight"], sums[None])


def agreement(kernels: Sequence[Kernel], weights: frozenset[int]) -> tuple[int, int]:
    """How many linear layers' nodes hold as many products as they should, of how many.

    One that feeds a parameter holds two, one that does not holds one: the order of the two is known only of those.
    """
    good = total = 0
    of_linear = (k for k in kernels if k.node_name in _LINEAR and not k.is_recompute)
    for node, group in groupby(of_linear, key=lambda k: k.node):
        products = {k.op for k in group if PRODUCT_OPS.search(k.op_name or "")}
        good += len(products) == (2 if node in weights else 1)
        total += 1
    return good, total
