"""The matrices R and S of a plan, as in the paper: a row per stage, a column per op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.plot.picture import COLOURS, Picture, drawing, finished
from checkmate.plot.usage import backward_start, stages

_TURN: dict[str, Any] = {"color": "black", "linewidth": 0.8, "linestyle": ":"}


def matrices(graph: DFGraph, plan: Plan) -> Picture:
    """Draws which op runs in which stage (R) and which value is retained into which stage (S).

    Stage t, a row, ends with the t-th op that runs for the first time. In R the first evaluations
    are the diagonal; all others are recomputations. Columns are in the order of first evaluations,
    which may differ from the graph's order.

    Args:
      graph: The graph of the step.
      plan: The plan.

    Examples:
      >>> checkmate.plot.matrices(graph, result.plan).save("matrices.svg")

    Source: Checkmate (Jain et al., MLSys 2020), section 4.2 and figure 7.
    """
    found = stages(graph, plan)
    n = len(found.order)
    again = found.R.copy()
    np.fill_diagonal(again, False)
    turn = backward_start(graph, found.order)
    with drawing(4.4, 1, 2, sharey=True) as (figure, (left, right)):
        _image(left, found.S, COLOURS["forward"], n)
        dot = max(1.6, 72 * 3.1 / n)  # points; the matrices are about 3.1 inches wide
        _squares(right, [np.arange(n)] * 2, dot, COLOURS["resident"])
        # Small dots are drawn larger, so that single ones are seen.
        size = 1.2 * dot if dot < 6 else dot
        _squares(right, again.nonzero()[::-1], size, COLOURS["recomputed"])
        left.set_title(f"S: {int(found.S.sum()):,} values retained")
        right.set_title(f"R: {int(again.sum()):,} recomputations")
        left.set_ylabel("stage")
        for axis in (left, right):
            axis.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), aspect="equal")
            axis.set_xlabel("op, by first evaluation")
            axis.spines[:].set_visible(True)
            axis.spines[:].set_linewidth(0.6)
            if turn is not None:
                axis.axhline(turn - 0.5, **_TURN)
                axis.axvline(turn - 0.5, **_TURN)
        title = f"Plan of {graph.name or 'the graph'}, {n} ops"
        return finished(figure, title, _legend(turn), ncols=4, handlelength=1.4)


def _image(axis: Any, matrix: np.ndarray, colour: str, n: int) -> None:
    """Draws the true cells. If a matrix has more cells than the picture has dots, a dot's opacity
    grows with the share of its cells that are true."""
    step = max(1, -(-n // 500))
    size = -(-n // step)
    padded = np.zeros((size * step, size * step), bool)
    padded[:n, :n] = matrix
    share = padded.reshape(size, step, size, step).mean(axis=(1, 3))
    from matplotlib.colors import to_rgba

    dots = np.zeros((size, size, 4))
    dots[:] = to_rgba(colour)
    dots[..., 3] = np.where(share > 0, 0.3 + 0.7 * share, 0)
    axis.imshow(
        dots, interpolation="nearest", extent=(-0.5, size * step - 0.5, size * step - 0.5, -0.5)
    )


def _squares(axis: Any, places: Sequence[np.ndarray], size: float, colour: str) -> None:
    style = {"linestyle": "none", "marker": "s", "markeredgewidth": 0}
    axis.plot(*places, markersize=size, color=colour, **style)


def _legend(turn: int | None) -> dict[str, Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return {
        "retained": Patch(color=COLOURS["forward"]),
        "first evaluation": Patch(color=COLOURS["resident"]),
        "recomputation": Patch(color=COLOURS["recomputed"]),
        "backward pass begins" if turn is not None else "": Line2D([], [], **_TURN),
    }
