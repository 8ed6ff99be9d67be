"""Execution traces in Chakra's schema, read back with Chakra's own reader and run by a simulator of a few lines."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from helpers.synthetic import BYTE_PER_NS, pipeline, places, replayed, scenario

from tracetool.cli import cli
from tracetool.errors import MissingPackage, ScenarioError
from tracetool.model.timeline import measure
from tracetool.reports.export.chakra import execution_traces, load_schema

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.model.timeline import Timeline

RANKS, MICROBATCHES, PAYLOAD, LATENCY_NS = 4, 6, 3000, 50_000


def timeline_of(payload_bytes: int | None = PAYLOAD) -> Timeline:
    measured = pipeline(
        RANKS, MICROBATCHES, [1000, 2000, 3000, 4000], [4000, 5000, 6000, 7000], payload_bytes=payload_bytes,
        tail_ns=2600, p2p="posted-ahead",
    )  # fmt: skip
    topology = places([2, 2], latency_ns=LATENCY_NS) if payload_bytes else None
    return replayed(measured, "1f1b", scenario(topology)).timeline


def read_back(trace: bytes) -> list[Any]:
    """Nodes of a rank, as Chakra reads them."""
    from chakra.src.third_party.utils.protolib import decodeMessage

    schema, _ = load_schema()
    file, nodes = io.BytesIO(trace), []
    assert decodeMessage(file, schema.GlobalMetadata())
    while decodeMessage(file, node := schema.Node()):
        nodes.append(node)
        if file.tell() == len(trace):
            break
    return nodes


def attributes(node: Any) -> dict[str, Any]:
    return {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}


@pytest.fixture(scope="module")
def ranks() -> list[list[Any]]:
    pytest.importorskip("chakra.schema.protobuf.et_def_pb2", reason="mlc-chakra is not installed")
    return [read_back(trace) for trace in execution_traces(timeline_of())]


def test_computes_are_those_of_the_timeline_in_order(ranks: list[list[Any]]) -> None:
    schema, _ = load_schema()
    for rank, nodes in enumerate(ranks):
        computes = [node for node in nodes if node.type == schema.COMP_NODE]
        ops = sorted((op for op in timeline_of().ops if op.rank == rank), key=lambda op: op.start_ns)
        assert [attributes(node)["duration_ns"] for node in computes] == [op.duration_ns for op in ops]
        assert [node.duration_micros for node in computes[:-1]] == [op.duration_ns // 1000 for op in ops[:-1]]
        assert (computes[-1].name, computes[-1].duration_micros) == ("OPTIMIZER", 3)
        assert all(list(after.ctrl_deps) == [before.id] for before, after in pairwise(computes))


def test_every_message_has_both_sides_of_one_tag_and_size(ranks: list[list[Any]]) -> None:
    schema, _ = load_schema()
    sides: dict[int, dict[tuple[int, Any], tuple[int, int, int]]] = {}
    for rank, nodes in enumerate(ranks):
        for node in nodes:
            if node.type != schema.COMP_NODE:
                told = attributes(node)
                side = told["comm_src"], told["comm_dst"], told["comm_size"]
                assert sides.setdefault(told["comm_tag"], {}).setdefault((rank, node.type), side) is side
    assert len(sides) == 2 * (RANKS - 1) * MICROBATCHES
    for both in sides.values():
        ((sender, send), (receiver, receive)) = sorted(both, key=lambda side: side[1])
        assert (send, receive) == (schema.COMM_SEND_NODE, schema.COMM_RECV_NODE)
        assert set(both.values()) == {(sender, receiver, PAYLOAD)}


def test_running_the_graph_takes_the_replayed_window(ranks: list[list[Any]]) -> None:
    # Messages of a link that are never sent at once need no queue: their time is payload / bandwidth and the latency.
    schema, _ = load_schema()
    ends: dict[tuple[int, int], int] = {}
    arrivals: dict[int, int] = {}
    waiting = [(rank, node) for rank, nodes in enumerate(ranks) for node in nodes]
    while waiting:
        left = []
        for rank, node in waiting:
            needed = [*node.ctrl_deps, *node.data_deps]
            told = attributes(node)
            if any((rank, need) not in ends for need in needed):
                left.append((rank, node))
                continue
            ready = max((ends[rank, need] for need in needed), default=0)
            if node.type == schema.COMM_SEND_NODE:
                over = {told["comm_src"], told["comm_dst"]} == {1, 2}
                arrivals[told["comm_tag"]] = ready + (
                    told["comm_size"] * 10**9 // BYTE_PER_NS + LATENCY_NS if over else 0
                )
                ends[rank, node.id] = ready
            elif node.type == schema.COMM_RECV_NODE:
                if told["comm_tag"] not in arrivals:
                    left.append((rank, node))
                    continue
                ends[rank, node.id] = arrivals[told["comm_tag"]]
            else:
                ends[rank, node.id] = ready + told["duration_ns"]
        assert len(left) < len(waiting), "the graph has a cycle"
        waiting = left
    assert max(ends.values()) == measure(timeline_of()).step_ns


def test_unknown_sizes_are_refused() -> None:
    pytest.importorskip("chakra.schema.protobuf.et_def_pb2", reason="mlc-chakra is not installed")
    with pytest.raises(ScenarioError, match="differ in size"):
        execution_traces(timeline_of(None))


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "chakra.schema.protobuf", None)
    with pytest.raises(MissingPackage, match="mlc-chakra") as caught:
        load_schema()
    assert "'.[chakra]'" in str(caught.value.hint)
    # Before anything is read.
    said = CliRunner().invoke(cli, ["replay", str(tmp_path / "none.run"), "--chakra", str(tmp_path / "out")])
    assert isinstance(said.exception, MissingPackage)
    assert not (tmp_path / "out").exists()
