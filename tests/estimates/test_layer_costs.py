"""Costs of layers against counts by hand: products in waves, memory, collectives, experts, context parallelism."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tracetool.errors import ScenarioError
from tracetool.estimates.device import Accelerator
from tracetool.estimates.layer_costs import CurveCosts
from tracetool.estimates.memory import Held, held, kept_bytes, static_bytes
from tracetool.estimates.stages import analytical_pipeline
from tracetool.estimates.training import Training, widened
from tracetool.estimates.transformer import Experts, Transformer
from tracetool.estimates.transport import placed
from tracetool.model.action import ActionKind
from tracetool.network.collectives import collective_ns
from tracetool.network.file import NetworkChoice
from tracetool.network.tiers import Network, Tier

if TYPE_CHECKING:
    from tracetool.estimates.training import Group
    from tracetool.estimates.transformer import Recompute
    from tracetool.network.collectives import Kind

PLAIN = Accelerator("one operation per ns", 10**9, 10**9)
GPT = Transformer(
    name="gpt", layers=4, hidden=64, heads=4, kv_heads=4, ffn=256, vocabulary=128, gated=False, fused_attention=False
)
LLAMA = replace(GPT, name="llama", gated=True, fused_attention=True, kv_heads=2)
HOW = Training(2, 2, 4, 3, 32, 1.0)
TOKENS = 96
NETWORK = NetworkChoice(Network("two nodes", (Tier("hb", 4, 10**9, 100), Tier("ib", 16, 10**8, 1000))))


class Priced:
    """Each byte of a collective takes a ns, of each kind and group apart."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    def collective_ns(self, kind: Kind, group: Group, payload_bytes: int) -> int:
        self.asked.append((kind, group, payload_bytes))
        return payload_bytes

    def exchange_ns(self, group: Group, payload_bytes: int) -> int:
        return self.collective_ns("alltoall", group, payload_bytes)

    def collective_blocks(self, group: Group) -> int:  # noqa: ARG002
        return 0

    def message_ns(self, payload_bytes: int, rank: int) -> int | None:
        return payload_bytes + rank


def test_waves_of_tiles() -> None:
    """Five tiles of 4 x 2 on three processors take two waves; other ways round 6 x 5 need fewer, or more."""
    device = replace(PLAIN, processors=3, tile=(4, 2))
    # 4 x 10: five tiles, two waves of three; turned 2 x 4: 2 x 3 tiles, two waves as well.
    assert device.product_ns(1.0, 4, 10, 7) == 2 * (6 * 8) * 7
    # 6 x 2: two tiles, one wave. Turned: 3 x 1 tiles, one wave.
    assert device.product_ns(0.5, 6, 2, 7) == 2 * 2 * (3 * 8) * 7
    assert replace(device, tile_overhead=5).product_ns(1.0, 6, 2, 7) == 2 * (3 * 8) * 12
    assert replace(device, kernel_ns=9).product_ns(1.0, 6, 2, 7, count=2) == 2 * (6 * 8) * 7 + 9


def test_products_that_memory_limits() -> None:
    device = replace(PLAIN, hbm_bandwidth_bytes_per_s=10**6)  # 1 byte in 1000 ns
    assert device.product_ns(1.0, 3, 5, 2) == 2 * (6 + 10 + 15) * 1000
    assert device.attention_ns(1.0, 2, 3, 5, 7) == 2 * 2 * (21 + 35 + 15) * 1000
    assert PLAIN.memory_ns(10**6) == 0


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
def test_a_layer_is_its_operations_where_nothing_else_takes_time(model: Transformer, recompute: Recompute) -> None:
    training = replace(HOW, recompute=recompute)
    transport = Priced()
    done = CurveCosts(model, PLAIN, training, transport).layer()
    gathers = 4 * 2 * TOKENS * 64
    assert transport.asked == [("allgather", "tp", 2 * TOKENS * 64), ("reducescatter", "tp", 2 * TOKENS * 64)]
    assert done.forward_ns == model.layer_forward_flops(3, 32) / 2 + gathers
    again = gathers if recompute == "full" else 0
    assert done.backward_ns == model.layer_backward_flops(3, 32, training.recompute) / 2 + gathers + again


