"""How figures look: light or dark, wide or as narrow as a phone; the one import of matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from ftrt.errors import UsageError


class PlotMissing(UsageError, ImportError):
    """What draws figures is not installed."""


try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
except ImportError as error:
    raise PlotMissing(
        "figures need matplotlib, which is not installed: type pip install 'ftrt[plot]'"
    ) from error

__all__ = ["Figure", "Look", "Picture", "PlotMissing", "legend_in", "panels"]

_SIZE_PT = 8.5


@dataclass(frozen=True)
class Look:
    """One of the four ways in which a figure is drawn.

    Attributes
    ----------
    dark : bool
        For a dark background.
    narrow : bool
        For a phone: panels stand below each other.
    """

    dark: bool = False
    narrow: bool = False

    @property
    def width_in(self) -> float:
        """Of the figure."""
        return 3.9 if self.narrow else 9.2

    @property
    def text(self) -> str:
        """Colour of text and axes."""
        return "#e6edf3" if self.dark else "#1f2328"

    @property
    def muted(self) -> str:
        """Colour of what stands back."""
        return "#8b949e" if self.dark else "#6e7781"

    @property
    def ground(self) -> str:
        """Colour of the page."""
        return "#0d1117" if self.dark else "#ffffff"

    @property
    def grid(self) -> str:
        """Colour of lines behind the data."""
        return "#30363d" if self.dark else "#d8dee4"

    @property
    def paper(self) -> str:
        """The paper's own numbers."""
        return "#9aa4af" if self.dark else "#8c959f"

    @property
    def ours(self) -> str:
        """Our numbers."""
        return "#58a6ff" if self.dark else "#0969da"

    @property
    def bad(self) -> str:
        """Faults and deaths."""
        return "#ff7b72" if self.dark else "#cf222e"

    def colour(self, index: int) -> str:
        """One of several that are told apart also by those who see fewer colours."""
        light = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7f4fc9")
        dark = ("#4ea8de", "#ff8c42", "#2fc79b", "#e79fc4", "#e3c04a", "#9ad4ff", "#b392f0")
        colours = dark if self.dark else light
        return colours[index % len(colours)]

    @property
    def settings(self) -> dict[str, Any]:
        """For matplotlib."""
        lines = ("axes.edgecolor", "xtick.color", "ytick.color", "axes.labelcolor", "text.color")
        return {
            **dict.fromkeys(lines, self.text),
            "figure.facecolor": self.ground,
            "axes.facecolor": self.ground,
            "savefig.facecolor": self.ground,
            "font.size": _SIZE_PT,
            "axes.titlesize": _SIZE_PT + 1,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.grid.axis": "x",
            "axes.axisbelow": True,
            "grid.color": self.grid,
            "grid.linewidth": 0.6,
            "legend.frameon": False,
            "hatch.linewidth": 0.9,
        }


@dataclass(frozen=True)
class Picture:
    """A figure of the page.

    Attributes
    ----------
    name : str
        Of its PNG file, without the suffix.
    title, caption : str
    draw : callable
        Makes the figure for a look.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Look], Figure]

    def png(self, look: Look) -> bytes:
        """The drawn figure."""
        with matplotlib.rc_context(cast(Any, look.settings)):
            figure = self.draw(look)
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi=160, metadata={"Software": None})
        return file.getvalue()


def legend_in(names: int, columns: int) -> float:
    """Height of a legend in inches."""
    return 0.19 * -(-names // columns) + 0.12


def panels(
    look: Look, count: int, height_in: float, top_in: float = 0.5, **shared: Any
) -> tuple[Figure, list[Any]]:
    """A figure of ``count`` panels, side by side where there is room.

    Parameters
    ----------
    height_in : float
        Of one panel, its title and axis included.
    top_in : float
        Left free for a legend.
    """
    rows, columns = (count, 1) if look.narrow else (1, count)
    total = rows * height_in + top_in
    below_legend = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - top_in / total))
    figure = Figure(figsize=(look.width_in, total), layout=below_legend)
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    return figure, list(axes.flat)
