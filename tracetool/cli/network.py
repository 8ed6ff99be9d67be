"""tracetool network: who sends how much to whom over which tier, and what a network is built of and costs."""

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
    following,
    next_step,
    path_or_url,
    say_written,
    write_file,
)
from tracetool.cli.question import command_line
from tracetool.cli.topology import NETWORK
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracetool.network.fabric import Fabric, PriceFile
    from tracetool.network.fabric import Kind as FabricKind
    from tracetool.reports import RunFacts
    from tracetool.whatif.on_network import OnNetwork


@click.command()
@click.argument("paths", nargs=-1, type=path_or_url, metavar="[RUN_OR_TRACES|MODEL.toml]...")
@NETWORK
@click.option(
    "--sizes", metavar="1,2,4", help="Also replay with HB domains (the innermost tier) of these sizes: which pays."
)
@click.option(
    "--fit", multiple=True, metavar="NAME", help="Of a MODEL.toml: a measured run to fit the efficiency on. Repeatable."
)
@click.option("--devices", type=click.IntRange(1, 1 << 24), metavar="N", help="Without a recording: devices to join.")
@click.option("--hb-domain", type=click.IntRange(1), metavar="K", help="Devices of an HB domain  [default: 8]")
@click.option("--radix", type=click.IntRange(2), metavar="R", help="Ports of a switch  [default: 64]")
@click.option(
    "--compare",
    metavar="clos3,rail-only",
    help="Networks to compare with the first of them: clos, clos1, clos2, clos3, rail-optimised, rail-only.",
)
@click.option(
    "--prices", type=click.Path(path_type=Path, dir_okay=False), metavar="p.toml", help="What switches and links cost."
)
@click.option("--hb-bandwidth", metavar="450GB/s", help="Of a device in its HB domain  [default: 450GB/s]")
@click.option("--port-bandwidth", metavar="400Gbit/s", help="Of a device's port  [default: 400Gbit/s]")
@click.option(
    "-o",
    "--output",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also a picture (.png, .svg, .pdf), .json, or the table traffic (.parquet, .csv).",
)
@FORCE
@VERBOSE
@JSON
@QUIET
def network(
    paths: tuple[Path, ...],
    network: Path | None,
    sizes: str | None,
    fit: tuple[str, ...],
    devices: int | None,
    hb_domain: int | None,
    radix: int | None,
    compare: str | None,
    prices: Path | None,
    hb_bandwidth: str | None,
    port_bandwidth: str | None,
    output: tuple[Path, ...],
    *,
    force: bool,
    verbose: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show a job's traffic on a network, recorded or from shapes, or what networks take to be built.

    \b
    Examples:
      tracetool network x.run --network n.toml -o traffic.png
      tracetool network model.toml --network n.toml --sizes 1,2,4,8
      tracetool network --devices 32768 --hb-domain 16 --radix 64 \\
          --compare clos3,rail-optimised,rail-only --prices p.toml
    """
    for path in output:
        check_target(path, force=force)
    if bool(paths) == (devices is not None):
        raise ScenarioError(
            "tracetool network takes a recording or a MODEL.toml and --network, or --devices alone.",
            hint="tracetool network x.run --network n.toml, or tracetool network --devices 32768",
        )
    if not paths:
        _refuse({"--network": network, "--sizes": sizes, "--fit": fit or None}, "recordings and models")
        shown = _fabrics(devices or 1, hb_domain or 8, radix or 64, compare, prices, hb_bandwidth, port_bandwidth)
    else:
        of_fabrics = {
            "--hb-domain": hb_domain, "--radix": radix, "--compare": compare, "--prices": prices,
            "--hb-bandwidth": hb_bandwidth, "--port-bandwidth": port_bandwidth,
        }  # fmt: skip
        _refuse(of_fabrics, "--devices")
        if network is None:
            raise ScenarioError("which network is not said.", hint="add --network n.toml (tracetool help network)")
        if [path.suffix.lower() for path in paths] == [".toml"]:
            shown = _traffic_screen(
                _from_shapes(paths[0], network, sizes, fit), following("estimate", str(paths[0])), verbose=verbose
            )
        else:
            _refuse({"--fit": fit or None}, "models")
            shown = _traffic_screen(_recorded(paths, network, sizes, quiet=quiet), following("replay"), verbose=verbose)
    text, forms, after = shown
    for path in output:
        if path.suffix.lower() not in forms:
            raise ScenarioError(
                f"this is not written to {path.suffix or 'files without suffix'}: {path}.",
                hint=f"use {', '.join(forms)}",
            )
        write_file(path, forms[path.suffix.lower()](), force=force)
        say_written(path)
    click.echo((forms[".json"]() if as_json else text()).decode(), nl=False)
    if not as_json:
        next_step(after, quiet=quiet)


_Shown = tuple["Callable[[], bytes]", "dict[str, Callable[[], bytes]]", str]
"""The text, what writes files by suffix, and the next command."""


def _refuse(options: Mapping[str, object], needs: str) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ScenarioError(f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} for {needs}.")


def _fabrics(
    devices: int, hb_domain: int, radix: int, compare: str | None, prices: Path | None, hb: str | None, port: str | None
) -> _Shown:
    from tracetool.errors import UnknownName
    from tracetool.network.fabric import FABRICS, build, read_prices
    from tracetool.reports.network import fabrics_info, fabrics_json, fabrics_text
    from tracetool.reports.network.picture import fabrics_picture
    from tracetool.reports.picture import PICTURE_SUFFIXES
    from tracetool.units import parse_bandwidth_bytes_per_s

    known: PriceFile | None = None if prices is None else read_prices(prices)
    kinds: list[FabricKind] = []
    for name in (compare or "clos,rail-optimised,rail-only").split(","):
        kind = next((kind for kind in FABRICS if kind == name.strip()), None)
        if kind is None:
            raise UnknownName("network", name.strip(), FABRICS)
        kinds.append(kind)
    fabrics: list[Fabric] = [
        build(
            kind, devices, radix, hb_domain, prices=known,
            hb_bytes_per_s=parse_bandwidth_bytes_per_s(hb or "450GB/s"),
            port_bytes_per_s=parse_bandwidth_bytes_per_s(port or "400Gbit/s"),
        )
        for kind in kinds
    ]  # fmt: skip
    info = fabrics_info(fabrics, radix, hb_domain, known, command_line())
    forms: dict[str, Callable[[], bytes]] = {".json": lambda: fabrics_json(info)}
    for suffix, form in PICTURE_SUFFIXES.items():
        forms[suffix] = lambda form=form: fabrics_picture(info, form)  # type: ignore[misc]
    words = ["--devices", str(devices), "--hb-domain", str(2 * hb_domain), "--radix", str(radix)]
    kept = {"--compare": compare, "--prices": prices, "--hb-bandwidth": hb, "--port-bandwidth": port}
    words += [word for name, value in kept.items() if value is not None for word in (name, str(value))]
    after = shlex.join(["tracetool", "network", *words])
    return lambda: fabrics_text(info), forms, after


def _recorded(paths: Sequence[Path], network: Path, sizes: str | None, *, quiet: bool) -> tuple[OnNetwork, RunFacts]:
    from tracetool.ingestion.runs import open_run
    from tracetool.network.file import read_network
    from tracetool.reconstruction import reconstruct
    from tracetool.reports import run_facts
    from tracetool.whatif.on_network import recorded_on

    choice = read_network(network)
    with ProgressBar(quiet=quiet) as progress:
        run = open_run(list(paths), progress)
    carried = recorded_on(run, reconstruct(run), choice, _counts(sizes))
    return carried, run_facts(" ".join(map(str, paths)), run.manifest, command_line())


def _from_shapes(model: Path, network: Path, sizes: str | None, fit: tuple[str, ...]) -> tuple[OnNetwork, RunFacts]:
    from tracetool.estimates.file import read_model
    from tracetool.network.file import read_network
    from tracetool.reports import RunFacts
    from tracetool.version import __version__
    from tracetool.whatif.on_network import shapes_on

    choice = read_network(network)
    asked = read_model(model, fit, choice, timed=sizes is None)
    return shapes_on(asked.job, choice, _counts(sizes)), RunFacts(str(model), "", __version__, command_line())


def _counts(sizes: str | None) -> tuple[int, ...]:
    from tracetool.cli.output import parse_counts

    return () if sizes is None else parse_counts(sizes)


def _traffic_screen(on_network: tuple[OnNetwork, RunFacts], after: str, *, verbose: bool) -> _Shown:
    from tracetool.reports.network import traffic_json, traffic_rows, traffic_text
    from tracetool.reports.network.picture import traffic_picture
    from tracetool.reports.picture import PICTURE_SUFFIXES

    carried, facts = on_network
    forms: dict[str, Callable[[], bytes]] = {".json": lambda: traffic_json(carried, facts)}
    for suffix, form in PICTURE_SUFFIXES.items():
        forms[suffix] = lambda form=form: traffic_picture(carried, facts, form)  # type: ignore[misc]
    forms |= {".csv": lambda: traffic_rows(carried).write_csv().encode(), ".parquet": lambda: _parquet(carried)}
    return lambda: traffic_text(carried, facts, verbose=verbose), forms, after


def _parquet(carried: OnNetwork) -> bytes:
    import io

    from tracetool.reports.network import traffic_rows

    file = io.BytesIO()
    traffic_rows(carried).write_parquet(file)
    return file.getvalue()
