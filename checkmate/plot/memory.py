"""Memory over a step: predicted, the plain step beside the planned one; and measured, the bytes in
use that an allocator counted while real steps ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.errors import CheckmateError
from checkmate.plot.picture import (
    COLOURS,
    LABELS,
    SERIES,
    Picture,
    byte_scale,
    draw_budget,
    drawing,
    finished,
    mark_peak,
    shorten,
)
from checkmate.plot.usage import PARTS, Allocated, Usage, usages
from checkmate.units import format_bytes

ONE_ROW = 6
"""Entries of a legend that fit into one row."""


def memory(
    graph: DFGraph,
    plan: Plan | None = None,
    *,
    budget_bytes: int | None = None,
    plain: Plan | None = None,
    allocated: Allocated | None = None,
) -> Picture:
    """Draws the bytes in use while a step runs, by kind, with the op that sets the peak. Time is
    the cost of ops, as a share of the plain step's. Bytes are those that ops ask for, unless an
    allocator's are given.

    Args:
      graph: The graph of the step.
      plan: The plan to draw next to the plain step; None for the plain step alone.
      budget_bytes: Where to draw the budget line.
      plain: The plan of the plain step; by default every op once, in the order of the graph.
      allocated: The predicted peaks by an allocator's count, and the bytes that the graph does not
        count; they are then part of the picture.

    Examples:
      >>> picture = checkmate.plot.memory(graph, result.plan)
      >>> picture.save("memory.svg")
    """
    shown = usages(graph, plain, plan, allocated)
    most = max(found.bytes_by_part.sum(axis=1).max() for found in shown.values())
    unit, size = byte_scale(max(most, budget_bytes or 0))
    widths = [found.starts[-1] for found in shown.values()]
    with drawing(3.7, 1, len(shown), sharey=True, squeeze=False, width_ratios=widths) as (
        figure,
        axes,
    ):
        counted = "predicted" if allocated else "asked for"
        for axis, (title, found) in zip(axes[0], shown.items(), strict=True):
            axis.set_ylim(0, 1.18 * max(most, budget_bytes or 0) / size)
            _draw(axis, title, found, size, budget_bytes, counted)
            if budget_bytes:
                draw_budget(axis, budget_bytes, size)
        axes[0, 0].set_ylabel(f"memory {counted}, {unit}")
        drawn = {
            label: handle
            for axis in axes[0]
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        legend = {label: drawn.pop(label) for label in LABELS.values() if label in drawn} | drawn
        title = f"Memory over one training step of {graph.name or 'the graph'}"
        ncols = len(legend) if len(legend) <= ONE_ROW else -(-len(legend) // 2)
        return finished(figure, title, legend, ncols=ncols, handlelength=1.4, columnspacing=1.4)


def _draw(
    axis: Any, title: str, found: Usage, size: float, budget_bytes: int | None, counted: str
) -> None:
    x, below = 100 * found.starts, np.zeros(len(found.ops) + 1)
    for column, part in enumerate(PARTS):
        part_bytes = found.bytes_by_part[:, column]
        if part_bytes.any():
            above = below + np.append(part_bytes, part_bytes[-1]) / size
            corners = np.append(True, (np.diff(below) != 0) | (np.diff(above) != 0)) | (
                np.arange(len(x)) == len(x) - 1
            )
            style = {"color": COLOURS[part], "label": LABELS[part], "linewidth": 0}
            drawn = x[corners], below[corners], above[corners]
            axis.fill_between(*drawn, step="post", **style)
            below = above
    k = found.peak
    top = int(found.bytes_by_part[k].sum())
    middle = (x[k] + x[k + 1]) / 2
    layer = found.layers[int(found.ops[k])] or found.binding_op.name
    text = f"peak {format_bytes(found.peak_bytes)} {counted}\nat {shorten(layer, 34)}"
    gap = -8 if middle > x[-1] / 2 else 8
    mark_peak(axis, (middle, top), text, budget_bytes=budget_bytes, scale=size, gap=gap)
    axis.set_xlim(0, x[-1])
    axis.set_title(title)
    axis.set_xlabel("time, % of the plain step")


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

    Examples:
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
        axis.set_ylim(0, 1.15 * max(most, budget_bytes or 0) / scale)
        colours = (COLOURS["resident"], *SERIES)
        for (run, moments), colour in zip(runs.items(), colours, strict=False):
            x, y = thinned(moments)
            style = {"color": colour, "alpha": 0.85, "linewidth": 0, "label": run}
            axis.fill_between(x, np.zeros(len(y)), y / scale, step="post", **style)
            k = int(np.argmax(y))
            gap = 7 if x[k] < x[-1] / 2 else -7
            text = f"{run}: peak {format_bytes(y[k])}"
            mark_peak(axis, (x[k], y[k]), text, budget_bytes=budget_bytes, scale=scale, gap=gap)
        if budget_bytes:
            draw_budget(axis, budget_bytes, scale)
        axis.set(
            xlabel="time, s, under the profiler", ylabel=f"memory in use, {unit}", xlim=(0, None)
        )
        title = f"Measured memory over one training step{f' of {name}' if name else ''}"
        return finished(figure, title, ncols=1 + len(runs), handlelength=1.4)


def thinned(moments: Sequence[tuple[float, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Times and bytes of about `DOTS` moments; each stands for those up to the next, with the most
    bytes of them."""
    time, size = np.array([at for at, _ in moments]), np.array([held for _, held in moments])
    edges = np.unique(np.linspace(0, len(size), min(DOTS, len(size)) + 1).astype(int))
    return np.append(time[edges[:-1]], time[-1]), np.array(
        [size[a:b].max() for a, b in pairwise(edges)] + [size[-1]]
    )
