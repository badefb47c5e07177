"""Report: what was asked of a step, what was found, what it costs, which layers pay, and what to
try next; for people."""

from __future__ import annotations

from dataclasses import dataclass

from checkmate.core.graph import DFGraph
from checkmate.core.replay import floor
from checkmate.plot.layer_names import layer_names
from checkmate.plot.page import html_text
from checkmate.plot.picture import Picture, show_in_notebook
from checkmate.plot.usage import LayerUse, layers
from checkmate.printable import printable
from checkmate.solvers.result import SolveStatus, gap_text
from checkmate.tf2.report_facts import ReportFacts
from checkmate.units import format_bytes

LAYERS_SHOWN = 6
"""How many of the layers that pay are named in the printed report."""

LONG_GAP, HIGH_OVERHEAD, NEAR_FLOOR, MOSTLY_RESIDENT = 0.01, 1.3, 0.1, 0.5
"""When `advice` speaks: the gap; the cost of the plan; the budget's share of the way from floor to
plain peak; the resident share of it."""


@dataclass(frozen=True, slots=True)
class Report(ReportFacts):
    """What was found, with the figures of `ReportFigures`; `to_html()` is an interactive page.

    Example:
      >>> print(step.report())  # doctest: +SKIP
    """

    def sentence(self) -> str:
        """The report in one sentence."""
        peak = (
            f"{format_bytes(self.measured_peak_bytes)} (measured)"
            if self.measured_peak_bytes
            else f"{format_bytes(self.expected_peak_bytes)} (predicted)"
        )
        if self.result is None and self.micro_batches is None:
            return (
                f"{self.name!r} runs unchanged, in {peak} of the"
                f" {format_bytes(self.budget_bytes)} allowed."
            )
        return (
            f"{self.name!r} trains in {peak} instead of {format_bytes(self.plain_peak_bytes)},"
            f" within the {format_bytes(self.budget_bytes)} allowed,{self._how()} for"
            f" {self._more_time()}; {self._proof()}."
        )

    def _how(self) -> str:
        """In which slices, and with how many layers recomputed."""
        if self.micro_batches is None:
            return ""
        count = f" in {self.micro_batches.count} micro-batches of {self.micro_batches.size}"
        again = sum(bool(row.evaluations) for row in self.layers())
        layers = f" and with {again} layer{'s' * (again != 1)} recomputed" if again else ""
        return f"{count}{layers},"

    def in_a_line(self) -> str:
        """The report in the few words that fit a line of a terminal."""
        used, allowed = map(format_bytes, (self.expected_peak_bytes, self.budget_bytes))
        if self.micro_batches:
            count = f"in {self.micro_batches.count} micro-batches"
            return f"{count}, within {allowed}, {self.predicted_slowdown - 1:+.2%} time"
        if self.result is None:
            return f"runs unchanged, in {used} of {allowed}"
        is_optimal = self.result.status is SolveStatus.OPTIMAL
        gap = "optimal" if is_optimal else f"{gap_text(self.result.gap or 0)} above the bound"
        return f"within {allowed}, {self.predicted_slowdown - 1:+.2%} time, {gap}"

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
        enough = format_bytes(self.plain_peak_bytes)
        found = [
            f"From {enough} on the batch need not be split."
            if self.micro_batches
            else f"From {enough} on nothing is recomputed."
        ]
        if self.result is not None:
            found.append(
                f"Down to {format_bytes(self.lasts_to_bytes)} this plan fits; below that it takes"
                " another one, and more time."
            )
        if self.graph is not None:
            found.append(
                f"Below {format_bytes(floor(self.graph).bytes)} no plan"
                f"{' of such a slice' if self.micro_batches else ''} exists, because of"
                f" {_binding_layer(self.graph)}."
            )
        return found

    def advice(self) -> list[str]:
        """What to try if this is not enough, as sentences."""
        if self.result is None and self.micro_batches:
            return ["A slice fits as it is. A smaller budget would make use of a plan."]
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
                "More micro-batches may cost less time than this plan."
                if self.micro_batches
                else 'The batch in slices (micro_batches="auto") may cost less time than this plan.'
            )
        return found or ["For less memory give a smaller budget; for less time a larger one."]

    def to_html(self) -> str:
        """Returns a page that shows the plan, answers to the mouse and loads nothing. Write it to a
        file and open that."""
        if self.graph is None:
            return (
                "<!doctype html><meta"
                f" charset='utf-8'><title>{html_text(self.name)}</title>{self._table()}"
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
            f"<tr><td style='text-align:left'>{html_text(key)}</td><td"
            f" style='text-align:left'>{html_text(value)}</td></tr>"
            for key, value in [*self.facts(), *self._sentences()]
        )
        return f"<p><b>{html_text(self.sentence())}</b></p><table>{rows}</table>"

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
        lines += [f"  {key}: {value}" for key, value in self._sentences()]
        return "\n".join(map(printable, lines))

    def _sentences(self) -> list[tuple[str, str]]:
        return [
            *(("next", sentence) for sentence in self.next_budgets()),
            *(("try", sentence) for sentence in self.advice()),
            *(("note", sentence) for sentence in self.notes),
        ]


def _binding_layer(graph: DFGraph) -> str:
    op = floor(graph).op
    return layer_names(graph)[op] or graph.ops[op].name
