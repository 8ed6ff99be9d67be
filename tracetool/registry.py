"""Plug-ins by name: built-ins named by import path, third parties through entry points.

Results that show themselves: what draws them stands above them, and is loaded by name.
"""

from __future__ import annotations

from functools import cache, cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tracetool.errors import BrokenPlugin, UnknownName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.metadata import EntryPoint

    from matplotlib.figure import Figure

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects of one kind, loaded only when asked for.

    Args:
        kind: The word for one of them in messages, such as ``schedule``.
        builtin: Name to ``module:attribute``.
        group: Entry-point group of third-party plug-ins, such as ``tracetool.schedules``.
        hint: Says what to try when a name is unknown.
    """

    def __init__(
        self, kind: str, builtin: Mapping[str, str], group: str, *, hint: Callable[[], str] | None = None
    ) -> None:
        self._kind = kind
        self._builtin = dict(builtin)
        self._group = group
        self._hint = hint

    @cached_property
    def _third_party(self) -> dict[str, Callable[[], T]]:
        from importlib.metadata import entry_points

        return {point.name: partial(_load_plugin, point) for point in entry_points(group=self._group)}

    def __contains__(self, name: str) -> bool:
        return name in self._builtin or name in self._third_party

    def names(self) -> list[str]:
        """All names: built-ins in their listed order, then third parties by name."""
        return [*self._builtin, *self.plugin_names]

    @property
    def builtin_names(self) -> list[str]:
        """Names of built-ins, in their listed order."""
        return [*self._builtin]

    @property
    def plugin_names(self) -> list[str]:
        """Names of third parties' that no built-in has. Looking them up takes as long as a small replay."""
        return sorted(set(self._third_party) - set(self._builtin))

    def get(self, name: str) -> T:
        """Load the object of that name (case does not matter).

        Raises:
            UnknownName: If nothing is registered under it; the message suggests close names.
            BrokenPlugin: If it is a third party's and cannot be loaded.
        """
        for asked in (name, name.lower()):
            if asked in self._builtin:
                value: T = _load(self._builtin[asked])
                return value
            if asked in self._third_party:
                return self._third_party[asked]()
        raise UnknownName(self._kind, name, self.names(), hint=self._hint and self._hint())


@cache
def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def _load_plugin(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # whatever a third party's module raises when it is imported
        package = point.dist.name if point.dist is not None else "an unknown package"
        raise BrokenPlugin(
            f"the plug-in {point.name!r} ({point.value}) of {package} cannot be loaded: {error!r}.",
            hint=f"update {package}, or uninstall it",
        ) from error


class Pictured:
    """A result that draws itself, and shows itself in a notebook."""

    __slots__ = ()

    def plot(self) -> Figure:
        """Its picture as a matplotlib figure.

        Raises:
            ScenarioError: If there is nothing to draw.
        """
        figure: Figure = import_module(SHOWING).figure_of(self)
        return figure

    def _repr_html_(self) -> str:
        """What a notebook shows: a sentence, a table and the picture."""
        shown: str = import_module(SHOWING).html_of(self)
        return shown


SHOWING = "tracetool.reports.cell"
"""What shows results."""
