"""Flags of Megatron-LM and torchtitan for plans, against what both documents say; and what no flag says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.drawn_jobs import DEVICE

from tracetool.estimates.training import Training
from tracetool.estimates.transformer import LLAMA_2_70B, Experts
from tracetool.explore.launch import PlanLaunch, launches, order_command
from tracetool.explore.plan import JobPlan, Workload
from tracetool.model.schedule import schedule_from_csv
from tracetool.network.file import NetworkChoice
from tracetool.network.tiers import Network, Tier
from tracetool.schedules import build_schedule

GB = 10**9
NETWORK = Network("two DCs", (Tier("hb", 8, 450 * GB), Tier("rail", 256, 50 * GB), Tier("dc", 512, 10 * GB)))
TRAINING = Training(
    tensor=8, stages=4, microbatches=16, batch=2, sequence=4096, efficiency_ratio=0.7, data=2, sharded_optimizer=True,
    overlap_reduction=True,
)  # fmt: skip


def made(plan: JobPlan, model: object = LLAMA_2_70B) -> tuple[PlanLaunch, PlanLaunch]:
    return launches(Workload(model, DEVICE, NetworkChoice(NETWORK), 80 * GB), plan)  # type: ignore[arg-type]


def values(launch: PlanLaunch) -> dict[str, str]:
    return {name: value[0] if value else "" for name, *value in launch.flags}


def test_of_a_dense_model() -> None:
    """Llama-2 70B on TP 8, PP 4, DP 2: 16 microbatches of 2 sequences in each of two pipelines."""
    megatron, titan = made(JobPlan(TRAINING))
    assert megatron.is_exact
    assert megatron.text == (
        "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention "
        "--num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
        "--untie-embeddings-and-output-weights --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 "
        "--global-batch-size 64 --tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 4 "
        "--use-distributed-optimizer --overlap-grad-reduce --bf16"
    )
    assert megatron.beside == ("a tokenizer of 32,000 entries",)
    assert values(titan) == {
        "--training.seq_len": "4096", "--training.local_batch_size": "32", "--training.global_batch_size": "64",
        "--parallelism.tensor_parallel_degree": "8", "--parallelism.context_parallel_degree": "1",
        "--parallelism.data_parallel_replicate_degree": "1", "--parallelism.data_parallel_shard_degree": "2",
        "--parallelism.fsdp_reshard_after_forward": "never", "--parallelism.pipeline_parallel_degree": "4",
        "--parallelism.pipeline_parallel_microbatch_size": "2",
        "--parallelism.pipeline_parallel_layers_per_stage": "20",
        "--parallelism.pipeline_parallel_first_stage_less_layers": "0",
        "--parallelism.pipeline_parallel_last_stage_less_layers": "0",
        "--parallelism.pipeline_parallel_schedule": "1F1B", "--activation_checkpoint.mode": "none",
    }  # fmt: skip
    assert titan.unsaid == ("it shards gradients and weights as well, and gathers weights ahead of forwards (FSDP2)",)
    assert made(JobPlan(replace(TRAINING, sharded_optimizer=False)))[1].is_exact


@pytest.mark.parametrize(
    ("schedule", "chunks", "megatron", "titan"),
    [
        ("1f1b", 1, "", "1F1B"),
        ("interleaved", 2, "", "Interleaved1F1B"),
        ("gpipe", 1, "it has no gpipe", "GPipe"),
        ("zb-v", 2, "it has no zb-v x2", "ZBVZeroBubble"),
        ("interleaved-zero-bubble", 2, "it has no interleaved-zero-bubble x2", "InterleavedZeroBubble"),
        ("zb-h1", 1, "it has no zb-h1", "PipelineScheduleSingle"),
        ("geopipe", 1, "it has no geopipe +2,2,0,0", "PipelineScheduleSingle"),
        ("v-half", 2, "it has no v-half x2", "PipelineScheduleMulti"),
    ],
)
def test_schedules_by_name_from_a_file_or_not_at_all(schedule: str, chunks: int, megatron: str, titan: str) -> None:
    extra = (2, 2, 0, 0) if schedule == "geopipe" else ()
    training = replace(TRAINING, schedule=schedule, chunks=chunks, extra_forwards=extra, sharded_optimizer=False)
    mine, torch = made(JobPlan(training))
    assert any(said.startswith(megatron) for said in mine.unsaid) if megatron else mine.is_exact
    assert values(torch)["--parallelism.pipeline_parallel_schedule"] == titan
    has_file = "--parallelism.pipeline_parallel_schedule_csv" in values(torch)
    assert has_file is (schedule in {"zb-h1", "geopipe"})
    assert has_file is any(order_command(training) in said for said in torch.beside)
    if chunks > 1:
        assert values(torch)["--parallelism.pipeline_parallel_layers_per_stage"] == "10"
        assert values(mine)["--num-virtual-stages-per-pipeline-rank"] == "2"
    assert any("lie in a V" in said for said in torch.unsaid) is (schedule == "v-half")


def test_the_command_of_the_file_prints_the_order(capsys: pytest.CaptureFixture[str]) -> None:
    from tracetool.cli import run

    training = replace(TRAINING, schedule="geopipe", extra_forwards=(2, 2, 0, 0), microbatches=8)
    words = order_command(training).removesuffix(" > order.csv").split()
    assert words[0] == "tracetool"
    assert run(words[1:]) == 0
    written = schedule_from_csv(capsys.readouterr().out)
    assert written.orders == training.order.orders
    assert written.orders == build_schedule("geopipe", training.order.shape, extra_forwards=(2, 2, 0, 0)).orders


def test_transfers_that_a_framework_issues_otherwise_are_said() -> None:
    interleaved = replace(TRAINING, chunks=2, sharded_optimizer=False)
    blocking, overlapped = made(JobPlan(interleaved)), made(JobPlan(replace(interleaved, p2p="per-edge")))
    assert "--no-overlap-p2p-communication" in values(blocking[0])
    assert "--no-overlap-p2p-communication" not in values(overlapped[0])
    assert blocking[0].is_exact
    assert overlapped[0].is_exact
    assert blocking[1].unsaid == ("interleaved x2 issues its transfers in-order, not grouped",)
    assert made(JobPlan(replace(TRAINING, p2p="per-edge")))[0].unsaid == (
        "1F1B issues its transfers in blocking batches, not per-edge",
    )


def test_recomputation_context_and_experts() -> None:
    mixture = replace(LLAMA_2_70B, experts=Experts(8, 2), fused_attention=False)
    training = replace(TRAINING, recompute="selective", context=2, expert=2)
    megatron, titan = made(JobPlan(training), mixture)
    assert {
        "--recompute-granularity": "selective", "--context-parallel-size": "2", "--expert-model-parallel-size": "2",
        "--expert-tensor-parallel-size": "8", "--num-experts": "8", "--moe-router-topk": "2", "--cp-comm-type": "p2p",
    }.items() <= values(megatron).items()  # fmt: skip
    assert values(titan)["--parallelism.expert_parallel_degree"] == "2"
    for said in ("recomputes attention alone in no mode", "the plan has a ring", "reach over tensor parallel ranks"):
        assert any(said in one for one in titan.unsaid)
    full = made(JobPlan(replace(training, recompute="full")), mixture)
    assert values(full[0])["--recompute-method"] == "uniform"
    assert values(full[1])["--activation_checkpoint.mode"] == "full"


def test_where_ranks_sit() -> None:
    """Neighbours on neighbouring devices need nothing, pipelines within DCs an order of Megatron-LM, others a file."""
    assert not any("rank file" in said for launch in made(JobPlan(TRAINING)) for said in launch.beside)
    megatron, titan = made(JobPlan(TRAINING, "tp,cp,ep,pp,dp"))
    assert "--use-tp-pp-dp-mapping" in values(megatron)
    assert "rank 8 on device 32, and so on" in titan.beside[-1]
    megatron, _ = made(JobPlan(TRAINING, "pp,tp,dp"))
    assert "--use-tp-pp-dp-mapping" not in values(megatron)
    assert "a rank file, for ranks are placed pp,tp,dp" in megatron.beside[-1]


def test_what_no_framework_is_asked_for() -> None:
    for launch in made(JobPlan(TRAINING, collectives="hierarchical", compression_ratio=0.25, sharing="temporal")):
        for said in ("reduced hierarchical", "compressed to 25%", "take turns"):
            assert any(said in one for one in launch.unsaid)
