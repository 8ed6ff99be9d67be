"""tracetool overlap: would slicing, peer-to-peer parts or async tensor parallelism pay inside a layer?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracetool.cli.output import (
    FORCE,
    JSON,
    QUIET,
    VERBOSE,
    ProgressBar,
    check_target,
    next_step,
    path_or_url,
    print_result,
    say_written,
    write_file,
)
from tracetool.cli.question import command_line
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from tracetool.reports.picture import PictureFormat


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
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also draw the streams of the first layer in every way: .png, .svg or .pdf.",
)
@FORCE
@VERBOSE
@JSON
@QUIET
def overlap(
    traces: tuple[Path, ...],
    ways: str | None,
    measured: Path | None,
    bandwidth: str | None,
    output: Path | None,
    *,
    force: bool,
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
      tracetool overlap layer_traces --overlap slice:4,p2p -o layer.png
    """
    from tracetool.overlap.answer import WAYS, answer_for, parse_ways
    from tracetool.overlap.measured import read_measured
    from tracetool.overlap.prediction import compare
    from tracetool.overlap.recording import read_recordings
    from tracetool.reports import CallFacts
    from tracetool.reports.checks.overlap import render_answer_text, render_comparison_text
    from tracetool.reports.checks.overlap_json import render_answer_json, render_comparison_json
    from tracetool.reports.checks.validation import InputInfo
    from tracetool.units import parse_bandwidth_bytes_per_s
    from tracetool.version import __version__

    drawn = None if output is None else _form(output, measured, force=force)
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
            render_comparison_json(done, names, info, facts)
            if as_json
            else render_comparison_text(done, info, verbose=verbose)
        )
    else:
        with ProgressBar(quiet=quiet, doing="simulating", of="layers") as progress:
            answer = answer_for(recordings, tried, bandwidths=bandwidths, progress=progress)
        if output is not None and drawn is not None:
            from tracetool.reports.checks.layer_picture import render_layer

            write_file(output, render_layer(answer, drawn), force=force)
            say_written(output)
        printed = render_answer_json(answer, names, facts) if as_json else render_answer_text(answer, verbose=verbose)
    print_result(printed.decode())
    if not as_json:
        next_step(f"tracetool overlap {shlex.join(names)} --json", quiet=quiet)


def _form(output: Path, measured: Path | None, *, force: bool) -> PictureFormat:
    """The form of the picture, by its suffix.

    Raises:
        ScenarioError: If it has none, or measured ways are compared, of which there is none.
        StoreError: If it cannot be written there.
    """
    from tracetool.reports.picture import PICTURE_SUFFIXES

    check_target(output, force=force)
    if measured is not None:
        raise ScenarioError("--measured compares figures, of which there is no picture.", hint="leave out -o")
    if output.suffix.lower() not in PICTURE_SUFFIXES:
        raise ScenarioError(
            f"a layer is not drawn to {output.suffix or 'files without suffix'}: {output}.",
            hint="use .png, .svg or .pdf",
        )
    return PICTURE_SUFFIXES[output.suffix.lower()]
