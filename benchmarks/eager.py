"""`python -m benchmarks dtr-eager`: training steps in eager TensorFlow, plain and under
`checkmate.tf2.dtr`, on one CPU core or a GPU.

A step is forward and backward pass. For each workload a fresh process measures the plain step's
peak by the allocator's count, and another runs, for each budget, the same steps plain and under the
context in turn, so that a slow moment of the machine hits both. Budgets are shares of the plain
peak, variables and data included. Two baselines: the plain tape, and the context without a budget,
which already releases more and adds partial gradients up earlier.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from benchmarks import eager_ops
from benchmarks.commands import RowTable, stream
from checkmate.commands.options import NameOf, json_option, readable_budgets, steps_option
from checkmate.demo.process import fresh_process
from checkmate.errors import CheckmateError
from checkmate.units import parse_bytes

COLUMNS = (
    "workload",
    "budget",
    "peak MiB",
    "/ plain",
    "step ms",
    "/ plain",
    "cost",
    "gradients",
    "state",
    "above",
)
NAMES = ("mlp", "mlp32", "cnn", "lstm", "treelstm", "unrolled", "attention")
TREE_COLUMNS = ("nodes", "plain", "dtr")
TREE_ENDS = {
    "ResourceExhausted": "out of memory",
    "overhead limit": "thrashing",
    "must be at least": "does not fit",
}
CAP_MIB = 96
POOL_SHARE, TREE_SHARE = 0.95, 0.75
"""Of the cap: what is taken in one piece, and the budget; the rest is for holes that no tensor
fits."""
MIB = 2**20


def measure(name: str, budgets: str, steps: int) -> Iterator[dict[str, Any]]:
    """What was found, one row for the plain tape, one for no budget and one per budget.

    Keys: workload, budget (as asked), budget_bytes (None without), peak_bytes, plain_peak_bytes,
    step_s, plain_s (timed in turn with step_s), slowdown (the median of their ratios), cost
    (evaluations' cost over the plain step's), difference (of the gradients, as a share of the
    largest), state_equal; or error.
    """
    plain = fresh_process("benchmarks.eager", [name, str(steps)])
    of_plain = {"plain_peak_bytes": plain["peak_bytes"]}
    yield {"workload": name, "budget": "plain", "budget_bytes": None, **plain, **of_plain}
    for budget in ("none", *budgets.split(",")):
        limit = None if budget == "none" else parse_bytes(budget, percent_of=plain["peak_bytes"])
        asked = {"workload": name, "budget": budget, "budget_bytes": limit}
        try:
            yield {
                **asked,
                **fresh_process("benchmarks.eager", [name, str(steps), str(limit or 0)]),
                **of_plain,
            }
        except CheckmateError as error:
            yield {**asked, "error": str(error).strip().splitlines()[-1]}


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    if "error" in row:
        return (row["workload"], row["budget"], row["error"][:150])
    start = (
        row["workload"],
        row["budget"],
        f"{row['peak_bytes'] / MIB:.1f}",
        f"{row['peak_bytes'] / row['plain_peak_bytes']:.3f}",
    )
    if "plain_s" not in row:
        return (*start, f"{row['step_s'] * 1e3:.0f}", "1.00")
    return (
        *start,
        f"{row['step_s'] * 1e3:.0f} of {row['plain_s'] * 1e3:.0f}",
        f"{row['slowdown']:.2f}",
        f"{row['cost']:.2f}",
        "equal" if row["difference"] == 0 else f"{row['difference']:.1e}",
        "equal" if row["state_equal"] else "differs",
        f"{max(0, row['peak_bytes'] - row['budget_bytes']) / MIB:.1f}"
        if row["budget_bytes"]
        else "",
    )


def largest_trees(
    sizes: tuple[int, ...] = (16, 24, 32, 48, 64, 96, 128, 192, 256),
) -> Iterator[dict[str, Any]]:
    """For growing TreeLSTMs, whether a step trains in a process whose allocator has a cap of
    `CAP_MIB`: plain, and under the context.

    Keys: nodes, cap_bytes, and plain and dtr: seconds of a step, or what ended it; None where a
    smaller tree has failed already.
    """
    failed: set[str] = set()
    for leaves in sizes:
        row: dict[str, Any] = {
            "nodes": 2 * leaves - 1,
            "cap_bytes": CAP_MIB << 20,
            "plain": None,
            "dtr": None,
        }
        for kind in sorted({"plain", "dtr"} - failed):
            try:
                row[kind] = fresh_process("benchmarks.eager", ["tree", kind, str(leaves)])
            except CheckmateError as error:
                found = str(error)
                row[kind] = next(
                    (reason for sign, reason in TREE_ENDS.items() if sign in found), found[-80:]
                )
                failed.add(kind)
        yield row
        if len(failed) == 2:
            return


def tree_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of `trees` under `TREE_COLUMNS`."""
    return (
        str(row["nodes"]),
        *(
            f"{found:.1f} s" if isinstance(found, float) else found or ""
            for found in (row["plain"], row["dtr"])
        ),
    )


def run_tree(kind: str, leaves: int) -> float:
    """Seconds of one training step on a random tree, the first one.

    Both kinds take their memory in one piece before anything else does: a pool grown piece by piece
    is too ragged for large tensors.
    """
    import tensorflow as tf

    from benchmarks.eager_models import workload
    from benchmarks.process import limit_memory
    from checkmate import tf2
    from checkmate.tf2 import device as devices

    limit_memory(CAP_MIB * MIB)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    devices.fetch_region(devices.training_device(), int(POOL_SHARE * CAP_MIB * MIB))
    with contextlib.nullcontext() if kind == "plain" else tf2.dtr(int(TREE_SHARE * CAP_MIB * MIB)):
        variables, loss, _ = workload("treelstm", leaves=leaves)
        started = time.perf_counter()
        with tf.GradientTape() as tape:
            value = loss()
        gradients = tape.gradient(value, variables)
        assert all(bool(tf.reduce_all(tf.math.is_finite(gradient))) for gradient in gradients)
        return time.perf_counter() - started


