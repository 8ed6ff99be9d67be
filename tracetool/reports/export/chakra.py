"""Execution traces in MLCommons' Chakra schema, one per pipeline rank: the same work as a graph, for simulators.

Computes come in the order of their rank; a message is a send on one rank and a receive on another, of equal tag. Sends
depend on what made them and computes on what they receive, so how messages are issued is the simulator's to model.

Schema: https://github.com/mlcommons/chakra, ``schema/protobuf/et_def.proto``. It counts in whole us; the exact time
of a compute is its attribute ``duration_ns``. Attributes of messages are those that ASTRA-sim reads.
"""

from __future__ import annotations

import io
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tracetool.errors import MissingPackage, ScenarioError, installing
from tracetool.model.action import ActionKind
from tracetool.model.timeline import RankOp

if TYPE_CHECKING:
    from types import ModuleType

    from tracetool.model.timeline import Op, Timeline, Transfer

Site = tuple[int, int, bool, int]
"""Rank, stage, whether it makes or takes an activation (else a gradient), and microbatch."""

_MEETS_MESSAGES = frozenset({ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT})
"""Kinds of computes that take and make messages: not weight gradients, recomputes and what follows the window."""


def execution_traces(timeline: Timeline) -> list[bytes]:
    """The trace of each pipeline rank, as ASTRA-sim takes it from files ``NAME.0.et``, ``NAME.1.et`` ...

    Raises:
        MissingPackage: If Chakra's package is not installed.
        ScenarioError: If the size of a message is unknown.
    """
    schema, encode = load_schema()
    received: dict[Site, list[tuple[int, Transfer]]] = defaultdict(list)
    sent: dict[Site, list[tuple[int, Transfer]]] = defaultdict(list)
    for tag, transfer in enumerate(timeline.transfers):
        forward = transfer.kind is ActionKind.FORWARD
        sent[transfer.src_rank, transfer.src_stage, forward, transfer.microbatch].append((tag, transfer))
        received[transfer.dst_rank, transfer.dst_stage, forward, transfer.microbatch].append((tag, transfer))
    traces = []
    for rank in range(len(timeline.global_ranks)):
        nodes = _Nodes(schema)
        for op in sorted((op for op in timeline.ops if op.rank == rank), key=lambda op: op.start_ns):
            if isinstance(op, RankOp) or op.kind not in _MEETS_MESSAGES:
                nodes.compute(op, [])
                continue
            site = op.rank, op.stage, op.kind is ActionKind.FORWARD, op.microbatch
            inputs = [nodes.message(schema.COMM_RECV_NODE, tag, t, []) for tag, t in received.get(site, [])]
            made = nodes.compute(op, inputs)
            for tag, transfer in sent.get(site, []):
                nodes.message(schema.COMM_SEND_NODE, tag, transfer, [made])
        out = io.BytesIO()
        for message in (schema.GlobalMetadata(version="0.0.4"), *nodes.listed):
            encode(out, message)
        traces.append(out.getvalue())
    return traces


def load_schema() -> tuple[ModuleType, Any]:
    """Chakra's messages, and what writes one to a file.

    Raises:
        MissingPackage: If its package is not installed.
    """
    try:
        from chakra.schema.protobuf import et_def_pb2
        from chakra.src.third_party.utils.protolib import encodeMessage
    except ImportError as error:
        raise MissingPackage(
            "execution traces in Chakra's schema need the package mlc-chakra.",
            hint=f"{installing('chakra')}, or without what only its converters need: "
            "pip install --no-deps mlc-chakra && pip install protobuf",
        ) from error
    return et_def_pb2, encodeMessage


class _Nodes:
    """Nodes of one rank, each after those that it depends on."""

    def __init__(self, schema: ModuleType) -> None:
        self._schema = schema
        self._computed: int | None = None
        self.listed: list[Any] = []

    def compute(self, op: Op | RankOp, inputs: list[int]) -> int:
        """Add a compute after the one before it; returns its number."""
        attribute = self._schema.AttributeProto
        node = self._add(op.text, self._schema.COMP_NODE)
        node.start_time_micros = _microseconds(op.start_ns)
        node.duration_micros = _microseconds(op.duration_ns)
        node.data_deps.extend(inputs)
        if self._computed is not None:
            node.ctrl_deps.append(self._computed)
        node.attr.append(attribute(name="duration_ns", int64_val=op.duration_ns))
        self._computed = int(node.id)
        return self._computed

    def message(self, kind: int, tag: int, transfer: Transfer, made_by: list[int]) -> int:
        """Add one side of a message; returns its number."""
        if transfer.payload_bytes is None:
            raise ScenarioError(
                f"the messages of stage {transfer.src_stage} differ in size or do not tell it; simulators need it.",
                hint="sizes are told by torch 2.4 or newer, Ascend Level1 and up, and nsys export --include-blobs=true",
            )
        attribute = self._schema.AttributeProto
        sends = kind == self._schema.COMM_SEND_NODE
        forward = transfer.kind is ActionKind.FORWARD
        code = f"{'SEND' if sends else 'RECV'}_{'F' if forward else 'B'}"
        stage = transfer.src_stage if sends else transfer.dst_stage
        node = self._add(f"{stage}{code}{transfer.microbatch}", kind)
        node.data_deps.extend(made_by)
        node.attr.extend(
            [
                attribute(name="comm_size", int64_val=transfer.payload_bytes),
                attribute(name="comm_src", int32_val=transfer.src_rank),
                attribute(name="comm_dst", int32_val=transfer.dst_rank),
                attribute(name="comm_tag", int32_val=tag),
            ]
        )
        return int(node.id)

    def _add(self, name: str, kind: int) -> Any:
        node = self._schema.Node(id=len(self.listed), name=name, type=kind)
        node.attr.append(self._schema.AttributeProto(name="is_cpu_op", bool_val=False))
        self.listed.append(node)
        return node


def _microseconds(time_ns: int) -> int:
    return (time_ns + 500) // 1000
