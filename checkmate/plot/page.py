"""An interactive HTML page of a plan, in one file that loads nothing."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.layer_names import layer_names
from checkmate.core.plan import Plan
from checkmate.plot.picture import COLOURS, LABELS
from checkmate.plot.usage import (
    PARTS,
    Allocated,
    Stages,
    Usage,
    backward_start,
    layers,
    stages,
    usages,
)
from checkmate.printable import printable


def page(
    graph: DFGraph,
    plan: Plan | None = None,
    *,
    budget_bytes: int | None = None,
    plain: Plan | None = None,
    allocated: Allocated | None = None,
    title: str = "",
    lead: str = "",
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """Returns an HTML page: memory over the step, R and S, and layers, with details of what the
    mouse points at. The page loads nothing from anywhere.

    Args:
      graph: The graph of the step.
      plan: The plan to show; None for the memory of the plain step alone.
      budget_bytes: Where to draw the budget line.
      plain: The plan of the plain step; by default every op once, in the order of the graph.
      allocated: As for `memory`.
      title: The title; by default it names the graph.
      lead: A sentence below the title.
      facts: Rows of a table below it.

    Examples:
      >>> with open("plan.html", "w", encoding="utf-8") as file:
      ...     print(page(graph, result.plan), file=file)
    """
    title = title or f"Training step of {graph.name or 'a graph'}"
    rows = "".join(
        f"<tr><th>{html_text(key)}</th><td>{html_text(value)}</td></tr>" for key, value in facts
    )
    template = Template(
        resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    )
    data = json.dumps(
        _data(graph, plan, plain or Plan.keep_all(graph), budget_bytes, allocated),
        separators=(",", ":"),
    )
    return template.substitute(
        title=html_text(title),
        lead=f'<p class="lead">{html_text(lead)}</p>' if lead else "",
        facts=f'<table class="facts">{rows}</table>' if rows else "",
        recomputed=COLOURS["recomputed"],
        # Texts that would end or change the script element.
        data=data.replace("</", "<\\/").replace("<!--", "<\\u0021--"),
    )


def html_text(text: str) -> str:
    """A text as HTML shows it: no name in it makes an element, or changes the text around it."""
    return html.escape(printable(text))


def _data(
    graph: DFGraph,
    plan: Plan | None,
    plain: Plan,
    budget_bytes: int | None,
    allocated: Allocated | None,
) -> dict[str, Any]:
    names = layer_names(graph)
    numbers = {name: k for k, name in enumerate(dict.fromkeys(names))}
    total = graph.total_cost or 1.0
    recomputed = (plan or plain).recomputed
    data: dict[str, Any] = {
        "ops": {
            "name": [printable(op.name) for op in graph.ops],
            "kind": [printable(op.kind) for op in graph.ops],
            "layer": [numbers[name] for name in names],
            "bytes": [op.output_bytes for op in graph.ops],
            "cost": [_short(op.cost / total) for op in graph.ops],
            "times": [1 + recomputed.get(i, 0) for i in range(len(graph))],
        },
        "layers": [*map(printable, numbers)],
        "colours": COLOURS,
        "labels": LABELS,
        "budget": budget_bytes,
        "counted": "predicted" if allocated else "asked for",
        "plans": [
            _plan_data(title, found)
            for title, found in usages(graph, plain, plan, allocated).items()
        ],
    }
    if plan is not None:
        data |= _matrix_data(graph, stages(graph, plan))
        data["rows"] = [
            {
                "name": printable(row.name),
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
        "peak_bytes": found.peak_bytes,
        "top": int(found.bytes_by_part.sum(axis=1).max()),
    }


def _matrix_data(graph: DFGraph, found: Stages) -> dict[str, Any]:
    """S as spans of stages [from, to) per column, R as its cells off the diagonal."""
    retained = []
    for column in found.S.T:
        edges = np.diff(column, prepend=False, append=False).nonzero()[0].tolist()
        retained.append([list(span) for span in zip(edges[::2], edges[1::2], strict=True)])
    turn = backward_start(graph, found.order)
    again = [[int(t), int(i)] for t, i in zip(*found.R.nonzero(), strict=True) if t != i]
    return {"order": list(found.order), "retained": retained, "again": again, "turn": turn}


def _short(number: float) -> float:
    return float(f"{number:.6g}")
