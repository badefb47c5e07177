"""The benchmark of eager programs."""

from __future__ import annotations

import click

from checkmate.bench import eager, eager_ops
from checkmate.commands.bench_training import budgets_option, rows_of
from checkmate.commands.options import json_option, named, steps_option
from checkmate.commands.table import RowTable, stream


@click.command("dtr-eager")
@click.argument("workloads", nargs=-1, callback=named(eager.NAMES, "eager workload"))
@budgets_option("50%,40%", "Shares of the plain step's measured peak.")
@steps_option(5, "Timed steps of each kind.")
@click.option(
    "--trees", is_flag=True, help="Instead: the largest TreeLSTM that trains within a memory cap."
)
@click.option("--ops", is_flag=True, help="Instead: the time of one op if nothing is evicted.")
@json_option
def dtr_eager(
    workloads: tuple[str, ...], budgets: str, steps: int, trees: bool, ops: bool, as_json: bool
) -> None:
    """Eager training steps under dtr(), compared with plain ones.

    WORKLOADS are mlp, mlp32, cnn, lstm, treelstm, unrolled and attention; all by default.

    JSON: workload, budget, budget_bytes, peak_bytes, plain_peak_bytes, step_s, plain_s, slowdown,
    cost, difference, state_equal; or error. With --trees: nodes, cap_bytes, plain, dtr. With --ops:
    width, pass, plain_s, none_s, none, far_s, far.
    """
    if ops:
        title = (
            "an op of a taped chain of matrix products: a plain tape, and the time that dtr() adds"
            " if nothing is evicted"
        )
        table = RowTable(title, eager_ops.COLUMNS, eager_ops.cells, ("width", "pass"))
        stream(eager_ops.measure(), table, as_json=as_json)
    elif trees:
        title = f"seconds of a step on a random tree, within {eager.CAP_MIB} MiB"
        stream(
            eager.trees(), RowTable(title, eager.TREE_COLUMNS, eager.tree_cells), as_json=as_json
        )
    else:
        title = (
            "eager TensorFlow under dtr(); memory is the allocator's peak, variables and data"
            " included"
        )
        rows = rows_of(eager.measure, workloads or eager.NAMES, budgets, steps)
        table = RowTable(title, eager.COLUMNS, eager.cells, ("workload", "budget"))
        stream(rows, table, as_json=as_json)


COMMANDS = (dtr_eager,)
