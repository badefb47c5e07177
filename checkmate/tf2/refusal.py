"""What a user is told when no plan fits: what binds, how much is missing, and what would fit instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from checkmate.core.memory import Floor, floor
from checkmate.errors import CheckmateError, InfeasibleBudgetError, NoPlanFoundError
from checkmate.tf2.memory.pipeline import bytes_ahead
from checkmate.tf2.trace import trace
from checkmate.units import format_bytes

if TYPE_CHECKING:
    from checkmate.tf2.attempt import Attempt

CAREFUL = 1.1
"""Times what an example is reckoned to take where a smaller batch is named: what the allocator loses differs from batch to batch."""

NAMED = 3
"""How many of the tensors that bind are named, the largest."""


def explained(
    error: InfeasibleBudgetError | NoPlanFoundError, attempt: Attempt, measured_bytes: int | None, smallest: int | None
) -> InfeasibleBudgetError | NoPlanFoundError:
    """Returns a solver's refusal in the user's terms, with what would work: the smallest budget, and the largest batch.

    It is proven where what must be in memory together is above the budget, in whatever order ops run. What a solver proves of plans in one
    order, small values, batches that a pipeline may make, and what the allocator is expected to lose prove nothing.

    Args:
      measured_bytes: What the lowest plan that was made took by the allocator's count, if one was run.
      smallest: A budget that was found to be accepted, if one was.
    """
    planner, graph = attempt.planner, attempt.graph
    budget, lowest = planner.budget_bytes, floor(graph)
    asked = f"{format_bytes(budget)} for {planner.name!r}"
    small, ahead = attempt.traced.small_bytes, bytes_ahead(attempt.traced, planner.next_batches)
    counted = lowest.bytes + attempt.outside
    proven = counted - small - ahead
    in_order = max(counted, error.floor_bytes + attempt.outside if isinstance(error, InfeasibleBudgetError) else 0)
    advice = _advice(attempt, smallest or max(in_order + attempt.reserve, measured_bytes or 0), smallest)
    binds = (
        f"Op {lowest.op} {graph.ops[lowest.op].name!r} needs {format_bytes(lowest.bytes - small)} whatever the plan, "
        f"{format_bytes(graph.fixed_bytes - small)} of it resident{_held(attempt, lowest)}; {format_bytes(attempt.outside - ahead)} more is in use on "
        f"the device, {format_bytes(small)} are small values, {format_bytes(ahead)} are left for the next batch, and the allocator is expected to lose "
        f"{format_bytes(attempt.reserve)}."
    )
    if proven > budget:
        message = (
            f"No plan fits {asked}: at least {format_bytes(proven)} are needed, {format_bytes(proven - budget)} more. {binds} {advice}"
        )
        return InfeasibleBudgetError(
            message,
            budget_bytes=budget,
            floor_bytes=proven,
            op=lowest.op,
            op_name=graph.ops[lowest.op].name,
            smallest_budget_bytes=smallest,
        )
    if measured_bytes is not None:
        found = (
            f"the lowest that was made and run took {format_bytes(measured_bytes)} by the allocator's count, "
            f"{format_bytes(measured_bytes - budget)} too much."
        )
    elif counted > budget:
        found = f"with small values and the next batch one is expected to take {format_bytes(counted)} at least, {format_bytes(counted - budget)} too much."
    elif isinstance(error, InfeasibleBudgetError):
        found = (
            f"one in this order of ops asks for {format_bytes(in_order)} at least, and what is left is expected to be lost by the allocator, "
            "which is no proof."
        )
    else:
        solver = planner.solver if isinstance(planner.solver, str) else planner.solver.name
        found = f"solver {solver!r} found none in {attempt.time_limit_s:g} s, which proves nothing."
    best = measured_bytes or getattr(error, "best_peak_bytes", None)
    return NoPlanFoundError(f"No plan within {asked}: {found} {binds} {advice}", best_peak_bytes=best, smallest_budget_bytes=smallest)


def _held(attempt: Attempt, lowest: Floor) -> str:
    """The largest values that have to be in memory together then."""
    ops = attempt.graph.ops
    sized = sorted(((ops[i].output_bytes, ops[i].name) for i in lowest.held if ops[i].output_bytes), reverse=True)
    sized += [(ops[lowest.op].workspace_bytes, "workspace")] if ops[lowest.op].workspace_bytes else []
    sized.sort(reverse=True)
    named = [f"{name} {format_bytes(size)}" for size, name in sized[:NAMED]]
    return f" (with {', '.join(named)}{f' and {len(sized) - NAMED} more' if len(sized) > NAMED else ''})" if named else ""


def on_paper(attempt: Attempt, measured_bytes: int | None) -> int | None:
    """Returns the smallest budget for which a plan was found on paper, with what the allocator needs; None where no search succeeds."""
    curve = attempt.curve
    if curve is None:
        return None
    dynamic = (curve.smallest_bytes - attempt.graph.fixed_bytes) / (1 - attempt.reserve_share)
    return max(attempt.graph.fixed_bytes + attempt.outside + int(dynamic), attempt.with_spare(measured_bytes) if measured_bytes else 0)


def _advice(attempt: Attempt, needed_bytes: int, smallest: int | None) -> str:
    batch, budget = _batch_that_fits(attempt, needed_bytes), format_bytes(attempt.planner.budget_bytes)
    smaller = (
        "or use a smaller batch."
        if batch is None
        else f"or use a batch of at most {batch} within {budget}."
        if batch
        else f"as not even a batch of 1 would fit {budget}."
    )
    if smallest is None or smallest <= attempt.planner.budget_bytes:
        return f"Raise the budget, {smaller}"
    return f"The smallest budget that a plan was found for is {format_bytes(smallest)}. Raise the budget to that, {smaller}"


def _batch_that_fits(attempt: Attempt, needed_bytes: int) -> int | None:
    """The largest batch within the budget, what is needed taken to grow in a straight line from the floor of one example; None where that is unknown."""
    sizes = {spec.shape[0] for spec in tf.nest.flatten(attempt.specs) if spec.shape.rank}
    if len(sizes) != 1:
        return None
    batch = sizes.pop()
    if batch == 1:
        return 0
    single = tf.nest.map_structure(lambda spec: tf.TensorSpec([1, *spec.shape[1:]], spec.dtype) if spec.shape.rank else spec, attempt.specs)
    try:
        least = floor(trace(attempt.planner.step, *single, name=attempt.planner.name).graph).bytes + attempt.outside
    except CheckmateError:
        return None
    per_example = max(CAREFUL * (needed_bytes - least) / (batch - 1), 1)
    return max(0, min(batch - 1, 1 + int((attempt.planner.budget_bytes - attempt.reserve - least) // per_example)))
