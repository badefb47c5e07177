"""Cost against budget of online methods, whose run within one budget says nothing about another:
points, joined where both ended well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from checkmate.plot.picture import (
    COLOURS,
    MARKERS,
    SERIES,
    Picture,
    byte_scale,
    new_figure,
    settings,
    shorten,
)


def online_curve(
    methods: Mapping[str, Iterable[Any]],
    *,
    plain_bytes: int,
    best: Mapping[int, float] | None = None,
    name: str = "",
) -> Picture:
    """Draws what runs cost against their budgets. A run that was given up stands in the band at the
    top, as a hollow marker.

    Args:
      methods: Name of a method -> its runs, with `budget_bytes`, `overhead` (cost over the plain
        cost) and `status` ("ok" or another word).
      plain_bytes: The peak without a budget.
      best: Budget -> overhead of the best known plan, for comparison.
    """
    runs = {
        method: sorted(found, key=lambda run: run.budget_bytes) for method, found in methods.items()
    }
    most = max([plain_bytes, *(run.budget_bytes for found in runs.values() for run in found)])
    ended = [
        _percent(run.overhead) for found in runs.values() for run in found if run.status == "ok"
    ]
    top = 1.1 * max([1.0, *ended])
    unit, size = byte_scale(most)
    with settings():
        figure, axis = new_figure(3.9)
        axis.axhspan(top, 1.22 * top, color=COLOURS["impossible"], linewidth=0, label="given up")
        for k, (method, found) in enumerate(runs.items()):
            style = {
                "color": SERIES[k % len(SERIES)],
                "marker": MARKERS[k % len(MARKERS)],
                "markersize": 5.5,
            }
            x = [run.budget_bytes / size for run in found]
            axis.plot(
                x,
                [_percent(run.overhead) if run.status == "ok" else float("nan") for run in found],
                linewidth=1.5,
                label=method,
                **style,
            )
            level = top * (1.02 + 0.18 * (k + 0.5) / len(runs))
            failed = [run.budget_bytes / size for run in found if run.status != "ok"]
            axis.plot(
                failed, [level] * len(failed), linestyle="none", markerfacecolor="none", **style
            )
        if best:
            budgets = sorted(best)
            line = {
                "color": "black",
                "linewidth": 1.2,
                "linestyle": "--",
                "label": "best plan known",
            }
            axis.plot(
                [budget / size for budget in budgets],
                [_percent(best[budget]) for budget in budgets],
                **line,
            )
        axis.axvline(
            plain_bytes / size,
            color="black",
            linewidth=0.9,
            linestyle=":",
            label="peak without a budget",
        )
        axis.set(
            xlabel=f"budget, {unit}", ylabel="extra time, % of the plain run", ylim=(0, 1.22 * top)
        )
        axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= top])
        handles, names = axis.get_legend_handles_labels()
        # The methods first, then the band.
        handles, names = (
            handles[1:] + handles[:1],
            names[1:] + names[:1],
        )
        figure.legend(
            handles,
            names,
            loc="outside lower center",
            ncols=len(names) if len(names) < 7 else 5,
            handlelength=1.8,
            columnspacing=1.4,
        )
        figure.suptitle(
            shorten(f"Time against memory{f', {name}' if name else ''}", 90),
            fontsize=11,
            fontweight="bold",
        )
    return Picture(figure)


def growth_curve(methods: Mapping[str, Iterable[tuple[int, float]]], *, name: str = "") -> Picture:
    """Draws what runs cost, over the plain cost, against the size of the problem: (layers,
    overhead) for each method."""
    with settings():
        figure, axis = new_figure(3.2)
        for k, (method, points) in enumerate(methods.items()):
            x, y = zip(*points, strict=True)
            axis.plot(
                x,
                y,
                color=SERIES[k % len(SERIES)],
                marker=MARKERS[k % len(MARKERS)],
                markersize=5.5,
                linewidth=1.5,
                label=method,
            )
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=1)
        axis.set(xlabel="layers", ylabel="ops run, over those of the plain run")
        figure.legend(loc="outside lower center", ncols=5)
        figure.suptitle(shorten(name, 90), fontsize=11, fontweight="bold")
    return Picture(figure)


def _percent(overhead: float) -> float:
    return 100 * (overhead - 1)
