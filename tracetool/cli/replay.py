"""tracetool replay: what would other schedules take over these links, within this memory?"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracetool.cli.costs_from import borrow_slowdown
from tracetool.cli.equalize import report_stragglers
from tracetool.cli.output import (
    DC,
    FORCE,
    JSON,
    PATHS,
    QUIET,
    ProgressBar,
    check_target,
    next_step,
    path_or_url,
    write_file,
)
from tracetool.cli.values import read_dc_map
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from tracetool.model.scenario import LinkSharing, Scenario
    from tracetool.reports import Report


@click.command()
@PATHS
@click.option(
    "--schedule",
    default="observed",
    show_default=True,
    metavar="NAME,...",
    help="Schedules to replay; 'tracetool schedules' lists them; csv:FILE reads torch's CSV of actions.",
)
@DC
@click.option(
    "--link",
    multiple=True,
    metavar="dc0-dc1=25Gbit/s,10ms",
    help="Link between two data centres, both ways; dc0->dc1 for one way. Repeatable.",
)
@click.option("--hbm", metavar="80GiB", help="Memory limit per rank.")
@click.option(
    "--p2p",
    type=click.Choice(["grouped", "in-order", "per-edge"]),
    help="How transfers are issued; default: as in the trace (in-order for gpipe, geopipe and csv on a grouped one).",
)
@click.option("--microbatches", type=click.IntRange(1, 65536), help="Microbatches per step; default: as in the trace.")
@click.option(
    "--extra-forwards", metavar="N,N,...", help="geopipe: warm-up forwards per rank; default: chosen for you."
)
@click.option(
    "--chunks",
    type=click.IntRange(2, 64),
    metavar="V",
    help="Stages per rank to cut one into, for schedules of several (hanayo: twice the waves); default: 2.",
)
@click.option("--time-limit", default="30s", show_default=True, metavar="30s", help="optimal: how long to search.")
@click.option("--activation", metavar="1.2GiB", help="Bytes one microbatch keeps on a stage; default: as measured.")
@click.option("--static", metavar="6GiB", help="Bytes allocated when the step starts; default: as measured.")
@click.option(
    "--pipelines-on-link",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    metavar="N",
    help="Equal pipelines that share the links (data parallel replicas).",
)
@click.option(
    "--link-sharing",
    type=click.Choice(["temporal", "spatial"]),
    default="temporal",
    show_default=True,
    help="How: each message the whole bandwidth in turn (as Atlas), or each pipeline its share of it.",
)
@click.option(
    "--costs-from",
    type=path_or_url,
    metavar="RUN_OR_TRACES",
    help="Another recording of the same stages, whose slowdown beside communication is taken.",
)
@click.option(
    "--no-interference", is_flag=True, help="Leave out slowdown beside communication and under sustained load."
)
@click.option("--jitter", type=int, metavar="SEED", help="Also replay with costs drawn anew: p50 and p95 of the step.")
@click.option(
    "--overlap-ratio",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="dualpipe, dualpipev: time of a forward and a backward that run as one over the sum of both alone.",
)
@click.option("--step", type=int, help="Step to measure; default: the complete one of median length.")
@click.option(
    "--pipeline", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Which of several pipelines."
)
@click.option(
    "--copy-missing-ranks", is_flag=True, help="Copy ranks that were not recorded from one of the same stage."
)
@click.option("--baseline", default="1f1b", show_default=True, metavar="NAME", help="Schedule to compare with.")
@click.option(
    "--equalize", is_flag=True, help="What stragglers cost: equalize all, then a kind, stage, pipeline, rank at a time."
)
@click.option(
    "-o",
    "--output",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write a report, its form by the suffix: .png .svg .pdf (the shortest result that fits), .json, .txt.",
)
@FORCE
@JSON
@QUIET
def replay(
    paths: tuple[Path, ...],
    schedule: str,
    dc: str | None,
    link: tuple[str, ...],
    hbm: str | None,
    p2p: str | None,
    microbatches: int | None,
    extra_forwards: str | None,
    chunks: int | None,
    time_limit: str,
    activation: str | None,
    static: str | None,
    pipelines_on_link: int,
    link_sharing: LinkSharing,
    costs_from: Path | None,
    jitter: int | None,
    overlap_ratio: float,
    step: int | None,
    pipeline: int,
    baseline: str,
    output: tuple[Path, ...],
    *,
    copy_missing_ranks: bool,
    equalize: bool,
    no_interference: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Replay a Run, or raw traces, under other schedules, links and memory limits.

    \b
    Examples:
      tracetool replay traces/ --schedule geopipe --dc 0-1,2-3 --link dc0-dc1=25Gbit/s,10ms --hbm 80GiB
      tracetool replay x.run --schedule 1f1b,gpipe,geopipe --json
      tracetool replay x.run --schedule geopipe -o gantt.png
      tracetool replay x.run --equalize
    """
    if equalize:
        report_stragglers(paths, step, output, force=force, as_json=as_json, quiet=quiet)
        return
    from tracetool.cli.values import parse_counts, parse_names
    from tracetool.reconstruct import reconstruct
    from tracetool.reports import REPORTS, run_facts
    from tracetool.reports.gantt import shortest
    from tracetool.runs import open_run
    from tracetool.units import parse_duration_ns
    from tracetool.whatif import answer

    targets = _targets(output, force=force)
    names = parse_names(schedule)
    _check_names([*names, baseline])
    words = _Words(link, hbm, p2p, microbatches, activation, static, overlap_ratio)
    scenario = replace(
        words.scenario(),
        interference=not no_interference,
        pipelines=pipelines_on_link,
        link_sharing=link_sharing,
    )
    time_limit_s = parse_duration_ns(time_limit) / 1e9
    dc_map = read_dc_map(dc) if dc else None
    with ProgressBar(quiet=quiet) as progress:
        run = open_run(paths, progress)
        other = None if costs_from is None else open_run([costs_from], progress)
    found = reconstruct(run, step=step, pipeline=pipeline, copy_missing=copy_missing_ranks)
    if costs_from is not None and other is not None:
        found = borrow_slowdown(found, other, costs_from)
    if dc_map is not None:
        hosts = dict(run.rows("SELECT rank, host FROM ranks"))
        dcs = dc_map.of_pipeline(found.observed.global_ranks, hosts)
        scenario = replace(scenario, topology=replace(scenario.topology, dcs=dcs))
    result = answer(
        found,
        names,
        scenario,
        baseline=baseline,
        extra_forwards=parse_counts(extra_forwards) if extra_forwards else None,
        jitter_seed=jitter,
        chunks=chunks,
        time_limit_s=time_limit_s,
    )
    named = " ".join(str(p) for p in paths)
    facts = run_facts(named, run.manifest, shlex.join(["tracetool", *click.get_current_context().obj]))
    for path, report in targets:
        write_file(path, report.render(result, facts, path.suffix.lower()), force=force)
        drawn = f" ({shortest(result).schedule})" if report is REPORTS.get("gantt") else ""
        click.echo(f"wrote {path}{drawn}", err=True)
    form = REPORTS.get("json" if as_json else "text")
    click.echo(form.render(result, facts, "").decode(), nl=False)
    if not as_json:
        # The tables of a Run are of its first pipeline and usual step, without copies.
        elsewhere = copy_missing_ranks or pipeline or step is not None
        after = f"{facts.command} -o gantt.png"
        if targets:
            in_run = f'tracetool sql {shlex.quote(named)} "select * from step_breakdown"'
            after = f"{facts.command} --json" if elsewhere else in_run
        next_step(after, quiet=quiet)


