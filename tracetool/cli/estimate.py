"""tracetool estimate: from shapes or layer timings to step, utilisation and memory, without a trace."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracetool.cli.output import JSON, QUIET, VERBOSE, ProgressBar, following, next_step, print_result
from tracetool.cli.question import command_line
from tracetool.cli.topology import NETWORK
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from tracetool.estimates.timings import LayerTimings
    from tracetool.network.file import NetworkChoice
    from tracetool.reports.estimate.json import EstimateFacts

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("model", type=click.Path(path_type=Path), metavar="[MODEL.toml]", required=False)
@NETWORK
@click.option(
    "--fit", multiple=True, metavar="NAME", help="A measured run of the file to fit the efficiency on. Repeatable."
)
@click.option(
    "--layers", type=_FILE, metavar="LAYERS.json", help="Layer timings, in place of the device's curve of efficiency."
)
@click.option(
    "--overlap", metavar="WAY", help="Layers that run collectives beside products: slice:N, p2p, p2p:N or async-tp."
)
@click.option("--plans", type=_FILE, metavar="PLANS.json", help="Measured plans: predict each from layer timings.")
@VERBOSE
@JSON
@QUIET
def estimate(
    model: Path | None,
    network: Path | None,
    fit: tuple[str, ...],
    layers: Path | None,
    overlap: str | None,
    plans: Path | None,
    *,
    verbose: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Estimate a job that nobody has run: step, utilisation and memory.

    A model's shape, how it is trained, and a device with one curve of efficiency (given, or fitted on measured runs of
    the file), or layer timings in its place, make the costs of all stages; the same engine replays them.

    \b
    Examples:
      tracetool estimate model.toml --network network.toml
      tracetool estimate model.toml --network network.toml --fit "22B selective"
      tracetool estimate --plans plans.json --layers layers.json --network n.toml
    """
    if plans is not None:
        if model is not None or fit or overlap:
            raise ScenarioError(
                "plans are predicted from layer timings alone.", hint="leave model, --fit and --overlap out"
            )
        _plans(plans, layers, network, verbose=verbose, as_json=as_json, quiet=quiet)
    elif model is not None and model.is_dir():
        raise ScenarioError(
            f"{model} is a folder, and a model's shapes are in a TOML file.",
            hint=f"of traces, tracetool replay {shlex.quote(str(model))} tells what a step takes",
        )
    elif model is not None:
        _model(model, network, fit, layers, overlap, verbose=verbose, as_json=as_json, quiet=quiet)
        if not as_json:
            next_step(following("estimate", "-v"), quiet=quiet or verbose)
    else:
        raise ScenarioError("nothing to estimate.", hint="give a MODEL.toml, or --plans with --layers")


def _model(
    model: Path,
    network: Path | None,
    fit: tuple[str, ...],
    layers: Path | None,
    overlap: str | None,
    *,
    verbose: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    from tracetool.estimates.asked import estimate as run
    from tracetool.reports.estimate import json, text

    with ProgressBar(quiet=quiet, doing="estimating", of="jobs") as progress:
        estimated = run(model, network, fit=fit, layers=layers, overlap=overlap, progress=progress)
    facts = _facts(estimated.network, estimated.timings)
    if as_json:
        print_result(json.render_estimate(estimated, facts).decode())
    else:
        print_result(text.render_estimate(estimated, facts, verbose=verbose).decode())


def _plans(
    plans: Path, layers: Path | None, network: Path | None, *, verbose: bool, as_json: bool, quiet: bool
) -> None:
    from dataclasses import replace

    from tracetool.estimates.plans import predict_plans, read_plans
    from tracetool.estimates.timings import read_layers
    from tracetool.network.file import read_network
    from tracetool.reports.estimate import json, text

    if layers is None or network is None:
        raise ScenarioError(
            "plans are predicted from layer timings over a network.", hint="add --layers LAYERS.json --network N.toml"
        )
    timings, choice = read_layers(layers), read_network(network)
    listed, digest = read_plans(plans)
    with ProgressBar(quiet=quiet, doing="predicting", of="plans") as progress:
        done = predict_plans(listed, digest, timings, choice, progress)
    facts = replace(_facts(choice, timings), plans=str(plans))
    if as_json:
        print_result(json.render_plans(done, facts).decode())
    else:
        print_result(text.render_plans(done, facts, verbose=verbose).decode())


def _facts(choice: NetworkChoice | None, timings: LayerTimings | None) -> EstimateFacts:
    from tracetool.reports.estimate.json import EstimateFacts
    from tracetool.version import __version__

    return EstimateFacts(
        __version__, command_line(), None if choice is None else choice.network.name,
        None if timings is None else timings.name, "" if timings is None else timings.digest,
    )  # fmt: skip
