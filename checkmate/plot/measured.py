"""Measured memory over a step: the bytes in use that an allocator counted while real steps ran."""

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
    draw_budget,
    drawing,
    finished,
    mark_peak,
)
from checkmate.units import format_bytes

DOTS = 600
"""Moments drawn of each run. Between two of them the most bytes in use are drawn, so that no peak
is lost."""


def measured(
    runs: Mapping[str, Sequence[tuple[float, int]]],
    *,
    budget_bytes: int | None = None,
    name: str = "",
) -> Picture:
    """Draws the bytes in use over real steps, the first run in the background.

    Args:
      runs: Name of a run -> (seconds, bytes in use from then on) in the order of time, as
        `checkmate demo --picture` reads them from TensorFlow's profiler.
      budget_bytes: Where to draw the budget line.
      name: What was trained, for the title.

    Example:
      >>> seen = {"plain": [(0.0, 900), (0.1, 1200)], "planned": [(0.0, 900), (0.1, 1000)]}
      >>> measured(seen, budget_bytes=1100, name="chain").save("measured.png")
    """
    if not runs or not all(runs.values()):
        raise CheckmateError(
            "There is no measured memory to draw: no run was given, or one has no moments."
        )
    most = max(size for run in runs.values() for _, size in run)
    unit, scale = byte_scale(max(most, budget_bytes or 0))
    with drawing(3.5) as (figure, axis):
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
            gap = 7 if x[k] < x[-1] / 2 else -7
            text = f"{run}: peak {format_bytes(y[k])}"
            mark_peak(axis, (x[k], y[k]), text, budget_bytes=budget_bytes, scale=scale, gap=gap)
        if budget_bytes:
            draw_budget(axis, budget_bytes, scale)
        axis.set(
            xlabel="time, s, under the profiler", ylabel=f"memory in use, {unit}", xlim=(0, None)
        )
        axis.set_ylim(0, 1.15 * max(most, budget_bytes or 0) / scale)
        title = f"Measured memory over one training step{f' of {name}' if name else ''}"
        return finished(figure, title, ncols=1 + len(runs), handlelength=1.4)


def thinned(moments: Sequence[tuple[float, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns times and bytes of about `DOTS` moments; each stands for those up to the next, with
    the most bytes of them."""
    time, size = np.array([at for at, _ in moments]), np.array([held for _, held in moments])
    edges = np.unique(np.linspace(0, len(size), min(DOTS, len(size)) + 1).astype(int))
    return np.append(time[edges[:-1]], time[-1]), np.array(
        [size[a:b].max() for a, b in pairwise(edges)] + [size[-1]]
    )
