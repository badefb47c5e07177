"""Cost against budget: of solvers, with the area that is proven impossible, and of online methods
such as DTR."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkmate.plot.picture import (
    COLOURS,
    Picture,
    byte_scale,
    drawing,
    finished,
    percent,
    series,
    shorten,
)


@dataclass(frozen=True, slots=True)
class Point:
    """The result of one solver for one budget.

    Attributes:
      budget_bytes: The budget.
      overhead: Cost of the plan divided by the plain step's, or None without a plan.
      bound: Lower bound on the cost of plans within the budget, divided by the plain step's cost.
      peak_bytes: Peak of the plan, which fits every budget from there on.

    Examples:
      >>> Point(budget_bytes=2**30, overhead=1.05, bound=1.04, peak_bytes=2**30 - 512).overhead
      1.05
    """

    budget_bytes: int
    overhead: float | None
    bound: float = 1.0
    peak_bytes: int | None = None

    @classmethod
    def of(cls, result: Any) -> Point:
        """Reads a result.

        Args:
          result: A `SolveResult`.
        """
        return cls(
            result.budget_bytes,
            result.overhead,
            result.bound / (result.graph.total_cost or 1.0),
            result.peak_bytes,
        )


def budget_curve(
    solvers: Mapping[str, Iterable[Any]],
    *,
    floor_bytes: int | None = None,
    plain_bytes: int | None = None,
    name: str = "",
) -> Picture:
    """Draws the cost of plans against their budgets.

    The shaded area is proven impossible: below the highest bound of any solver, and left of the
    floor. A bound for one budget holds for every smaller one, and a plan for one budget fits every
    larger one, so both are drawn as steps; from the plain step's peak on, nothing is recomputed.

    Args:
      solvers: Name of a solver -> its `SolveResult`s or `Point`s.
      floor_bytes: Below it no plan exists (`checkmate.floor`).
      plain_bytes: Peak of the plain step.
      name: What is planned, for the title.

    Examples:
      >>> curve = checkmate.solve_curve(graph, ["90%", "70%", "50%"])
      >>> checkmate.plot.budget_curve({"auto": curve.results}).save("curve.svg")
    """
    points = {
        solver: sorted(map(_point, found), key=lambda point: point.budget_bytes)
        for solver, found in solvers.items()
    }
    everything = [point for found in points.values() for point in found]
    most = max([point.budget_bytes for point in everything] + [plain_bytes or 0])
    least = min(
        [point.peak_bytes or point.budget_bytes for point in everything] + [floor_bytes or most]
    )
    unit, size = byte_scale(most)
    left, right = (least - 0.04 * (most - least)) / size, (most + 0.04 * (most - least)) / size
    highest = max([percent(point.overhead) for point in everything if point.overhead], default=1.0)
    with drawing(3.9) as (figure, axis):
        axis.set_xlim(left, right if right > left else left + 1)
        _draw_impossible(axis, everything, floor_bytes, left, size)
        for k, (solver, found) in enumerate(points.items()):
            _draw(axis, solver, found, k, size, most, plain_bytes)
        if plain_bytes:
            axis.axvline(
                plain_bytes / size, color="black", linewidth=0.9, linestyle=":", label="plain step"
            )
        axis.set(xlabel=f"budget, {unit}", ylabel="extra time, % of the plain step")
        axis.set_ylim(bottom=0, top=max(1.0, 1.1 * highest))
        title = f"Time against memory{f', {name}' if name else ''}"
        ncols = min(7, 3 + len(points))
        return finished(figure, title, ncols=ncols, handlelength=1.6, columnspacing=1.1)


def _draw_impossible(
    axis: Any, points: Sequence[Point], floor_bytes: int | None, left: float, size: float
) -> None:
    ends, heights = bound_steps(points)
    if ends:
        edges, style = [left, *(end / size for end in ends)], {"color": COLOURS["impossible"]}
        heights = list(map(percent, heights))
        axis.stairs(heights, edges, fill=True, label="proven impossible", **style)
    if floor_bytes:
        style = {"facecolor": COLOURS["impossible"], "hatch": "///", "edgecolor": "white"}
        axis.axvspan(left, floor_bytes / size, label="below the floor", **style)


def bound_steps(points: Sequence[Point]) -> tuple[list[int], list[float]]:
    """The best bound as steps: from `ends[k - 1]` to `ends[k]` bytes no plan costs less than
    `heights[k]`."""
    ends = sorted({point.budget_bytes for point in points})
    return ends, [max(point.bound for point in points if point.budget_bytes >= end) for end in ends]


def _point(found: Any) -> Point:
    return found if isinstance(found, Point) else Point.of(found)


def _draw(
    axis: Any,
    solver: str,
    found: Sequence[Point],
    k: int,
    size: float,
    most: int,
    plain_bytes: int | None,
) -> None:
    solver, solved = shorten(solver), [point for point in found if point.overhead is not None]
    if not solved:
        axis.plot([], [], **series(k) | {"markersize": None}, label=f"{solver} (no plan)")
        return
    x = [(point.peak_bytes or point.budget_bytes) / size for point in solved]
    y = [percent(point.overhead) for point in solved]
    line = {"color": series(k)["color"], "linewidth": 1.5}
    steps = [*zip(x, y, strict=True)]
    if plain_bytes and plain_bytes / size > x[-1]:  # from there on the plain step fits
        steps.append((plain_bytes / size, 0.0))
    steps.append((max(most / size, x[-1]), steps[-1][1]))
    axis.step(*zip(*steps, strict=True), where="post", **line)
    axis.plot(x, y, linestyle="none", markeredgecolor="white", markeredgewidth=0.6, **series(k))
    axis.plot([], [], label=solver, linewidth=1.5, **series(k))


def online_curve(
    methods: Mapping[str, Iterable[Any]],
    *,
    plain_bytes: int,
    best: Mapping[int, float] | None = None,
    name: str = "",
) -> Picture:
    """Draws the cost of runs against their budgets. A run within one budget implies nothing for
    another, so runs are points, joined if both completed. A run that was given up is a hollow
    marker in the band at the top.

    Args:
      methods: Name of a method -> its runs, with `budget_bytes`, `overhead` (cost divided by the
        plain cost) and `status` ("ok" or another word).
      plain_bytes: The peak without a budget.
      best: Budget -> overhead of the best known plan, for comparison.
      name: What is run, for the title.

    Examples:
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
            _draw_runs(axis, method, found, k, size, top * (1.02 + 0.18 * (k + 0.5) / len(runs)))
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


def _draw_runs(axis: Any, method: str, runs: list[Any], k: int, size: float, level: float) -> None:
    x = [run.budget_bytes / size for run in runs]
    y = [percent(run.overhead) if run.status == "ok" else float("nan") for run in runs]
    axis.plot(x, y, linewidth=1.5, label=method, **series(k))
    failed = [run.budget_bytes / size for run in runs if run.status != "ok"]
    hollow = {"linestyle": "none", "markerfacecolor": "none"}
    axis.plot(failed, [level] * len(failed), **hollow, **series(k))
