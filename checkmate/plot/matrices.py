"""The matrices R and S of a plan, as in the paper: a row per stage, a column per op."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.plot.picture import COLOURS, Picture, new_figure, settings, shorten
from checkmate.plot.usage import part_of, stages


def matrices(graph: DFGraph, plan: Plan) -> Picture:
    """Draws which op runs in which stage (R) and which value is retained into which stage (S).

    Stage t, a row, ends with the t-th op that runs for the first time. In R the first evaluations
    are the diagonal, and everything off it is a recomputation. A plan in another order than the
    graph's has its columns in its own order.

    Source: Checkmate (Jain et al., MLSys 2020), section 4.2 and figure 7.
    """
    found = stages(graph, plan)
    n = len(found.order)
    again = found.R.copy()
    np.fill_diagonal(again, False)
    turn = next((k for k, i in enumerate(found.order) if part_of(graph.ops[i]) == "backward"), None)
    with settings():
        figure, (left, right) = new_figure(4.4, 1, 2, sharey=True)
        _image(left, found.S, COLOURS["forward"], n)
        dot = max(1.6, 72 * 3.1 / n)  # points; the matrices are about 3.1 inches wide
        right.plot(
            *2 * [np.arange(n)],
            linestyle="none",
            marker="s",
            markersize=dot,
            markeredgewidth=0,
            color=COLOURS["resident"],
        )
        size = 1.2 * dot if dot < 6 else dot  # few and small, they are easy to overlook
        right.plot(
            *again.nonzero()[::-1],
            linestyle="none",
            marker="s",
            markersize=size,
            markeredgewidth=0,
            color=COLOURS["recomputed"],
        )
        left.set_title(f"S: {int(found.S.sum()):,} values retained")
        right.set_title(f"R: {int(again.sum()):,} recomputations")
        for axis in (left, right):
            axis.set(
                xlabel="op, by first evaluation",
                xlim=(-0.5, n - 0.5),
                ylim=(n - 0.5, -0.5),
                aspect="equal",
            )
            axis.spines[:].set_visible(True)
            axis.spines[:].set_linewidth(0.6)
            if turn is not None:
                axis.axhline(turn - 0.5, color="black", linewidth=0.8, linestyle=":")
                axis.axvline(turn - 0.5, color="black", linewidth=0.8, linestyle=":")
        left.set_ylabel("stage")
        figure.legend(
            handles=[
                *_patches(
                    {
                        "forward": "retained",
                        "resident": "first evaluation",
                        "recomputed": "recomputation",
                    }
                ),
                _line(turn),
            ],
            loc="outside lower center",
            ncols=4,
            handlelength=1.4,
        )
        figure.suptitle(
            shorten(f"Plan of {graph.name or 'the graph'}, {n} ops", 90),
            fontsize=11,
            fontweight="bold",
        )
    return Picture(figure)


def _image(axis: Any, matrix: np.ndarray, colour: str, n: int) -> None:
    """Draws the true cells. Of a matrix finer than the picture's dots, each dot is the paler the
    fewer of its cells are true."""
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


def _patches(names: dict[str, str]) -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(color=COLOURS[key], label=label) for key, label in names.items()]


def _line(turn: int | None) -> Any:
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        color="black",
        linewidth=0.8,
        linestyle=":",
        label="backward pass begins" if turn is not None else "",
    )
