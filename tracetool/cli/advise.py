"""tracetool advise: which schedule to run over these links, what binds, and what more of it would buy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracetool.cli.layers import WAYS_HELP, ways_of, with_ways
from tracetool.cli.output import (
    JSON,
    PATH_OR_URL,
    PATHS,
    QUIET,
    VERBOSE,
    ProgressBar,
    complete_schedules,
    following,
    free_name,
    next_step,
)
from tracetool.cli.question import OFFERS, RUN_STEPS, Words, ask, question_options
from tracetool.cli.topology import refuse_offers
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Unpack

    from tracetool.advice.cotune import OtherSizes
    from tracetool.advice.plans import Plan
    from tracetool.costs.rescaled import MicrobatchSize


@click.command()
@PATHS
@click.option(
    "--schedule",
    shell_complete=complete_schedules,
    metavar="NAME,...",
    help="Schedules to choose among; default: all that need no search. 'tracetool schedules' lists them.",
)
@question_options
@OFFERS
@RUN_STEPS
@click.option(
    "--overlap",
    metavar="WAY,...",
    help=f"Also what is to be run with layers that overlap collectives and matrix products: {WAYS_HELP}.",
)
@click.option(
    "--co-tune", is_flag=True, help="Also other micro-batch sizes and sequence lengths for geopipe, at equal tokens."
)
@click.option("--mbs", type=click.IntRange(1), metavar="N", help="--co-tune: sequences of a recorded microbatch.")
@click.option("--seq", type=click.IntRange(1), metavar="N", help="--co-tune: tokens of a recorded sequence.")
@click.option(
    "--hidden", type=click.IntRange(1), metavar="N", help="--co-tune: hidden size; default: from the messages' size."
)
@click.option(
    "--also",
    type=PATH_OR_URL,
    metavar="RUN_OR_TRACES",
    help="--co-tune: a recording of the same stages with other microbatches; what grows is fitted to both.",
)
@click.option("--also-mbs", type=click.IntRange(1), metavar="N", help="Sequences of its microbatch; default: --mbs.")
@click.option("--also-seq", type=click.IntRange(1), metavar="N", help="Tokens of its sequences; default: --seq.")
@VERBOSE
@JSON
@QUIET
def advise(
    paths: tuple[Path, ...],
    schedule: str | None,
    offers: tuple[str, ...],
    run_steps: int | None,
    overlap: str | None,
    mbs: int | None,
    seq: int | None,
    hidden: int | None,
    also: Path | None,
    also_mbs: int | None,
    also_seq: int | None,
    *,
    co_tune: bool,
    verbose: bool,
    as_json: bool,
    quiet: bool,
    **words: Unpack[Words],
) -> None:
    """Say what to run over a link or over each of several offers, and what the dearer one buys.

    Every schedule is replayed over the links, with transfers as the trace shows them and per edge. Recommended is the
    best of those whose predictions were compared with recorded steps; what may be better is listed apart.

    \b
    Examples:
      tracetool advise x.run --dc 0-1,2-3 --link dc0-dc1=25Gbit/s,10ms --hbm 80GiB
      tracetool advise x.run --dc 0-1,2-3 --link dc0-dc1=25Gbit/s,10ms \\
          --or 100Gbit/s,10ms=9000EUR/month
      tracetool advise traces/ --dc 0-1,2-3 --link dc0-dc1=100Gbit/s,2ms \\
          --schedule 1f1b,geopipe --json
      tracetool advise x.run --dc 0-1,2-3 --link dc0-dc1=25Gbit/s,10ms --co-tune \\
          --mbs 1 --seq 2048
    """
    from tracetool.advice import decide
    from tracetool.advice.cotune import co_tune as find_sizes
    from tracetool.costs.rescaled import MicrobatchSize
    from tracetool.reports.advice.json import render_json
    from tracetool.reports.advice.text import render_text
    from tracetool.schedules import parse_names, tuning_of
    from tracetool.schedules.names import check_schedules
    from tracetool.whatif.decision import without_fees

    if also is None and (also_mbs is not None or also_seq is not None):
        raise ScenarioError(
            "--also-mbs and --also-seq say what another recording's microbatches are made of, and none is named.",
            hint="add --also RUN_OR_TRACES",
        )
    names = None if schedule is None else check_schedules(parse_names(schedule))
    sizes = _sizes(mbs, seq, co_tune=co_tune, others=(hidden, also, also_mbs, also_seq))
    refuse_offers(words["network"], offers)
    words["link"], fees = without_fees(words["link"])
    run_so = ways_of(overlap)
    question = ask(paths, words, quiet=quiet, shapes=bool(run_so))
    recording, overlaps = with_ways(question, run_so)
    other = None
    if sizes is not None and also is not None:
        other = _other_sizes(also, MicrobatchSize(also_mbs or sizes.sequences, also_seq or sizes.length), quiet=quiet)
    tuning = None
    with ProgressBar(quiet=quiet, doing="replaying", of="scenarios") as progress:
        decided = decide(
            recording, question.scenario, offers, names, fee=fees, steps=run_steps, overlaps=overlaps, progress=progress
        )
    if sizes is not None:
        tuned = next((name for name in names or () if tuning_of(name) is not None), None)
        with ProgressBar(quiet=quiet, doing="replaying", of="sizes") as progress:
            tuning = find_sizes(
                question.recording, question.scenario, sizes,
                schedule=tuned, hidden=hidden, also=other, progress=progress,
            )  # fmt: skip
    facts = question.facts()
    if as_json:
        click.echo(render_json(decided, facts, tuning).decode(), nl=False)
        return
    advice = decided.advice[0]

    def lack(plan: Plan) -> tuple[int, int]:
        return (plan.result.shortage.missing_bytes if plan.result.shortage is not None else 0), plan.step_ns

    lacks_least = min(advice.asked.plans, key=lack)
    after = _replay_of(advice.best or lacks_least)
    click.echo(render_text(decided, facts, tuning, verbose=verbose, after=after).decode(), nl=False)
    next_step(after, quiet=quiet)


def _sizes(mbs: int | None, seq: int | None, *, co_tune: bool, others: tuple[object, ...]) -> MicrobatchSize | None:
    """What a recorded microbatch is made of, if other sizes are asked for.

    Raises:
        ScenarioError: If that is not said, or said without --co-tune.
    """
    if not co_tune:
        if any(value is not None for value in (mbs, seq, *others)):
            raise ScenarioError(
                "--mbs, --seq, --hidden and --also are about other sizes of a microbatch.", hint="add --co-tune"
            )
        return None
    if mbs is None or seq is None:
        raise ScenarioError(
            "a trace does not tell the sizes of its microbatches, which --co-tune needs.",
            hint="add --mbs and --seq of the recording, as in --mbs 1 --seq 2048",
        )
    from tracetool.costs.rescaled import MicrobatchSize

    return MicrobatchSize(mbs, seq)


def _other_sizes(also: Path, batch: MicrobatchSize, *, quiet: bool) -> OtherSizes:
    from tracetool.advice.cotune import OtherSizes
    from tracetool.ingestion.runs import open_run
    from tracetool.reconstruction import reconstruct

    with ProgressBar(quiet=quiet) as progress:
        run = open_run([also], progress)
    return OtherSizes(reconstruct(run).pipeline, batch)


def _replay_of(plan: Plan) -> str:
    """The command that draws a plan, with the shared options that were given."""
    from tracetool.whatif.decision import without_fees

    links, _ = without_fees(click.get_current_context().params["link"])
    words = ["--schedule", plan.way.schedule]
    if plan.result.extra_forwards is not None:
        words += ["--extra-forwards", ",".join(map(str, plan.result.extra_forwards))]
    if plan.way.p2p is not None:
        words += ["--p2p", plan.way.p2p]
    for link in links:
        words += ["--link", link]
    without = {"schedule", "link", "overlap", *(["p2p"] if plan.way.p2p is not None else [])}
    return following("replay", *words, "-o", free_name("gantt.png"), without=without)
