"""A step on paper, planned as a whole, with its largest ops in parts, or in slices of its batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from checkmate.commands.options import SearchOptions, each_budget
from checkmate.commands.output import Found, is_interrupted, solve_each
from checkmate.commands.table import complain
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, plain_peak
from checkmate.solvers.result import SolveStatus
from checkmate.tf2.costs.measured import CostModel, Costs, in_parts, with_costs
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.planning import store
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.new_plan import cheapest_first
from checkmate.tf2.planning.rewriting import exact, rewrites
from checkmate.tf2.rewrites.search import Search, rewritten
from checkmate.tf2.rewrites.slices import Slices, sliced_specs
from checkmate.tf2.rewrites.split import Split, Splits
from checkmate.tf2.rewrites.step import Step, with_all_variables
from checkmate.units import format_bytes


@dataclass(frozen=True, slots=True, eq=False)
class SliceGraph:
    """The graph of the piece of a step that is planned, with costs; the seconds of all else that
    the step runs, the plain step's peak on the whole batch, and what is planned with its largest
    ops in parts."""

    step: Step
    graph: DFGraph
    after_s: float
    plain_bytes: int
    split: Split | None = None
    parts: TracedStep | None = None

    @property
    def slices(self) -> Slices:
        return self.step.slices

    @property
    def traced(self) -> TracedStep:
        return self.parts or self.step.pieces[0].traced

    @property
    def suffix(self) -> str:
        if self.split:
            size = format_bytes(self.split.above_bytes)
            return f"-in-parts-of-{size.replace(' ', '').replace('.', '_')}"
        return f"-in-{self.slices.count}" if self.slices.count > 1 else ""

    def seconds(self, cost: float) -> float:
        """The cost of the step by that of a slice."""
        return self.slices.examples / self.slices.size * cost + self.after_s

    def save(self, plan: Plan, path: Path, *, graph: DFGraph, **facts: Any) -> None:
        facts |= {"unchanged": False}
        if self.split:
            facts["split"] = asdict(self.split)
        facts |= store.record_of(self.step.record, self.plain_bytes)
        store.write(path, self.traced, graph, plan, facts)


class SliceGraphs:
    def __init__(
        self,
        step: Step,
        costs: str | CostModel,
        allowed: Split,
        on_progress: Callable[[int, int], None],
    ):
        self._step, self._costs, self._allowed = step, costs, allowed
        self._rewrites = rewrites(Scratch())
        graph = with_costs(step.traced, costs, on_progress=on_progress)
        peak = plain_peak(graph)
        self._made = {step: SliceGraph(step, graph, 0.0, peak)}
        self._single: DFGraph | None = None

    def plans(
        self, budgets: tuple[str, ...], search: SearchOptions, count: int | str
    ) -> Iterator[tuple[SliceGraph, list[Found]]]:
        """Yields graphs and the results for each; budgets are shares of the plain step's peak."""
        plain = self._made[self._step].plain_bytes
        if count != "auto":
            slices, step = Slices.of(self._step.examples, int(count)), self._step
            if slices.count > 1:
                sliced = self._at(rewritten(step, slices.size, self._rewrites))
                yield sliced, list(solve_each(sliced.graph, budgets, search, percent_of=plain))
                return
            yield from self._whole_or_in_parts(budgets, search)
            return
        for budget, budget_bytes in each_budget(budgets, percent_of=plain):
            sliced, best = self._cheapest(budget, budget_bytes, search)
            yield sliced, [self._advised(best, sliced)]
            if is_interrupted(best):
                break

    def _whole_or_in_parts(
        self, budgets: tuple[str, ...], search: SearchOptions
    ) -> Iterator[tuple[SliceGraph, list[Found]]]:
        """Yields the cheapest form of the step for each budget; those of one graph together."""
        whole = self._made[self._step]
        found: dict[SliceGraph, list[Found]] = {}
        for budget, budget_bytes in each_budget(budgets, percent_of=whole.plain_bytes):
            form, best = self._form(budget, budget_bytes, search)
            found.setdefault(form, []).append(self._advised(best, form))
            if is_interrupted(best):
                break
        yield from found.items()

    def _form(
        self, budget: str, budget_bytes: int, search: SearchOptions
    ) -> tuple[SliceGraph, Found]:
        whole = self._made[self._step]
        room = budget_bytes - whole.graph.fixed_bytes
        found: dict[SliceGraph, Found] = {}

        def cost(form: SliceGraph) -> float:
            (one,) = solve_each(form.graph, [budget], search, percent_of=whole.plain_bytes)
            if one.plan and form.split:
                more = one.facts["cost"] / whole.graph.total_cost
                one = replace(one, facts=one.facts | {"overhead": more})
            found[form] = one
            if is_interrupted(one):  # nothing else is looked at
                return -math.inf
            return math.inf if one.plan is None else float(one.facts["cost"])

        if whole.plain_bytes <= budget_bytes:
            cost(whole)
            return whole, found[whole]
        best = cheapest_first(room, whole, self._parts(room), lambda form: form.graph, cost)[0]
        if found[best].plan is None:  # the refusal is of what needs least
            best = min(found, key=lambda form: found[form].facts["floor_bytes"])
        return best, found[best]

    def _parts(self, room_bytes: int) -> Iterator[SliceGraph]:
        """Yields the step with its largest ops in ever smaller parts."""
        whole, traced = self._made[self._step], self._step.traced
        if not self._allowed.kinds or room_bytes <= 0:
            return
        for split, parts in Splits(traced, self._allowed).within(room_bytes):
            costs = in_parts(parts, Costs(whole.graph, {}), traced, self._costs)
            yield replace(whole, graph=costs.graph, split=split, parts=parts)

    def _advised(self, found: Found, sliced: SliceGraph) -> Found:
        """A refusal of the whole batch with what a smaller one would need."""
        if sliced.slices.count > 1 or found.facts["status"] != SolveStatus.INFEASIBLE.name:
            return found
        advice = self._smaller_batch(found.facts["budget_bytes"])
        return replace(found, message=f"{found.message} {advice}".rstrip())

    def _smaller_batch(self, budget_bytes: int) -> str:
        """A sentence on whether a smaller batch may fit, "" for a batch of one."""
        step = self._step
        if step.examples == 1:
            return ""
        if self._single is None:
            self._single = trace(step.source, *sliced_specs(step.specs, 1)).graph
        least, budget = floor(self._single).bytes, format_bytes(budget_bytes)
        if least > budget_bytes:
            return f"Not even a batch of 1 fits {budget}: it needs {format_bytes(least)}."
        return f"A smaller batch may fit {budget}: one of 1 needs {format_bytes(least)} at least."

    def _at(self, step: Step) -> SliceGraph:
        if step not in self._made:
            piece, after = step.pieces[0].traced, step.pieces[-1].traced
            graph = with_all_variables(self._step.traced, piece, with_costs(piece, self._costs))
            rest = with_costs(after, self._costs).total_cost
            plain = self._made[self._step].plain_bytes
            self._made[step] = SliceGraph(step, graph, rest, plain)
        return self._made[step]

    def _cheapest(
        self, budget: str, budget_bytes: int, options: SearchOptions
    ) -> tuple[SliceGraph, Found]:
        """The result of least cost, of the whole batch and of halves, quarters, ... of it."""
        looked: list[tuple[SliceGraph, Found]] = []

        def bound(step: Step) -> float:
            sliced = self._at(step)
            return sliced.seconds(sliced.graph.total_cost)

        def plan(step: Step) -> tuple[Found, float, float] | None:
            sliced = self._at(step)
            plain = sliced.plain_bytes
            (found,) = solve_each(sliced.graph, [budget], options, percent_of=plain)
            looked.append((sliced, found))
            if is_interrupted(found):
                search.least_s = math.inf  # nothing else is looked at
            if found.plan is None:
                return None
            return found, sliced.seconds(found.facts["bound"]), sliced.seconds(found.facts["cost"])

        least = self._made[self._step].graph.total_cost
        search = Search(bound, plan, least, TUNING.worth_share)
        best = search.run(self._step, exact(self._rewrites))
        for reason in search.why_not:
            complain(f"{self._step.traced.graph.name!r} is not split: {reason}")
        if best is None or search.least_s == math.inf:
            return looked[0] if best is None else looked[-1]
        return next(each for each in looked if each[1] is best.found)
