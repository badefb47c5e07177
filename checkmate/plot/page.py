"""One page of HTML that shows a plan and answers to the mouse: it holds all it needs and loads
nothing."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.plot.layer_names import layer_names
from checkmate.plot.picture import COLOURS, LABELS
from checkmate.plot.usage import PARTS, Stages, Usage, layers, part_of, stages, usage


def page(
    graph: DFGraph,
    plan: Plan | None = None,
    *,
    budget_bytes: int | None = None,
    plain: Plan | None = None,
    title: str = "",
    lead: str = "",
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """Returns an HTML page: memory over the step, R and S, and layers, each telling what the mouse
    points at.

    Args:
      plan: The plan to show; without one, only the memory of the plain step is.
      budget_bytes: Where to draw the budget line.
      plain: The plan of the step as it was written; by default every op once, in the order of the
        graph.
      lead: A sentence under the title.
      facts: Rows of a table under it.

    Returns: The page's text. It is some 100 bytes for each op and each evaluation long, and makes
      no request of any kind.
    """
    title = title or f"Training step of {graph.name or 'a graph'}"
    rows = "".join(
        f"<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>" for key, value in facts
    )
    template = Template(
        resources.files("checkmate.plot").joinpath("page.html").read_text(encoding="utf-8")
    )
    data = json.dumps(
        _data(graph, plan, plain or Plan.keep_all(graph), budget_bytes), separators=(",", ":")
    )
    return template.substitute(
        title=html.escape(title),
        lead=f'<p class="lead">{html.escape(lead)}</p>' if lead else "",
        facts=f'<table class="facts">{rows}</table>' if rows else "",
        recomputed=COLOURS["recomputed"],
        data=data.replace("</", "<\\/").replace(
            "<!--", "<\\u0021--"
        ),  # what would end or change the script element
    )


def _data(
    graph: DFGraph, plan: Plan | None, plain: Plan, budget_bytes: int | None
) -> dict[str, Any]:
    names = layer_names(graph)
    numbers = {name: k for k, name in enumerate(dict.fromkeys(names))}
    total = graph.total_cost or 1.0
    recomputed = (plan or plain).recomputed
    data: dict[str, Any] = {
        "ops": {
            "name": [op.name for op in graph.ops],
            "kind": [op.kind for op in graph.ops],
            "layer": [numbers[name] for name in names],
            "bytes": [op.output_bytes for op in graph.ops],
            "cost": [_short(op.cost / total) for op in graph.ops],
            "times": [1 + recomputed.get(i, 0) for i in range(len(graph))],
        },
        "layers": list(numbers),
        "colours": COLOURS,
        "labels": LABELS,
        "budget": budget_bytes,
        "plans": [_plan_data("plain step", usage(graph, plain))],
    }
    if plan is not None:
        data["plans"].append(_plan_data("planned step", usage(graph, plan)))
        data |= _matrix_data(graph, stages(graph, plan))
        data["rows"] = [
            {
                "name": row.name,
                "ops": row.ops,
                "kept": row.kept_bytes,
                "saved": row.saved_bytes,
                "evaluations": row.evaluations,
                "cost": _short(row.cost),
            }
            for row in layers(graph, plan, plain=plain)
            if row.kept_bytes or row.plain_bytes or row.evaluations
        ]
    return data


def _plan_data(title: str, found: Usage) -> dict[str, Any]:
    columns = {part: found.bytes_by_part[:, k] for k, part in enumerate(PARTS)}
    return {
        "title": title,
        "ops": found.ops.tolist(),
        "again": found.again.astype(int).tolist(),
        "starts": [_short(start) for start in found.starts],
        "parts": {part: column.tolist() for part, column in columns.items() if column.any()},
        "peak": found.peak,
        "peak_bytes": found.timeline.peak_bytes,
    }


def _matrix_data(graph: DFGraph, found: Stages) -> dict[str, Any]:
    """S as spans of stages [from, to) per column, R as its cells off the diagonal."""
    retained = []
    for column in found.S.T:
        edges = np.diff(column, prepend=False, append=False).nonzero()[0].tolist()
        retained.append([list(span) for span in zip(edges[::2], edges[1::2], strict=True)])
    turn = next((k for k, i in enumerate(found.order) if part_of(graph.ops[i]) == "backward"), None)
    again = [[int(t), int(i)] for t, i in zip(*found.R.nonzero(), strict=True) if t != i]
    return {"order": list(found.order), "retained": retained, "again": again, "turn": turn}


def _short(number: float) -> float:
    return float(f"{number:.6g}")
