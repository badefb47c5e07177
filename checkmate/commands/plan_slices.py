"""A step on paper, planned in slices of its batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from checkmate.commands.options import SearchOptions, each_budget
from checkmate.commands.output import Found, solve_each
from checkmate.commands.table import complain
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import replay
from checkmate.errors import TraceError
from checkmate.solvers.result import SolveStatus
from checkmate.tf2.costs.measured import with_costs
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.micro_batches.on_paper import StepOnPaper
from checkmate.tf2.micro_batches.slices import Slices
from checkmate.tf2.planning import store


@dataclass(frozen=True, slots=True)
class SliceGraph:
    """What is planned of a batch in slices.

    Attributes:
      traced: What runs for a slice; for a single one the step.
      graph: Its graph, with costs.
      plain_bytes: The plain step's peak, on the whole batch.
    """

    slices: Slices
    traced: TracedStep
    graph: DFGraph
    plain_bytes: int

    @property
    def suffix(self) -> str:
        return f"-in-{self.slices.count}" if self.slices.count > 1 else ""

    @property
    def times(self) -> float:
        return self.slices.examples / self.slices.size

    def save(self, plan: Plan, path: Path, *, graph: DFGraph, **facts: Any) -> None:
        facts |= {"unchanged": False}
        if self.slices.count > 1:
            facts["slices"] = {"size": self.slices.size, "plain_bytes": self.plain_bytes}
        store.write(path, self.traced, graph, plan, facts)


@dataclass(slots=True)
class SliceGraphs:
    """The graphs of slices of a step's batch, each traced and measured once.

    Attributes:
      costs: The cost model.
    """

    step: StepOnPaper
    costs: str
    _made: dict[int, SliceGraph] = field(default_factory=dict)

    @property
    def whole(self) -> Slices:
        return Slices.of(self.step.examples, 1)

    def at(
        self, slices: Slices, on_progress: Callable[[int, int], None] | None = None
    ) -> SliceGraph:
        if slices.size not in self._made:
            traced = self.step.traced if slices.count == 1 else self.step.slice(slices)
            graph = with_costs(traced, self.costs, on_progress=on_progress)
            if slices.count == 1:
                plain = replay(graph, Plan.keep_all(graph)).peak_bytes
            else:
                plain = self.at(self.whole).plain_bytes
                graph = self.step.with_all_variables(traced, graph)
            self._made[slices.size] = SliceGraph(slices, traced, graph, plain)
        return self._made[slices.size]

    def plans(
        self, budgets: tuple[str, ...], search: SearchOptions, count: int | str
    ) -> Iterator[tuple[SliceGraph, list[Found]]]:
        """Yields graphs and what was found with each; budgets are shares of the plain step's
        peak."""
        plain = self.at(self.whole).plain_bytes

        def found(budgets: Sequence[str], sliced: SliceGraph) -> list[Found]:
            return solve_each(
                sliced.graph, budgets, search, folder=None, graph_file="", percent_of=plain
            )

        if count != "auto":
            sliced = self.at(Slices.of(self.step.examples, int(count)))
            yield sliced, found(budgets, sliced)
            return
        for budget, _ in each_budget(budgets, percent_of=plain):
            best = self._cheapest(partial(found, [budget]))
            yield best
            if is_interrupted(best[1]):
                break

    def _cheapest(
        self, plan: Callable[[SliceGraph], list[Found]]
    ) -> tuple[SliceGraph, list[Found]]:
        """That of 1, 2, 4, ... slices whose plan costs least."""
        sliced = self.at(self.whole)
        best = sliced, plan(sliced)
        cost = math.inf if best[1][0].plan is None else best[1][0].facts["cost"]
        for slices in Slices.halved(self.step.examples):
            if is_interrupted(best[1]):
                break
            try:
                sliced = self.at(slices)
            except TraceError as error:
                complain(str(error))
                continue
            if sliced.times * sliced.graph.total_cost >= cost:
                break
            (found,) = plan(sliced)
            if is_interrupted([found]) or (
                found.plan is not None and sliced.times * found.facts["cost"] < cost
            ):
                best, cost = (sliced, [found]), sliced.times * (found.facts["cost"] or math.inf)
        return best


def is_interrupted(found: list[Found]) -> bool:
    return found[-1].facts["status"] == SolveStatus.INTERRUPTED.name
