"""Picture: a figure that can be saved and shown; what all pictures share: colours, units, legends,
budget lines."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkmate.errors import CheckmateError
from checkmate.printable import printable
from checkmate.units import format_bytes

COLOURS = {
    "resident": "#b8bcc2",
    "forward": "#0072b2",
    "recomputed": "#e69f00",
    "backward": "#00694d",
    "update": "#cc79a7",
    "workspace": "#56b4e9",
    "overhead": "#e4e4e4",
    "budget": "#1a1a1a",
    "impossible": "#e4e4e4",
}
"""Colours of what is drawn: the palette of Okabe and Ito (2008) with a darker green, so that all
differ in lightness too."""

LABELS = {
    "resident": "resident",
    "forward": "forward values",
    "recomputed": "recomputed values",
    "backward": "backward values",
    "update": "updates",
    "workspace": "workspace",
    "overhead": "allocator overhead",
}

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1a1a1a")
"""Colours of solvers, methods and runs in the order given; `MARKERS` has their markers."""

MARKERS = "os^Dv*P"

WIDTH = 8.3
"""Width in inches: at 100 dots per inch as wide as code hosts show a picture. The smallest letters
have 8 points."""

_DPI = 144

_LETTERS, _MARGIN = 8.5, 3
"""The size of the text at a peak, and its distance from a line, in points."""

_SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "path",
    "text.parse_math": False,  # names may have dollars
    "svg.hashsalt": "checkmate",
    "hatch.linewidth": 0.6,
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of Matplotlib, which can be saved; notebooks show it.

    Attributes:
      figure: The `matplotlib.figure.Figure`, which the caller may change.

    Examples:
      >>> picture = checkmate.plot.memory(graph)
      >>> picture.figure.set_facecolor("lightyellow")
      >>> picture.save("memory.pdf")
    """

    figure: Any

    def save(self, path: str | os.PathLike, *, dpi: int = 200) -> None:
        """Writes the picture as PNG, SVG or PDF, by the file's suffix.

        Args:
          path: The file.
          dpi: Dots per inch of a PNG.

        Raises:
          CheckmateError: It has another suffix.
        """
        ending = Path(path).suffix.lower().removeprefix(".")
        if ending not in ("png", "svg", "pdf"):
            raise CheckmateError(
                f"A picture is written as .png, .svg or .pdf; {str(path)!r} is none of them."
            )
        Path(path).write_bytes(self._rendered(ending, dpi))

    def html(self) -> str:
        """Returns an `<img>` tag that contains the picture, for pages that load nothing."""
        data = base64.b64encode(self._rendered("png", _DPI)).decode()
        return (
            f'<img style="max-width:100%" alt="{html.escape(self.figure.get_suptitle())}"'
            f' src="data:image/png;base64,{data}">'
        )

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return self._rendered("png", _DPI), {"width": round(100 * WIDTH)}

    def _rendered(self, ending: str, dpi: int) -> bytes:
        import matplotlib

        buffer = io.BytesIO()
        undated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
        with matplotlib.rc_context(_SETTINGS):
            self.figure.savefig(buffer, format=ending, dpi=dpi, metadata=undated[ending])
        return buffer.getvalue()


def show_in_notebook(text: str, picture: Picture | None) -> None:
    """Shows HTML and a picture as two outputs of a cell, since hosts of notebooks remove pictures
    inside HTML. For `_ipython_display_` only, which IPython calls."""
    from IPython.display import HTML, display

    display(HTML(text))
    if picture is not None:
        display(picture)


@contextmanager
def drawing(height: float, rows: int = 1, columns: int = 1, **options: Any) -> Iterator[Any]:
    """A new figure of the common width, `height` inches high, and its axes, within the common
    settings. Those of the caller do not change."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, **options)


def finished(
    figure: Any, title: str, legend: Mapping[str, Any] | None = None, **options: Any
) -> Picture:
    """Adds a title, and a legend below the axes: label -> what it stands for, by default everything
    that was drawn with a label."""
    entries = () if legend is None else (legend.values(), legend.keys())
    figure.legend(*entries, loc="outside lower center", **options)
    figure.suptitle(shorten(title, 90), fontsize=11, fontweight="bold")
    return Picture(figure)


def series(k: int) -> dict[str, Any]:
    colour, marker = SERIES[k % len(SERIES)], MARKERS[k % len(MARKERS)]
    return {"color": colour, "marker": marker, "markersize": 5.5}


def draw_budget(axis: Any, budget_bytes: int, scale: float) -> None:
    line = {"color": COLOURS["budget"], "linestyle": (0, (5, 2)), "linewidth": 1.4}
    axis.axhline(budget_bytes / scale, label=f"budget {format_bytes(budget_bytes)}", **line)


def mark_peak(
    axis: Any, at: tuple[float, int], text: str, *, budget_bytes: int | None, scale: float, gap: int
) -> None:
    """Marks a peak at (x, bytes) on an axis with its limits, and writes a text `gap` points to the
    right of it, or to the left where negative: above the budget line, where that would cross it."""
    x, peak = at
    axis.plot(x, peak / scale, marker="v", color="black", markersize=6, clip_on=False)
    lines = 1 + text.count("\n")
    # The axis takes about two thirds of the figure's height.
    points = 0.62 * 72 * axis.figure.get_figheight()
    tall = scale * axis.get_ylim()[1] * (_MARGIN + lines * 1.25 * _LETTERS) / points
    crosses = budget_bytes is not None and peak <= budget_bytes < peak + tall
    height = budget_bytes if budget_bytes is not None and crosses else peak
    aligned = {"ha": "left" if gap > 0 else "right", "va": "bottom", "fontsize": _LETTERS}
    place = {"xytext": (gap, _MARGIN), "textcoords": "offset points"}
    axis.annotate(text, (x, height / scale), **place, **aligned)


def percent(overhead: float | None) -> float:
    """The extra cost in percent; 0 for None."""
    return 100 * ((overhead or 1.0) - 1)


def byte_scale(limit: float) -> tuple[str, float]:
    """The unit for an axis up to `limit` bytes, and the bytes of the unit."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if limit >= size:
            return unit, float(size)
    return "bytes", 1.0


def shorten(text: str, length: int = 48) -> str:
    """A name cut in the middle to at most `length` letters."""
    text, half = printable(text), (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}…{text[-half:]}"
