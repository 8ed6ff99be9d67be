"""tracetool overlap: would slicing, peer-to-peer parts or async tensor parallelism pay inside a layer?"""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tracetool.cli.output import JSON, QUIET, VERBOSE, ProgressBar, next_step, path_or_url, print_result
from tracetool.cli.question import command_line


@click.command()
@click.argument("traces", nargs=-1, required=True, type=path_or_url, metavar="RUN_OR_TRACES...")
@click.option(
    "--overlap",
    "ways",
    metavar="WAYS",
    help="Ways to try, as in slice:2,slice:4,p2p,p2p:2,async-tp; default: all of them.",
)
@click.option(
    "--measured",
    type=click.Path(path_type=Path),
    metavar="MEASURED.json",
    help="Predict the ways that this file measured, and compare (schemas/measured-overlap.schema.json).",
)
@click.option(
    "--bandwidth",
    metavar="BANDWIDTHS",
    help="Also over other links between the ranks, each way, as in 25GB/s,50GB/s,100GB/s: where does it begin to pay?",
)
@VERBOSE
@JSON
@QUIET
def overlap(
    traces: tuple[Path, ...],
    ways: str | None,
    measured: Path | None,
    bandwidth: str | None,
    *,
    verbose: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Say whether overlap pays for a layer's collective and its matrix product.

    Reads recordings of layers as they are, each in a folder of its own: an all-gather and the product that eats it, or
    a product and its reduce-scatter, with shapes. A pipeline is not needed.

    \b
    Examples:
      tracetool overlap layer_traces
      tracetool overlap layer_traces --overlap slice:2,p2p --json
      tracetool overlap layer_traces --bandwidth 25GB/s,50GB/s,100GB/s
      tracetool overlap layer_traces --measured measured.json --json
    """
    from tracetool.overlap.answer import WAYS, answer_for, parse_ways
    from tracetool.overlap.measured import read_measured
    from tracetool.overlap.prediction import compare
    from tracetool.overlap.recording import read_recordings
    from tracetool.reports import CallFacts
    from tracetool.reports.checks import overlap as report
    from tracetool.reports.checks.validation import InputInfo
    from tracetool.units import parse_bandwidth_bytes_per_s
    from tracetool.version import __version__

    bandwidths = [parse_bandwidth_bytes_per_s(each) for each in bandwidth.split(",")] if bandwidth else []
    tried = WAYS if ways is None else parse_ways(ways)
    facts, names = CallFacts(__version__, command_line()), [str(path) for path in traces]
    file = None if measured is None else read_measured(measured)
    with ProgressBar(quiet=quiet) as progress:
        recordings = read_recordings(traces, progress)
    if file is not None:
        with ProgressBar(quiet=quiet, doing="predicting", of="rows") as progress:
            done = compare(recordings, file[0], progress)
        info = InputInfo(name=str(measured), digest=file[1])
        printed = (
            report.render_comparison_json(done, names, info, facts)
            if as_json
            else report.render_comparison_text(done, info, verbose=verbose)
        )
    else:
        with ProgressBar(quiet=quiet, doing="simulating", of="layers") as progress:
            answer = answer_for(recordings, tried, bandwidths=bandwidths, progress=progress)
        printed = (
            report.render_answer_json(answer, names, facts)
            if as_json
            else report.render_answer_text(answer, verbose=verbose)
        )
    print_result(printed.decode())
    if not as_json:
        next_step(f"tracetool overlap {shlex.join(names)} --json", quiet=quiet)
