"""Cost against budget, for any number of solvers, with the area that is proven impossible."""

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

    Example:
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

    Example:
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
        axis.stairs(
            list(map(percent, heights)),
            [left, *(end / size for end in ends)],
            fill=True,
            color=COLOURS["impossible"],
            label="proven impossible",
        )
    if floor_bytes:
        axis.axvspan(
            left,
            floor_bytes / size,
            facecolor=COLOURS["impossible"],
            hatch="///",
            edgecolor="white",
            label="below the floor",
        )


def bound_steps(points: Sequence[Point]) -> tuple[list[int], list[float]]:
    """Returns the best bound as steps: from `ends[k - 1]` to `ends[k]` bytes no plan costs less
    than `heights[k]`."""
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
