"""The step that ``make_ascend_sample.py`` writes down: what is computed and sent, and when.

Compute times are chosen (FORWARD_NS, BACKWARD_NS); the rest follows. A transfer starts when both sides have
posted it and takes PAYLOAD_BYTES / BYTES_PER_SECOND; directions do not disturb each other. An operation ends
OVERHEAD_NS after the last of its transfers, and each rank does one thing after another, HOST_GAP_NS apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

STAGES, MICROBATCHES, LAYERS, STEP = 4, 4, 2, 7
FORWARD_NS = (9_000_000, 8_000_000, 8_000_000, 11_000_000)
BACKWARD_NS = (17_000_000, 16_000_000, 16_000_000, 21_000_000)
PAYLOAD_BYTES = 8_388_608
BYTES_PER_SECOND = 20_900_000_000
TRANSFER_NS = round(PAYLOAD_BYTES / BYTES_PER_SECOND * 1e8) * 10
OVERHEAD_NS = 35_000
HOST_GAP_NS = 20_000
KERNEL_GAP_NS = 1_000
ZERO_GRAD_NS, NORM_NS, OPTIMIZER_NS = 200_000, 100_000, 3_000_000
START_NS = 1_764_300_000_000_000_000
STATIC_MB = (1664.0, 1408.0, 1408.0, 1696.0)
ACTIVATION_MB = 192.5

PP, MP = "group_name_17", "group_name_6"

# name | type | accelerator core | share of the time | input shapes | output shapes
_RMS = "RmsNorm|RmsNorm|AI_VECTOR_CORE|2|4096,1,1024;1024|4096,1,1024;4096,1,1"
_RMS_GRAD = "RmsNormGrad|RmsNormGrad|MIX_AIV|4|4096,1,1024;4096,1,1024;1024|4096,1,1024;1024"
_MATMUL = "aclnnMatmul_MatMulV3Common_MatMulV3|MatMulV3|AI_CORE"
_FLASH = "aclnnFlashAttentionScore_FlashAttentionScore_FlashAttentionScore|FlashAttentionScore|MIX_AIC"
_FLASH_GRAD = (
    "aclnnFlashAttentionScoreGrad_FlashAttentionScoreGrad_FlashAttentionScoreGrad|FlashAttentionScoreGrad|MIX_AIC"
)
LAYER_FORWARD = (
    _RMS,
    f"{_MATMUL}|9|4096,1024;4096,1024|4096,4096",
    f"{_FLASH}|40|4096,1,2048;4096,1,1024;4096,1,1024|1,16,4096,8;4096,1,2048",
    _RMS,
    f"{_MATMUL}|14|4096,1024;6144,1024|4096,6144",
    "SwiGlu|SwiGlu|AI_VECTOR_CORE|3|4096,6144|4096,3072",
    f"{_MATMUL}|7|4096,3072;1024,3072|4096,1024",
)
LAYER_BACKWARD = (
    f"{_MATMUL}|14|4096,1024;1024,3072|4096,3072",
    "SwiGluGrad|SwiGluGrad|AI_VECTOR_CORE|7|4096,3072;4096,6144|4096,6144",
    f"{_MATMUL}|28|4096,6144;6144,1024|4096,1024",
    _RMS_GRAD,
    f"{_FLASH_GRAD}|85|4096,1,2048;4096,1,1024;4096,1,1024|4096,1,2048;4096,1,1024",
    f"{_MATMUL}|18|4096,4096;4096,1024|4096,1024",
    _RMS_GRAD,
)
EMBEDDING = ("aclnnEmbedding_GatherV2AiCore_GatherV2|GatherV2|AI_VECTOR_CORE|2|32000,1024;1,4096|1,4096,1024",)
EMBEDDING_GRAD = (
    "aclnnEmbeddingDenseBackward_EmbeddingDenseGradV2|EmbeddingDenseGradV2|MIX_AIV|6|4096,1024;4096|32000,1024",
)
HEAD = (
    _RMS,
    f"{_MATMUL}|46|4096,1024;32000,1024|4096,32000",
    "aclnnMaxDim_ArgMaxWithValueAiCore_ArgMaxWithValue|ArgMaxWithValue|AI_VECTOR_CORE|6|4096,32000|4096;4096",
    "aclnnSub_SubAiCore_Sub|Sub|AI_VECTOR_CORE|6|4096,32000;4096,1|4096,32000",
    "aclnnExp_ExpAiCore_Exp|Exp|AI_VECTOR_CORE|6|4096,32000|4096,32000",
    "aclnnReduceSum_ReduceSumOpAiCore_ReduceSum|ReduceSum|AI_VECTOR_CORE|3|4096,32000|4096",
    "aclnnLog_LogAiCore_Log|Log|AI_VECTOR_CORE|1|4096|4096",
)
HEAD_GRAD = (
    "aclnnInplaceFillScalar_FillAiCore_Fill|Fill|AI_VECTOR_CORE|1|1|1",
    "aclnnMul_MulAiCore_Mul|Mul|AI_VECTOR_CORE|8|4096,32000;4096,1|4096,32000",
    f"{_MATMUL}|90|4096,32000;32000,1024|4096,1024",
    _RMS_GRAD,
)
ZERO_GRAD = ("aclnnInplaceZero_ZerosLikeAiCore_ZerosLike|ZerosLike|AI_VECTOR_CORE|1|58720256|58720256",)
NORM = ("LpNormV2|LpNormV2|AI_VECTOR_CORE|1|58720256|1",)
ADAM = "aclnnApplyAdamWV2_ApplyAdamWV2_ApplyAdamWV2|ApplyAdamWV2|AI_VECTOR_CORE"
OPTIMIZER = tuple(
    f"{ADAM}|{share}|{size};{size};{size};{size};1|" for share, size in ((4, 4194304), (6, 6291456), (3, 3145728))
)


@dataclass
class Compute:
    """Kernels that run one after another."""

    what: str
    duration_ns: int
    kernels: tuple[str, ...]


@dataclass
class Communication:
    """One operation: messages as (direction, peer, message), or none for the all-reduce of the norm."""

    messages: tuple[tuple[str, int, str], ...]
    start_ns: int = 0
    end_ns: int = 0
    name: str = ""

    @property
    def received(self) -> list[int]:
        """Peers it receives from."""
        return [peer for direction, peer, _ in self.messages if direction == "recv"]

    @property
    def sends(self) -> bool:
        """Whether it sends."""
        return any(direction == "send" for direction, _, _ in self.messages)


@dataclass
class Rank:
    """A rank's program, and what came of it."""

    stage: int
    program: list[Compute | Communication]
    now_ns: int = START_NS
    next: int = 0
    ran: list[tuple[int, Compute | Communication]] = field(default_factory=list)


