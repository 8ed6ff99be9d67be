"""A model, its training and its device in a TOML file, with measured runs to fit the device's efficiency on.

The structs below are its form: ``schemas/model.schema.json`` is made from them, with an example beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tracetool.errors import Option, ScenarioError, UnknownName
from tracetool.estimates.device import Accelerator
from tracetool.estimates.estimating import Job, fit_efficiency
from tracetool.estimates.layer_overlap import parse_way
from tracetool.estimates.training import Training
from tracetool.estimates.transformer import Experts, Recompute, Transformer
from tracetool.model.pipeline import NO_OVERLAP
from tracetool.network.file import read_network
from tracetool.tables.fields import doc, parsed, read_toml
from tracetool.units import (
    parse_bandwidth_bytes_per_s,
    parse_duration_ns,
    parse_share_ratio,
    parse_size_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracetool.network.file import NetworkChoice

_MOST_TFLOPS = 100_000
"""Far beyond any device."""
_HINT = "schemas/model.schema.json; schemas/models has an example"

_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
_Degree = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class ExpertsTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Experts in place of each layer's MLP."""

    count: Annotated[_Degree, doc("How many a layer has.")]
    top: Annotated[_Degree, doc("How many each token goes to.")]


class ModelTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Shape of a decoder."""

    layers: Annotated[_Size, doc("Layers.")]
    hidden: Annotated[_Size, doc("Hidden size.")]
    heads: Annotated[_Size, doc("Attention heads.")]
    vocabulary: Annotated[_Size, doc("Entries of embedding and head.")]
    name: Annotated[str, doc("What it is called.")] = "model"
    kv_heads: Annotated[_Size | None, doc("Heads of keys and values; as many as heads if not said.")] = None
    ffn: Annotated[_Size | None, doc("Inner size of the MLP, or of one expert; 4 x hidden if not said.")] = None
    gated: Annotated[
        bool, doc("Whether the MLP has a gate (SwiGLU, RMSNorm, no biases) or not (GELU, LayerNorm, biases, dropout).")
    ] = False
    fused_attention: Annotated[bool, doc("Whether attention never writes its scores to memory.")] = False
    positions: Annotated[int, msgspec.Meta(ge=0, le=1 << 30, description="Learned positions; 0 for none.")] = 0
    tied: Annotated[bool, doc("Whether the head shares the embedding's weights.")] = False
    experts: Annotated[ExpertsTable | None, doc("Of a mixture of experts.")] = None


class TrainingTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How it is trained."""

    sequence: Annotated[_Size, doc("Tokens per sequence.")]
    batch: Annotated[_Degree, doc("Sequences per microbatch.")] = 1
    microbatches: Annotated[_Degree, doc("Microbatches per step and pipeline.")] = 1
    tensor: Annotated[_Degree, doc("Tensor-parallel ranks.")] = 1
    sequence_parallel: Annotated[bool, doc("Whether they share norms and dropout along the sequence, too.")] = True
    context: Annotated[_Degree, doc("Context-parallel ranks.")] = 1
    pipeline: Annotated[_Degree, doc("Pipeline ranks.")] = 1
    chunks: Annotated[_Degree, doc("Stages per pipeline rank, interleaved.")] = 1
    data: Annotated[_Degree, doc("Data-parallel ranks.")] = 1
    expert: Annotated[_Degree, doc("Expert-parallel ranks, among the data-parallel ones.")] = 1
    recompute: Annotated[Recompute, doc("What the backward computes anew.")] = "none"
    sharded_optimizer: Annotated[bool, doc("Whether data-parallel ranks share the optimizer's state.")] = False
    overlap_reduction: Annotated[bool, doc("Whether gradients are reduced beside the last backward.")] = False
    overlap: Annotated[
        str, doc("How layers run collectives beside their products: none, slice:4, p2p, p2p:2, async-tp.")
    ] = NO_OVERLAP


class DeviceTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A device, and its curve of efficiency."""

    name: Annotated[str, doc("What it is called.")]
    peak_tflops: Annotated[float, msgspec.Meta(gt=0, description="Peak at 16 bit, dense, in 10^12 operations/s.")]
    hbm: Annotated[str, doc("Memory: 80GB.")]
    efficiency: Annotated[
        str | None, doc("Share of the peak that a whole wave of long matrix products reaches: 75%; or fit it.")
    ] = None
    hbm_bandwidth: Annotated[
        str | None, doc("What reading and writing memory reaches: 1600GB/s; without, that takes no time.")
    ] = None
    processors: Annotated[
        int, msgspec.Meta(ge=0, le=4096, description="Processors that a wave of tiles fills; 0 leaves waves out.")
    ] = 0
    tile: Annotated[tuple[_Size, _Size], doc("Rows and columns of a tile of a result.")] = (256, 128)
    tile_overhead: Annotated[
        int, msgspec.Meta(ge=0, le=65_536, description="What a tile takes besides, in steps of the inner dimension.")
    ] = 0
    kernel: Annotated[str, doc("To start and drain a kernel: 5us.")] = "0ns"
    node_bandwidth: Annotated[
        str | None, doc("What a device sends to the others of its node, where no network is given: 300GB/s.")
    ] = None


class MeasuredTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A measured run: what differs from the model and the training above."""

    name: Annotated[str, msgspec.Meta(min_length=1, description="What it is called, to be fitted on.")]
    step_s: Annotated[float, msgspec.Meta(gt=0, le=1e6, description="What a step took.")]
    model: Annotated[dict[str, Any], doc("Keys of [model] that differ.")] = {}
    training: Annotated[dict[str, Any], doc("Keys of [training] that differ.")] = {}
    network: Annotated[
        str | None,
        doc("Network that it ran over, a file beside this one; else the tiers of the job's it reaches over."),
    ] = None


class ModelFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A model for tracetool estimate."""

    model: Annotated[ModelTable, doc("Its shape.")]
    training: Annotated[TrainingTable, doc("How it is trained.")]
    device: Annotated[DeviceTable, doc("What it is trained on.")]
    measured: Annotated[list[MeasuredTable], doc("Measured runs, to fit the efficiency on and to compare with.")] = []


@dataclass(frozen=True, slots=True)
class AskedJobs:
    """What a file asks.

    Attributes:
        job: Of the file itself.
        measured: Runs that were measured.
        fitted: Names of those that the efficiency was fitted on.
    """

    job: Job
    measured: tuple[Job, ...]
    fitted: tuple[str, ...]


def read_model(
    path: Path, fit: Sequence[str] = (), choice: NetworkChoice | None = None, *, timed: bool = False
) -> AskedJobs:
    """Read a model, and fit its device's efficiency.

    Args:
        path: The file.
        fit: Names of measured runs to fit on.
        choice: The network that they ran over.
        timed: Whether layer timings take the place of the curve, so that no efficiency is needed.

    Raises:
        ScenarioError: If it cannot be read, a key is unknown, missing or of another type, or nothing says how
            efficient the device is.
        UnknownName: If no measured run has a name.
    """
    file = read_toml(path, ModelFile, hint=_HINT)
    device, efficiency = _device(file.device, f"{path}: device")
    if efficiency is None and not (fit or timed):
        example = ", ".join(Option.FIT(run.name) for run in file.measured[:1])
        raise ScenarioError(
            f"{path} does not say how efficient {device.name} is.",
            hint=f"add {example}" if example else "give device.efficiency, or measured runs to fit it on",
        )
    ratio = efficiency or 1.0
    job = Job(file.model.name, _model(file.model), device, _training(file.training, ratio))
    measured = tuple(_measured(run, file, device, ratio, path) for run in file.measured)
    names = [run.name for run in measured]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ScenarioError(f"{path}: two measured runs are called {twice!r}.", hint="give each a name of its own")
    for name in fit:
        if name not in names:
            hint = None if names else f"{path} has none: add [[measured]] with its step_s"
            raise UnknownName("measured run", name, names, hint=hint)
    if not fit:
        return AskedJobs(job, measured, ())
    ratio = fit_efficiency([run for run in measured if run.name in fit], choice)
    return AskedJobs(job.at(ratio), tuple(run.at(ratio) for run in measured), tuple(fit))


def _device(table: DeviceTable, at: str) -> tuple[Accelerator, float | None]:
    def bandwidth(key: str) -> int:
        text = getattr(table, key)
        return 0 if text is None else parsed(f"{at}.{key}", text, parse_bandwidth_bytes_per_s)

    if table.peak_tflops > _MOST_TFLOPS:
        raise ScenarioError(
            f"{at}.peak_tflops is {table.peak_tflops:,.0f} TFLOP/s, which no device has.",
            hint="give TFLOP/s at 16 bit, dense: 989 of an H100",
        )
    device = Accelerator(
        name=table.name,
        peak_flops=round(table.peak_tflops * 1e12),
        hbm_bytes=parsed(f"{at}.hbm", table.hbm, parse_size_bytes),
        tensor_bandwidth_bytes_per_s=bandwidth("node_bandwidth"),
        hbm_bandwidth_bytes_per_s=bandwidth("hbm_bandwidth"),
        processors=table.processors,
        tile=table.tile,
        tile_overhead=table.tile_overhead,
        kernel_ns=parsed(f"{at}.kernel", table.kernel, parse_duration_ns),
    )
    if table.efficiency is None:
        return device, None
    return device, parsed(f"{at}.efficiency", table.efficiency, parse_share_ratio)


def _model(table: ModelTable) -> Transformer:
    return Transformer(
        name=table.name, layers=table.layers, hidden=table.hidden, heads=table.heads,
        kv_heads=table.kv_heads or table.heads, ffn=table.ffn or 4 * table.hidden, vocabulary=table.vocabulary,
        gated=table.gated, fused_attention=table.fused_attention, positions=table.positions, tied=table.tied,
        experts=None if table.experts is None else Experts(table.experts.count, table.experts.top),
    )  # fmt: skip


def _training(table: TrainingTable, efficiency_ratio: float) -> Training:
    return Training(
        tensor=table.tensor, stages=table.pipeline, microbatches=table.microbatches, batch=table.batch,
        sequence=table.sequence, efficiency_ratio=efficiency_ratio, recompute=table.recompute,
        sequence_parallel=table.sequence_parallel, context=table.context, chunks=table.chunks,
        data=table.data, expert=table.expert, sharded_optimizer=table.sharded_optimizer,
        overlap_reduction=table.overlap_reduction, overlap=parse_way(table.overlap),
    )  # fmt: skip


def _measured(run: MeasuredTable, file: ModelFile, device: Accelerator, ratio: float, path: Path) -> Job:
    try:
        model = msgspec.convert({**msgspec.to_builtins(file.model), **run.model}, ModelTable)
        training = msgspec.convert({**msgspec.to_builtins(file.training), **run.training}, TrainingTable)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{path}: {run.name}: {error}.", hint=_HINT) from error
    network = None if run.network is None else read_network(path.parent / run.network)
    return Job(run.name, _model(model), device, _training(training, ratio), run.step_s, network)
