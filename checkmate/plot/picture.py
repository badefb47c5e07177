"""Picture: a drawn figure that can be saved and shown; the colours and units that all pictures
share."""

from __future__ import annotations

import base64
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkmate.errors import CheckmateError

COLOURS = {
    "resident": "#b8bcc2",
    "forward": "#0072b2",
    "recomputed": "#e69f00",
    "backward": "#00694d",
    "update": "#cc79a7",
    "workspace": "#56b4e9",
    "budget": "#1a1a1a",
    "impossible": "#e4e4e4",
}
"""Colour by what is drawn: from the palette of Okabe and Ito (2008), the green darker, so that all
differ in lightness as well."""

LABELS = {
    "resident": "resident",
    "forward": "forward values",
    "recomputed": "recomputed values",
    "backward": "backward values",
    "update": "updates",
    "workspace": "workspace",
}
"""What the parts of `usage.PARTS` are called in a legend."""

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1a1a1a")
"""Colours of solvers and baselines, in the order they are given; each also has its own marker."""

MARKERS = "os^Dv*P"

WIDTH = 8.3
"""Inches. At 100 dots per inch this is as wide as a page of a code host shows a picture; the
smallest letters are then 8 points."""

_DPI = 144
"""Dots per inch in notebooks and pages: sharp on screens of that kind, and some 50 kB a picture."""

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
    "svg.hashsalt": "checkmate",
    "hatch.linewidth": 0.6,
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of Matplotlib's, ready to save; a notebook shows it by itself.

    Attributes:
      figure: The `matplotlib.figure.Figure`, for changes of your own.
    """

    figure: Any

    def save(self, path: str | os.PathLike, *, dpi: int = 200) -> None:
        """Writes the picture as PNG, SVG or PDF, by the end of the file's name. Raises
        `CheckmateError` for any other."""
        ending = Path(path).suffix.lower().removeprefix(".")
        if ending not in ("png", "svg", "pdf"):
            raise CheckmateError(
                f"A picture is written as .png, .svg or .pdf; {str(path)!r} is none of them."
            )
        Path(path).write_bytes(self._rendered(ending, dpi))

    def html(self) -> str:
        """Returns an <img> tag with the picture in it, for pages that must not load anything."""
        data = base64.b64encode(self._rendered("png", _DPI)).decode()
        return (
            f'<img style="max-width:100%" alt="{self.figure.get_suptitle()}"'
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
    """Shows HTML and a picture as two outputs of a notebook's cell: hosts of notebooks drop
    pictures from within HTML, and never a PNG.

    For `_ipython_display_` only, which IPython calls.
    """
    from IPython.display import HTML, display

    display(HTML(text))
    if picture is not None:
        display(picture)


def new_figure(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """Returns a figure of the common width and its axes. Nothing global is touched: the caller's
    own Matplotlib stays as it is."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        return figure, figure.subplots(rows, columns, **options)


def settings() -> Any:
    """The context in which everything is drawn."""
    import matplotlib

    return matplotlib.rc_context(_SETTINGS)


def byte_scale(most: float) -> tuple[str, float]:
    """The unit in which an axis up to `most` bytes reads best, and its bytes."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if most >= size:
            return unit, float(size)
    return "bytes", 1.0


def shorten(text: str, length: int = 48) -> str:
    """Returns a name cut in the middle to at most `length` letters."""
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}…{text[-half:]}"
