"""Options of where ranks sit and of what joins them: data centres and links, or a network of tiers."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from tracetool.cli.settings import ahead_of
from tracetool.errors import ScenarioError, TraceToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.network.file import NetworkChoice
    from tracetool.network.link import Link


def complete_links(context: click.Context, _option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Pairs of the data centres that are mapped."""
    from tracetool.whatif.wording import read_dc_map

    given = context.params.get("dc") or ()
    names: set[str] = set()
    for text in (given,) if isinstance(given, str) else given:
        with suppress(TraceToolError):
            mapped = read_dc_map(text)
            names.update(mapped.by_position, mapped.by_rank.values(), (dc for _, dc in mapped.by_host))
    pairs = (f"{one}-{two}=" for one, two in combinations(sorted(names), 2))
    return [CompletionItem(pair) for pair in pairs if pair.startswith(incomplete)]


DC = click.option(
    "--dc",
    metavar="MAP",
    help="Where ranks sit: ranges of pipeline ranks, one per data centre (0-1,2-3); host patterns "
    "('dc0=gpu-a*,dc1=gpu-b*'); or a CSV file with the columns rank (global) or host, and dc.",
)
LINK = click.option(
    "--link",
    multiple=True,
    shell_complete=complete_links,
    callback=ahead_of("network"),
    metavar="dc0-dc1=25Gbit/s,10ms",
    help="Link between two data centres, both ways; dc0->dc1 for one way; 800km for the latency. Repeatable.",
)
NETWORK = click.option(
    "--network",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="n.toml",
    callback=ahead_of("dc", "link"),
    help="Tiers of a network, and how ranks are placed on it, instead of --dc and --link (tracetool help network).",
)
ON_NETWORK = (
    NETWORK,
    click.option(
        "--collective",
        multiple=True,
        metavar="dp=hierarchical",
        help="How collectives run on a network, of one dimension or of all: ring, tree, halving, hierarchical, direct, "
        "forwarded or auto. Repeatable.",
    ),
)


def read_choice(
    network: Path | None, collectives: Sequence[str], dc: str | None = None, links: Sequence[Link] = ()
) -> NetworkChoice | None:
    """The network that was asked for, with how collectives run on it; None if none was.

    Args:
        network: Its file.
        collectives: How they run.
        dc: The map that was given beside it.
        links: The links that were.

    Raises:
        ScenarioError: If it cannot be read, it is said how collectives run on none, or its short form is given as well.
    """
    from tracetool.network.file import read_network
    from tracetool.whatif.wording import refuse_both

    if network is None:
        if collectives:
            raise ScenarioError(
                "--collective says how collectives run on a network, and there is none.",
                hint="add --network n.toml; over --link they run in rings",
            )
        return None
    refuse_both(dc, links)
    return read_network(network).with_collectives(collectives)


def refuse_offers(network: Path | None, offers: Sequence[str]) -> None:
    """Refuse offers of links beside a network: a sweep compares figures of its tiers.

    Args:
        network: Its file.
        offers: Other links, with what they cost.

    Raises:
        ScenarioError: If both are given.
    """
    from tracetool.cli.output import following
    from tracetool.network.file import read_network

    if network is None or not offers:
        return
    outer = read_network(network).network.tiers[-1]
    widths = [f"{outer.bandwidth_bytes_per_s * 8 / 1e9:g}Gbit/s"]
    widths += [match[0] for match in map(_BANDWIDTH.search, offers) if match]
    figures = ",".join(dict.fromkeys(widths)) if len(widths) > 1 else "100..800Gbit/s"
    sweep = following("sweep", "--tier", f"{outer.name}.bandwidth={figures}")
    raise ScenarioError(
        "--or offers links between DCs, and --network says what lies between ranks.",
        hint=f"'{sweep}' compares figures of its tiers; what links cost is told of --dc and --link",
    )


_BANDWIDTH = re.compile(r"[\d.]+\s*[KMGT]?(?:bit|B)/s")
