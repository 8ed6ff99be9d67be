"""The options that commands share in asking what would be: which recording, which links, which limits.

Recordings that options and arguments name: several Runs in one argument, and other recordings of the same model.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from tracetool.cli.output import PATH_OR_URL, ProgressBar, path_or_url
from tracetool.cli.pipelines import ALL_PIPELINES, PIPELINE, asked_pipelines, pipeline_number
from tracetool.cli.settings import in_effect
from tracetool.cli.topology import DC, LINK, ON_NETWORK, read_choice
from tracetool.errors import BadQuery, ScenarioError
from tracetool.model.notice import Notice, NoticeCode, SubjectKind
from tracetool.tables.results import P2P_MODES, POSTED_AHEAD_NEEDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracetool.ingestion import Progress
    from tracetool.ingestion.recording import Recording
    from tracetool.model.job import SortedPipelines
    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import LinkSharing, Scenario
    from tracetool.reconstruction import Reconstruction
    from tracetool.reports import RunFacts
    from tracetool.store.run import Run


class Words(TypedDict):
    """The shared options as written, by parameter name; see ``question_options``."""

    dc: str | None
    link: tuple[str, ...]
    network: Path | None
    collective: tuple[str, ...]
    hbm: str | None
    p2p: str | None
    microbatches: int | None
    activation: str | None
    static: str | None
    pipelines_on_link: int | None
    link_sharing: LinkSharing | None
    costs_from: Path | None
    memory_from: Path | None
    no_interference: bool
    overlap_ratio: float
    step: int | None
    pipeline: int
    all_pipelines: bool
    copy_missing_ranks: bool


_OPTIONS = (
    DC,
    LINK,
    *ON_NETWORK,
    click.option("--hbm", metavar="80GiB", help="Memory limit per rank."),
    click.option(
        "--p2p",
        type=click.Choice(P2P_MODES),
        help="How transfers are issued; default: as in the trace (in-order for most orders but 1f1b on a grouped or "
        f"blocking one). posted-ahead takes {POSTED_AHEAD_NEEDS}.",
    ),
    click.option(
        "--microbatches", type=click.IntRange(1, 65536), help="Microbatches per step; default: as in the trace."
    ),
    click.option("--activation", metavar="1.2GiB", help="Bytes one microbatch keeps on a stage; default: as measured."),
    click.option("--static", metavar="6GiB", help="Bytes allocated when the step starts; default: as measured."),
    click.option(
        "--pipelines-on-link",
        type=click.IntRange(1, 1024),
        metavar="N",
        help="Equal pipelines that share the links (replicas); default: those of the traces that use them.",
    ),
    click.option(
        "--link-sharing",
        type=click.Choice(["temporal", "spatial"]),
        help="How: each message the whole bandwidth in turn (as Atlas), or each pipeline its share of it  "
        "[default: temporal]",
    ),
    click.option(
        "--costs-from",
        type=PATH_OR_URL,
        metavar="RUN_OR_TRACES",
        help="Another recording of the same stages, whose slowdown beside communication is taken.",
    ),
    click.option(
        "--memory-from",
        type=PATH_OR_URL,
        metavar="RUN_OR_TRACES",
        help="Another recording of the same model, whose memory figures are taken.",
    ),
    click.option(
        "--no-interference", is_flag=True, help="Leave out slowdown beside communication and under sustained load."
    ),
    click.option(
        "--overlap-ratio",
        type=click.FloatRange(0, 1, min_open=True),
        default=1.0,
        show_default=True,
        help="dualpipe, dualpipev: time of a forward and a backward that run as one over the sum of both alone.",
    ),
    click.option("--step", type=int, help="Step to measure; default: the complete one of median length."),
    PIPELINE,
    ALL_PIPELINES,
    click.option(
        "--copy-missing-ranks", is_flag=True, help="Copy ranks that were not recorded from one of the same stage."
    ),
)


OFFERS = click.option(
    "--or",
    "offers",
    multiple=True,
    metavar="100Gbit/s,10ms",
    help="Another offer of the same links, to compare with --link (there is none of a --network); what one costs may "
    "stand behind it, as in 100Gbit/s,10ms=9000EUR/month. Repeatable.",
)
RUN_STEPS = click.option(
    "--run-steps",
    type=click.IntRange(1),
    metavar="N",
    help="Steps of the planned run: how long it takes and costs.",
)
EXTRA_FORWARDS = click.option(
    "--extra-forwards", metavar="N,N,...", help="geopipe: warm-up forwards per rank; default: chosen for you."
)
CHUNKS = click.option(
    "--chunks",
    type=click.IntRange(2, 64),
    metavar="V",
    help="Stages per rank to cut one into, for schedules of several (hanayo: twice the waves); default: 2.",
)
TIME_LIMIT = click.option("--time-limit", metavar="30s", help="optimal: how long to search  [default: 30s]")
"""Options of commands that replay one choice of a schedule's own."""

