"""Memory over the step as it was measured: what an allocator counted while real steps ran, one
above the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from checkmate.errors import CheckmateError
from checkmate.plot.picture import (
    COLOURS,
    SERIES,
    Picture,
    byte_scale,
    new_figure,
    settings,
    shorten,
)
from checkmate.units import format_bytes

DOTS = 600
"""Moments that are drawn of each run; between two of them the most bytes in use count, so that no
peak is lost."""


def measured(
    runs: Mapping[str, Sequence[tuple[float, int]]],
    *,
    budget_bytes: int | None = None,
    name: str = "",
) -> Picture:
    """Draws the bytes in use over real steps, the first run behind the others.

    Args:
      runs: Name of a run -> (seconds, bytes in use from then on) in the order of time, as
        `checkmate demo --picture` takes them from TensorFlow's profiler.
      budget_bytes: Where to draw the budget line.
    """
    if not runs or not all(runs.values()):
        raise CheckmateError(
            "Measured memory is drawn for runs of which it was measured; one has no moments."
        )
    most = max(size for run in runs.values() for _, size in run)
    unit, scale = byte_scale(max(most, budget_bytes or 0))
    with settings():
        figure, axis = new_figure(3.5)
        colours = (COLOURS["resident"], *SERIES)
        for (run, moments), colour in zip(runs.items(), colours, strict=False):
            x, y = thinned(moments)
            axis.fill_between(
                x,
                np.zeros(len(y)),
                y / scale,
                step="post",
                color=colour,
                alpha=0.85,
                linewidth=0,
                label=run,
            )
            k = int(np.argmax(y))
            axis.plot(x[k], y[k] / scale, marker="v", color="black", markersize=6, clip_on=False)
            # The words stay clear of the line.
            words_at = budget_bytes if budget_bytes and y[k] <= budget_bytes < 1.2 * y[k] else y[k]
            left = x[k] < x[-1] / 2
            axis.annotate(
                f"{run}: peak {format_bytes(y[k])}",
                (x[k], words_at / scale),
                xytext=(7 if left else -7, 3),
                textcoords="offset points",
                ha="left" if left else "right",
                va="bottom",
                fontsize=8.5,
            )
        if budget_bytes:
            line = {"color": COLOURS["budget"], "linestyle": (0, (5, 2)), "linewidth": 1.4}
            axis.axhline(budget_bytes / scale, label=f"budget {format_bytes(budget_bytes)}", **line)
        axis.set(
            xlabel="time, s, under the profiler", ylabel=f"memory in use, {unit}", xlim=(0, None)
        )
        axis.set_ylim(0, 1.15 * max(most, budget_bytes or 0) / scale)
        figure.legend(loc="outside lower center", ncols=1 + len(runs), handlelength=1.4)
        figure.suptitle(
            shorten(f"Measured memory over one training step{f' of {name}' if name else ''}", 90),
            fontsize=11,
            fontweight="bold",
        )
    return Picture(figure)


def thinned(moments: Sequence[tuple[float, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns times and bytes of at most about `DOTS` moments; each stands for those up to the
    next, with the most bytes of them."""
    time, size = np.array([at for at, _ in moments]), np.array([held for _, held in moments])
    edges = np.unique(np.linspace(0, len(size), min(DOTS, len(size)) + 1).astype(int))
    return np.append(time[edges[:-1]], time[-1]), np.array(
        [size[a:b].max() for a, b in pairwise(edges)] + [size[-1]]
    )
