"""`checkmate show`: a graph, a plan, or several plans of one graph, as tables and pictures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from checkmate.commands.options import FileToWrite, json_option
from checkmate.commands.output import COLUMNS, KEYS, Found, cells, proof
from checkmate.commands.table import console, print_json, print_table, say
from checkmate.core.fields import PLAN_FORMAT, graph_file_of
from checkmate.core.files import load_plan
from checkmate.core.graph import DFGraph
from checkmate.core.json_files import read_json
from checkmate.core.layer_names import layer_names
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, plain_peak, replay
from checkmate.errors import PlanFileError
from checkmate.plot.usage import layers
from checkmate.printable import printable
from checkmate.units import format_bytes

PICTURES = ("memory", "matrices", "layers", "curve")


@click.command("show")
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--graph",
    "graph_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The plans' graph; by default the file that the plans name.",
)
@click.option(
    "--picture",
    type=click.Choice(PICTURES),
    help="What --png and --svg draw: memory by default, curve for several plans.",
)
@click.option("--png", type=FileToWrite(".png"), help="Write a picture.")
@click.option("--svg", type=FileToWrite(".svg"), help="Write a picture.")
@click.option("--html", type=FileToWrite(".html", ".htm"), help="Write an interactive page.")
@click.option(
    "--most", default=12, show_default=True, type=click.IntRange(1), help="Layers in the table."
)
@json_option
def show_command(
    files: tuple[Path, ...],
    graph_file: Path | None,
    picture: str | None,
    most: int,
    as_json: bool,
    **written: Path | None,
) -> None:
    """Show graphs and plans, as tables and pictures.

    FILE is a graph, a plan, or several plans of one graph. TensorFlow is not needed.

    Exit status: 0, or 2 if a file cannot be read or is of another graph.

    Example: checkmate show resnet50-b64-60pct.plan.json --html plan.html
    """
    graph, plans = read(files, graph_file)
    if picture in ("matrices", "layers") and not plans:
        raise click.UsageError(f"--picture {picture} shows a plan; {files[0]} is a graph.")
    for path in filter(None, (written["png"], written["svg"])):
        draw(graph, plans, picture or ("curve" if len(plans) > 1 else "memory")).save(path)
    if html := written["html"]:
        html.write_text(page(graph, plans), encoding="utf-8")
    if as_json:
        for facts in [one.facts for one in plans] or [graph_facts(graph)]:
            print_json(facts)
    elif len(plans) > 1:
        print_plans(graph, plans)
    else:
        print_one(graph, plans, most)
    for path in filter(None, written.values()):
        click.echo(f"Written: {path}", err=True)


def read(files: tuple[Path, ...], graph_file: Path | None) -> tuple[DFGraph, list[Found]]:
    """Reads a graph file, or plan files and their graph: `graph_file`, or the one that they
    name."""
    contents = [read_json(file) for file in files]
    plans = [data.get("format") == PLAN_FORMAT for data in contents]
    if not all(plans):
        if any(plans) or len(files) > 1:
            raise PlanFileError("Give one graph file, or plan files of one graph.")
        return DFGraph.load(files[0]), []
    if graph_file is None:
        graph_file = graph_file_of(files[0], contents[0])
        if graph_file is None or not graph_file.exists():
            raise PlanFileError(
                f"{files[0]} is a plan, and its graph{f' {graph_file}' if graph_file else ''} was"
                " not found. Name it with --graph; DFGraph.save writes it."
            )
    graph = DFGraph.load(graph_file)
    lowest = floor(graph).bytes
    return graph, [_found(*each, graph, lowest) for each in zip(files, contents, strict=True)]


def _found(file: Path, data: dict[str, Any], graph: DFGraph, floor_bytes: int) -> Found:
    """A plan with the facts in its file, except for those that `replay` finds."""
    plan = load_plan(file, graph=graph)
    timeline = replay(graph, plan)
    overhead = timeline.cost / graph.total_cost if graph.total_cost else 1.0
    facts = {key: data.get(key) for key in (*KEYS, "bound_covers")}
    facts |= {"cost": timeline.cost, "overhead": overhead}
    facts |= {"peak_bytes": timeline.peak_bytes, "floor_bytes": floor_bytes}
    if not math.isclose(data.get("cost") or timeline.cost, timeline.cost, rel_tol=1e-6):
        # The graph file has other costs by now: what was proven is not of them.
        facts |= {"status": None, "bound": None, "gap": None, "bound_covers": None}
    facts["status"] = facts["status"] or "FEASIBLE"
    return Found("", facts, plan, file=file)


def draw(graph: DFGraph, plans: list[Found], picture: str) -> Any:
    from checkmate import plot

    if picture == "curve":
        return _curve(graph, plans)
    if not plans or plans[0].plan is None:
        return plot.memory(graph)
    plan = plans[0].plan
    if picture == "memory":
        return plot.memory(graph, plan, budget_bytes=plans[0].facts["budget_bytes"])
    return plot.matrices(graph, plan) if picture == "matrices" else plot.layers(graph, plan)


def _curve(graph: DFGraph, plans: list[Found]) -> Any:
    from checkmate import plot

    solvers: dict[str, list[Any]] = {}
    for one in plans:
        facts, total = one.facts, graph.total_cost or 1.0
        peak, bound = facts["peak_bytes"], (facts["bound"] or total) / total
        point = plot.Point(facts["budget_bytes"] or peak, facts["overhead"], bound, peak)
        solvers.setdefault(facts["solver"] or "plan", []).append(point)
    floor_bytes, plain_bytes = floor(graph).bytes, plain_peak(graph)
    return plot.budget_curve(
        solvers, floor_bytes=floor_bytes, plain_bytes=plain_bytes, name=graph.name
    )


def page(graph: DFGraph, plans: list[Found]) -> str:
    from checkmate import plot

    rows = graph_rows(graph)
    if not plans:
        return plot.page(graph, facts=rows)
    one, plain = plans[0], format_bytes(graph_facts(graph)["plain_peak_bytes"])
    lead = (
        f"{format_bytes(one.facts['peak_bytes'])} instead of {plain}, for"
        f" {one.facts['overhead'] - 1:.2%} more time."
    )
    rows, budget = [*rows, *plan_rows(one)], one.facts["budget_bytes"]
    return plot.page(graph, one.plan, budget_bytes=budget, lead=lead, facts=rows)


def graph_facts(graph: DFGraph) -> dict[str, Any]:
    lowest = floor(graph)
    return {
        "name": graph.name,
        "ops": len(graph),
        "cost": graph.total_cost,
        "fixed_bytes": graph.fixed_bytes,
        "plain_peak_bytes": plain_peak(graph),
        "floor_bytes": lowest.bytes,
        "binding_op": graph.ops[lowest.op].name,
    }


def graph_rows(graph: DFGraph) -> list[tuple[str, str]]:
    facts = graph_facts(graph)
    op = facts["binding_op"]
    binding = layer_names(graph)[graph.index(op)] or op
    return [
        ("ops", str(len(graph))),
        ("resident", f"{format_bytes(facts['fixed_bytes'])} (variables, optimizer, batch)"),
        ("plain peak", f"{format_bytes(facts['plain_peak_bytes'])} asked for"),
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
        ("planned peak", f"{format_bytes(facts['peak_bytes'])} asked for"),
        ("extra time", extra),
        ("proven", proof(facts)),
    ]
    if facts["solver"] and facts["seconds"] is not None:
        rows.append(("found by", f"{facts['solver']} in {facts['seconds']:.1f} s"))
    return rows


def print_one(graph: DFGraph, plans: list[Found], most: int) -> None:
    kind, rows, plan = "Graph", graph_rows(graph), None
    if plans:
        kind, rows, plan = "Plan", [*rows, *plan_rows(plans[0])], plans[0].plan
    say(f"{kind} of {graph.name or 'a step'}", style="bold")
    table = Table.grid(padding=(0, 2))
    for key, value in rows:
        table.add_row(Text(f"  {key}"), Text(printable(value)))
    console().print(table)
    _print_layers(graph, plan, most)


def print_plans(graph: DFGraph, plans: list[Found]) -> None:
    rows = []
    for one in sorted(
        plans, key=lambda one: -(one.facts["budget_bytes"] or one.facts["peak_bytes"])
    ):
        budget, *others, _ = cells(graph, one)
        rows.append((budget, one.facts["solver"] or "", *others, str(one.file or "")))
    columns = ("budget", "solver", *COLUMNS, "file")
    print_table(f"Plans of {graph.name or 'a step'}", columns, rows, left=("solver", "file"))


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