_Command = TypeVar("_Command", bound="Callable[..., Any]")


def question_options(command: _Command) -> _Command:
    """Add the shared options to a command; it takes them as ``**words: Unpack[Words]``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was asked about which recording.

    Attributes:
        run: The Run.
        recording: What was reconstructed of it.
        scenario: The what-if.
        name: What the user named.
        pipeline: Which pipeline of the Run.
        is_copied: Whether ranks that were not recorded are copies.
        borrow: Gives what was reconstructed what is taken from other recordings.
        pipelines: Those of the job, by their costs; None of one, or where one was chosen.
    """

    run: Run
    recording: Reconstruction
    scenario: Scenario
    name: str
    pipeline: int
    is_copied: bool
    borrow: Callable[[Reconstruction], Reconstruction]
    pipelines: SortedPipelines | None

    def facts(self, *, recorded: bool = False) -> RunFacts:
        """Facts for reports: the Run and the command line.

        Args:
            recorded: Whether a report keeps what every step measured.
        """
        from tracetool.reports import run_facts

        recording = self._recording() if recorded else None
        return run_facts(self.name, self.run.manifest, command_line(), self.run, recording)

    def each_step(self) -> list[Pipeline]:
        """What each recorded step of the observed order measured, in order of time, looked at as the one that was.

        Raises:
            ScenarioError: If the steps are those of copied ranks.
        """
        from tracetool.reconstruction import reconstruct

        recording = self._recording()
        if recording is None:
            raise ScenarioError(
                "--each-step: copied ranks have no steps of their own.", hint="leave out --copy-missing-ranks"
            )
        mine = self.recording.pipeline
        each = [
            mine
            if step.number == mine.step
            else self.borrow(reconstruct(self.run, step=step.number, pipeline=self.pipeline)).pipeline
            for step in recording.steps
        ]
        return [one for one in each if (one.observed.orders, one.p2p) == (mine.observed.orders, mine.p2p)]

    def _recording(self) -> Recording | None:
        from tracetool.ingestion.recording import recording_of

        # Of all pipelines together, that which sets the recorded step: what is replayed may be set by another.
        number = self.pipeline if self.recording.pipeline.job is None else None
        return None if self.is_copied else recording_of(self.run, pipeline=number)


def command_line() -> str:
    """The command that runs, as typed, with what is set in files behind it."""
    context = click.get_current_context()
    typed, held = list(context.obj), [word for one in in_effect(context) for word in one.words]
    end = typed.index("--") if "--" in typed else len(typed)
    return shlex.join(["tracetool", *typed[:end], *held, *typed[end:]])


def ask(
    paths: tuple[Path, ...], words: Words, *, quiet: bool, has_maps: bool = False, shapes: bool = False
) -> Question:
    """Read the options, then the recording.

    Args:
        paths: A Run, or raw traces.
        words: The shared options.
        quiet: Whether to show no progress.
        has_maps: Whether maps and links of its own come on top of the shared options.
        shapes: Whether the shapes of operators are kept of raw traces.

    Raises:
        TraceToolError: If an option cannot be read, or the recording cannot, or holds no such pipeline.
    """
    from tracetool.ingestion.runs import open_run
    from tracetool.reconstruction import reconstruct
    from tracetool.whatif.wording import placed, read_dc_map

    scenario = _scenario(words)
    choice = read_choice(words["network"], words["collective"], words["dc"], scenario.topology.links)
    dc_map = read_dc_map(words["dc"]) if words["dc"] else None
    takes = {borrow_slowdown: words["costs_from"], borrow_memory: words["memory_from"]}
    with ProgressBar(quiet=quiet) as progress:
        run = open_run(paths, progress, keep=("args",) if shapes else ())
        others = {take: (open_run([path], progress), path) for take, path in takes.items() if path is not None}
    number = pipeline_number(run)
    recording = reconstruct(run, step=words["step"], pipeline=number, copy_missing=words["copy_missing_ranks"])

    def borrow(recording: Reconstruction) -> Reconstruction:
        for take, (other, path) in others.items():
            recording = take(recording, other, path)
        return recording

    recording, pipelines = asked_pipelines(run, borrow(recording), borrow)
    if dc_map is not None:
        scenario = replace(scenario, topology=placed(scenario.topology, dc_map, recording))
    if choice is not None:
        from tracetool.whatif.on_network import seated

        scenario = replace(scenario, topology=seated(choice, recording))
    if words["link_sharing"] is not None and not has_maps and scenario.pipelines_on_link == 1:
        raise _nothing_shared()
    name = " ".join(str(path) for path in paths)
    return Question(
        run=run, recording=recording, scenario=scenario, name=name, pipeline=number,
        is_copied=words["copy_missing_ranks"], borrow=borrow, pipelines=pipelines,
    )  # fmt: skip


