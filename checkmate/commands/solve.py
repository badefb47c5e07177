"""`checkmate solve`: plans for a graph file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from checkmate.commands.options import (
    SearchOptions,
    budget_option,
    json_option,
    output_option,
    search_options,
)
from checkmate.commands.output import print_found, solve_each, status_of, written
from checkmate.core.graph import DFGraph


@click.command("solve")
@click.argument("graph_file", metavar="GRAPH", type=click.Path(exists=True, dir_okay=False))
@budget_option
@search_options
@output_option("Folder to write plan files to.")
@json_option
def solve_command(
    graph_file: str,
    budgets: tuple[str, ...],
    search: SearchOptions,
    output: Path | None,
    as_json: bool,
) -> None:
    """Find plans for a graph file.

    GRAPH is a JSON file as `checkmate plan` or `DFGraph.save` writes it.

    Exit status: 0 if every budget has a plan, 1 if one has none, 2 if the command or the file is
    not valid, 130 after Ctrl-C, which keeps the best plan so far.

    Example: checkmate solve resnet50.graph.json -b 80%,60%,40%
    """
    graph = DFGraph.load(graph_file)
    if output:
        output.mkdir(parents=True, exist_ok=True)
    relative = os.path.relpath(graph_file, output or ".")
    found = [written(one, graph, output, relative) for one in solve_each(graph, budgets, search)]
    print_found(graph, found, as_json=as_json, graph_file=graph_file)
    sys.exit(status_of(found))
