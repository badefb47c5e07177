"""The tables of `checkmate show`, and the facts in them."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from checkmate.commands.output import COLUMNS, Found, cells, proof
from checkmate.commands.table import console, print_table, say
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, replay
from checkmate.plot.layer_names import layer_names
from checkmate.plot.usage import layers
from checkmate.printable import printable
from checkmate.units import format_bytes


def graph_facts(graph: DFGraph) -> dict[str, Any]:
    lowest = floor(graph)
    return {
        "name": graph.name,
        "ops": len(graph),
        "cost": graph.total_cost,
        "fixed_bytes": graph.fixed_bytes,
        "plain_peak_bytes": replay(graph, Plan.keep_all(graph)).peak_bytes,
        "floor_bytes": lowest.bytes,
        "binding_op": graph.ops[lowest.op].name,
    }


def graph_rows(graph: DFGraph) -> list[tuple[str, str]]:
    facts = graph_facts(graph)
    binding = layer_names(graph)[graph.index(facts["binding_op"])]
    return [
        ("ops", str(len(graph))),
        ("resident", f"{format_bytes(facts['fixed_bytes'])} (variables, optimizer, batch)"),
        ("the plain step needs", format_bytes(facts["plain_peak_bytes"])),
        ("no plan below", f"{format_bytes(facts['floor_bytes'])}, because of {binding}"),
    ]


def plan_rows(one: Found) -> list[tuple[str, str]]:
    facts, again = one.facts, one.plan.recomputed if one.plan else {}
    rows = [("budget", format_bytes(facts["budget_bytes"]))] if facts["budget_bytes"] else []
    extra = (
        f"{facts['overhead'] - 1:+.2%}, for {sum(again.values())} recomputations of"
        f" {len(again)} ops"
    )
    rows += [
        ("the planned step needs", format_bytes(facts["peak_bytes"])),
        ("extra time", extra),
        ("proven", proof(facts)),
    ]
    if facts["solver"] and facts["seconds"] is not None:
        rows.append(("found by", f"{facts['solver']} in {facts['seconds']:.1f} s"))
    return rows


def print_graph(graph: DFGraph, most: int) -> None:
    _print_rows(f"Graph of {graph.name or 'a step'}", graph_rows(graph))
    _print_layers(graph, None, most)


def print_plan(graph: DFGraph, one: Found, most: int) -> None:
    _print_rows(f"Plan of {graph.name or 'a step'}", [*graph_rows(graph), *plan_rows(one)])
    _print_layers(graph, one.plan, most)


def print_plans(graph: DFGraph, plans: list[Found]) -> None:
    rows = []
    for one in sorted(
        plans, key=lambda one: -(one.facts["budget_bytes"] or one.facts["peak_bytes"])
    ):
        budget, *others, _ = cells(graph, one)
        rows.append((budget, one.facts["solver"] or "", *others, str(one.file or "")))
    columns = ("budget", "solver", *COLUMNS, "file")
    print_table(f"Plans of {graph.name or 'a step'}", columns, rows, left=("solver", "file"))


def _print_rows(title: str, rows: list[tuple[str, str]]) -> None:
    say(title, style="bold")
    table = Table.grid(padding=(0, 2))
    for key, value in rows:
        table.add_row(Text(f"  {key}"), Text(printable(value)))
    console().print(table)


def _print_layers(graph: DFGraph, plan: Plan | None, most: int) -> None:
    found = [
        row
        for row in layers(graph, plan or Plan.keep_all(graph))
        if row.plain_bytes or row.evaluations
    ]
    shown = sorted(found, key=lambda row: -(abs(row.saved_bytes) + row.kept_bytes))[:most]
    columns = ["layer", "plain step", "kept", "saved", "recomputations", "extra time"]
    rows: list[tuple[str, ...]] = []
    for row in shown:
        sizes = map(format_bytes, (row.plain_bytes, row.kept_bytes, row.saved_bytes))
        again = (str(row.evaluations), f"{row.cost:.2%}") if row.evaluations else ("", "")
        rows.append((row.name or "(no layer)", *sizes, *again))
    if plan is None:
        columns, rows = columns[:2], [row[:2] for row in rows]
    title = "Forward values in memory when the backward pass begins"
    print_table(title, columns, rows, left=("layer",))
    if len(found) > len(shown):
        say(f"{len(found) - len(shown)} layers more; --most shows them.")
