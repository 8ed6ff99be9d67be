"""Every error a user can meet.

TraceToolError                 exit 2
├─ IngestError                 UnknownFormat · MalformedTrace · MissingRank (CopyableRank) · DuplicateRank
├─ ReconstructError            NoDeviceActivity · NoPipeline · UnmatchedTransfer
├─ ScheduleError               InvalidSchedule · ScheduleDeadlock · UnsupportedShape
├─ ScenarioError               BadQuantity · BadTopology · BadMeasurement
├─ StoreError                  NotARun · SchemaVersion · AlreadyExists · BadQuery
├─ BrokenPlugin
├─ WrongType                   (a TypeError, too)
└─ UnknownName
CheckFailed                    exit 1  (a check the user asked for did not hold)

A message says what happened, where and what was found; ``hint`` says what to do.
"""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

P = ParamSpec("P")
T = TypeVar("T")
Name = TypeVar("Name", bound=str)

_flags: dict[str, str] = {}
"""What options are called where they are typed; none where Python is spoken."""


@contextmanager
def typed_as(flags: Mapping[str, str]) -> Iterator[None]:
    """Have texts that are made here call options as they are typed.

    Args:
        flags: By the options' values.
    """
    before = flags_now()
    _flags.update(flags)
    try:
        yield
    finally:
        _flags.clear()
        _flags.update(before)


def flags_now() -> dict[str, str]:
    """What options are called here: workers are to call them so, too."""
    return dict(_flags)


class Option(Enum):
    """What can be asked for, by its argument's name; a text calls it as whoever reads it writes it.

    Python's users read ``add dc='0-1,2-3'`` where those of the command line read ``add --dc 0-1,2-3``: both are
    ``f"add {Option.DC('0-1,2-3')}"``, and ``f"{Option.DC}"`` is the name alone.
    """

    ACTIVATION = "activation"
    ALSO = "also"
    ALSO_MBS = "also_mbs"
    ALSO_SEQ = "also_seq"
    BANDWIDTH = "bandwidth"
    CHUNKS = "chunks"
    CONFIG = "config"
    COPY_MISSING = "copy_missing"
    COSTS_FROM = "costs_from"
    DC = "dc"
    DISTANCE = "distance"
    EQUAL_STAGES = "equal_stages"
    EXTRA_FORWARDS = "extra_forwards"
    FIT = "fit"
    FORCE = "force"
    GROUP = "group"
    HBM = "hbm"
    HIDDEN = "hidden"
    INTERFERENCE = "interference"
    JOBS = "jobs"
    JSON = "json"
    LABEL = "label"
    LATENCY = "latency"
    LINK = "link"
    MBS = "mbs"
    MEMORY_FROM = "memory_from"
    MICROBATCHES = "microbatches"
    NETWORK = "network"
    OFFERS = "offers"
    OVERLAP = "overlap"
    OVERLAP_RATIO = "overlap_ratio"
    P2P = "p2p"
    PAYLOAD = "payload_bytes"
    PIPELINE = "pipeline"
    PIPELINES_ON_LINK = "pipelines_on_link"
    RANKS = "ranks"
    SCHEDULE = "schedule"
    SCHEDULES = "schedules"
    SEQ = "seq"
    STATIC = "static"
    STEP = "step"
    STRICT = "strict"
    TIER = "tier"
    TIME_LIMIT = "time_limit_s"

    def __str__(self) -> str:
        return _flags.get(self.value, self.value)

    def __call__(self, value: object) -> str:
        """The option with a value."""
        if not _flags:
            return f"{self.value}={value!r}"
        import shlex

        return f"{self} {shlex.quote(','.join(map(str, value)) if isinstance(value, tuple) else str(value))}"

    def more(self, given: Sequence[str], more: Sequence[str]) -> str:
        """The option with values beside those given: each is typed alone, and Python's argument is a list of all."""
        if _flags:
            return " ".join(map(self, more))
        values = [*given, *more]
        return self(values if len(values) > 1 else values[0])

    @property
    def on(self) -> str:
        """The option asked for, of one that is off otherwise."""
        return str(self) if _flags else f"{self.value}=True"

    @property
    def off(self) -> str:
        """The option asked for, of one that is on otherwise."""
        return str(self) if _flags else f"{self.value}=False"


def together(*options: str) -> str:
    """Options with values as they are written one after another, as in ``together(Option.HBM("80GiB"), ...)``."""
    return (" " if _flags else ", ").join(options)


def installing(extra: str) -> str:
    """How an extra is installed: the package's name on the public index belongs to another project."""
    return f"pip install '.[{extra}]' in the checkout of tracetool"


def command_or_call(command: str, call: str) -> str:
    """What else answers a question: a command where options are typed, else an expression of Python.

    Args:
        command: A whole command line.
        call: With the package as ``tt``.
    """
    return f"'{command}'" if _flags else call


