"""Figures that are made, but not drawn, for tests of what is written beside them: drawing takes most of a page."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BytesIO

    from matplotlib.figure import Figure

EMPTY = {
    "png": b"\x89PNG\r\n\x1a\n",
    "svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" version="1.1"><g id="none"/></svg>',
    "pdf": b"%PDF",
}
"""What is written in place of a figure, by its format."""


@contextmanager
def figures_undrawn() -> Iterator[None]:
    """Meanwhile a figure's file holds nothing: to lay out and draw its texts takes half a second each."""

    def save(_figure: Figure, out: BytesIO, **how: Any) -> None:
        out.write(EMPTY[how["format"]])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", save)
        yield
