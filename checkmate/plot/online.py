"""Cost against budget of online methods such as DTR. A run within one budget implies nothing for
another, so runs are points, joined if both completed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from checkmate.plot.picture import COLOURS, Picture, byte_scale, drawing, finished, percent, series


def online_curve(
    methods: Mapping[str, Iterable[Any]],
    *,
    plain_bytes: int,
    best: Mapping[int, float] | None = None,
    name: str = "",
) -> Picture:
    """Draws the cost of runs against their budgets. A run that was given up is a hollow marker in
    the band at the top.

    Args:
      methods: Name of a method -> its runs, with `budget_bytes`, `overhead` (cost divided by the
        plain cost) and `status` ("ok" or another word).
      plain_bytes: The peak without a budget.
      best: Budget -> overhead of the best known plan, for comparison.
      name: What is run, for the title.

    Example:
      >>> runs = [checkmate.simulate(graph, budget) for budget in ("90%", "80%")]
      >>> picture = online_curve({"dtr": runs}, plain_bytes=runs[0].plain_peak_bytes)
    """
    runs = {
        method: sorted(found, key=lambda run: run.budget_bytes) for method, found in methods.items()
    }
    everything = [run for found in runs.values() for run in found]
    unit, size = byte_scale(max([plain_bytes, *(run.budget_bytes for run in everything)]))
    top = 1.1 * max([1.0, *(percent(run.overhead) for run in everything if run.status == "ok")])
    with drawing(3.9) as (figure, axis):
        axis.axhspan(top, 1.22 * top, color=COLOURS["impossible"], linewidth=0, label="given up")
        for k, (method, found) in enumerate(runs.items()):
            _draw(axis, method, found, k, size, top * (1.02 + 0.18 * (k + 0.5) / len(runs)))
        if best:
            x, y = [budget / size for budget in sorted(best)], [best[b] for b in sorted(best)]
            style = {"color": "black", "linewidth": 1.2, "linestyle": "--"}
            axis.plot(x, list(map(percent, y)), label="best plan known", **style)
        line = {"color": "black", "linewidth": 0.9, "linestyle": ":"}
        axis.axvline(plain_bytes / size, label="peak without a budget", **line)
        axis.set(
            xlabel=f"budget, {unit}", ylabel="extra time, % of the plain run", ylim=(0, 1.22 * top)
        )
        axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= top])
        handles, names = axis.get_legend_handles_labels()
        # The methods first, then the band.
        legend = dict(zip(names[1:] + names[:1], handles[1:] + handles[:1], strict=True))
        title = f"Time against memory{f', {name}' if name else ''}"
        ncols = len(names) if len(names) < 7 else 5
        return finished(figure, title, legend, ncols=ncols, handlelength=1.8, columnspacing=1.4)


def _draw(axis: Any, method: str, runs: list[Any], k: int, size: float, level: float) -> None:
    """Draws the runs of a method; those that were given up at the height `level`."""
    x = [run.budget_bytes / size for run in runs]
    y = [percent(run.overhead) if run.status == "ok" else float("nan") for run in runs]
    axis.plot(x, y, linewidth=1.5, label=method, **series(k))
    failed = [run.budget_bytes / size for run in runs if run.status != "ok"]
    hollow = {"linestyle": "none", "markerfacecolor": "none"}
    axis.plot(failed, [level] * len(failed), **hollow, **series(k))


def growth_curve(methods: Mapping[str, Iterable[tuple[int, float]]], *, name: str = "") -> Picture:
    """Draws cost, divided by the plain cost, against the size of the problem.

    Args:
      methods: Name of a method -> its (layers, overhead).
      name: The title.

    Example:
      >>> growth_curve({"dtr": [(16, 1.4), (64, 1.7)]}, name="chains").save("chains.png")
    """
    with drawing(3.2) as (figure, axis):
        for k, (method, points) in enumerate(methods.items()):
            axis.plot(*zip(*points, strict=True), linewidth=1.5, label=method, **series(k))
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=1)
        axis.set(xlabel="layers", ylabel="ops run, over those of the plain run")
        return finished(figure, name, ncols=5)
