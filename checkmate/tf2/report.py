"""Report: what was asked of a step, what was found, what it costs, which layers pay, and what to try next; for people."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field

from checkmate.core.graph import DFGraph
from checkmate.core.layers import layer_names
from checkmate.core.memory import Floor, floor
from checkmate.core.plan import Plan
from checkmate.plot.picture import Picture, show_in_notebook
from checkmate.plot.usage import LayerUse, layers
from checkmate.solvers.result import SolveResult, SolveStatus
from checkmate.units import format_bytes

LAYERS_SHOWN = 6
"""How many of the layers that pay are named in the printed report."""

LONG_GAP, HIGH_OVERHEAD, NEAR_FLOOR, MOSTLY_RESIDENT = 0.01, 1.3, 0.1, 0.5
"""When `advice` speaks: the gap; the cost of the plan; the budget's share of the way from floor to plain peak; the resident share of it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What `print(step.report())` shows; `to_html()` is a page with pictures that answer to the mouse.

    Attributes:
      name: The model's.
      budget_bytes: The budget as bytes; it counts everything resident.
      fixed_bytes: What of it is resident all the time.
      plain_peak_bytes: Predicted peak of the step as it was written.
      measured_peak_bytes: Peak of this step by the allocator's count, the highest on trial; None where nothing could be measured.
      usual_peak_bytes: The peak that about half of the runs on trial stayed below, or None. They differ by where batch and results lie in memory.
      reserve_bytes: How much lower than the budget the plan was made, for what the allocator loses to rounding and fragmentation.
      result: The solver's judged answer, or None where the step runs as it is.
      ops: Ops of the planned graph.
      tensorflow_ops: Ops of the traced step.
      seconds: Phase -> how long it took.
      notes: Cautions, as sentences.
      outside_bytes: What the allocator lost on that, by chunks larger than what is in them; part of the budget, too.
      graph: The graph of the step; that of `result` by default.
      plain_plan: The plan of the step as it was written; by default every op once, in the order of the graph.
      measured_slowdown: Time of this step over that of the plain one, where both were measured.
    """

    name: str
    budget_bytes: int
    fixed_bytes: int
    plain_peak_bytes: int
    measured_peak_bytes: int | None
    reserve_bytes: int
    result: SolveResult | None
    ops: int
    tensorflow_ops: int
    seconds: dict[str, float]
    notes: tuple[str, ...]
    outside_bytes: int = 0
    usual_peak_bytes: int | None = None
    graph: DFGraph | None = field(default=None, repr=False)
    plain_plan: Plan | None = field(default=None, repr=False)
    measured_slowdown: float | None = None

    def __post_init__(self) -> None:
        if self.graph is None and self.result is not None:
            object.__setattr__(self, "graph", self.result.graph)

    @property
    def expected_peak_bytes(self) -> int:
        """The peak that the allocator will show: the usual one on trial, or where nothing could be measured, the predicted one."""
        return self.usual_peak_bytes or self.measured_peak_bytes or self.peak_bytes

    @property
    def lasts_to_bytes(self) -> int:
        """The smallest budget that this plan fits: its measured peak, or where that is not known the predicted one and the reserve."""
        return self.measured_peak_bytes or min(self.budget_bytes, self.peak_bytes + self.reserve_bytes + self.outside_bytes)

    @property
    def peak_bytes(self) -> int:
        """Predicted peak of the step as it runs now."""
        return self.result.peak_bytes if self.result else self.plain_peak_bytes

    def sentence(self) -> str:
        """The report in one sentence."""
        peak = (
            f"{format_bytes(self.measured_peak_bytes)} (measured)"
            if self.measured_peak_bytes
            else f"{format_bytes(self.peak_bytes)} (predicted)"
        )
        if self.result is None:
            return f"{self.name!r} runs as it is, in {peak} of the {format_bytes(self.budget_bytes)} allowed."
        return (
            f"{self.name!r} trains in {peak} instead of {format_bytes(self.plain_peak_bytes)}, within the {format_bytes(self.budget_bytes)} "
            f"allowed, for a predicted {self.result.overhead - 1:.2%} more time; {self._proof()}."
        )

    def facts(self) -> list[tuple[str, str]]:
        """What is printed, as (what, value) in order."""
        rows = [
            (
                "budget",
                f"{format_bytes(self.budget_bytes)}, of which {format_bytes(self.fixed_bytes)} is resident (variables, optimizer, batch)"
                + (f" and {format_bytes(self.outside_bytes)} lost on it by the allocator" if self.outside_bytes else ""),
            ),
            ("predicted peak, plain step", format_bytes(self.plain_peak_bytes)),
            ("predicted peak, this step", f"{format_bytes(self.peak_bytes)} ({self.peak_bytes / self.plain_peak_bytes:.0%} of plain)"),
            ("measured peak, this step", format_bytes(self.measured_peak_bytes) if self.measured_peak_bytes else "not measured"),
            ("reserve", f"{format_bytes(self.reserve_bytes)} for rounding and fragmentation by the allocator"),
        ]
        rows += self._plan_facts() if self.result else [("plan", "none needed: the step runs as it is")]
        return [*rows, ("time", ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items()))]

    def _plan_facts(self) -> list[tuple[str, str]]:
        result, again = self.result, self.result.plan.recomputed
        interrupted = "; interrupted, the best plan until then" if result.status is SolveStatus.INTERRUPTED else ""
        measured = [("measured time", f"{self.measured_slowdown:.2f} times the plain step")] if self.measured_slowdown else []
        plan = (
            f"{len(again)} of {self.ops} ops are recomputed, {sum(again.values())} evaluations more ({self.tensorflow_ops} TensorFlow ops)"
        )
        return [
            ("plan", plan),
            ("predicted cost", f"{result.cost:.4g} s of kernels, {result.overhead - 1:+.2%} on the plain step"),
            *measured,
            ("proven", self._proof()),
            ("solver", f"{result.stats.solver}, {result.stats.seconds:.2f} s, plan by {result.stats.found_by}{interrupted}"),
        ]

    def layers(self) -> list[LayerUse]:
        """What the plan does to each layer that it saves memory on or spends time on, most bytes first; empty where there is no plan."""
        if self.result is None:
            return []
        found = layers(self.graph, self.result.plan, plain=self.plain_plan)
        return sorted((row for row in found if row.saved_bytes > 0 or row.evaluations), key=lambda row: (-row.saved_bytes, -row.cost))

    def next_budgets(self) -> list[str]:
        """At which budgets something changes, as sentences."""
        found = [f"From {format_bytes(self.plain_peak_bytes + self.reserve_bytes)} on nothing is recomputed."]
        if self.result is not None:
            found.append(f"Down to {format_bytes(self.lasts_to_bytes)} this plan fits; below that it takes another one, and more time.")
        if self.graph is not None:
            found.append(f"Below {format_bytes(self._floor().bytes)} no plan exists, because of {self._binding_layer()}.")
        return found

    def advice(self) -> list[str]:
        """What to try if this is not enough, as sentences."""
        if self.result is None or self.graph is None:
            return ["The step fits. A larger batch or a smaller budget would make use of a plan."]
        lowest, found = self._floor(), []
        if self.result.gap > LONG_GAP:
            found.append(
                f"A plan up to {self.result.gap:.1%} faster may exist: give the solver more than {self.result.stats.seconds:.0f} s (time_limit_s)."
            )
        if self.fixed_bytes > MOSTLY_RESIDENT * self.budget_bytes:
            found.append("Most of the budget is resident: an optimizer with fewer slots, such as SGD, or float16 variables lower that.")
        if self.budget_bytes - lowest.bytes < NEAR_FLOOR * (self.plain_peak_bytes - lowest.bytes):
            found.append(
                f"The budget is close to the least possible, which {self._binding_layer()} sets: only a smaller batch or layer lowers that."
            )
        if self.result.overhead > HIGH_OVERHEAD:
            found.append("Half the batch, with gradients accumulated over two, may cost less time than this plan.")
        return found or ["For less memory give a smaller budget; for less time a larger one."]

    def to_html(self) -> str:
        """Returns a page that shows the plan and answers to the mouse. It holds all it needs: write it to a file and open that."""
        if self.graph is None:
            return f"<!doctype html><meta charset='utf-8'><title>{html.escape(self.name)}</title>{self._table()}"
        from checkmate.plot import page

        plan = self.result.plan if self.result else None
        title = f"Checkmate plan of {self.name}"
        rows = [*self.facts(), *self._sentences()]
        return page(self.graph, plan, budget_bytes=self.budget_bytes, plain=self.plain_plan, title=title, lead=self.sentence(), facts=rows)

    def picture(self) -> Picture | None:
        """Returns the memory over the step, plain and as it runs now; None where the graph is not known."""
        if self.graph is None:
            return None
        from checkmate.plot import memory

        plan = self.result.plan if self.result else None
        return memory(self.graph, plan, budget_bytes=self.budget_bytes, plain=self.plain_plan)

    def _ipython_display_(self) -> None:
        show_in_notebook(self._table(), self.picture())

    def _table(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{html.escape(key)}</td><td style='text-align:left'>{html.escape(value)}</td></tr>"
            for key, value in [*self.facts(), *self._sentences()]
        )
        return f"<p><b>{html.escape(self.sentence())}</b></p><table>{rows}</table>"

    def __str__(self) -> str:
        rows = self.facts()
        width = max(len(key) for key, _ in rows)
        lines = [self.sentence(), *(f"  {key:<{width}}  {value}" for key, value in rows)]
        paying = self.layers()[:LAYERS_SHOWN]
        if paying:
            name = max(len(row.name) for row in paying)
            lines.append("  layers that pay, by what they do not keep for the backward pass:")
            lines += [
                f"    {row.name:<{name}}  {format_bytes(row.saved_bytes):>11}  {row.cost:+.2%} time, {row.evaluations} more evaluation{'s' * (row.evaluations != 1)}"
                for row in paying
            ]
        return "\n".join([*lines, *(f"  {key}: {value}" for key, value in self._sentences())])

    def _sentences(self) -> list[tuple[str, str]]:
        return [
            *(("next", sentence) for sentence in self.next_budgets()),
            *(("try", sentence) for sentence in self.advice()),
            *(("note", sentence) for sentence in self.notes),
        ]

    def _proof(self) -> str:
        space = "in any order of ops" if self.result.bound_covers == "any order" else "in this order of ops"
        if self.result.status is SolveStatus.OPTIMAL:
            return f"no plan {space} is faster"
        # Rounded up: a bound must not look better than it is.
        return f"at most {math.ceil(self.result.gap * 1e4) / 1e4:.2%} slower than the best possible plan {space}"

    def _floor(self) -> Floor:
        return floor(self.graph)

    def _binding_layer(self) -> str:
        op = self._floor().op
        return layer_names(self.graph)[op] or self.graph.ops[op].name
