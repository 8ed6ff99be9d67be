"""A plan in a TOML file, as people write it and as answers give it.

The struct below is its form: ``schemas/plan.schema.json`` is made from it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from tracetool.estimates.layer_overlap import parse_way
from tracetool.network.collectives import Algorithm  # noqa: TC001 - a field
from tracetool.schedules import kind_of
from tracetool.tables.fields import doc, read_toml
from tracetool.tables.results import P2PMode  # noqa: TC001 - a field

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.explore.plan import JobPlan

_HINT = "schemas/plan.schema.json has the form"
_Degree = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_Ratio = Annotated[float, msgspec.Meta(gt=0, le=1)]


_SHORT = {"tp": "tensor", "cp": "context", "ep": "expert", "pp": "pipeline", "dp": "data", "microbatch": "batch"}
"""Keys by the names that axes have."""


class PlanTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One way to run a job; what is not said is as the file of the model has it."""

    tensor: Annotated[
        _Degree | None, doc("Tensor-parallel ranks; files may say `tp`, and `cp`, `ep`, `pp`, `dp` of the others.")
    ] = None
    context: Annotated[_Degree | None, doc("Context-parallel ranks.")] = None
    expert: Annotated[_Degree | None, doc("Expert-parallel ranks, among the data-parallel ones.")] = None
    pipeline: Annotated[_Degree | None, doc("Pipeline ranks.")] = None
    data: Annotated[_Degree | None, doc("Data-parallel ranks.")] = None
    chunks: Annotated[_Degree | None, doc("Stages per pipeline rank.")] = None
    batch: Annotated[_Degree | None, doc("Sequences per microbatch.")] = None
    microbatches: Annotated[_Degree | None, doc("Microbatches per step and pipeline.")] = None
    recompute: Annotated[Literal["none", "selective", "full"] | None, doc("What the backward computes anew.")] = None
    schedule: Annotated[str | None, doc("Schedule by name.")] = None
    extra_forwards: Annotated[list[int] | None, doc("Warm-up forwards of each pipeline rank beyond 1F1B's.")] = None
    p2p: Annotated[P2PMode | None, doc("How messages are issued; by default as runtimes issue the schedule's.")] = None
    overlap_reduction: Annotated[bool | None, doc("Whether gradients are reduced beside the last backward.")] = None
    overlap: Annotated[
        str | None, doc("How layers run collectives of tensor parallelism beside their products: slice:4, p2p, none.")
    ] = None
    placement: Annotated[str | None, doc("Rule by which ranks are put on devices.")] = None
    collectives: Annotated[Algorithm | None, doc("How gradients are reduced.")] = None
    sharing: Annotated[
        Literal["spatial", "temporal"] | None, doc("How pipelines share the outermost tier: parts of it, or turns.")
    ] = None
    routing_ratio: Annotated[_Ratio | None, doc("Share of the outermost tier's bandwidth that routing reaches.")] = None
    compression_ratio: Annotated[
        _Ratio | None, doc("Bytes over the outermost tier of what was to be sent; below 1 numerics change.")
    ] = None


def read_plan(path: Path, base: JobPlan) -> JobPlan:
    """Read a plan.

    Args:
        path: The file.
        base: What it has that is not said.

    Raises:
        ScenarioError: If it cannot be read, a key is unknown or of another type, or layers cannot overlap so.
        UnknownName: If there is no such schedule.
    """
    table = read_toml(path, PlanTable, hint=_HINT, short=_SHORT)
    said = {name: value for name, value in msgspec.structs.asdict(table).items() if value is not None}
    if "schedule" in said:
        said["schedule"] = kind_of(said["schedule"]).name
    if "overlap" in said:
        said["overlap"] = parse_way(said["overlap"])
    if "extra_forwards" in said:
        said["extra_forwards"] = tuple(said["extra_forwards"])
    names = {"pipeline": "stages"}
    of_training = {names.get(name, name): said[name] for name in _OF_TRAINING if name in said}
    of_plan = {name: value for name, value in said.items() if name not in _OF_TRAINING}
    return replace(base, training=replace(base.training, **of_training), **of_plan)


_OF_TRAINING = (
    "tensor", "context", "expert", "pipeline", "data", "chunks", "batch", "microbatches", "recompute", "schedule",
    "extra_forwards", "p2p", "overlap_reduction", "overlap",
)  # fmt: skip


def table_of(plan: JobPlan) -> PlanTable:
    """All of a plan in this form."""
    training = plan.training
    return PlanTable(
        tensor=training.tensor, context=training.context, expert=training.expert, pipeline=training.stages,
        data=training.data, chunks=training.chunks, batch=training.batch, microbatches=training.microbatches,
        recompute=training.recompute, schedule=training.order_name, extra_forwards=list(training.extra_forwards),
        p2p=training.p2p, overlap_reduction=training.overlap_reduction, overlap=training.overlap,
        placement=plan.placement, collectives=plan.collectives, sharing=plan.sharing, routing_ratio=plan.routing_ratio,
        compression_ratio=plan.compression_ratio,
    )  # fmt: skip
