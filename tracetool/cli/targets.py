"""Files that commands write reports to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.cli.output import check_target
from tracetool.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tracetool.reports import Report


def report_targets(output: Iterable[Path], *, force: bool) -> list[tuple[Path, Report]]:
    """The reports to write, by suffix, refused before the long work if they cannot be.

    Raises:
        ScenarioError: If there is no report of such a suffix.
        AlreadyExists: If a file exists and ``force`` is off.
        StoreError: If its folder does not exist.
    """
    from tracetool.reports import REPORTS, report_for

    targets = []
    for path in output:
        report = report_for(path.name)
        if report is None:
            known = [suffix for name in REPORTS.names() for suffix in REPORTS.get(name).suffixes]
            raise ScenarioError(
                f"no report is written to {path.suffix or 'files without suffix'}: {path}.",
                hint=f"use one of {' '.join(known)}",
            )
        check_target(path, force=force)
        targets.append((path, report))
    return targets