@dataclass(frozen=True, slots=True)
class _Words:
    """The scenario's options as written."""

    link: tuple[str, ...]
    hbm: str | None
    p2p: str | None
    microbatches: int | None
    activation: str | None
    static: str | None
    overlap_ratio: float

    def scenario(self) -> Scenario:
        from tracetool.model.pipeline import P2P_MODES
        from tracetool.model.scenario import Scenario
        from tracetool.model.topology import Topology, parse_link
        from tracetool.units import parse_size_bytes

        def size(text: str | None) -> int | None:
            return None if text is None else parse_size_bytes(text)

        if (self.activation is None) != (self.static is None):
            raise ScenarioError(
                "--activation and --static belong together: a peak is both.", hint="give both, or neither"
            )
        return Scenario(
            topology=Topology(links=tuple(direction for text in self.link for direction in parse_link(text))),
            hbm_bytes=size(self.hbm),
            p2p=next((mode for mode in P2P_MODES if mode == self.p2p), None),
            microbatches=self.microbatches,
            activation_bytes=size(self.activation),
            static_bytes=size(self.static),
            overlap_ratio=self.overlap_ratio,
        )


def _targets(output: tuple[Path, ...], *, force: bool) -> list[tuple[Path, Report]]:
    """The reports to write, refused before the long work if they cannot be."""
    from tracetool.reports import report_for

    targets = []
    for path in output:
        report = report_for(path.suffix)
        if report is None:
            raise ScenarioError(
                f"no report is written to {path.suffix or 'files without suffix'}: {path}.",
                hint="use .png, .svg, .pdf, .json or .txt",
            )
        check_target(path, force=force)
        targets.append((path, report))
    return targets


def _check_names(names: list[str]) -> None:
    from tracetool.schedules import SCHEDULES

    for name in names:
        if not name.startswith("csv:"):
            SCHEDULES.get(name)
