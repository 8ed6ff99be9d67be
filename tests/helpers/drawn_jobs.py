"""Training jobs at random, of every parallel dimension, for tests of estimates."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

from tracetool.estimates.device import A100
from tracetool.estimates.estimating import Job
from tracetool.estimates.training import Training
from tracetool.estimates.transformer import Experts, Transformer

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICE = replace(A100, hbm_bandwidth_bytes_per_s=1631 * 10**9, processors=108, tile_overhead=128, kernel_ns=5000)


def drawn_jobs(seed: int, count: int) -> list[Job]:
    """So many jobs, each of at most 512 devices."""
    return list(islice(_jobs(seed), count))


def _jobs(seed: int) -> Iterator[Job]:
    draw = Random(seed)  # noqa: S311 - no secret
    while True:
        hidden, layers = draw.choice([1024, 4096, 6144]), draw.choice([24, 48])
        heads = hidden // 128
        model = Transformer(
            name="drawn", layers=layers, hidden=hidden, heads=heads, kv_heads=draw.choice([heads, heads // 4]),
            ffn=4 * hidden, vocabulary=51200, gated=draw.random() < 0.5, fused_attention=draw.random() < 0.5,
            tied=draw.random() < 0.5, experts=draw.choice([None, None, Experts(8, 2)]),
        )  # fmt: skip
        data, stages = draw.choice([1, 2, 4, 8]), draw.choice([1, 2, 4])
        training = Training(
            draw.choice([1, 2, 4, 8]), stages, draw.choice([4, 8, 16]), draw.choice([1, 2]), 2048,
            draw.uniform(0.3, 0.8), draw.choice(["none", "selective", "full"]),
            sequence_parallel=draw.random() < 0.5, context=draw.choice([1, 2]),
            chunks=draw.choice([1, 2]) if stages > 1 else 1, data=data,
            expert=draw.choice([1, data]) if model.experts else 1, sharded_optimizer=draw.random() < 0.5,
            overlap_reduction=draw.random() < 0.5,
        )  # fmt: skip
        yield Job("drawn", model, DEVICE, training)
