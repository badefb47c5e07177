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
from checkmate.plot.picture import (
    COLOURS,
    SERIES,
    Picture,
    byte_scale,
    new_figure,
    settings,
    shorten,
)

MOST_LAYERS = 24
"""How many bars are drawn at most, beside that of all the others."""

MOST_GROUPS = 2
"""How many times as many groups there may be: half of them among the others tells more than groups
twice as large."""

SMALLEST_BAR = 0.003
"""Bars shorter than this share of the longest, of layers that are not computed again, are among the
others."""

_SUMMED = ("ops", "kept_bytes", "plain_bytes", "evaluations", "cost")


def layers(
    graph: DFGraph, plan: Plan, *, plain: Plan | None = None, most: int = MOST_LAYERS
) -> Picture:
    """Draws what layers keep for the backward pass, what the plan saves there, and the time it
    spends on computing their values again.

    A model of many layers is drawn in groups of those whose names begin alike.

    Args:
      plain: The plan of the step as it was written; by default every op once, in the order of the
        graph.
      most: How many bars at most; all others are one more, so that bars always sum to the whole
        step.
    """
    rows = chosen(usage.layers(graph, plan, plain=plain), most)
    y = np.arange(len(rows))
    unit, size = byte_scale(
        max((row.kept_bytes + max(0, row.saved_bytes) for row in rows), default=0)
    )
    kept = np.array([row.kept_bytes / size for row in rows])
    saved = np.array([max(0, row.saved_bytes) / size for row in rows])
    spent = np.array([100 * row.cost for row in rows])
    with settings():
        figure, (left, right) = new_figure(
            1.4 + 0.2 * len(rows), 1, 2, sharey=True, width_ratios=(2, 1)
        )
        left.barh(y, kept, color=COLOURS["forward"], label="kept for the backward pass")
        bars = left.barh(
            y,
            saved,
            left=kept,
            color="white",
            edgecolor=COLOURS["recomputed"],
            hatch="////",
            label="saved by the plan",
        )
        for bar, width in zip(bars, saved, strict=True):
            bar.set_linewidth(0.8 if width else 0)  # the outline of nothing is a line, too
        right.barh(
            y, spent, color=COLOURS["recomputed"], label="time to recompute, number of evaluations"
        )
        for k, row in enumerate(rows):
            if row.evaluations:
                right.annotate(f" {row.evaluations}", (spent[k], k), va="center", fontsize=8)
        left.set_yticks(y, [shorten(row.name, 30) for row in rows])
        left.invert_yaxis()
        left.set(
            xlabel=f"forward values in memory, {unit}", title="memory when the backward pass begins"
        )
        right.set(xlabel="extra time, % of the plain step", title="recomputed")
        left.set_xlim(0, 1.04 * max((kept + saved).max(initial=0), 1e-9))
        right.margins(x=0.25)
        right.set_xlim(left=0, right=None if spent.any() else 1)
        figure.legend(loc="outside lower center", ncols=3, handlelength=1.4)
        figure.suptitle(
            shorten(f"Layers of {graph.name or 'the graph'}", 90), fontsize=11, fontweight="bold"
        )
    return Picture(figure)


def chosen(rows: list[usage.LayerUse], most: int) -> list[usage.LayerUse]:
    """At most `most` rows and one for all the others, in the order of the forward pass: layers, or
    groups of them whose names begin alike."""
    rows = [row for row in rows if row.kept_bytes or row.plain_bytes or row.evaluations]
    if len(rows) > most:
        rows = _grouped(rows, most)
    length = [row.kept_bytes + abs(row.saved_bytes) for row in rows]
    ranked = sorted(range(len(rows)), key=lambda k: -length[k])[:most]
    visible = {k for k in ranked if length[k] > SMALLEST_BAR * max(length) or rows[k].evaluations}
    shown, others = (
        [row for k, row in enumerate(rows) if k in visible],
        [row for k, row in enumerate(rows) if k not in visible],
    )
    return [*shown, _summed(f"{len(others)} others", others)] if others else shown


def _grouped(rows: list[usage.LayerUse], most: int) -> list[usage.LayerUse]:
    """Layers by the first words of their names, as many words as leave few enough groups."""
    for words in (3, 2, 1):
        groups: dict[tuple[str, ...], list[usage.LayerUse]] = {}
        for row in rows:
            groups.setdefault(tuple(re.split("[_/]", row.name)[:words]), []).append(row)
        if len(groups) <= MOST_GROUPS * most:
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
    """Draws the largest batch of each model under each method, and how many times that of the first
    method it is.

    Args:
      largest: Model -> method -> largest batch; 0 where not even one example fits. All models have
        the same methods.
    """
    methods = list(next(iter(largest.values()), {}))
    if not methods or any(list(row) != methods for row in largest.values()):
        raise CheckmateError(
            "Batch sizes are drawn for the same methods, in the same order, of at least one model."
        )
    width = 0.8 / len(methods)
    with settings():
        figure, axis = new_figure(3.6)
        for k, method in enumerate(methods):
            x = np.arange(len(largest)) + (k - (len(methods) - 1) / 2) * width
            axis.bar(
                x,
                [row[method] for row in largest.values()],
                0.92 * width,
                color=SERIES[k % len(SERIES)],
                label=method,
            )
            for place, row in zip(x, largest.values(), strict=True):
                _say(axis, place, row[method], row[methods[0]] if k else 0)
        axis.set_xticks(range(len(largest)), [shorten(model, 24) for model in largest])
        axis.tick_params(axis="x", length=0)
        beside = max(0, 4 - len(largest)) / 2  # bars of one or two models stay bars
        axis.set_xlim(-0.5 - beside, len(largest) - 0.5 + beside)
        axis.yaxis.get_major_locator().set_params(integer=True)
        axis.set_ylabel("examples")
        axis.margins(y=0.16)
        figure.legend(loc="outside lower center", ncols=len(methods), handlelength=1.2)
        figure.suptitle(title, fontsize=11, fontweight="bold")
    return Picture(figure)


def _say(axis: Any, x: float, batch: int, baseline: int) -> None:
    text = f"{batch}\n{batch / baseline:.1f}x" if baseline else str(batch)
    axis.annotate(
        text,
        (x, batch),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8,
    )
