"""`checkmate show`: a graph, a plan, or several plans of one graph, as tables and pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from checkmate.commands.options import FileToWrite, json_option
from checkmate.commands.output import KEYS, Found
from checkmate.commands.show_tables import (
    graph_facts,
    graph_rows,
    plan_rows,
    print_graph,
    print_plan,
    print_plans,
)
from checkmate.commands.table import print_json
from checkmate.core.files import PLAN_FORMAT, load_plan
from checkmate.core.graph import DFGraph
from checkmate.core.json_files import read_json
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, replay
from checkmate.errors import PlanFileError
from checkmate.units import format_bytes

PICTURES = ("memory", "matrices", "layers", "curve")


@dataclass(frozen=True, slots=True)
class Shown:
    """One graph, and its plans.

    Attributes:
      plans: Each with the facts in its file, and with peak and cost as replayed.
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
    shown = read(files, graph_file)
    if picture in ("matrices", "layers") and not shown.plans:
        raise click.UsageError(f"--picture {picture} shows a plan; {files[0]} is a graph.")
    for path in filter(None, (written["png"], written["svg"])):
        draw(shown, picture or ("curve" if len(shown.plans) > 1 else "memory")).save(path)
    if html := written["html"]:
        html.write_text(page(shown), encoding="utf-8")
    if as_json:
        for facts in [one.facts for one in shown.plans] or [graph_facts(shown.graph)]:
            print_json(facts)
    elif not shown.plans:
        print_graph(shown.graph, most)
    elif len(shown.plans) == 1:
        print_plan(shown.graph, shown.plans[0], most)
    else:
        print_plans(shown.graph, shown.plans)
    for path in filter(None, written.values()):
        click.echo(f"Written: {path}", err=True)


def read(files: tuple[Path, ...], graph_file: Path | None) -> Shown:
    """Reads a graph file, or plan files and their graph: `graph_file`, or the one that they
    name."""
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
    """A plan with the facts in its file, except for those that `replay` finds."""
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
    from checkmate import plot

    if not shown.plans:
        return plot.page(shown.graph, facts=graph_rows(shown.graph))
    one, rows = shown.plans[0], graph_rows(shown.graph)
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
        facts=[*rows, *plan_rows(one)],
    )
