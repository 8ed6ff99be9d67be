"""How many pipelines a scenario has on its links, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracetool.model.scenario import Scenario


def sharing_lines(scenario: Scenario) -> list[str]:
    """A line such as ``2 pipelines share the link``; none where one has the links for itself."""
    pipelines = scenario.pipelines_on_link
    if pipelines == 1:
        return []
    pairs = {frozenset((link.src_dc, link.dst_dc)) for link in scenario.topology.links}
    return [f"{pipelines} pipelines share the link{'s' if len(pairs) > 1 else ''}"]