def run(name: str, steps: int, budget_bytes: int | None) -> dict[str, Any]:
    """Runs a workload plain, or plain and under the context in turn, in this process, and returns
    the figures."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()

    from checkmate.tf2 import device as devices

    device, program = devices.training_device(), _Program(name)
    if budget_bytes is not None:
        return _in_turn(program, steps, budget_bytes, device)
    tf.config.experimental.reset_memory_stats(device)
    times = [program.step()[0] for _ in range(steps + 1)][1:]
    return {
        "peak_bytes": tf.config.experimental.get_memory_info(device)["peak"],
        "step_s": statistics.median(times),
    }


class _Program:
    """A workload whose steps all begin in the same state."""

    def __init__(self, name: str):
        import numpy as np

        from benchmarks.eager_models import workload

        self.variables, self._loss, self._state = workload(name)
        self._start = [np.array(variable) for variable in self._state]

    def step(self) -> tuple[float, list[Any]]:
        """Returns (the seconds that a step took, its gradients)."""
        import tensorflow as tf

        from checkmate.tf2 import device as devices

        for variable, value in zip(self._state, self._start, strict=True):
            variable.assign(value)
        devices.synchronize()
        started = time.perf_counter()
        with tf.GradientTape() as tape:
            value = self._loss()
        gradients = tape.gradient(value, self.variables)
        devices.synchronize()
        return time.perf_counter() - started, gradients

    def values(self, gradients: list[Any]) -> tuple[list[Any], list[Any]]:
        """Returns (the gradients, the state), as arrays."""
        import numpy as np
        import tensorflow as tf

        found = [np.array(tf.convert_to_tensor(gradient)) for gradient in gradients]
        return found, [np.array(variable) for variable in self._state]


def _in_turn(program: _Program, steps: int, budget_bytes: int, device: str) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from checkmate import tf2

    context = tf2.dtr(budget_bytes or None)
    gradients: list[Any] = []
    (plain, plain_state), pairs, peak = program.values(program.step()[1]), [], 0
    for _ in range(steps + 1):
        del gradients
        plain_s = program.step()[0]
        tf.config.experimental.reset_memory_stats(device)
        with context:
            program.step()  # every new shape is sized once per context
            seconds, gradients = program.step()
        peak = (
            max(peak, context.stats.peak_bytes)
            if budget_bytes
            else tf.config.experimental.get_memory_info(device)["peak"]
        )
        pairs.append((plain_s, seconds))
    found, state = program.values(gradients)
    scale = max(float(np.max(np.abs(value))) for value in plain)
    farthest = max(float(np.max(np.abs(a - b))) for a, b in zip(plain, found, strict=True))
    return {
        "peak_bytes": peak,
        "plain_s": statistics.median(pair[0] for pair in pairs[1:]),
        "step_s": statistics.median(pair[1] for pair in pairs[1:]),
        "slowdown": statistics.median(after / before for before, after in pairs[1:]),
        "cost": context.stats.overhead,
        "difference": farthest / scale,
        "state_equal": all(np.array_equal(a, b) for a, b in zip(plain_state, state, strict=True)),
    }


@click.command("dtr-eager")
@click.argument("workloads", nargs=-1, type=NameOf(NAMES, "eager workload"), metavar="WORKLOADS...")
@click.option(
    "--budgets",
    default="50%,40%",
    show_default=True,
    callback=readable_budgets,
    help="Shares of the plain step's measured peak.",
)
@steps_option(5, "Timed steps of each kind.")
@click.option(
    "--trees", is_flag=True, help="Instead: the largest TreeLSTM that trains within a memory cap."
)
@click.option("--ops", is_flag=True, help="Instead: the time of one op if nothing is evicted.")
@json_option
def command(
    workloads: tuple[str, ...], budgets: str, steps: int, trees: bool, ops: bool, as_json: bool
) -> None:
    """Eager training steps under dtr(), compared with plain ones.

    WORKLOADS are mlp, mlp32, cnn, lstm, treelstm, unrolled and attention; all by default.

    JSON: workload, budget, budget_bytes, peak_bytes, plain_peak_bytes, step_s, plain_s, slowdown,
    cost, difference, state_equal; or error. With --trees: nodes, cap_bytes, plain, dtr. With --ops:
    width, pass, plain_s, more_s, ratio.
    """
    if ops:
        title = (
            "an op of a taped chain of matrix products: a plain tape, and the time that dtr() adds"
            " if nothing is evicted"
        )
        table = RowTable(title, eager_ops.COLUMNS, eager_ops.cells, ("width", "pass"))
        stream(eager_ops.measure(), table, as_json=as_json)
    elif trees:
        title = f"seconds of a step on a random tree, within {CAP_MIB} MiB"
        stream(largest_trees(), RowTable(title, TREE_COLUMNS, tree_cells), as_json=as_json)
    else:
        title = (
            "eager TensorFlow under dtr(); memory is the allocator's peak, variables and data"
            " included"
        )
        rows = (row for each in workloads or NAMES for row in measure(each, budgets, steps))
        table = RowTable(title, COLUMNS, cells, ("workload", "budget"))
        stream(rows, table, as_json=as_json)


if __name__ == "__main__":
    if sys.argv[1] == "tree":
        print(json.dumps(run_tree(sys.argv[2], int(sys.argv[3]))))
        sys.exit()
    print(
        json.dumps(
            run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
        )
    )
