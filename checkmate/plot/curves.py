"""Cost against budget, for any number of solvers, above what is proven impossible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Point:
    """What one solver found and proved for one budget.

    Attributes:
      budget_bytes: What was asked for.
      overhead: Cost of the plan over the cost of the plain step, or None where there is no plan.
      bound: No plan within the budget costs less than this, over the cost of the plain step.
      peak_bytes: What the plan needs; it is a plan for every budget from there on.
    """

    budget_bytes: int
    overhead: float | None
    bound: float = 1.0
    peak_bytes: int | None = None

    @classmethod
    def of(cls, result: Any) -> Point:
        """Reads a `SolveResult`."""
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
    floor. A bound for one budget holds for every smaller one, and a plan for one budget is one for
    every larger one, so both are drawn as steps.

    Args:
      solvers: Name of a solver -> its `SolveResult`s or `Point`s.
      floor_bytes: Below it no plan exists (`checkmate.floor`).
      plain_bytes: What the plain step needs.
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
    with settings():
        figure, axis = new_figure(3.9)
        axis.set_xlim(left, right if right > left else left + 1)
        ends, heights = bound_steps(everything)
        if ends:
            edges = [left, *(end / size for end in ends)]
            axis.stairs(
                [_percent(height) for height in heights],
                edges,
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
        for k, (solver, found) in enumerate(points.items()):
            _draw(axis, solver, found, k, size, most)
        if plain_bytes:
            axis.axvline(
                plain_bytes / size, color="black", linewidth=0.9, linestyle=":", label="plain step"
            )
        axis.set(xlabel=f"budget, {unit}", ylabel="extra time, % of the plain step")
        axis.set_ylim(
            bottom=0,
            top=max(
                1.0,
                1.1
                * max(
                    [_percent(point.overhead) for point in everything if point.overhead],
                    default=1.0,
                ),
            ),
        )
        figure.legend(
            loc="outside lower center",
            ncols=min(7, 3 + len(points)),
            handlelength=1.6,
            columnspacing=1.1,
        )
        figure.suptitle(
            shorten(f"Time against memory{f', {name}' if name else ''}", 90),
            fontsize=11,
            fontweight="bold",
        )
    return Picture(figure)


def bound_steps(points: Sequence[Point]) -> tuple[list[int], list[float]]:
    """Returns the best proven bound as steps: up to `ends[k]` bytes, from the end before, no plan
    costs less than `heights[k]`."""
    ends = sorted({point.budget_bytes for point in points})
    return ends, [max(point.bound for point in points if point.budget_bytes >= end) for end in ends]


def _point(found: Any) -> Point:
    return found if isinstance(found, Point) else Point.of(found)


def _draw(axis: Any, solver: str, found: Sequence[Point], k: int, size: float, most: int) -> None:
    solved = [point for point in found if point.overhead is not None]
    if not solved:
        axis.plot(
            [],
            [],
            color=SERIES[k % len(SERIES)],
            marker=MARKERS[k % len(MARKERS)],
            label=f"{solver} (no plan)",
        )
        return
    x = [(point.peak_bytes or point.budget_bytes) / size for point in solved]
    y = [_percent(point.overhead) for point in solved]
    style = {"color": SERIES[k % len(SERIES)], "linewidth": 1.5}
    axis.step([*x, max(most / size, x[-1])], [*y, y[-1]], where="post", **style)
    axis.plot(
        x,
        y,
        linestyle="none",
        marker=MARKERS[k % len(MARKERS)],
        markersize=5.5,
        color=style["color"],
        markeredgecolor="white",
        markeredgewidth=0.6,
    )
    axis.plot([], [], marker=MARKERS[k % len(MARKERS)], markersize=5.5, label=solver, **style)


def _percent(overhead: float | None) -> float:
    return 100 * ((overhead or 1.0) - 1)