def _nothing_shared() -> ScenarioError:
    return ScenarioError(
        "--link-sharing says how several pipelines share links, but there is one.",
        hint="add --pipelines-on-link N, or leave it out",
    )


def _scenario(words: Words) -> Scenario:
    from tracetool.whatif.wording import unplaced_scenario

    if words["link_sharing"] is not None and words["pipelines_on_link"] == 1:
        raise _nothing_shared()
    return unplaced_scenario(
        link=words["link"], hbm=words["hbm"], p2p=words["p2p"], microbatches=words["microbatches"],
        activation=words["activation"], static=words["static"], pipelines_on_link=words["pipelines_on_link"],
        link_sharing=words["link_sharing"] or "temporal", overlap_ratio=words["overlap_ratio"],
        interference=not words["no_interference"],
    )  # fmt: skip


def named_paths(text: str) -> list[tuple[str, Path]]:
    """The paths of a list ``RUN[,RUN...]``, each with the name it was given (NAME=RUN), else an empty one.

    Raises:
        BadQuery: If one of them is empty.
    """
    # A comma or = may be part of a path that is there.
    parts = [text] if path_or_url(text).exists() else text.split(",")
    if not all(part.strip() for part in parts):
        raise BadQuery(f"{text!r} names an empty path.", hint="write a list as in base.run,new.run")
    named = [("", part) if path_or_url(part).exists() else part.rpartition("=")[::2] for part in parts]
    if any(part.startswith("=") and not path_or_url(part).exists() for part in parts):
        raise BadQuery(f"{text!r} gives an empty name.", hint="name a Run as in base=x.run, or leave the = out")
    return [(name, path_or_url(path)) for name, path in named]


def open_named(text: str, progress: Progress | None = None) -> dict[str, Run]:
    """The Runs of such a list by name.

    Raises:
        BadQuery: If two have the same name.
        TraceToolError: If one cannot be read.
    """
    from tracetool.ingestion.runs import open_run
    from tracetool.store.catalog import names_for

    named = named_paths(text)
    names = [given or own for (given, _), own in zip(named, names_for([path for _, path in named]), strict=True)]
    if len(set(names)) < len(names):
        raise BadQuery(
            f"two Runs are named {max(names, key=names.count)}.", hint="name each, as in base=a.run,new=b.run"
        )
    return {name: open_run([path], progress) for name, (_, path) in zip(names, named, strict=True)}


def borrow_slowdown(recording: Reconstruction, other: Run, path: Path) -> Reconstruction:
    """What was reconstructed, slowed down beside communication as another recording was, with a note on how sure it is.

    Args:
        recording: Where all other costs come from.
        other: The recording to take the slowdown from.
        path: Its name, for the notes.

    Raises:
        ScenarioError: If the other one has other stages, or does not tell its slowdown.
        TraceToolError: If it holds no pipeline.
    """
    from tracetool.costs.borrowed import with_factors_of
    from tracetool.reconstruction import reconstruct

    theirs = reconstruct(other)
    text = "; ".join(finding.value for finding in theirs.findings if finding.fact == "interference")
    return replace(
        recording,
        pipeline=with_factors_of(recording.pipeline, theirs.pipeline),
        notes=(
            *(note for note in recording.notes if note.code is not NoticeCode.SLOWDOWN_DEFAULT),
            Notice(
                NoticeCode.COSTS_BORROWED,
                f"--costs-from {path}: {text or 'no slowdown beside communication'}",
                subject=SubjectKind.FILE(path),
            ),
        ),
        taken=replace(recording.taken, costs_from=str(other.manifest.get("digest", ""))),
    )


def borrow_memory(recording: Reconstruction, other: Run, path: Path) -> Reconstruction:
    """What was reconstructed, with the memory figures of another recording and a note that says so.

    Args:
        recording: Where times, messages and order come from.
        other: The recording to take memory from.
        path: Its name, for the notes.

    Raises:
        ScenarioError: If the other one is of another model, or of stages that cannot be made these.
        TraceToolError: If it holds no pipeline.
    """
    from tracetool.costs.borrowed import with_memory_of
    from tracetool.reconstruction import reconstruct

    theirs = reconstruct(other)
    text = "memory figures (peaks, what fits) are that recording's"
    if any(rank.static_bytes is None for rank in theirs.pipeline.ranks):
        text = "that recording does not tell what ranks hold in memory"
    return replace(
        recording,
        pipeline=with_memory_of(recording.pipeline, theirs.pipeline),
        notes=(
            *recording.notes,
            Notice(NoticeCode.MEMORY_BORROWED, f"--memory-from {path}: {text}", subject=SubjectKind.FILE(path)),
        ),
        taken=replace(recording.taken, memory_from=str(other.manifest.get("digest", ""))),
    )
