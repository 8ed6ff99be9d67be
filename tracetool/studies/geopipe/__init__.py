"""GeoPipe (arXiv 2510.12064), rebuilt from public facts: what is public of its setting, what is assumed for the rest.

The paper's own formulas, its iteration times, distances, microbatches and batch sizes are not public; nothing here is
attributed to it beyond the facts listed, each with how well it is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tracetool.estimates.device import A100, Accelerator
from tracetool.estimates.transformer import LLAMA_2_13B, LLAMA_2_70B, Transformer

if TYPE_CHECKING:
    from collections.abc import Mapping


Basis = Literal["abstract", "two summaries", "one note"]
"""How a fact is known: read in the abstract; told alike by two public summaries; told by one public reading note."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something published.

    Attributes:
        text: What it says.
        basis: How it is known.
    """

    text: str
    basis: Basis


FACTS: tuple[Fact, ...] = (
    Fact("computation bubble ratio reduced by up to 78.91 %", "abstract"),
    Fact("pipeline parallelism over a lossless RDMA optical network (DC-OTN), Ascend full stack", "abstract"),
    Fact("the reduction is against conventional 1F1B", "two summaries"),
    Fact("average iteration about 9.1 % shorter (one summary says up to about 9.1 %)", "two summaries"),
    Fact("Llama-2 13B and '72B', taken as the 70B model", "two summaries"),
    Fact("there is a cross-DC bandwidth beyond which more does not pay; its value is not given", "two summaries"),
    Fact("8 nodes of 8 Ascend 910B with 64 GB HBM, in 3 regions", "one note"),
    Fact("tensor parallel 8 in a node, pipeline 8, data parallel 1: only pipeline messages cross", "one note"),
    Fact("cross-DC bandwidth varied from 400 down to 200 Gbit/s by the rate of the spine ports", "one note"),
    Fact("non-blocking transfers and more forward passes ahead of the first backward", "one note"),
)

SOURCES: tuple[str, ...] = (
    "published facts: arXiv 2510.12064 (abstract), its summary on arxivlens.com (2025-10-30), a public reading note on "
    "all of its pages",
    "peak: 24 cores of 16^3 multiply-adds at 1.8 GHz, Ascend910B2C.ini of CANN's platform_config; HCCS 392 GB/s as "
    "public comparisons tell, taken as both directions together",
    "throughput: README of Ascend/MindSpeed-LLM at 01546f7",
    "model of costs: operations and activations as in arXiv 2205.05198 and 2307.08691, Llama-2 as in arXiv 2307.09288",
)

NOT_PUBLISHED: tuple[str, ...] = (
    "distance and latency",
    "microbatches, micro-batch size and sequence length",
    "iteration times and absolute bubble ratios",
    "which bubbles the ratio counts, and over which time",
    "how the regions split the 8 stages",
    "how many messages cross the link at once",
    "the optimum bandwidth",
    "whether both figures are of one configuration",
)

BUBBLE_REDUCTION = 0.7891
ITERATION_REDUCTION = 0.091
TOLERANCE = 0.005
"""A figure arises where the model comes within half a percentage point of it."""

TENSOR = 8
STAGES = 8
BANDWIDTHS_GBIT_PER_S = (200, 300, 400)
MODELS: Mapping[str, Transformer] = {"13b": LLAMA_2_13B, "70b": LLAMA_2_70B}

_CUBE_FLOPS = 24 * 16**3 * 2 * 1_800_000_000

ACCELERATORS: Mapping[str, Accelerator] = {
    # 24 cube cores of 16 x 16 x 16 multiply-adds at 1.8 GHz: CANN's platform_config/Ascend910B2C.ini. Public figures
    # for "910B" go from 280 (ai.gitee.com) over 320 to 376 TFLOPS; which variant the paper used is not known. HCCS: 7
    # links of 56 GB/s, 392 GB/s in all (public comparisons, citing Huawei's server data sheet), taken as both ways
    # together.
    "ascend-910b": Accelerator("Ascend 910B", _CUBE_FLOPS, 64 * 10**9, 196 * 10**9),
    "a100": A100,
}

THROUGHPUT: Mapping[str, tuple[int, int, int]] = {"13b": (1, 1, 2016), "70b": (4, 4, 439)}
"""Nodes, pipeline stages assumed for them, and published tokens per second and device: MindSpeed-LLM's README
(Ascend/MindSpeed-LLM at 01546f7) for Llama-2 at 4096 tokens on Atlas 900 A2 PODc, with communication beside compute."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """What is assumed where nothing is published.

    Attributes:
        what: The quantity.
        value: What is taken.
        why: Why.
    """

    what: str
    value: str
    why: str
