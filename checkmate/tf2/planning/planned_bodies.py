"""Loops that train, in a step that is planned: each runs a body under a plan of its own.

the budget without what is in memory beside the loop -> the body as a step -> its plan -> the loop
with that body, again one op of the step
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import Any

from checkmate.core.graph import DFGraph
from checkmate.core.replay import op_floors
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError
from checkmate.solvers.result import SolveStatus
from checkmate.tf2.costs.measured import Costs, costs_of
from checkmate.tf2.graph.operations import is_loop
from checkmate.tf2.graph.sizes import LoopSizes, known_bytes, tensor_bytes
from checkmate.tf2.memory.budget import RESERVES, MemoryBudget, ahead, given_bytes
from checkmate.tf2.memory.prediction import Predictor
from checkmate.tf2.planning.request import Planned, PlanTask
from checkmate.tf2.rewrites.training_loops import Body, training_bodies, with_bodies
from checkmate.units import format_bytes


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBody:
    """The body of a loop, or of a condition in one, and its plan, made for `room_bytes`."""

    body: Body
    plan: Planned
    room_bytes: int

    @property
    def taken_bytes(self) -> int:
        """The bytes that it takes besides its inputs."""
        return self.plan.rise_bytes + self.body.constant_bytes

    @property
    def left_bytes(self) -> int:
        return self.room_bytes - self.taken_bytes

    @property
    def plain_cost(self) -> float:
        plain = self.plan.report.plain_graph
        return plain.total_cost if plain else self.plan.cost

    def function(self, cost_model: Any) -> Any:
        """The body that the loop runs."""
        part = self.plan.innermost
        costs = costs_of(part.traced, cost_model)
        predictor = Predictor(part.traced, costs.graph, (), costs.footprints)
        paper = predictor.write(part.plan)
        return self.body.planned(paper.written, self.taken_bytes, predictor.footprint(paper))

    @property
    def sentences(self) -> tuple[str, ...]:
        """For the report; where a function that this one runs is planned, about that."""
        if self.plan.report.planned_bodies:
            return self.plan.report.planned_bodies
        again, taken = len(self.plan.innermost.plan.recomputed), format_bytes(self.taken_bytes)
        return (
            f"Op {self.body.operation.name!r} trains, and its body is planned as a step is. It is"
            f" predicted to take {taken} of {format_bytes(self.room_bytes)} that are left for it,"
            f" with {again} ops computed again, for {self.plan.cost / self.plain_cost - 1:+.1%}"
            " time.",
        )


def planned_bodies(
    task: PlanTask, costs: Costs, new_plan: Callable[[PlanTask], Planned], less_bytes: int
) -> list[PlannedBody]:
    """Plans the bodies of loops that train and need more than the budget leaves them; once more
    where that was found to be `less_bytes` too much."""
    if not task.request.plans_bodies:
        return []
    found = []
    for least, group in zip(op_floors(costs.graph), task.traced.groups, strict=True):
        own = costs.graph.ops[least.op].workspace_bytes
        room = task.memory.peak_limit_bytes - task.other_bytes - (least.bytes - own)
        bodies = (body for each in group for body in training_bodies(task.traced, each))
        for body in bodies if own > room else ():
            plain, given = body.step.plain_peak_bytes(), given_bytes(body.step)
            asked = max(1, room - less_bytes - ahead(task.request.next_batches, given, plain))
            if (plan := _plan(_task(task, body, asked), new_plan)) is not None:
                found.append(PlannedBody(body, plan, asked))
    return found


def _plan(task: PlanTask, new_plan: Callable[[PlanTask], Planned]) -> Planned | None:
    """A plan for the room; else one for the least that is found to do, and the refusal of the step
    tells what that needs; None without any."""
    try:
        return new_plan(task)
    except (InfeasibleBudgetError, NoPlanFoundError) as refusal:
        least = refusal.smallest_budget_bytes
    with contextlib.suppress(InfeasibleBudgetError, NoPlanFoundError):
        return new_plan(task.within(least)) if least else None
    return None


def _task(task: PlanTask, body: Body, room_bytes: int) -> PlanTask:
    """The planning of a body."""
    options = replace(
        task.request.options, budget=task.budget_bytes, plan=None, keep=(), recompute=()
    )
    request = replace(
        task.request,
        step=body.function,
        name=body.operation.name,
        options=options,
        has_output_buffers=False,
        next_batches=0,
        anew=None,
    )
    before, early = task.memory, known_bytes(compress(body.step.flat.outputs, body.step.early))
    memory = MemoryBudget.of(
        body.step,
        0,
        before.start_bytes - (0 if task.batch is not None else before.batch_bytes),
        released_bytes=task.released_bytes,
        next_batches=0,
    )
    memory = replace(
        memory,
        limit_bytes=memory.fixed_bytes - early + room_bytes,
        reserve_share=RESERVES.with_loops,  # in the step its values lie elsewhere
        device_limit_bytes=before.device_limit_bytes,
    )
    return replace(
        task, request=request, traced=body.step, specs=body.specs(), memory=memory, batch=None
    )


def with_planned(
    task: PlanTask, costs: Costs, bodies: Sequence[PlannedBody]
) -> tuple[PlanTask, Costs, DFGraph]:
    """The task of the step with these bodies, and its costs; and the graph of the step as it was,
    with the costs of theirs."""
    cost_model = task.request.options.cost_model
    functions = {each.body: each.function(cost_model) for each in bodies}
    within = task.of_parts(with_bodies(task.traced, functions))
    here = costs_of(within.traced, cost_model)
    sizes = LoopSizes(task.traced.function.graph, tensor_bytes)
    plain, planned = {}, {}
    for each in bodies:
        operation = each.body.operation
        turns = (is_loop(operation) and sizes.iterations(operation)) or 1
        plain[operation.name] = turns * each.plain_cost
        planned[operation.name] = turns * each.plan.cost
    return within, replace(here, graph=_costing(here.graph, planned)), _costing(costs.graph, plain)


def _costing(graph: DFGraph, seconds: dict[str, float]) -> DFGraph:
    ops = (replace(op, cost=seconds.get(op.name, op.cost)) for op in graph.ops)
    return replace(graph, ops=tuple(ops))


def of_step(planned: Planned, task: PlanTask, bodies: Sequence[PlannedBody]) -> Planned:
    """The plan of a step with these bodies as one of the step, whose bound is that of the step with
    any plan of them: its kernels run once."""
    result, report = planned.result, planned.report
    if result is not None:
        bound = min(result.bound, (report.plain_graph or report.graph).total_cost)
        result = replace(result, status=SolveStatus.FEASIBLE, bound=bound, given_order_bound=None)
        told = tuple(chain.from_iterable(each.sentences for each in bodies))
        report = replace(report, result=result, planned_bodies=told)
    part = replace(planned, result=result, report=report)
    return replace(part, traced=task.traced, part=part)
