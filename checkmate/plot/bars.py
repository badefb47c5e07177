"""Bars: what a plan does to each layer, and the batch sizes that fit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.errors import CheckmateError
from checkmate.plot import usage
from checkmate.plot.picture import COLOURS, SERIES, Picture, byte_scale, drawing, finished, shorten

MOST_LAYERS = 24
"""The most bars that are drawn, without the one for all other layers."""

MOST_GROUPS = 2
"""Groups of layers may be up to this many times `most`; the smallest are then drawn as one bar."""

SMALLEST_BAR = 0.003
"""Layers without recomputations whose bar is shorter than this share of the longest are drawn as
one bar."""

_SUMMED = ("ops", "kept_bytes", "plain_bytes", "evaluations", "cost")


def layers(
    graph: DFGraph, plan: Plan, *, plain: Plan | None = None, most: int = MOST_LAYERS
) -> Picture:
    """Draws for each layer the bytes kept for the backward pass, the bytes saved by the plan, and
    the time to recompute its values.

    If there are many layers, those whose names begin alike are drawn as groups.

    Args:
      graph: The graph of the step.
      plan: The plan.
      plain: The plan of the plain step; by default every op once, in the order of the graph.
      most: The most bars. All other layers are drawn as one more, so that bars sum to the step.

    Examples:
      >>> checkmate.plot.layers(graph, result.plan, most=12).save("layers.svg")
    """
    rows = chosen(usage.layers(graph, plan, plain=plain), most)
    with drawing(1.4 + 0.2 * len(rows), 1, 2, sharey=True, width_ratios=(2, 1)) as (
        figure,
        (left, right),
    ):
        _draw_memory(left, rows)
        _draw_time(right, rows)
        title = f"Layers of {graph.name or 'the graph'}"
        return finished(figure, title, ncols=3, handlelength=1.4)


def _draw_memory(axis: Any, rows: list[usage.LayerUse]) -> None:
    y = np.arange(len(rows))
    lengths = [row.kept_bytes + max(0, row.saved_bytes) for row in rows]
    unit, size = byte_scale(max(lengths, default=0))
    kept = np.array([row.kept_bytes / size for row in rows])
    saved = np.array([max(0, row.saved_bytes) / size for row in rows])
    axis.barh(y, kept, color=COLOURS["forward"], label="kept for the backward pass")
    style = {"color": "white", "edgecolor": COLOURS["recomputed"], "hatch": "////"}
    bars = axis.barh(y, saved, left=kept, label="saved by the plan", **style)
    for bar, width in zip(bars, saved, strict=True):
        bar.set_linewidth(0.8 if width else 0)  # no outline of a bar without width
    axis.set_yticks(y, [shorten(row.name, 30) for row in rows])
    axis.invert_yaxis()
    axis.set(
        xlabel=f"forward values in memory, {unit}", title="memory when the backward pass begins"
    )
    axis.set_xlim(0, 1.04 * max((kept + saved).max(initial=0), 1e-9))


def _draw_time(axis: Any, rows: list[usage.LayerUse]) -> None:
    spent = np.array([100 * row.cost for row in rows])
    label = "time to recompute, number of evaluations"
    axis.barh(np.arange(len(rows)), spent, color=COLOURS["recomputed"], label=label)
    for k, row in enumerate(rows):
        if row.evaluations:
            axis.annotate(f" {row.evaluations}", (spent[k], k), va="center", fontsize=8)
    axis.set(xlabel="extra time, % of the plain step", title="recomputed")
    axis.margins(x=0.25)
    axis.set_xlim(left=0, right=None if spent.any() else 1)


def chosen(rows: list[usage.LayerUse], limit: int) -> list[usage.LayerUse]:
    """At limit `limit` rows and one for all others, in the order of the forward pass: layers, or
    groups of layers whose names begin alike."""
    rows = [row for row in rows if row.kept_bytes or row.plain_bytes or row.evaluations]
    if len(rows) > limit:
        rows = _grouped(rows, limit)
    length = [row.kept_bytes + abs(row.saved_bytes) for row in rows]
    ranked = sorted(range(len(rows)), key=lambda k: -length[k])[:limit]
    visible = {k for k in ranked if length[k] > SMALLEST_BAR * max(length) or rows[k].evaluations}
    shown = [row for k, row in enumerate(rows) if k in visible]
    others = [row for k, row in enumerate(rows) if k not in visible]
    return [*shown, _summed(f"{len(others)} others", others)] if others else shown


def _grouped(rows: list[usage.LayerUse], limit: int) -> list[usage.LayerUse]:
    """Groups layers by the first words of their names; as many words as give few enough groups."""
    for words in (3, 2, 1):
        groups: dict[tuple[str, ...], list[usage.LayerUse]] = {}
        for row in rows:
            groups.setdefault(tuple(re.split("[_/]", row.name)[:words]), []).append(row)
        if len(groups) <= MOST_GROUPS * limit:
            break
    return [
        found[0] if len(found) == 1 else _summed(f"{'_'.join(name)} ({len(found)} layers)", found)
        for name, found in groups.items()
    ]


def _summed(name: str, rows: list[usage.LayerUse]) -> usage.LayerUse:
    return usage.LayerUse(name, *(sum(getattr(row, key) for row in rows) for key in _SUMMED))


def batch_sizes(
    largest: Mapping[str, Mapping[str, int]], *, title: str = "Largest batch that fits"
) -> Picture:
    """Draws the largest batch of each model with each method, and its ratio to the first method's.

    Args:
      largest: Model -> method -> largest batch, 0 if no batch fits. All models have the same
        methods.
      title: The title.

    Examples:
      >>> largest = {"resnet50": {"plain": 32, "planned": 88}, "unet": {"plain": 6, "planned": 17}}
      >>> batch_sizes(largest).save("batches.png")
    """
    methods = list(next(iter(largest.values()), {}))
    if not methods or any(list(row) != methods for row in largest.values()):
        raise CheckmateError(
            "Batch sizes are drawn for at least one model; all have the same methods, in one order."
        )
    width = 0.8 / len(methods)
    with drawing(3.6) as (figure, axis):
        for k, method in enumerate(methods):
            x = np.arange(len(largest)) + (k - (len(methods) - 1) / 2) * width
            heights, style = [row[method] for row in largest.values()], SERIES[k % len(SERIES)]
            axis.bar(x, heights, 0.92 * width, color=style, label=method)
            for place, row in zip(x, largest.values(), strict=True):
                _annotate(axis, place, row[method], row[methods[0]] if k else 0)
        axis.set_xticks(range(len(largest)), [shorten(model, 24) for model in largest])
        axis.tick_params(axis="x", length=0)
        margin = max(0, 4 - len(largest)) / 2  # keeps the bars of one or two models narrow
        axis.set_xlim(-0.5 - margin, len(largest) - 0.5 + margin)
        axis.yaxis.get_major_locator().set_params(integer=True)
        axis.set_ylabel("examples")
        axis.margins(y=0.16)
        return finished(figure, title, ncols=len(methods), handlelength=1.2)


def _annotate(axis: Any, x: float, batch: int, baseline: int) -> None:
    text = f"{batch}\n{batch / baseline:.1f}x" if baseline else str(batch)
    place = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    axis.annotate(text, (x, batch), fontsize=8, **place)