def test_without_sequence_parallelism_there_are_all_reduces() -> None:
    transport = Priced()
    CurveCosts(GPT, PLAIN, replace(HOW, sequence_parallel=False), transport).layer()
    assert transport.asked == [("allreduce", "tp", 2 * TOKENS * 64)]
    transport = Priced()
    CurveCosts(GPT, PLAIN, replace(HOW, tensor=1), transport).layer()
    assert transport.asked == []


def test_bytes_through_memory() -> None:
    """GPT: two norms and two additions with dropout, GELU, softmax with dropout; a byte in a ns, no operations."""
    device = Accelerator("memory alone", 10**30, 1, hbm_bandwidth_bytes_per_s=10**9)
    entries = TOKENS * 64
    products = [(TOKENS, 96, 64), (TOKENS, 64, 32), (TOKENS, 128, 64), (TOKENS, 64, 128)]
    moved = sum(2 * (m * k + k * n + m * n) for m, n, k in products)
    heads, scores = 6, 6 * 32 * 32
    attention = 2 * 2 * heads * (32 * 16 + 32 * 16 + 32 * 32) + 9 * scores
    for shared, part in ((True, entries / 2), (False, float(entries))):
        training = replace(HOW, sequence_parallel=shared)
        done = CurveCosts(GPT, device, replace(training, tensor=2), _Free()).layer()
        assert done.forward_ns == pytest.approx(moved + attention + 22 * part + 4 * TOKENS * 128)


class _Free(Priced):
    def collective_ns(self, kind: Kind, group: Group, payload_bytes: int) -> int:  # noqa: ARG002
        return 0


def test_experts() -> None:
    """Each token goes to two of eight, a quarter of which sit on each of four ranks: as many products as two MLPs."""
    model = replace(LLAMA, experts=Experts(8, 2))
    transport = Priced()
    done = CurveCosts(model, PLAIN, replace(HOW, data=4, expert=4), transport).layer()
    routed = 2 * TOKENS * 2 * 64 // 2
    assert transport.asked[0] == ("alltoall", "ep", routed)
    assert done.forward_ns == model.layer_forward_flops(3, 32) / 2 + 4 * 2 * TOKENS * 64 + 2 * routed
    one = 3 * 64 * 256
    attention = 2 * 64 * 64 + 2 * 64 * 32
    assert model.layer_parameters == attention + 8 * one + 2 * 64 + 64 * 8
    assert model.layer_weights == attention + 2 * one
    assert held(model, replace(HOW, data=4, expert=4), 1) == Held(
        (2 * (attention + 2 * 64 + 64 * 8) + 64 + 128 * 64) // 2, 2 * 8 * one // 4 // 2
    )


def test_context_parallelism_hides_what_attention_takes_as_long_as() -> None:
    """A quarter of the tokens; keys and values go round beside three quarters of attention."""
    training = replace(HOW, context=4, tensor=1, batch=1)
    transport = Priced()
    done = CurveCosts(LLAMA, PLAIN, training, transport).layer()
    round_trip = 2 * 2 * 8 * 32 * 4
    assert transport.asked == [("allgather", "cp", round_trip)]
    attention = LLAMA.attention_flops(1, 32) / 4
    late = max(0.0, round_trip - 0.75 * attention)
    assert done.forward_ns == LLAMA.layer_forward_flops(1, 32) / 4 + late
    slow = replace(PLAIN, peak_flops=10**12)
    assert CurveCosts(LLAMA, slow, training, Priced()).layer().forward_ns > round_trip - attention / 1000