class TraceToolError(Exception):
    """Base of all errors; the command line prints it without a traceback and exits with ``exit_code``."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Workers send errors home; those of other arguments could not be made anew there.
        return _remade, (type(self), self.message, self.hint)


def _remade(kind: type[TraceToolError], message: str, hint: str | None) -> TraceToolError:
    error = kind.__new__(kind)
    TraceToolError.__init__(error, message, hint=hint)
    return error


class WrongType(TraceToolError, TypeError):
    """A verb was given something of another type than it takes."""


_MADE_BY = {
    "Grid": "tt.grid(found, bandwidth='10..40Gbit/s', latency='2ms', dc='0-1,2-3') makes one",
    "Pipeline": "tt.reconstruct(run).pipeline is one",
    "PipelineShape": "found.pipeline.observed.shape is one",
    "Reconstruction": "tt.reconstruct(run) makes one",
    "Run": "tt.open_run(path) opens one",
    "Scenario": "tt.scenario(found, hbm='80GiB') makes one",
    "Schedule": "tt.build_schedule(name, found.pipeline.observed.shape) makes one",
    "Timeline": "tt.replay(found.pipeline, schedule).timeline is one",
    "str": "write it as text",
}
"""Of the types that verbs check, by their annotation, where one comes from."""


def checked(verb: Callable[P, T]) -> Callable[P, T]:
    """A verb of Python's interface that refuses arguments of other types than it declares, as in a wrong order.

    Args:
        verb: Its annotations are text, as postponed ones are: types are compared by name, and none is loaded for it.
    """
    takes = {name: str(kinds).split(" | ") for name, kinds in verb.__annotations__.items() if name != "return"}
    takes = {name: kinds for name, kinds in takes.items() if any(kind in _MADE_BY for kind in kinds)}

    @wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for name, value in (*zip(verb.__annotations__, args, strict=False), *kwargs.items()):
            kinds = takes.get(name, ())
            names = ["None" if value is None else each.__name__ for each in type(value).__mro__]
            is_listed = hasattr(value, "__iter__") and not isinstance(value, str)
            if kinds and not any(is_listed if "[" in kind else kind in names for kind in kinds):
                raise WrongType(
                    f"{verb.__name__} takes {name}: {' | '.join(kinds)}, not {names[0]}.",
                    hint=next(_MADE_BY[kind] for kind in kinds if kind in _MADE_BY),
                )
        return verb(*args, **kwargs)

    return call


class IngestError(TraceToolError):
    """Files could not be turned into a Run."""


class UnknownFormat(IngestError):
    """No reader recognises the content of the files."""


class MalformedTrace(IngestError):
    """A file was recognised but its content is damaged."""


class MissingRank(IngestError):
    """A file does not say its rank, or ranks of the job are absent."""


class CopyableRank(MissingRank):
    """Ranks of a pipeline are absent, and others of the same stages can stand for them."""


class DuplicateRank(IngestError):
    """Two sources claim the same rank."""


class ReconstructError(TraceToolError):
    """The events do not add up to a pipeline."""


class NoDeviceActivity(ReconstructError):
    """The trace holds no kernels, so there is nothing to time."""


class NoPipeline(ReconstructError):
    """No pipeline-parallel structure was found."""


class UnmatchedTransfer(ReconstructError):
    """A send has no receive, or they disagree about the size."""


class ScheduleError(TraceToolError):
    """A schedule cannot be built or run."""


class InvalidSchedule(ScheduleError):
    """An order misses, repeats or misplaces an action."""


class ScheduleDeadlock(ScheduleError):
    """Every rank waits for another one."""


class UnsupportedShape(ScheduleError):
    """The schedule does not exist for these stages and microbatches."""


class MissingPackage(ScheduleError):
    """An optional package is needed that is not installed."""


class ScenarioError(TraceToolError):
    """A what-if makes no sense for this pipeline."""


class BadQuantity(ScenarioError):
    """A quantity has no unit, the wrong one or no number."""


class BadTopology(ScenarioError):
    """A DC map or link does not fit the pipeline's ranks."""


class BadMeasurement(ScenarioError):
    """A file of measured steps is damaged, incomplete or about nothing that can be compared."""


class StoreError(TraceToolError):
    """A Run cannot be read or written."""


class NotARun(StoreError):
    """The path is no Run."""


class SchemaVersion(StoreError):
    """The Run was written by another schema version."""


class AlreadyExists(StoreError):
    """The target exists and would be overwritten."""


class BadQuery(StoreError):
    """DuckDB refused a query."""


class BrokenPlugin(TraceToolError):
    """A third party's plug-in cannot be loaded."""


class UnknownName(TraceToolError):
    """A name that nothing is registered under."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str | None = None) -> None:
        names = sorted(known)
        alike = {each.lower(): each for each in names}
        close = [alike[each] for each in difflib.get_close_matches(name.lower(), alike, n=2, cutoff=0.6)]
        guess = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        super().__init__(
            f"no {kind} named {name!r}.{guess}",
            hint=hint or (f"known: {', '.join(names)}" if names else "there are none"),
        )


def named(kind: str, text: str, names: Iterable[Name]) -> Name:
    """The one of some names that a text is.

    Args:
        kind: What they are names of.
        text: The text.
        names: Them.

    Raises:
        UnknownName: If it is none of them.
    """
    known = tuple(names)
    for name in known:
        if name == text:
            return name
    raise UnknownName(kind, text, known)


class CheckFailed(TraceToolError):
    """A check that the user asked for did not hold."""

    exit_code = 1
