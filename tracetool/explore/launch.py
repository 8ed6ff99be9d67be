"""How a plan is launched: flags of Megatron-LM and of torchtitan for exactly it, and what they have no flag for.

Flags as of Megatron-LM core 0.14 (megatron/training/arguments.py) and torchtitan 0.2 (torchtitan/config/job_config.py,
configs.py). What a framework does otherwise than the plan, or has no flag for, is said; nothing is guessed. Tokenizer,
data, optimizer and checkpoints are no part of a plan.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.estimates.training import traits_of
from tracetool.model.pipeline import NO_OVERLAP
from tracetool.network.placement import DIMENSIONS, place
from tracetool.overlap.answer import ASYNC_TP
from tracetool.schedules import REFERENCE, REFERENCE_OF_CHUNKS, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracetool.estimates.training import Training
    from tracetool.estimates.transformer import Transformer
    from tracetool.explore.plan import JobPlan, Workload

Flag = tuple[str, ...]
"""Its name, and its value if it has one."""


@dataclass(frozen=True, slots=True)
class PlanLaunch:
    """What a framework is given.

    Attributes:
        framework: Which, with the version that has these flags.
        flags: Name and value of each.
        beside: What it is given otherwise than by flags.
        unsaid: What of the plan it cannot be told, or does otherwise.
    """

    framework: str
    flags: tuple[Flag, ...]
    beside: tuple[str, ...]
    unsaid: tuple[str, ...]

    @property
    def text(self) -> str:
        """The flags as a shell takes them."""
        return " ".join(shlex.join(flag) for flag in self.flags)

    @property
    def is_exact(self) -> bool:
        """Whether it runs exactly the plan."""
        return not self.unsaid


def launches(workload: Workload, plan: JobPlan) -> tuple[PlanLaunch, PlanLaunch]:
    """The plan for Megatron-LM and for torchtitan.

    Args:
        workload: What is trained, and where.
        plan: How.
    """
    model, nowhere = workload.model, tuple(_nowhere(plan))
    seated = _seated(workload, plan)
    is_mapped = seated is not None and _is_mapped(workload, plan)
    by_rank = () if seated is None else (seated,)
    mapped: tuple[Flag, ...] = (("--use-tp-pp-dp-mapping",),) if is_mapped else ()
    return (
        PlanLaunch(
            "Megatron-LM core 0.14",
            (*_megatron_flags(model, plan), *mapped),
            (f"a tokenizer of {model.vocabulary:,} entries", *(() if is_mapped else by_rank)),
            (*_megatron_unsaid(plan), *nowhere),
        ),
        PlanLaunch(
            "torchtitan 0.2",
            tuple(_titan_flags(model, plan)),
            (f"a module and config of the shape of {model.name}", *_written(plan.training), *by_rank),
            (*_titan_unsaid(model, plan), *nowhere),
        ),
    )


def _megatron_flags(model: Transformer, plan: JobPlan) -> Iterator[Flag]:
    training = plan.training
    yield from _megatron_model(model)
    yield "--seq-length", str(training.sequence)
    yield "--max-position-embeddings", str(max(training.sequence, model.positions))
    yield "--micro-batch-size", str(training.batch)
    yield "--global-batch-size", str(training.sequences)
    yield "--tensor-model-parallel-size", str(training.tensor)
    if training.sequence_parallel and training.tensor > 1:
        yield ("--sequence-parallel",)
    yield "--pipeline-model-parallel-size", str(training.stages)
    if training.chunks > 1:
        yield "--num-virtual-stages-per-pipeline-rank", str(training.chunks)
        if plan.p2p_text == "grouped":
            yield ("--no-overlap-p2p-communication",)
    if training.context > 1:
        yield "--context-parallel-size", str(training.context)
        yield "--cp-comm-type", "p2p"
    if model.experts:
        yield "--expert-model-parallel-size", str(training.expert)
        yield "--expert-tensor-parallel-size", str(training.tensor)
    if training.sharded_optimizer:
        yield ("--use-distributed-optimizer",)
    if training.overlap_reduction:
        yield ("--overlap-grad-reduce",)
    if training.recompute == "selective":
        yield "--recompute-granularity", "selective"
    elif training.recompute == "full":
        yield from (
            ("--recompute-granularity", "full"),
            ("--recompute-method", "uniform"),
            ("--recompute-num-layers", "1"),
        )
    yield ("--bf16",)


def _megatron_model(model: Transformer) -> Iterator[Flag]:
    yield "--num-layers", str(model.layers)
    yield "--hidden-size", str(model.hidden)
    yield "--ffn-hidden-size", str(model.ffn)
    yield "--num-attention-heads", str(model.heads)
    if model.kv_heads != model.heads:
        yield from (("--group-query-attention",), ("--num-query-groups", str(model.kv_heads)))
    if model.gated:
        yield from (("--swiglu",), ("--normalization", "RMSNorm"), ("--disable-bias-linear",))
    if model.positions == 0:
        yield "--position-embedding-type", "rope"
    if not model.tied:
        yield ("--untie-embeddings-and-output-weights",)
    if model.experts:
        yield "--num-experts", str(model.experts.count)
        yield "--moe-router-topk", str(model.experts.top)
        yield "--moe-token-dispatcher-type", "alltoall"


def _megatron_unsaid(plan: JobPlan) -> Iterator[str]:
    training = plan.training
    if training.overlap != NO_OVERLAP:
        yield f"layers are to overlap by {training.overlap}: its --tp-comm-overlap cuts products in ways of its own"
    if training.order_name not in (REFERENCE, REFERENCE_OF_CHUNKS):
        yield f"it has no {plan.order_text}: 1F1B and interleaved alone"
    elif training.order_name == REFERENCE and plan.p2p_text != "grouped":
        yield f"1F1B issues its transfers in blocking batches, not {plan.p2p_text}"
    elif training.order_name == REFERENCE_OF_CHUNKS and plan.p2p_text not in ("grouped", "per-edge"):
        yield f"interleaved issues its transfers grouped or, overlapped, per-edge, not {plan.p2p_text}"
    if training.chunks > 1 and training.microbatches % training.stages:
        yield f"interleaved wants a multiple of {training.stages} microbatches, the plan has {training.microbatches}"


_TORCH_NAMES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "looped-bfs": "LoopedBFS",
    "interleaved-zero-bubble": "InterleavedZeroBubble", "zb-v": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
"""What ``get_schedule_class`` of torch.distributed.pipelining knows; others run from a file of actions."""


def _titan_flags(model: Transformer, plan: JobPlan) -> Iterator[Flag]:
    training = plan.training
    yield "--training.seq_len", str(training.sequence)
    yield "--training.local_batch_size", str(training.batch * training.microbatches)
    yield "--training.global_batch_size", str(training.sequences)
    yield "--parallelism.tensor_parallel_degree", str(training.tensor)
    if training.overlap == ASYNC_TP:
        yield from (("--parallelism.enable_async_tensor_parallel",), ("--compile.enable",))
    yield "--parallelism.context_parallel_degree", str(training.context)
    yield "--parallelism.data_parallel_replicate_degree", str(1 if training.sharded_optimizer else training.data)
    yield "--parallelism.data_parallel_shard_degree", str(training.data if training.sharded_optimizer else 1)
    if training.sharded_optimizer:
        yield "--parallelism.fsdp_reshard_after_forward", "never"
    if model.experts:
        yield "--parallelism.expert_parallel_degree", str(training.expert)
    yield "--parallelism.pipeline_parallel_degree", str(training.stages)
    if training.stages > 1:
        yield "--parallelism.pipeline_parallel_microbatch_size", str(training.batch)
        yield (
            "--parallelism.pipeline_parallel_layers_per_stage",
            str(model.layers // (training.stages * training.chunks)),
        )
        yield "--parallelism.pipeline_parallel_first_stage_less_layers", "0"
        yield "--parallelism.pipeline_parallel_last_stage_less_layers", "0"
        yield from _titan_schedule(training)
    yield "--activation_checkpoint.mode", "full" if training.recompute == "full" else "none"


def _titan_schedule(training: Training) -> Iterator[Flag]:
    known = _TORCH_NAMES.get(training.order_name)
    single = "PipelineScheduleSingle" if training.chunks == 1 else "PipelineScheduleMulti"
    yield "--parallelism.pipeline_parallel_schedule", known or single
    if known is None and _runs_from_file(training):
        yield "--parallelism.pipeline_parallel_schedule_csv", "order.csv"


def _runs_from_file(training: Training) -> bool:
    """Whether torchtitan places its stages as the schedule has them: looped, unless it knows the name."""
    return kind_of(training.order_name).placement == "loop"


def order_command(training: Training) -> str:
    """The command that writes the file of actions."""
    words = ["tracetool", "schedules", training.order_name, "--stages", str(training.stages)]
    if training.chunks > 1:
        words += ["--chunks", str(training.chunks)]
    words += ["--microbatches", str(training.microbatches)]
    if any(training.extra_forwards):
        words += ["--extra-forwards", ",".join(map(str, training.extra_forwards))]
    return f"{shlex.join([*words, '--csv'])} > order.csv"


def _titan_unsaid(model: Transformer, plan: JobPlan) -> Iterator[str]:
    training = plan.training
    if training.overlap not in (NO_OVERLAP, ASYNC_TP):
        yield f"layers are to overlap by {training.overlap}: it knows async-tp alone"
    if training.stages == 1 and training.microbatches > 1:
        yield "without a pipeline it has no microbatches: give a local batch of one, the rest is accumulated"
    if training.stages > 1:
        yield from _titan_order(plan)
    if training.sharded_optimizer:
        yield "it shards gradients and weights as well, and gathers weights ahead of forwards (FSDP2)"
    elif training.data > 1 and not training.overlap_reduction:
        yield "it reduces gradients beside the backward"
    if training.recompute == "selective" and not model.fused_attention:
        yield "it recomputes attention alone in no mode: its selective ones save other operations"
    if not training.sequence_parallel and training.tensor > 1:
        yield "tensor parallel ranks share norms along the sequence, too"
    if training.context > 1:
        yield "context parallel ranks gather keys and values, or exchange them all to all; the plan has a ring"
    if training.expert > 1 and training.tensor > 1:
        yield "its expert groups reach over tensor parallel ranks"


def _titan_order(plan: JobPlan) -> Iterator[str]:
    training = plan.training
    if training.order_name not in _TORCH_NAMES and not _runs_from_file(training):
        yield f"it has no {plan.order_text}, whose stages lie in a V, nor places them so for a file of actions"
        return
    usual = "grouped" if traits_of(training.order_name, training.chunks).blocks else "in-order"
    if plan.p2p_text != usual:
        yield f"{plan.order_text} issues its transfers {usual}, not {plan.p2p_text}"


def _written(training: Training) -> tuple[str, ...]:
    """What is to be written first."""
    if training.stages == 1 or training.order_name in _TORCH_NAMES or not _runs_from_file(training):
        return ()
    return (f"order.csv, written by {order_command(training)}",)


_MAPPED = "tp,cp,ep,pp,dp"
"""The other order in which Megatron-LM can number ranks."""


def _devices(workload: Workload, plan: JobPlan, rule: str) -> tuple[int, ...]:
    return place(plan.training.degrees, workload.choice.network, rule, all_used=False).devices


def _seated(workload: Workload, plan: JobPlan) -> str | None:
    """Where ranks sit, if not in order of devices as both frameworks number them."""
    devices = _devices(workload, plan, plan.placement)
    moved = next((rank for rank, device in enumerate(devices) if rank != device), None)
    if moved is None:
        return None
    return (
        f"a rank file, for ranks are placed {plan.seats_rule} and numbered {','.join(DIMENSIONS)}: "
        f"rank {moved} on device {devices[moved]}, and so on"
    )


def _is_mapped(workload: Workload, plan: JobPlan) -> bool:
    """Whether devices are in the other order that Megatron-LM has: then ranks are in order of them."""
    devices = _devices(workload, plan, plan.placement)
    return sorted(devices) == list(range(len(devices))) and devices == _devices(workload, plan, _MAPPED)


def _nowhere(plan: JobPlan) -> Iterator[str]:
    """What no framework is asked for by a flag."""
    if plan.collectives not in ("auto", "ring", "tree"):
        yield f"gradients are to be reduced {plan.collectives}: NCCL chooses rings and trees by itself"
    if plan.compression_ratio != 1:
        yield f"what crosses is to be compressed to {plan.compression_ratio:.0%}"
    if plan.sharing == "temporal":
        yield "pipelines are to take turns on the shared link"