def forward(stage: int, microbatch: int) -> Compute:
    kernels = LAYER_FORWARD * LAYERS
    kernels = EMBEDDING + kernels if stage == 0 else kernels + HEAD if stage == STAGES - 1 else kernels
    return Compute(f"F{microbatch}", FORWARD_NS[stage], kernels)


def backward(stage: int, microbatch: int) -> Compute:
    kernels = LAYER_BACKWARD * LAYERS
    kernels = kernels + EMBEDDING_GRAD if stage == 0 else HEAD_GRAD + kernels if stage == STAGES - 1 else kernels
    return Compute(f"B{microbatch}", BACKWARD_NS[stage], kernels)


def batch(stage: int, *messages: tuple[str, str]) -> list[Communication]:
    """One operation with the messages that exist at this stage, as ('send', 'F0')."""
    found = []
    for direction, message in messages:
        # Activations come from the stage before and go to the one after, gradients the other way.
        step = 1 if (direction == "send") == (message[0] == "F") else -1
        if 0 <= stage + step < STAGES:
            found.append((direction, stage + step, message))
    return [Communication(tuple(found))] if found else []


def one_f_one_b(stage: int) -> list[Compute | Communication]:
    """The order of Megatron: warm-up, steady pairs, cool-down; a send and a receive in one batch."""
    program: list[Compute | Communication] = [Compute("zero", ZERO_GRAD_NS, ZERO_GRAD)]
    warm_up = min(STAGES - 1 - stage, MICROBATCHES)
    for m in range(warm_up):
        program += [*batch(stage, ("recv", f"F{m}")), forward(stage, m), *batch(stage, ("send", f"F{m}"))]
    if warm_up < MICROBATCHES:
        program += batch(stage, ("recv", f"F{warm_up}"))
    for m in range(warm_up, MICROBATCHES):
        done = m - warm_up
        program.append(forward(stage, m))
        program += batch(stage, ("send", f"F{m}"), ("recv", f"B{done}"))
        program.append(backward(stage, done))
        following = [("recv", f"F{m + 1}")] if m + 1 < MICROBATCHES else []
        program += batch(stage, ("send", f"B{done}"), *following)
    for m in range(MICROBATCHES - warm_up, MICROBATCHES):
        program += [*batch(stage, ("recv", f"B{m}")), backward(stage, m), *batch(stage, ("send", f"B{m}"))]
    program += [Compute("norm", NORM_NS, NORM), Communication(())]
    return [*program, Compute("optimizer", OPTIMIZER_NS, OPTIMIZER)]


