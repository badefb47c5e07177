"""Report: what was asked of a step, what was found, what it costs, which layers pay, and what to
try next; for people."""

from __future__ import annotations

import html
from dataclasses import dataclass

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import floor
from checkmate.plot.layer_names import layer_names
from checkmate.plot.picture import Picture, show_in_notebook
from checkmate.plot.usage import LayerUse, layers
from checkmate.solvers.result import SolveResult, SolveStatus, gap_text
from checkmate.tf2.report_figures import ReportFigures
from checkmate.units import format_bytes

LAYERS_SHOWN = 6
"""How many of the layers that pay are named in the printed report."""

LONG_GAP, HIGH_OVERHEAD, NEAR_FLOOR, MOSTLY_RESIDENT = 0.01, 1.3, 0.1, 0.5
"""When `advice` speaks: the gap; the cost of the plan; the budget's share of the way from floor to
plain peak; the resident share of it."""


@dataclass(frozen=True, slots=True)
class Report(ReportFigures):
    """What was found, with the figures of `ReportFigures`; `to_html()` is an interactive page.

    Example:
      >>> print(step.report())  # doctest: +SKIP
    """

    def sentence(self) -> str:
        """The report in one sentence."""
        peak = (
            f"{format_bytes(self.measured_peak_bytes)} (measured)"
            if self.measured_peak_bytes
            else f"{format_bytes(self.peak_bytes)} (predicted)"
        )
        if self.result is None:
            return (
                f"{self.name!r} runs unchanged, in {peak} of the"
                f" {format_bytes(self.budget_bytes)} allowed."
            )
        return (
            f"{self.name!r} trains in {peak} instead of {format_bytes(self.plain_bytes)}, within"
            f" the {format_bytes(self.budget_bytes)} allowed, for {self._more_time()};"
            f" {self._proof(self.result)}."
        )

    def in_a_line(self) -> str:
        """The report in the few words that fit a line of a terminal."""
        used, allowed = map(format_bytes, (self.expected_peak_bytes, self.budget_bytes))
        if self.result is None:
            return f"runs unchanged, in {used} of {allowed}"
        is_optimal = self.result.status is SolveStatus.OPTIMAL
        gap = "optimal" if is_optimal else f"{gap_text(self.result.gap or 0)} above the bound"
        return f"within {allowed}, {self.predicted_slowdown - 1:+.2%} time, {gap}"

    def _more_time(self) -> str:
        predicted = f"a predicted {self.predicted_slowdown - 1:.2%} more time"
        return predicted + (
            f" ({self.measured_slowdown - 1:+.0%} measured)" if self.measured_slowdown else ""
        )

    def facts(self) -> list[tuple[str, str]]:
        """What is printed, as (what, value) in order."""
        rows = self.memory_facts()
        if self.result and self.result.plan:
            rows += self._plan_facts(self.result, self.result.plan)
        else:
            rows.append(("plan", "none needed: the step runs unchanged"))
        times = (f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())
        return [*rows, ("time", ", ".join(times))]

    def memory_facts(self) -> list[tuple[str, str]]:
        """What the budget is spent on, each byte once, and the peaks, predicted and measured."""
        memory = self.memory
        asked = self.peak_bytes + (memory.other_bytes if self.result else 0)
        peak = self.predicted_peak_bytes or self.measured_peak_bytes or asked
        overhead = memory.allocator_overhead_bytes(peak, asked)
        source = "predicted" if self.predicted_peak_bytes else "measured"
        others = format_bytes(memory.other_bytes - memory.next_batch_bytes)
        limit = memory.device_limit_bytes
        budget = format_bytes(self.budget_bytes)
        if limit:
            budget += f" of the {format_bytes(limit)} that the device has"
        rows = [
            ("budget", budget),
            (
                "resident",
                f"{format_bytes(memory.resident_bytes)}: variables, optimizer, batch, and"
                f" {others} of others",
            ),
        ]
        if memory.next_batch_bytes:
            text = "; what a pipeline makes within a step beyond that is not counted"
            rows.append(("for next batches", format_bytes(memory.next_batch_bytes) + text))
        activations = format_bytes(max(0, asked - memory.fixed_bytes))
        return [
            *rows,
            (
                "fixed, of the step",
                f"{format_bytes(memory.step_bytes)}: results, constants, small values",
            ),
            (
                "activations",
                f"{activations} at the peak, predicted, with gradients and workspaces",
            ),
            (
                "allocator overhead",
                f"{format_bytes(overhead)}, {source}: rounding and holes",
            ),
            ("unused", format_bytes(memory.unused_bytes(self.expected_peak_bytes))),
            *self._peaks(),
        ]

    def _peaks(self) -> list[tuple[str, str]]:
        predicted = self.predicted_peak_bytes or self.peak_bytes
        measured = (
            f"{format_bytes(self.measured_peak_bytes)} measured"
            if self.measured_peak_bytes
            else "not measured"
        )
        share = self.expected_peak_bytes / self.plain_bytes
        plain = f"{format_bytes(self.plain_peak_bytes)} predicted, {self._plain_measured()}"
        return [
            (
                "peak, this step",
                f"{format_bytes(predicted)} predicted, {measured} ({share:.0%} of plain)",
            ),
            ("peak, plain step", plain),
        ]

    def _plan_facts(self, result: SolveResult, plan: Plan) -> list[tuple[str, str]]:
        again, stats = plan.recomputed, result.stats
        recomputed = (
            f"{len(again)} of {self.ops} ops are recomputed, {sum(again.values())} evaluations more"
            f" ({self.tensorflow_ops} TensorFlow ops)"
        )
        solver = f"{stats.solver}, {stats.seconds:.2f} s, plan by {stats.found_by}"
        if result.status is SolveStatus.INTERRUPTED:
            solver += "; interrupted, the best plan until then"
        more = f"{self.predicted_slowdown - 1:+.2%} on the plain step's"
        return [
            ("plan", recomputed),
            ("predicted cost", f"{result.cost:.4g} s of kernels, {more}"),
            ("predicted time", f"{self.predicted_slowdown:.3f} times the plain step"),
            *([("measured time", self._slowdown())] if self.measured_slowdown else []),
            ("proven", self._proof(result)),
            ("solver", solver),
        ]

    def _plain_measured(self) -> str:
        if self.plain_measured_bytes:
            return f"{format_bytes(self.plain_measured_bytes)} measured" + (
                f", {self.plain_seconds:.3g} s" if self.plain_seconds else ""
            )
        return "not measured" + (f": {self.plain_not_measured}" if self.plain_not_measured else "")

    def _slowdown(self) -> str:
        times = f"{self.measured_slowdown:.2f} times the plain step"
        return (
            f"{times} ({self.step_seconds:.3g} s instead of {self.plain_seconds:.3g} s)"
            if self.step_seconds and self.plain_seconds
            else times
        )

    def layers(self) -> list[LayerUse]:
        """What the plan does to each layer that it saves memory on or spends time on, most bytes
        first; empty where there is no plan."""
        if self.graph is None or self.result is None or self.result.plan is None:
            return []
        found = layers(self.graph, self.result.plan, plain=self.plain_plan)
        return sorted(
            (row for row in found if row.saved_bytes > 0 or row.evaluations),
            key=lambda row: (-row.saved_bytes, -row.cost),
        )

    def next_budgets(self) -> list[str]:
        """At which budgets something changes, as sentences."""
        found = [f"From {format_bytes(self.plain_bytes)} on nothing is recomputed."]
        if self.result is not None:
            found.append(
                f"Down to {format_bytes(self.lasts_to_bytes)} this plan fits; below that it takes"
                " another one, and more time."
            )
        if self.graph is not None:
            found.append(
                f"Below {format_bytes(floor(self.graph).bytes)} no plan exists, because of"
                f" {_binding_layer(self.graph)}."
            )
        return found

    def advice(self) -> list[str]:
        """What to try if this is not enough, as sentences."""
        if self.result is None or self.graph is None:
            return ["The step fits. A larger batch or a smaller budget would make use of a plan."]
        lowest, found, gap = floor(self.graph).bytes, [], self.result.gap or 0.0
        if gap > LONG_GAP:
            found.append(
                f"A plan up to {gap:.1%} faster may exist: give the solver more than"
                f" {self.result.stats.seconds:.0f} s (time_limit_s)."
            )
        if self.fixed_bytes > MOSTLY_RESIDENT * self.budget_bytes:
            found.append(
                "Most of the budget is resident: an optimizer with fewer slots, such as SGD, or"
                " float16 variables lower that."
            )
        if self.budget_bytes - lowest < NEAR_FLOOR * (self.plain_peak_bytes - lowest):
            found.append(
                "The budget is close to the least possible, which"
                f" {_binding_layer(self.graph)} sets: only a smaller batch or layer lowers that."
            )
        if self.predicted_slowdown > HIGH_OVERHEAD:
            found.append(
                "Half the batch, with gradients accumulated over two, may cost less time than this"
                " plan."
            )
        return found or ["For less memory give a smaller budget; for less time a larger one."]

    def to_html(self) -> str:
        """Returns a page that shows the plan, answers to the mouse and loads nothing. Write it to a
        file and open that."""
        if self.graph is None:
            return (
                "<!doctype html><meta"
                f" charset='utf-8'><title>{html.escape(self.name)}</title>{self._table()}"
            )
        from checkmate.plot import page

        plan = self.result.plan if self.result else None
        title = f"Checkmate plan of {self.name}"
        rows = [*self.facts(), *self._sentences()]
        return page(
            self.graph,
            plan,
            budget_bytes=self.budget_bytes,
            plain=self.plain_plan,
            title=title,
            lead=self.sentence(),
            facts=rows,
        )

    def picture(self) -> Picture | None:
        """Returns the memory over the step, plain and as it runs now; None where the graph is not
        known."""
        if self.graph is None:
            return None
        from checkmate.plot import memory

        plan = self.result.plan if self.result else None
        return memory(self.graph, plan, budget_bytes=self.budget_bytes, plain=self.plain_plan)

    def _ipython_display_(self) -> None:
        show_in_notebook(self._table(), self.picture())

    def _table(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{html.escape(key)}</td><td"
            f" style='text-align:left'>{html.escape(value)}</td></tr>"
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
                f"    {row.name:<{name}}  {format_bytes(row.saved_bytes):>11}  {row.cost:+.2%}"
                f" time, {row.evaluations} more evaluation{'s' * (row.evaluations != 1)}"
                for row in paying
            ]
        return "\n".join([*lines, *(f"  {key}: {value}" for key, value in self._sentences())])

    def _sentences(self) -> list[tuple[str, str]]:
        return [
            *(("next", sentence) for sentence in self.next_budgets()),
            *(("try", sentence) for sentence in self.advice()),
            *(("note", sentence) for sentence in self.notes),
        ]

    def _proof(self, result: SolveResult) -> str:
        any_order = result.bound_covers == "any order"
        space = "in any order of ops" if any_order else "in this order of ops"
        if result.status is SolveStatus.OPTIMAL or result.gap is None:
            return f"no plan {space} is faster"
        return f"at most {gap_text(result.gap)} slower than the best possible plan {space}"


def _binding_layer(graph: DFGraph) -> str:
    op = floor(graph).op
    return layer_names(graph)[op] or graph.ops[op].name
