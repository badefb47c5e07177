"""`checkmate show`: a graph, a plan, or several plans of one graph, as a table and as pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from checkmate.commands.options import FileToWrite, json_option
from checkmate.commands.output import COLUMNS, KEYS, Found, cells, proof
from checkmate.commands.table import console, print_json, print_table
from checkmate.core.files import PLAN_FORMAT, load_plan
from checkmate.core.graph import DFGraph
from checkmate.core.json_files import read_json
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, replay
from checkmate.errors import PlanFileError
from checkmate.plot.layer_names import layer_names
from checkmate.units import format_bytes

PICTURES = ("memory", "matrices", "layers", "curve")


@dataclass(frozen=True, slots=True)
class Shown:
    """Files that belong together: one graph, and the plans of it.

    Attributes:
      plans: Each with what its file says of it, and the judge's peak and cost.
    """

    graph: DFGraph = field(repr=False)
    plans: list[Found]


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
    help="The plans' graph; found beside them by default.",
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
    files: tuple[Path, ...], graph_file: Path | None, picture: str | None, png: Path | None, svg: Path | None, html: Path | None, most: int, as_json: bool
) -> None:  # fmt: skip
    """Show graphs and plans, as tables and pictures.

    FILE is a graph, a plan, or several plans of one graph. TensorFlow is not needed. Exit status 0,
    or 2 if a file cannot be read or does not belong.

    Example: checkmate show resnet50-b64-60pct.plan.json --html plan.html
    """
    shown = read(files, graph_file)
    if picture in ("matrices", "layers") and not shown.plans:
        raise click.UsageError(f"--picture {picture} is of a plan; {files[0]} is a graph.")
    for path in filter(None, (png, svg)):
        draw(shown, picture or ("curve" if len(shown.plans) > 1 else "memory")).save(path)
    if html:
        html.write_text(page(shown), encoding="utf-8")
    if as_json:
        for facts in [one.facts for one in shown.plans] or [graph_facts(shown.graph)]:
            print_json(facts)
    elif not shown.plans:
        print_graph(shown.graph, most)
    elif len(shown.plans) == 1:
        print_plan(shown.graph, shown.plans[0], most)
    else:
        print_plans(shown)
    for written in filter(None, (png, svg, html)):
        click.echo(f"Written: {written}", err=True)


def read(files: tuple[Path, ...], graph_file: Path | None) -> Shown:
    """Reads a graph file, or plan files and the graph they name or are given.

    Raises:
      PlanFileError: A file is neither, the graph is not found, or a plan is of another graph.
    """
    contents = [read_json(file) for file in files]
    plans = [data.get("format") == PLAN_FORMAT for data in contents]
    if not all(plans):
        if any(plans) or len(files) > 1:
            raise PlanFileError("Give one graph file, or plan files of one graph.")
        return Shown(DFGraph.load(files[0]), [])
    if graph_file is None:
        named = contents[0].get("graph_file")
        graph_file = files[0].parent / named if isinstance(named, str) else None
        if graph_file is None or not graph_file.exists():
            raise PlanFileError(
                f"{files[0]} is a plan, and its graph{f' {graph_file}' if graph_file else ''} was"
                " not found. Name it with --graph; DFGraph.save writes it."
            )
    graph = DFGraph.load(graph_file)
    lowest = floor(graph).bytes
    return Shown(
        graph,
        [_found(file, data, graph, lowest) for file, data in zip(files, contents, strict=True)],
    )


def _found(file: Path, data: dict[str, Any], graph: DFGraph, floor_bytes: int) -> Found:
    """A plan with what its file says; what the judge can say, it says anew."""
    plan = load_plan(file, graph=graph)
    timeline = replay(graph, plan)
    overhead = timeline.cost / graph.total_cost if graph.total_cost else 1.0
    judged = {
        "cost": timeline.cost,
        "overhead": overhead,
        "peak_bytes": timeline.peak_bytes,
        "floor_bytes": floor_bytes,
    }
    facts = {key: data.get(key) for key in (*KEYS, "bound_covers")} | judged
    facts["status"] = facts["status"] or "FEASIBLE"
    return Found("", facts, plan, file=file)


def draw(shown: Shown, picture: str) -> Any:
    """Returns the picture of this name."""
    from checkmate import plot

    graph, first = shown.graph, shown.plans[0] if shown.plans else None
    if picture == "curve":
        return _curve(shown)
    if first is None or first.plan is None:
        return plot.memory(graph)
    if picture == "memory":
        return plot.memory(graph, first.plan, budget_bytes=first.facts["budget_bytes"])
    return (
        plot.matrices(graph, first.plan)
        if picture == "matrices"
        else plot.layers(graph, first.plan)
    )


def _curve(shown: Shown) -> Any:
    from checkmate import plot

    solvers: dict[str, list[Any]] = {}
    for one in shown.plans:
        facts, total = one.facts, shown.graph.total_cost or 1.0
        point = plot.Point(
            facts["budget_bytes"] or facts["peak_bytes"],
            facts["overhead"],
            (facts["bound"] or total) / total,
            facts["peak_bytes"],
        )
        solvers.setdefault(facts["solver"] or "plan", []).append(point)
    plain = replay(shown.graph, Plan.keep_all(shown.graph)).peak_bytes
    return plot.budget_curve(
        solvers, floor_bytes=floor(shown.graph).bytes, plain_bytes=plain, name=shown.graph.name
    )


def page(shown: Shown) -> str:
    """Returns the interactive page of the graph or of the first plan."""
    from checkmate import plot

    if not shown.plans:
        return plot.page(shown.graph, facts=_rows(shown.graph))
    one, rows = shown.plans[0], _rows(shown.graph)
    plain = format_bytes(graph_facts(shown.graph)["plain_peak_bytes"])
    lead = (
        f"{format_bytes(one.facts['peak_bytes'])} instead of {plain}, for"
        f" {one.facts['overhead'] - 1:.2%} more time."
    )
    return plot.page(
        shown.graph,
        one.plan,
        budget_bytes=one.facts["budget_bytes"],
        lead=lead,
        facts=[*rows, *_plan_rows(one)],
    )


def graph_facts(graph: DFGraph) -> dict[str, Any]:
    """What is printed of a graph as JSON: name, ops, cost, and the bytes that are fixed, that the
    plain step needs, that any plan needs."""
    lowest = floor(graph)
    plain = replay(graph, Plan.keep_all(graph)).peak_bytes
    facts = {
        "name": graph.name,
        "ops": len(graph),
        "cost": graph.total_cost,
        "fixed_bytes": graph.fixed_bytes,
        "plain_peak_bytes": plain,
    }
    return {**facts, "floor_bytes": lowest.bytes, "binding_op": graph.ops[lowest.op].name}


def _rows(graph: DFGraph) -> list[tuple[str, str]]:
    facts = graph_facts(graph)
    return [
        ("ops", str(len(graph))),
        ("resident", f"{format_bytes(facts['fixed_bytes'])} (variables, optimizer, batch)"),
        ("the plain step needs", format_bytes(facts["plain_peak_bytes"])),
        (
            "no plan below",
            (
                f"{format_bytes(facts['floor_bytes'])}, because of"
                f" {layer_names(graph)[graph.index(facts['binding_op'])]}"
            ),
        ),
    ]


def _plan_rows(one: Found) -> list[tuple[str, str]]:
    facts, again = one.facts, one.plan.recomputed if one.plan else {}
    budget = [("budget", format_bytes(facts["budget_bytes"]))] if facts["budget_bytes"] else []
    solver = (
        [("found by", f"{facts['solver']} in {facts['seconds']:.1f} s")]
        if facts["solver"] and facts["seconds"] is not None
        else []
    )
    return [
        *budget,
        ("the planned step needs", format_bytes(facts["peak_bytes"])),
        (
            "extra time",
            (
                f"{facts['overhead'] - 1:+.2%}, for {sum(again.values())} evaluations more of"
                f" {len(again)} ops"
            ),
        ),
        ("proven", proof(facts)),
        *solver,
    ]


def print_graph(graph: DFGraph, most: int) -> None:
    """What a graph is, and its layers with the most memory."""
    out = console()
    _print_rows(out, f"Graph of {graph.name or 'a step'}", _rows(graph))
    _print_layers(out, graph, None, most)


def print_plan(graph: DFGraph, one: Found, most: int) -> None:
    """What a plan does, and to which layers."""
    assert one.plan is not None
    out = console()
    _print_rows(out, f"Plan of {graph.name or 'a step'}", [*_rows(graph), *_plan_rows(one)])
    _print_layers(out, graph, one.plan, most)


def print_plans(shown: Shown) -> None:
    """A row per plan."""
    rows = []
    for one in sorted(
        shown.plans, key=lambda one: -(one.facts["budget_bytes"] or one.facts["peak_bytes"])
    ):
        budget, *others, _ = cells(shown.graph, one)
        rows.append((budget, one.facts["solver"] or "", *others, str(one.file or "")))
    print_table(
        f"Plans of {shown.graph.name or 'a step'}",
        ("budget", "solver", *COLUMNS, "file"),
        rows,
        left=("solver", "file"),
    )


def _print_rows(out: Any, title: str, rows: list[tuple[str, str]]) -> None:
    out.print(title, style="bold", highlight=False)
    table = Table.grid(padding=(0, 2))
    for key, value in rows:
        table.add_row(f"  {key}", value)
    out.print(table)


def _print_layers(out: Any, graph: DFGraph, plan: Plan | None, most: int) -> None:
    """The layers with the most memory, and what a plan does to them."""
    from checkmate.plot.usage import layers

    rows = [
        row
        for row in layers(graph, plan or Plan.keep_all(graph))
        if row.plain_bytes or row.evaluations
    ]
    shown = sorted(rows, key=lambda row: -(abs(row.saved_bytes) + row.kept_bytes))[:most]
    cells_of_rows = []
    for row in shown:
        again = (str(row.evaluations), f"{row.cost:.2%}") if row.evaluations else ("", "")
        cells_of_rows.append(
            (
                row.name or "(no layer)",
                *map(format_bytes, (row.plain_bytes, row.kept_bytes, row.saved_bytes)),
                *again,
            )
        )
    columns = ("layer", "plain step", "kept", "saved", "evaluations more", "extra time")[
        : None if plan else 2
    ]
    cells_of_rows = [row[: len(columns)] for row in cells_of_rows]
    print_table(
        "Forward values in memory when the backward pass begins",
        columns,
        cells_of_rows,
        left=("layer",),
    )
    if len(rows) > len(shown):
        out.print(f"{len(rows) - len(shown)} layers more; --most shows them.", highlight=False)