def simulate() -> list[Rank]:
    """Run all ranks until their programs are done."""
    ranks = [Rank(stage, one_f_one_b(stage)) for stage in range(STAGES)]
    posted: dict[tuple[str, ...], dict[str, int]] = {}
    while any(rank.next < len(rank.program) for rank in ranks):
        before = [(rank.next, len(posted)) for rank in ranks]
        for rank in ranks:
            while rank.next < len(rank.program) and advance(rank, posted):
                pass
        if before == [(rank.next, len(posted)) for rank in ranks]:
            raise RuntimeError("every rank waits for another one")
    for rank in ranks:
        name_operations(rank)
    return ranks


def advance(rank: Rank, posted: dict[tuple[str, ...], dict[str, int]]) -> bool:
    """Let a rank do its next item; False if it has to wait for others."""
    item = rank.program[rank.next]
    start = rank.now_ns + HOST_GAP_NS
    if isinstance(item, Compute):
        rank.now_ns = start + item.duration_ns
    else:
        item.start_ns = start
        # Everybody posts the norm; the two ends of a message post that message.
        needs = {(m, str(min(rank.stage, p)), str(max(rank.stage, p))): 2 for _, p, m in item.messages}
        needs = needs or {("norm",): STAGES}
        for key in needs:
            posted.setdefault(key, {})[str(rank.stage)] = start
        if any(len(posted[key]) < count for key, count in needs.items()):
            return False
        ready = max(max(posted[key].values()) for key in needs)
        rank.now_ns = item.end_ns = ready + (TRANSFER_NS if item.messages else 0) + OVERHEAD_NS
    rank.ran.append((start, item))
    rank.next += 1
    return True


def group_hash(name: str) -> int:
    high = low = 0
    for byte in name.encode():
        high, low = (high * 29 + byte) % 2**32, (low * 131 + byte) % 2**32
    return high * 2**32 + low


def name_operations(rank: Rank) -> None:
    """Number the operations of each group; the index goes on from a step before the captured one."""
    for group, kind, wanted in ((PP, "batchSendRecv", True), (MP, "allReduce", False)):
        members = [c for _, c in rank.ran if isinstance(c, Communication) and bool(c.messages) == wanted]
        for index, operation in enumerate(members, len(members)):
            operation.name = f"hcom_{kind}__{group_hash(group) % 1000:03}_{index}_1"


def busy(rank: Rank) -> list[tuple[int, int]]:
    """Start and end of everything the rank did."""
    return [(s, i.end_ns if isinstance(i, Communication) else s + i.duration_ns) for s, i in rank.ran]


def known_times(ranks: list[Rank]) -> tuple[int, int]:
    """Pipeline window and step, ns."""
    spans = [
        (item.what[0], start, start + item.duration_ns)
        for rank in ranks
        for start, item in rank.ran
        if isinstance(item, Compute)
    ]
    window = max(end for what, _, end in spans if what == "B") - min(s for what, s, _ in spans if what == "F")
    return window, max(end for _, _, end in spans) - min(start for _, start, _ in spans)


def kernel_times(start: int, compute: Compute, dice: random.Random) -> list[tuple[int, int, list[str]]]:
    """Start and duration of each kernel; together with the gaps they fill the action exactly."""
    parts = [kernel.split("|") for kernel in compute.kernels]
    shares = [float(part[3]) * dice.uniform(0.97, 1.03) for part in parts]
    left = compute.duration_ns - KERNEL_GAP_NS * (len(parts) - 1)
    found = []
    for index, part in enumerate(parts):
        duration = round(left * shares[index] / sum(shares[index:]) / 20) * 20
        found.append((start, duration, part))
        start, left = start + duration + KERNEL_GAP_NS, left - duration
    return found
