"""Draws the pictures of these pages, from the graph of MobileNet's training step in
`benchmarks/graphs`: `python docs/pictures.py`.

Two are others: `images/measured.svg`, of a real run, by `checkmate demo --picture
docs/images/measured.svg`, and `images/dtr.svg`, by `python -m benchmarks dtr --plot
docs/images/dtr.svg`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from checkmate import DFGraph, Plan, SolveResult, floor, plot, replay, solve, solve_curve

FOLDER = Path(__file__).parent / "images"
GRAPHS = Path(__file__).parents[1] / "benchmarks" / "graphs"
SHARE = "50%"
CURVE = ("90%", "80%", "70%", "60%", "50%", "40%", "30%", "25%")
OTHERS = ("chen_sqrt_n", "chen_greedy", "min_cut")


def draw(graph: DFGraph, result: SolveResult) -> dict[str, plot.Picture]:
    """Returns the pictures of one plan by name."""
    plan = result.plan
    assert plan is not None
    return {
        "memory": plot.memory(graph, plan, budget_bytes=result.budget_bytes),
        "matrices": plot.matrices(graph, plan),
        "layers": plot.layers(graph, plan),
    }


def curve(graph: DFGraph) -> plot.Picture:
    """Returns the picture of many budgets: what is known from others, and ours, asked for the
    memory of each of their plans, too."""
    others = {
        name: [solve(graph, budget, solver=name, time_limit_s=2, throw=False) for budget in CURVE]
        for name in OTHERS
    }
    peaks = {
        result.peak_bytes for found in others.values() for result in found if result.peak_bytes
    }
    solvers = {"auto": solve_curve(graph, [*CURVE, *peaks], time_limit_s=2).results, **others}
    plain = replay(graph, Plan.keep_all(graph)).peak_bytes
    return plot.budget_curve(
        solvers, floor_bytes=floor(graph).bytes, plain_bytes=plain, name=graph.name
    )


if __name__ == "__main__":
    graph = replace(DFGraph.load(GRAPHS / "mobilenet.json.gz"), name="MobileNet")
    pictures = {**draw(graph, solve(graph, SHARE, time_limit_s=2)), "curve": curve(graph)}
    for name, picture in pictures.items():
        picture.save(FOLDER / f"{name}.svg")
        print(f"Written: {FOLDER / name}.svg", file=sys.stderr)
