"""tracetool paper: published settings, rebuilt from public facts."""

from __future__ import annotations

from dataclasses import replace
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
    free_name,
    next_step,
    say_written,
    write_file,
)
from tracetool.cli.question import command_line
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from tracetool.estimates.transformer import Recompute


@click.group()
def paper() -> None:
    """Rebuild the setting of a published paper, and see where its figures can arise.

    \b
    Example:
      tracetool paper geopipe
    """


@paper.command()
@click.option(
    "--model",
    type=click.Choice(["13b", "70b", "both"]),
    default="both",
    show_default=True,
    help="Llama-2 of that size.",
)
@click.option(
    "--accelerator",
    type=click.Choice(["ascend-910b", "a100"]),
    default="ascend-910b",
    show_default=True,
    help="Whose figures are taken.",
)
@click.option(
    "--peak-tflops", type=click.FloatRange(0, min_open=True), metavar="N", help="Peak at 16 bit instead, in TFLOPS."
)
@click.option(
    "--tensor-bandwidth", metavar="196GB/s", help="What a device sends within its node, one direction, instead."
)
@click.option(
    "--efficiency",
    multiple=True,
    metavar="55%",
    help="Share of the peak of matrix products. Repeatable; default: 40%, 55% and 70%.",
)
@click.option("--hbm", default="64GB", show_default=True, metavar="SIZE", help="Memory limit per device.")
@click.option("--microbatches", metavar="16,32", help="Microbatches per step to sweep; default: 8 to 320.")
@click.option(
    "--distances", metavar="80km,400km", help="Between neighbouring regions, to sweep; default: 10 to 3000 km."
)
@click.option("--batch", type=click.IntRange(1, 1024), default=1, show_default=True, help="Sequences per microbatch.")
@click.option(
    "--sequence", type=click.IntRange(1, 1 << 20), default=4096, show_default=True, help="Tokens per sequence."
)
@click.option(
    "--recompute", type=click.Choice(["none", "selective", "full"]), default="none", show_default=True,
    help="What the backward computes anew.",
)  # fmt: skip
@click.option("--equal-stages", is_flag=True, help="Leave the head out, so that all stages take as long.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), multiple=True,
    help="Also write every point (.parquet, .csv) or the report (.json, .txt). Repeatable.",
)  # fmt: skip
@FORCE
@VERBOSE
@JSON
@QUIET
def geopipe(
    model: str,
    accelerator: str,
    peak_tflops: float | None,
    tensor_bandwidth: str | None,
    efficiency: tuple[str, ...],
    hbm: str,
    microbatches: str | None,
    distances: str | None,
    batch: int,
    sequence: int,
    recompute: Recompute,
    output: tuple[Path, ...],
    *,
    equal_stages: bool,
    verbose: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Where GeoPipe's published figures (arXiv 2510.12064) can arise, in a model of its setting.

    Needs no traces: compute times come from an analytical model of the accelerator, and what is not published is swept.
    A report, not a claim about the paper.

    \b
    Examples:
      tracetool paper geopipe
      tracetool paper geopipe --model 13b --peak-tflops 280 --efficiency 50% \\
          --hbm 64GB
      tracetool paper geopipe --equal-stages --microbatches 16,17,18 \\
          -o points.parquet
    """
    from tracetool.reports import CallFacts
    from tracetool.reports.studies.geopipe import FORMS, render_json, render_text
    from tracetool.studies.geopipe import ACCELERATORS, MODELS
    from tracetool.studies.geopipe.reproduce import PaperChoice, study_geopipe
    from tracetool.studies.geopipe.sweep import PaperGrid
    from tracetool.units import parse_bandwidth_bytes_per_s, parse_share_ratio, parse_size_bytes
    from tracetool.version import __version__

    for path in output:
        if path.suffix.lower() not in FORMS:
            raise ScenarioError(
                f"the report is not written to {path.suffix or 'files without suffix'}: {path}.",
                hint=f"use {', '.join(FORMS)}",
            )
        check_target(path, force=force)
    device = ACCELERATORS[accelerator]
    if peak_tflops is not None:
        device = replace(device, peak_flops=round(peak_tflops * 1e12))
    if tensor_bandwidth is not None:
        device = replace(device, tensor_bandwidth_bytes_per_s=parse_bandwidth_bytes_per_s(tensor_bandwidth))
    grid = PaperGrid()
    if efficiency:
        grid = replace(grid, efficiency_ratios=tuple(sorted({parse_share_ratio(text) for text in efficiency})))
    if microbatches:
        grid = replace(grid, microbatches=_positive(microbatches, "--microbatches"))
    if distances:
        grid = replace(grid, distances_km=_positive(distances, "--distances", "km"))
    choice = PaperChoice(
        models={name: shape for name, shape in MODELS.items() if model in (name, "both")},
        device=device,
        hbm_bytes=parse_size_bytes(hbm),
        batch=batch,
        sequence=sequence,
        recompute=recompute,
        equal_stages=equal_stages,
        grid=grid,
    )
    with ProgressBar(quiet=quiet, doing="replaying", of="settings") as progress:
        study = study_geopipe(choice, progress)
    facts = CallFacts(__version__, command_line())
    for path in output:
        write_file(path, FORMS[path.suffix.lower()](study, facts), force=force)
        say_written(path)
    text = render_json(study, facts) if as_json else render_text(study, facts, verbose=verbose)
    click.echo(text.decode(), nl=False)
    if not as_json:
        equal = [] if equal_stages else ["--equal-stages"]
        next_step(following("paper geopipe", *equal, "-o", free_name("points.parquet")), quiet=quiet)


def _positive(text: str, option: str, unit: str = "") -> tuple[int, ...]:
    """Read a list of whole numbers above 0, each with the unit; in ascending order, each once.

    Raises:
        ScenarioError: If a part is none.
    """
    numbers = set()
    for part in text.split(","):
        number = part.strip().removesuffix(unit).strip()
        if not (number.isascii() and number.isdigit() and int(number)) or not part.strip().endswith(unit):
            raise ScenarioError(
                f"{option} {text!r}: {part!r} is no whole number above 0{f' of {unit}' if unit else ''}.",
                hint=f"as in {option} 80{unit},400{unit}",
            )
        numbers.add(int(number))
    return tuple(sorted(numbers))
