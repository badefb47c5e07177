"""Report: what was asked of a step, what was found, what it costs, which layers pay, and what to
try next; for people."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field, replace

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import Floor, floor
from checkmate.plot.layer_names import layer_names
from checkmate.plot.picture import Picture, show_in_notebook
from checkmate.plot.usage import LayerUse, layers
from checkmate.solvers.result import SolveResult, SolveStatus
from checkmate.tf2.memory.budget import MemoryBudget
from checkmate.units import format_bytes

LAYERS_SHOWN = 6
"""How many of the layers that pay are named in the printed report."""

LONG_GAP, HIGH_OVERHEAD, NEAR_FLOOR, MOSTLY_RESIDENT = 0.01, 1.3, 0.1, 0.5
"""When `advice` speaks: the gap; the cost of the plan; the budget's share of the way from floor to
plain peak; the resident share of it."""

SLOWER, START_S = 0.3, 0.002
"""When a step is said to be slower than predicted, as each was timed once or twice: by which share
of the plain step's time, and by how many seconds at least."""


@dataclass(frozen=True, slots=True)
class Report:
    """What `print(step.report())` shows; `to_html()` is a page with pictures that answer to the
    mouse.

    Attributes:
      name: The model's.
      memory: What the budget is spent on.
      fixed_bytes: What of it is resident all the time.
      plain_peak_bytes: Predicted peak of the step as it was written; "60%" is a share of its
        measured peak where there is one.
      measured_peak_bytes: Peak of this step by the allocator's count, in the steps that confirmed
        it; None where nothing could be measured.
      predicted_peak_bytes: The peak by the allocator's count that is expected in training, with
        batches that lie elsewhere each time; None where it was not predicted.
      result: The solver's judged answer, or None where the step runs as it is.
      ops: Ops of the planned graph.
      tensorflow_ops: TensorFlow ops of the step that is planned: what the graph optimizer leaves of
        those that were traced.
      seconds: Phase -> how long it took.
      notes: Cautions, as sentences.
      outside_bytes: What else was in use on the device when the step was planned: an input
        pipeline's batches, other tensors, and what the allocator lost on all of them by chunks
        larger than what is in them; and the next batches. Part of the budget, too.
      graph: The graph of the step; that of `result` by default.
      plain_plan: The plan of the step as it was written; by default every op once, in the order of
        the graph.
      measured_slowdown: Time of this step over that of the plain one, where both were measured.
      plain_measured_bytes: Peak of the plain step by the allocator's count, as TensorFlow runs it;
        None where it was not measured.
      plain_not_measured: Why it was not, as a clause.
      plain_seconds: Measured time of a plain step, or None.
      step_seconds: Measured time of a step as it runs now, or None.
      cpu_seconds: The same of all CPU cores together.
      steps_before: How many steps were run before the first one that counts, those of the plain
        step left out.
    """

    name: str
    memory: MemoryBudget
    fixed_bytes: int
    plain_peak_bytes: int
    measured_peak_bytes: int | None
    result: SolveResult | None
    ops: int
    tensorflow_ops: int
    seconds: dict[str, float]
    notes: tuple[str, ...]
    outside_bytes: int = 0
    predicted_peak_bytes: int | None = None
    graph: DFGraph | None = field(default=None, repr=False)
    plain_plan: Plan | None = field(default=None, repr=False)
    measured_slowdown: float | None = None
    plain_measured_bytes: int | None = None
    plain_not_measured: str = ""
    plain_seconds: float | None = None
    step_seconds: float | None = None
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    steps_before: int = 0

    def __post_init__(self) -> None:
        if self.graph is None and self.result is not None:
            object.__setattr__(self, "graph", self.result.graph)

    def with_seconds(self, plain: float | None, step: float | None) -> Report:
        """The same with measured times of the plain step and of this one, and a note where this one
        is slower than was predicted."""
        if not plain or not step:
            return replace(self, plain_seconds=plain)
        report = replace(
            self, plain_seconds=plain, step_seconds=step, measured_slowdown=step / plain
        )
        if not report.is_slower_than_predicted:
            return report
        note = (
            f"A step takes {report.measured_slowdown:.2f} times as long as the plain one"
            f" ({plain:.3g} s), and {report.predicted_slowdown:.2f} times was predicted. Raise the"
            " budget, give TensorFlow more threads, or tell the authors of checkmate of this"
            " model."
        )
        return replace(report, notes=(*self.notes, note))

    @property
    def budget_bytes(self) -> int:
        """The budget; it counts everything resident."""
        return self.memory.limit_bytes

    @property
    def predicted_slowdown(self) -> float:
        """Predicted time of this step's kernels over that of the plain one's. That a plan runs one
        op at a time is not in it."""
        return self.result.overhead if self.result else 1.0

    @property
    def is_slower_than_predicted(self) -> bool:
        """True where a step takes longer than was predicted by more than three tenths of the plain
        step, and by more than what starting a step takes."""
        if not self.measured_slowdown or self.result is None:
            return False
        slower = self.measured_slowdown - self.predicted_slowdown
        return slower > SLOWER and slower * self.plain_seconds > START_S

    @property
    def plain_bytes(self) -> int:
        """The plain step's peak: measured, or where that is not known predicted."""
        return self.plain_measured_bytes or self.plain_peak_bytes

    @property
    def expected_peak_bytes(self) -> int:
        """The peak that the allocator will show: predicted from what ops ask it for, else measured,
        else what they ask for alone."""
        return self.predicted_peak_bytes or self.measured_peak_bytes or self.peak_bytes

    @property
    def lasts_to_bytes(self) -> int:
        """The smallest budget that this plan fits: the peak that it was predicted to have, or
        measured."""
        return max(self.measured_peak_bytes or 0, self.predicted_peak_bytes or self.peak_bytes)

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
            return (
                f"{self.name!r} runs as it is, in {peak} of the {format_bytes(self.budget_bytes)}"
                " allowed."
            )
        return (
            f"{self.name!r} trains in {peak} instead of {format_bytes(self.plain_bytes)}, within"
            f" the {format_bytes(self.budget_bytes)} allowed, for {self._more_time()};"
            f" {self._proof()}."
        )

    def _more_time(self) -> str:
        predicted = f"a predicted {self.predicted_slowdown - 1:.2%} more time"
        return predicted + (
            f" ({self.measured_slowdown - 1:+.0%} measured)" if self.measured_slowdown else ""
        )

    def facts(self) -> list[tuple[str, str]]:
        """What is printed, as (what, value) in order."""
        rows = self.memory_facts()
        rows += (
            self._plan_facts() if self.result else [("plan", "none needed: the step runs as it is")]
        )
        return [
            *rows,
            (
                "time",
                ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items()),
            ),
        ]

    def memory_facts(self) -> list[tuple[str, str]]:
        """What the budget is spent on, each byte once, and the peaks, predicted and measured."""
        memory, limit = self.memory, self.memory.device_limit_bytes
        asked = self.peak_bytes + (self.outside_bytes if self.result else 0)
        overhead = (self.predicted_peak_bytes or self.measured_peak_bytes or asked) - asked
        seen = self.outside_bytes - memory.next_batch_bytes
        rows = [
            (
                "budget",
                format_bytes(self.budget_bytes)
                + (f" of the {format_bytes(limit)} that the device has" if limit else ""),
            ),
            (
                "resident before",
                (
                    f"{format_bytes(memory.resident_bytes)}: variables, optimizer, batch, and"
                    f" {format_bytes(seen)} of others"
                ),
            ),
            (
                "left for next batches",
                (
                    f"{format_bytes(memory.next_batch_bytes)}; what a pipeline makes within a step"
                    " beyond that is not counted"
                ),
            ),
            (
                "the step's own",
                f"{format_bytes(memory.step_bytes)}: results, constants, small values",
            ),
            (
                "activations",
                (
                    f"{format_bytes(max(0, asked - memory.fixed_bytes))} at the peak, predicted,"
                    " with gradients and workspaces"
                ),
            ),
            (
                "allocator's overhead",
                (
                    f"{format_bytes(max(0, overhead))},"
                    f" {'predicted' if self.predicted_peak_bytes else 'measured'}: rounding and"
                    " holes"
                ),
            ),
            ("unused", format_bytes(max(0, self.budget_bytes - self.expected_peak_bytes))),
            (
                "peak, this step",
                f"{self._peaks()} ({self.expected_peak_bytes / self.plain_bytes:.0%} of plain)",
            ),
            (
                "peak, plain step",
                f"{format_bytes(self.plain_peak_bytes)} predicted, {self._plain_measured()}",
            ),
        ]
        return [row for row in rows if row[0] != "left for next batches" or memory.next_batch_bytes]

    def _peaks(self) -> str:
        predicted = self.predicted_peak_bytes or self.peak_bytes
        measured = (
            f"{format_bytes(self.measured_peak_bytes)} measured"
            if self.measured_peak_bytes
            else "not measured"
        )
        return f"{format_bytes(predicted)} predicted, {measured}"

    def _plan_facts(self) -> list[tuple[str, str]]:
        result, again = self.result, self.result.plan.recomputed
        interrupted = (
            "; interrupted, the best plan until then"
            if result.status is SolveStatus.INTERRUPTED
            else ""
        )
        measured = [("measured time", self._slowdown())] if self.measured_slowdown else []
        plan = (
            f"{len(again)} of {self.ops} ops are recomputed, {sum(again.values())} evaluations more"
            f" ({self.tensorflow_ops} TensorFlow ops)"
        )
        return [
            ("plan", plan),
            (
                "predicted cost",
                f"{result.cost:.4g} s of kernels, {result.overhead - 1:+.2%} on the plain step's",
            ),
            ("predicted time", f"{self.predicted_slowdown:.3f} times the plain step"),
            *measured,
            ("proven", self._proof()),
            (
                "solver",
                (
                    f"{result.stats.solver}, {result.stats.seconds:.2f} s, plan by"
                    f" {result.stats.found_by}{interrupted}"
                ),
            ),
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
        if self.result is None:
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
                f"Below {format_bytes(self._floor().bytes)} no plan exists, because of"
                f" {self._binding_layer()}."
            )
        return found

    def advice(self) -> list[str]:
        """What to try if this is not enough, as sentences."""
        if self.result is None or self.graph is None:
            return ["The step fits. A larger batch or a smaller budget would make use of a plan."]
        lowest, found = self._floor(), []
        if self.result.gap > LONG_GAP:
            found.append(
                f"A plan up to {self.result.gap:.1%} faster may exist: give the solver more than"
                f" {self.result.stats.seconds:.0f} s (time_limit_s)."
            )
        if self.fixed_bytes > MOSTLY_RESIDENT * self.budget_bytes:
            found.append(
                "Most of the budget is resident: an optimizer with fewer slots, such as SGD, or"
                " float16 variables lower that."
            )
        if self.budget_bytes - lowest.bytes < NEAR_FLOOR * (self.plain_peak_bytes - lowest.bytes):
            found.append(
                f"The budget is close to the least possible, which {self._binding_layer()} sets:"
                " only a smaller batch or layer lowers that."
            )
        if self.result.overhead > HIGH_OVERHEAD:
            found.append(
                "Half the batch, with gradients accumulated over two, may cost less time than this"
                " plan."
            )
        return found or ["For less memory give a smaller budget; for less time a larger one."]

    def to_html(self) -> str:
        """Returns a page that shows the plan and answers to the mouse. It holds all it needs: write
        it to a file and open that."""
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

    def _proof(self) -> str:
        space = (
            "in any order of ops"
            if self.result.bound_covers == "any order"
            else "in this order of ops"
        )
        if self.result.status is SolveStatus.OPTIMAL:
            return f"no plan {space} is faster"
        # Rounded up: a bound must not look better than it is.
        return (
            f"at most {math.ceil(self.result.gap * 1e4) / 1e4:.2%} slower than the best possible"
            f" plan {space}"
        )

    def _floor(self) -> Floor:
        return floor(self.graph)

    def _binding_layer(self) -> str:
        op = self._floor().op
        return layer_names(self.graph)[op] or self.graph.ops[op].name