def test_memory_by_hand() -> None:
    """arXiv 2205.05198, equations 2 and 4: sbh (10 + 24/t + 5as/(ht)), and (34 + 5as/h)/t with sequence parallelism."""
    sbh = TOKENS * 64
    scores = 5 * 4 * 32 * TOKENS
    assert kept_bytes(GPT, HOW) == (34 * sbh + scores) // 2
    assert kept_bytes(GPT, replace(HOW, sequence_parallel=False)) == 10 * sbh + (24 * sbh + scores) // 2
    assert kept_bytes(GPT, replace(HOW, context=4)) == (34 * sbh + scores) // 8
    has = Held(1000, 600)
    assert static_bytes(has, HOW) == 18 * 1600
    shared = replace(HOW, data=4, expert=2, sharded_optimizer=True)
    assert static_bytes(has, shared) == 6 * 1600 + 12 * 1000 // 4 + 12 * 600 // 2


def test_over_a_network() -> None:
    """Two nodes of four: tensor and data parallel inside, stages across; the network says what takes how long."""
    training = replace(HOW, data=2)
    (transport,) = placed(NETWORK, training.degrees)
    assert transport.seats.groups["tp"].unlike == ((0, 1),)
    assert transport.seats.groups["gradients"].unlike == ((0, 2),)
    assert [hop.devices for hop in transport.line.hops] == [(0, 4), (4, 0)]
    payload = 2 * TOKENS * 64
    expected = collective_ns(NETWORK.network, "allgather", "auto", (0, 1), payload)
    assert transport.collective_ns("allgather", "tp", payload) == expected
    pipeline = analytical_pipeline(GPT, PLAIN, training, NETWORK)
    assert pipeline.p2p == "grouped"
    message = NETWORK.network.transfer_ns(payload // 2, 0, 4)
    assert pipeline.stages[0].forward_transfer_ns == pipeline.stages[1].backward_transfer_ns == message
    assert [part.kind for part in pipeline.ranks[0].tail] == [ActionKind.REDUCE_GRAD, ActionKind.OPTIMIZER]
    interleaved = analytical_pipeline(GPT, PLAIN, replace(training, chunks=2), NETWORK)
    alone = analytical_pipeline(GPT, replace(PLAIN, tensor_bandwidth_bytes_per_s=10**18), replace(training, chunks=2))
    for stage in (0, 1, 2):
        forward = interleaved.stages[stage].median_ns(ActionKind.FORWARD) or 0
        collectives = 2 * (expected + collective_ns(NETWORK.network, "reducescatter", "auto", (0, 1), payload))
        assert forward - message - collectives == alone.stages[stage].median_ns(ActionKind.FORWARD)


def test_tiers_that_a_job_does_not_reach_are_left_out() -> None:
    (transport,) = placed(NETWORK, replace(HOW, stages=1).degrees)
    assert [tier.name for tier in transport.seats.network.tiers] == ["hb"]
    assert transport.seats.groups["tp"].unlike == ((0, 1),)
    assert widened(NETWORK, 18).network.devices == 20
    assert widened(NETWORK, 16) is NETWORK


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tensor": 3}, "4 heads, which do not divide into 3"),
        ({"chunks": 4}, "4 layers, which do not divide into 8"),
        ({"expert": 2, "data": 2}, "has no experts"),
        ({"context": 5}, "32 tokens, which do not divide into 5"),
        ({"data": 0}, "more than 0"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        analytical_pipeline(GPT, replace(PLAIN, tensor_bandwidth_bytes_per_s=1), replace(HOW, **change))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (replace(GPT, kv_heads=3), "4 heads, which do not share 3 heads of keys and values"),
        (replace(GPT, experts=Experts(8, 9)), "8 experts, and each token goes to 9"),
    ],
)
def test_models_that_cannot_be_are_refused(model: Transformer, said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as caught:
        analytical_pipeline(model, replace(PLAIN, tensor_bandwidth_bytes_per_s=1), HOW)
    assert caught.value.hint


def test_tensor_parallelism_needs_a_network_or_a_bandwidth() -> None:
    with pytest.raises(ScenarioError, match="how fast tensor-parallel ranks reach each other"):
        analytical_pipeline(GPT, PLAIN, HOW)
