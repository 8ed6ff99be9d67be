"""The form of a file of measured ways to run a layer, and how it is read."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.errors import BadMeasurement
from tracetool.overlap.variants import LayerShape
from tracetool.tables.fields import doc

if TYPE_CHECKING:
    from pathlib import Path

_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
_Time = Annotated[float, msgspec.Meta(gt=0, le=1e12)]


class MeasuredShape(msgspec.Struct, kw_only=True):
    """A layer under tensor parallelism with sequence parallelism."""

    tokens: Annotated[_Count, doc("Tokens of all ranks of the group together.")]
    hidden: Annotated[_Count, doc("Width between layers.")]
    ffn_per_rank: Annotated[_Count, doc("Columns of the first weight that a rank holds, rows of the second.")]


class MeasuredVariant(msgspec.Struct, kw_only=True):
    """One way to run one layer, and its time."""

    shape: Annotated[MeasuredShape, doc("The layer.")]
    group_size: Annotated[_Count, doc("Ranks of the group.")]
    transport: Annotated[str, doc("What the bytes went over, such as nvlink.")]
    variant: Annotated[str, doc("The way: ag_coll, ag_sliced2, rs_p2p ...; 'tracetool help overlap' lists them.")]
    measured_ms: Annotated[_Time, doc("Time of one call without a profiler: median, of the slowest rank.")]

    @property
    def layer(self) -> LayerShape:
        """The layer."""
        return LayerShape(self.shape.tokens, self.shape.hidden, self.shape.ffn_per_rank)


class Timing(msgspec.Struct, kw_only=True):
    """How calls were timed."""

    calls: Annotated[int, msgspec.Meta(ge=1, le=1024, description="Calls between two events.")] = 1
    host_ahead_ms: Annotated[
        float, msgspec.Meta(ge=0, le=1e6, description="How long the device was kept busy before the first call.")
    ] = 0.0

    @property
    def host_ahead_ns(self) -> float:
        """The same in nanoseconds."""
        return self.host_ahead_ms * 1e6


class MeasuredVariants(msgspec.Struct, kw_only=True):
    """Measured ways to run layers on one machine."""

    results: Annotated[list[MeasuredVariant], doc("One per layer, transport and way.")]
    timing: Annotated[Timing, doc("How calls were timed.")] = msgspec.field(default_factory=Timing)
    about: Annotated[str | None, doc("Where the figures come from.")] = None


def read_measured(path: Path) -> tuple[MeasuredVariants, str]:
    """Read a file of measured ways.

    Returns:
        The file, and the SHA-256 over its bytes.

    Raises:
        BadMeasurement: If it is no such file.
    """
    try:
        data = path.read_bytes()
        return msgspec.convert(json.loads(data), MeasuredVariants, strict=False), hashlib.sha256(data).hexdigest()
    except OSError as error:
        raise BadMeasurement(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, msgspec.ValidationError) as error:
        raise BadMeasurement(f"{path}: {error}.", hint="schemas/measured-overlap.schema.json has the form") from error
