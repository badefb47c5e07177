"""A step on paper, planned in slices of its batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkmate.commands.options import SearchOptions, each_budget
from checkmate.commands.output import Found, is_interrupted, solve_each
from checkmate.commands.table import complain
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import replay
from checkmate.errors import TraceError
from checkmate.solvers.result import SolveStatus
from checkmate.tf2.costs.measured import CostModel, with_costs
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.micro_batches.on_paper import StepOnPaper
from checkmate.tf2.micro_batches.slices import Slices
from checkmate.tf2.planning import store


@dataclass(frozen=True, slots=True)
class SliceGraph:
    """The step of a slice, its graph with costs, and the plain step's peak on the whole batch."""

    slices: Slices
    traced: TracedStep
    graph: DFGraph
    plain_bytes: int

    @property
    def suffix(self) -> str:
        return f"-in-{self.slices.count}" if self.slices.count > 1 else ""

    def save(self, plan: Plan, path: Path, *, graph: DFGraph, **facts: Any) -> None:
        facts |= {"unchanged": False}
        if self.slices.count > 1:
            facts["slices"] = {"size": self.slices.size, "plain_bytes": self.plain_bytes}
        store.write(path, self.traced, graph, plan, facts)


class SliceGraphs:
    def __init__(
        self, step: StepOnPaper, costs: str | CostModel, on_progress: Callable[[int, int], None]
    ):
        self._step, self._costs = step, costs
        graph = with_costs(step.traced, costs, on_progress=on_progress)
        peak = replay(graph, Plan.keep_all(graph)).peak_bytes
        self._whole = SliceGraph(Slices.of(step.examples, 1), step.traced, graph, peak)
        self._made = {step.examples: self._whole}

    def plans(
        self, budgets: tuple[str, ...], search: SearchOptions, count: int | str
    ) -> Iterator[tuple[SliceGraph, list[Found]]]:
        """Yields graphs and the results for each; budgets are shares of the plain step's peak."""
        plain = self._whole.plain_bytes
        if count != "auto":
            sliced = self._at(Slices.of(self._step.examples, int(count)))
            found = solve_each(sliced.graph, budgets, search, percent_of=plain)
            yield sliced, [self._advised(one, sliced) for one in found]
            return
        for budget, _ in each_budget(budgets, percent_of=plain):
            sliced, best = self._cheapest(budget, search)
            yield sliced, [self._advised(best, sliced)]
            if is_interrupted(best):
                break

    def _advised(self, found: Found, sliced: SliceGraph) -> Found:
        """A refusal of the whole batch with what a smaller one would need."""
        if sliced is not self._whole or found.facts["status"] != SolveStatus.INFEASIBLE.name:
            return found
        advice = self._step.smaller_batch(found.facts["budget_bytes"])
        return replace(found, message=f"{found.message} {advice}".rstrip())

    def _at(self, slices: Slices) -> SliceGraph:
        if slices.size not in self._made:
            traced = self._step.slice(slices)
            graph = self._step.with_all_variables(traced, with_costs(traced, self._costs))
            sliced = SliceGraph(slices, traced, graph, self._whole.plain_bytes)
            self._made[slices.size] = sliced
        return self._made[slices.size]

    def _cheapest(self, budget: str, search: SearchOptions) -> tuple[SliceGraph, Found]:
        """The result of least cost, of the whole batch and of halves, quarters, ... of it."""
        best, least = None, math.inf
        for slices in (self._whole.slices, *Slices.halved(self._step.examples)):
            try:
                sliced = self._at(slices)
            except TraceError as error:
                complain(str(error))
                continue
            times = slices.examples / slices.size
            if best and times * sliced.graph.total_cost >= least:
                break
            plain = sliced.plain_bytes
            (found,) = solve_each(sliced.graph, [budget], search, percent_of=plain)
            cost = math.inf if found.plan is None else times * found.facts["cost"]
            if best is None or cost < least or is_interrupted(found):
                best, least = (sliced, found), cost
            if is_interrupted(found):
                break
        assert best is not None
        return best
