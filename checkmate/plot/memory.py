"""Memory over the step: the plain step and the planned one beside each other, on one scale, under
the budget."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.plot.picture import (
    COLOURS,
    LABELS,
    Picture,
    byte_scale,
    new_figure,
    settings,
    shorten,
)
from checkmate.plot.usage import PARTS, Usage, usage
from checkmate.units import format_bytes


def memory(
    graph: DFGraph,
    plan: Plan | None = None,
    *,
    budget_bytes: int | None = None,
    plain: Plan | None = None,
) -> Picture:
    """Draws the bytes in use while a step runs, by what they are, with the op that sets the peak.

    Args:
      plan: The plan to show beside the plain step; without one only the plain step is drawn.
      budget_bytes: Where to draw the budget line.
      plain: The plan of the step as it was written; by default every op once, in the order of the
        graph.

    Returns:
      The picture. Time is in the graph's own costs, as a share of the plain step's.
    """
    shown = [("plain step", usage(graph, plain or Plan.keep_all(graph)))]
    if plan is not None:
        shown.append(("planned step", usage(graph, plan)))
    most = max(found.timeline.peak_bytes for _, found in shown)
    unit, size = byte_scale(max(most, budget_bytes or 0))
    widths = [found.starts[-1] for _, found in shown]
    with settings():
        figure, axes = new_figure(
            3.7, 1, len(shown), sharey=True, squeeze=False, width_ratios=widths
        )
        for axis, (title, found) in zip(axes[0], shown, strict=True):
            _draw(axis, title, found, size, budget_bytes)
            axis.set_ylim(0, 1.18 * max(most, budget_bytes or 0) / size)
            if budget_bytes:
                axis.axhline(
                    budget_bytes / size,
                    color=COLOURS["budget"],
                    linestyle=(0, (5, 2)),
                    linewidth=1.4,
                    label=f"budget {format_bytes(budget_bytes)}",
                )
        axes[0, 0].set_ylabel(f"memory in use, {unit}")
        drawn = {
            label: handle
            for axis in axes[0]
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        handles = {label: drawn.pop(label) for label in LABELS.values() if label in drawn} | drawn
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=len(handles),
            handlelength=1.4,
            columnspacing=1.4,
        )
        figure.suptitle(
            shorten(f"Memory over one training step of {graph.name or 'the graph'}", 90),
            fontsize=11,
            fontweight="bold",
        )
    return Picture(figure)


def _draw(axis: Any, title: str, found: Usage, size: float, budget_bytes: int | None) -> None:
    x, below = 100 * found.starts, np.zeros(len(found.ops) + 1)
    for column, part in enumerate(PARTS):
        part_bytes = found.bytes_by_part[:, column]
        if part_bytes.any():
            above = below + np.append(part_bytes, part_bytes[-1]) / size
            corners = np.append(True, (np.diff(below) != 0) | (np.diff(above) != 0)) | (
                np.arange(len(x)) == len(x) - 1
            )
            axis.fill_between(
                x[corners],
                below[corners],
                above[corners],
                step="post",
                color=COLOURS[part],
                label=LABELS[part],
                linewidth=0,
            )
            below = above
    k, peak = found.peak, found.timeline.peak_bytes
    middle = (x[k] + x[k + 1]) / 2
    side = "right" if middle > x[-1] / 2 else "left"
    axis.plot(middle, peak / size, marker="v", color="black", markersize=6, clip_on=False)
    layer = found.layers[int(found.ops[k])] or found.binding_op.name
    # The words stay clear of the line.
    words_at = budget_bytes if budget_bytes and peak <= budget_bytes < 1.2 * peak else peak
    axis.annotate(
        f"peak {format_bytes(peak)}\nat {shorten(layer, 34)}",
        (middle, words_at / size),
        xytext=(-8 if side == "right" else 8, 3),
        textcoords="offset points",
        ha=side,
        va="bottom",
        fontsize=8.5,
    )
    axis.set_xlim(0, x[-1])
    axis.set_title(title)
    axis.set_xlabel("time, % of the plain step")
