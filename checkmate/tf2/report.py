"""Report: what was asked of a step, what was found, what it costs, which layers pay, and what to
try next; for people."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkmate import plot
from checkmate.core.graph import DFGraph
from checkmate.core.layer_names import layer_names
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, op_floors
from checkmate.plot.page import html_text
from checkmate.plot.picture import Picture, show_in_notebook
from checkmate.plot.usage import Allocated, LayerUse, layers
from checkmate.printable import printable
from checkmate.solvers.result import SolveResult, SolveStatus, gap_text
from checkmate.tf2.memory.budget import MemoryBudget
from checkmate.units import Bytes, format_bytes, is_share

_PART = re.compile(r"_tile(\d+)|/part_(\d+)")
"""In the name of an op that is a tile of another, or a segment of a loop: which."""

LAYERS_SHOWN = 6
"""How many of the layers that pay are named in the printed report."""

OTHER_BUDGETS = "For less memory give a smaller budget; for less time a larger one."

LONG_GAP, HIGH_OVERHEAD, NEAR_FLOOR, MOSTLY_RESIDENT = 0.01, 1.3, 0.1, 0.5
"""When `advice` speaks: the gap; the cost of the plan; the budget's share of the way from floor to
plain peak; the resident share of it."""


def _layers_of(graph: DFGraph) -> list[str]:
    """The layer of each op, of all parts of it the same; one outside all layers is its own."""
    pairs = zip(graph.ops, layer_names(graph), strict=True)
    return [_PART.split(layer or op.name)[0] for op, layer in pairs]


def _by_layer(graph: DFGraph) -> dict[str, tuple[int, float]]:
    """By layer the most bytes that one of its ops needs besides fixed bytes, and its seconds."""
    found: dict[str, tuple[int, float]] = {}
    for op, layer, least in zip(graph.ops, _layers_of(graph), op_floors(graph), strict=True):
        needed, cost = found.get(layer, (0, 0.0))
        found[layer] = max(needed, least.bytes - graph.fixed_bytes), cost + op.cost
    return found


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """A batch that runs in `count` slices of `size` examples; the last may have fewer.

    Attributes:
      kept_bytes: Sums of gradients and results, which are read after the slices.
      peak_bytes: Predicted peak of a slice without a plan.
      cost, bound, once_cost: Seconds of the whole step's kernels: predicted, with the best possible
        plan in these slices, and without recomputation.
      plain_cost: Those of the plain step; None where they were not measured.
      plain_bytes: The plain step's own peak, of which a budget can be a share.
    """

    count: int
    size: int
    examples: int
    kept_bytes: int
    peak_bytes: int
    cost: float
    bound: float
    once_cost: float
    plain_cost: float | None
    plain_bytes: int


@dataclass(frozen=True, slots=True)
class TriedSlices:
    """A number of micro-batches that was looked at: no plan lasts less than `bound` seconds, and
    the one found lasts `cost`, None if none was looked for or found."""

    count: int
    bound: float
    cost: float | None = None


@dataclass(slots=True)
class Clusters:
    """The parts of a plan that XLA compiles, or with `calls` None the whole step; whether XLA does
    so shows when that runs first.

    Attributes:
      calls: How many calls there are in a step.
      functions: Of how many functions, since equal parts are one.
      tried: How many functions were compiled and measured.
      saved_s: By how many seconds the calls are faster than their ops, each measured alone.
      seconds: What it took to compile and measure, also those that do not pay.
      refused: The first ops of the parts that XLA did not compile.
      why_not: Why it compiles nothing, where that was known without measuring.
    """

    calls: int | None = None
    functions: int = 0
    tried: int = 0
    saved_s: float = 0.0
    seconds: float = 0.0
    refused: tuple[str, ...] = ()
    why_not: str = ""

    def text(self) -> str:
        """In a line of the report."""
        if self.why_not:
            return f"nothing: {self.why_not}"
        if self.calls is None:
            return "all of it"
        took = f"to compile and measure {self.tried} took {self.seconds:.1f} s"
        parts = f"no part of the plan: none is a tenth faster so and fits; {took}"
        if self.calls:
            parts = (
                f"{self.calls} of the plan's parts, {self.functions} of them distinct;"
                f" {1000 * self.saved_s:.3g} ms less a step than their ops, each measured alone;"
                f" {took}"
            )
        more = f"; XLA refused what begins with {', '.join(self.refused)}" if self.refused else ""
        return f"{parts}{more}"


@dataclass(frozen=True, slots=True)
class Report:
    """The budget, the plan and its cost; `to_html()` is an interactive page.

    Attributes:
      name: The model's.
      memory: What the budget is spent on.
      plain_peak_bytes: Predicted peak of the step as it was written, of which "60%" is a share.
      predicted_peak_bytes: The peak by the allocator's count that is expected in training, with
        batches that lie elsewhere each time.
      measured_peak_bytes: The highest peak of the steps that ran, by the allocator's count; None
        before the first, and where the allocator does not report.
      result: The solver's judged answer, or None where the step runs unchanged.
      tensorflow_ops: TensorFlow ops of the step that is planned: what the graph optimizer leaves of
        those that were traced.
      seconds: Phase -> how long it took.
      notes: Cautions, as sentences.
      graph: The graph of the step.
      plain_plan: The plan of the step as it was written.
      steps: How many steps ran under this plan.
      step_seconds: The shortest time of one of them but the first; None where it is not known.
      micro_batches: Where the batch runs in slices, how. Then `graph`, `result` and `ops` are those
        of a slice.
      tried_slices: The numbers of micro-batches that were looked at, where it was to be chosen.
      clusters: What of the step XLA compiles, where that was asked for.
      plain_graph: The graph of the plain step, where `graph` may be of another.
      planned_bodies: Sentences about the loops that run bodies under plans of their own.
      asked: The budget as it was asked for.
      examples: The size of the batch; None where that is not known.
      origin: Where the plan comes from, if not from a first search: "plan from FILE", "planned
        anew: " and why.

    Examples:
      >>> report = step.report()
      >>> report.plain_peak_bytes, report.peak_bytes, report.predicted_slowdown
      >>> print(report)
    """

    name: str
    memory: MemoryBudget
    plain_peak_bytes: int
    predicted_peak_bytes: int
    result: SolveResult | None
    graph: DFGraph = field(repr=False)
    plain_plan: Plan = field(repr=False)
    tensorflow_ops: int
    seconds: dict[str, float]
    notes: tuple[str, ...]
    measured_peak_bytes: int | None = None
    steps: int = 0
    step_seconds: float | None = None
    micro_batches: MicroBatches | None = None
    tried_slices: tuple[TriedSlices, ...] = ()
    plain_graph: DFGraph | None = field(default=None, repr=False)
    planned_bodies: tuple[str, ...] = ()
    clusters: Clusters | None = None
    asked: Bytes = ""
    examples: int | None = None
    origin: str = ""

    @property
    def ops(self) -> int:
        """Ops of the planned graph."""
        return len(self.graph)

    @property
    def budget_bytes(self) -> int:
        """The budget; it counts all resident bytes."""
        return self.memory.limit_bytes

    @property
    def fixed_bytes(self) -> int:
        """The fixed bytes that the step's graph counts."""
        return self.memory.graph_fixed_bytes

    @property
    def outside_bytes(self) -> int:
        """The fixed bytes that the step's graph does not count: what else was in use on the device
        when the step was planned (an input pipeline's batches, other tensors, and what the
        allocator lost on all of them), and the next batches."""
        return self.memory.other_bytes

    @property
    def predicted_slowdown(self) -> float:
        """Predicted time of this step's kernels over that of the plain one's. It does not count
        that a plan runs one op at a time. Where the plain step of a batch in slices was not
        measured, it is taken to cost what the slices cost without recomputation."""
        micro = self.micro_batches
        if micro is not None:
            return micro.cost / (micro.plain_cost or micro.once_cost)
        if self.result is None or self.result.cost is None:
            return 1.0
        return self.result.cost / (self.plain_graph or self.graph).total_cost

    @property
    def expected_peak_bytes(self) -> int:
        """The peak that the allocator will show: `predicted_peak_bytes`."""
        return self.predicted_peak_bytes

    @property
    def lasts_to_bytes(self) -> int:
        """The smallest budget that this plan fits: its predicted peak, or its measured one."""
        return max(self.measured_peak_bytes or 0, self.predicted_peak_bytes)

    @property
    def peak_bytes(self) -> int:
        """Peak of the step as it runs now by the judge's count."""
        peak = self.result.peak_bytes if self.result else None
        if peak is None:
            return self.micro_batches.peak_bytes if self.micro_batches else self.plain_peak_bytes
        return peak

    def sentence(self) -> str:
        """The report in one sentence."""
        source = "measured" if self.measured_peak_bytes else "predicted"
        peak = format_bytes(self.measured_peak_bytes or self.predicted_peak_bytes)
        allowed = f"the {format_bytes(self.budget_bytes)} allowed"
        excess = (self.measured_peak_bytes or 0) - self.budget_bytes
        within = f"within {allowed}" if excess <= 0 else f"{format_bytes(excess)} above {allowed}"
        if self.result is None and self.micro_batches is None:
            return f"{self.name!r} runs unchanged, in {peak} ({source}), {within}."
        plain = format_bytes(self.plain_peak_bytes)
        peaks = f"{peak} instead of {plain} (both predicted)"
        if self.measured_peak_bytes:
            peaks = f"{peak} (measured) instead of {plain} (predicted)"
        more = self.predicted_slowdown - 1
        return (
            f"{self.name!r} trains in {peaks},"
            f" {within},{self._how()} for a predicted"
            f" {abs(more):.2%} {'more' if more >= 0 else 'less'} time; {self._proof()}."
        )

    def _how(self) -> str:
        if self.micro_batches is None:
            split = " and ".join(self.split_layers)
            return f" with its largest ops {split}," if split else ""
        count = f" in {self.micro_batches.count} micro-batches of {self.micro_batches.size}"
        again = sum(bool(row.evaluations) for row in self.layers())
        layers = f" and with {again} layer{'s' * (again != 1)} recomputed" if again else ""
        return f"{count}{layers},"

    @property
    def split_layers(self) -> dict[str, list[str]]:
        """How the largest ops run, as "in 4 tiles" -> the layers that they are of."""
        parts: dict[tuple[str, str], int] = {}
        if self.plain_graph is not None:
            for op, layer in zip(self.graph.ops, _layers_of(self.graph), strict=True):
                if found := _PART.search(op.name):
                    kind = "tiles" if found[1] else "segments"
                    number = int(found[1] or found[2])
                    parts[kind, layer] = max(parts.get((kind, layer), 0), number + 1)
        layers: dict[str, list[str]] = {}
        for (kind, layer), count in parts.items():
            if count > 1:  # else what its parts have in common
                layers.setdefault(f"in {count} {kind}", []).append(layer)
        return layers

    def _split_facts(self) -> list[tuple[str, str]]:
        """For each way in which ops are split, the layers with what their ops need at once, in
        parts and as a whole, and the time that the parts take more."""
        if self.plain_graph is None:
            return []
        parts, whole, facts = _by_layer(self.graph), _by_layer(self.plain_graph), []
        for how, names in self.split_layers.items():
            told = []
            for name in names:
                (needed, cost), (before, plain) = parts[name], whole.get(name, (0, 0.0))
                price = (cost - plain) / self.plain_graph.total_cost
                if needed < before:
                    sizes = f"{format_bytes(needed)} at once for {format_bytes(before)}"
                    told.append(f"{name} ({sizes}, {price:+.1%} time)")
            told = (told or names)[:LAYERS_SHOWN]
            more = f" and {len(names) - len(told)} more" if len(names) > len(told) else ""
            facts.append((how, f"the largest ops of {', '.join(told)}{more}"))
        return facts

    def in_a_line(self) -> str:
        """The report in the few words that fit a line of a terminal."""
        used, allowed = map(format_bytes, (self.predicted_peak_bytes, self.budget_bytes))
        facts = [f"predicted {used} of {allowed}"]
        if self.micro_batches:
            facts.insert(0, f"in {self.micro_batches.count} micro-batches")
        elif self.split_layers:
            facts.insert(0, f"largest ops {' and '.join(self.split_layers)}")
        elif self.result is None:
            facts[0] = f"runs unchanged, {facts[0]}"
        if self.result or self.micro_batches:
            facts.append(f"{self.predicted_slowdown - 1:+.2%} time")
        if self.result and not self.micro_batches:
            is_optimal = self.result.status is SolveStatus.OPTIMAL
            gap = gap_text(self.result.gap or 0)
            facts.append("optimal" if is_optimal else f"{gap} above the bound")
        return ", ".join([*facts, *filter(None, [self.origin])])

    def layers(self) -> list[LayerUse]:
        """The layers that the plan saves memory on or spends time on, most bytes first; empty
        without a plan."""
        if self.result is None or self.result.plan is None:
            return []
        found = layers(self.graph, self.result.plan, plain=self.plain_plan)
        return sorted(
            (row for row in found if row.saved_bytes > 0 or row.evaluations),
            key=lambda row: (-row.saved_bytes, -row.cost),
        )

    def next_budgets(self) -> list[str]:
        """At which budgets something changes, as sentences."""
        enough, other = format_bytes(self.plain_peak_bytes), self.memory.other_bytes
        more = "the batch need not be split" if self.micro_batches else "nothing is recomputed"
        if self.result is not None and "recompute" in self.result.rules:
            more = "nothing is recomputed but what was asked for"
        found = [f"From {enough} on {more}."]
        if self.result is not None:
            found.append(
                f"Down to {format_bytes(self.lasts_to_bytes)} this plan fits; below that it takes"
                " another one, and more time."
            )
        if self.planned_bodies:
            return found
        found.append(
            f"Below {format_bytes(floor(self.graph).bytes + other)} no plan"
            f"{' of such a slice' if self.micro_batches else ''} exists, because of"
            f" {_binding_layer(self.graph)}."
        )
        return found

    def advice(self) -> list[str]:
        """Advice for a smaller or a faster step, as sentences."""
        if self.result is None and self.micro_batches:
            return ["A slice fits as it is. A smaller budget would make use of a plan."]
        if self.result is None:
            return ["The step fits. A larger batch or a smaller budget would make use of a plan."]
        if self.planned_bodies:
            return [OTHER_BUDGETS]
        lowest = floor(self.graph).bytes + self.memory.other_bytes
        found, gap = [], self.result.gap or 0.0
        # Of layers that are recomputed the bound counts only what is certain.
        if gap > LONG_GAP and "recompute" not in self.result.rules:
            seconds = self.result.stats.seconds
            how = f"give the solver more than {seconds:.2g} s (time_limit_s)"
            if not seconds:
                how = "make one for this budget, without plan="
            found.append(f"A plan up to {gap:.1%} faster may exist: {how}.")
        if self.fixed_bytes > MOSTLY_RESIDENT * self.budget_bytes:
            found.append(
                "Most of the budget is resident: an optimizer with fewer slots, such as SGD, or"
                " float16 variables lower that."
            )
        if self.budget_bytes - lowest < NEAR_FLOOR * (self.plain_peak_bytes - lowest):
            has_batch = self.examples != 1 and self.fixed_bytes <= MOSTLY_RESIDENT * lowest
            part = "slice, batch or " if self.micro_batches else "batch or " * has_batch
            found.append(
                "The budget is close to the least possible, which"
                f" {_binding_layer(self.graph)} sets: only a smaller {part}layer lowers that."
            )
        # Where the number of slices was to be chosen, more of them were looked at.
        if self.predicted_slowdown > HIGH_OVERHEAD and not self.tried_slices:
            slices = 'The batch in slices (micro_batches="auto")'
            other = "More micro-batches" if self.micro_batches else slices
            found.append(f"{other} may cost less time than this plan.")
        return found or [OTHER_BUDGETS]

    def to_html(self, path: str | os.PathLike | None = None) -> str:
        """Returns a page that shows the plan, answers to the mouse and loads nothing.

        Args:
          path: A file that the page is written to as well, to be opened.
        """
        text = plot.page(
            **self._drawn(),
            title=f"Checkmate plan of {self.name}",
            lead=self.sentence(),
            facts=[*self.facts(), *self._sentences()],
        )
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def picture(self) -> Picture:
        """Returns the memory over the step, plain and as it runs now."""
        return plot.memory(**self._drawn())

    def _drawn(self) -> dict[str, Any]:
        """The graph, the plan and the predicted peaks, for pictures."""
        micro = self.micro_batches
        part, plain = ("slice", micro.peak_bytes) if micro else ("step", self.plain_peak_bytes)
        return {
            "graph": self.graph,
            "plan": self.result.plan if self.result else None,
            "budget_bytes": self.budget_bytes,
            "plain": self.plain_plan,
            "allocated": Allocated(
                self.memory.other_bytes, plain, self.predicted_peak_bytes, part=part
            ),
        }

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
        paying = [row for row in self.layers() if row.saved_bytes > 0][:LAYERS_SHOWN]
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
            *(("loop", sentence) for sentence in self.planned_bodies),
            *(("next", sentence) for sentence in self.next_budgets()),
            *(("try", sentence) for sentence in self.advice()),
            *(("note", sentence) for sentence in self.notes),
        ]

    def facts(self) -> list[tuple[str, str]]:
        """The printed rows, as (name, value) in order."""
        rows = self.memory_facts()
        if micro := self.micro_batches:
            split = f"{micro.count} slices of {micro.size} examples, of {micro.examples}"
            kept = format_bytes(micro.kept_bytes)
            numbers = "what Python makes of the batch's size is the whole's"
            rows.append(("micro-batches", f"{split}; sums and results take {kept}; {numbers}"))
        rows += self._split_facts()
        if self.tried_slices:
            tried = "; ".join(map(self._tried, self.tried_slices))
            rows.append(("looked at", f"{tried} (slices: time beside those taken)"))
        if self.result and self.result.plan:
            rows += self._plan_facts(self.result, self.result.plan)
        else:
            rows.append(
                ("plan", f"none needed: {'a slice' if micro else 'the step'} runs unchanged")
            )
        if self.clusters:
            rows.append(("compiled by XLA", self.clusters.text()))
        if self.step_seconds:
            rows.append(("step", f"{self.step_seconds:.3g} s, the shortest of {self.steps}"))
        if self.result or micro:
            rows.append(("proven", self._proof()))
        if self.result:
            if self.result.rules:
                rows.append(("layers", self.result.rules))
            rows.append(("solver", _solver(self.result)))
        times = (f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())
        return [*rows, ("time", ", ".join(times))]

    def memory_facts(self) -> list[tuple[str, str]]:
        """The kinds of bytes of the budget, each byte once, and the peaks, predicted and
        measured."""
        memory = self.memory
        asked = self.peak_bytes + (memory.other_bytes if self.result else 0)
        overhead = format_bytes(max(0, self.predicted_peak_bytes - asked))
        others = format_bytes(memory.other_bytes - memory.next_batch_bytes)
        budget, resident = format_bytes(self.budget_bytes), format_bytes(memory.resident_bytes)
        if memory.device_limit_bytes:
            budget += f" of the {format_bytes(memory.device_limit_bytes)} that the device has"
        if is_share(self.asked):
            own = format_bytes(self.plain_peak_bytes - memory.other_bytes)
            budget += f": {self.asked} of the plain step's own {own}, and"
            budget += f" {format_bytes(memory.other_bytes)} for next batches and others"
        resident += f": variables, optimizer, batch, and {others} of others"
        rows = [("budget", budget), ("resident", resident)]
        if memory.next_batch_bytes:
            text = "; what a pipeline makes within a step beyond that is not counted"
            rows.append(("for next batches", format_bytes(memory.next_batch_bytes) + text))
        activations = format_bytes(max(0, asked - memory.fixed_bytes))
        own = format_bytes(memory.step_bytes)
        return [
            *rows,
            ("fixed, of the step", f"{own}: results, constants, small values"),
            ("activations", f"{activations} at the peak, predicted, with gradients and workspaces"),
            ("allocator overhead", f"{overhead}, predicted: rounding and holes"),
            ("unused", format_bytes(max(0, self.budget_bytes - self.predicted_peak_bytes))),
            *self._peaks(),
        ]

    def _peaks(self) -> list[tuple[str, str]]:
        predicted = format_bytes(self.predicted_peak_bytes)
        plain = f"{format_bytes(self.plain_peak_bytes)} predicted"
        steps = f"{self.steps} step{'s' * (self.steps != 1)}"
        measured = f"{steps} ran" if self.steps else "no step ran yet"
        if self.measured_peak_bytes:
            measured = f"{format_bytes(self.measured_peak_bytes)} measured in {steps}"
        if self.result is None and self.micro_batches is None:
            return [("plain peak", f"{plain}; {measured}")]
        share = self.predicted_peak_bytes / self.plain_peak_bytes
        return [
            ("planned peak", f"{predicted} predicted, {share:.0%} of plain; {measured}"),
            ("plain peak", plain),
        ]

    def _plan_facts(self, result: SolveResult, plan: Plan) -> list[tuple[str, str]]:
        again, micro, slowdown = plan.recomputed, self.micro_batches, self.predicted_slowdown
        recomputed = (
            f"{len(again)} of {self.ops} ops are recomputed, {sum(again.values())} evaluations more"
            f" ({self.tensorflow_ops} TensorFlow ops)"
        )
        cost, reference = micro.cost if micro else result.cost, "the plain step's"
        if micro and micro.plain_cost is None:
            reference = "those of the same slices without recomputation"
        return [
            ("plan", recomputed),
            ("predicted cost", f"{cost:.4g} s of kernels, {slowdown - 1:+.2%} on {reference}"),
            ("predicted time", f"{slowdown:.3f} times the plain step"),
        ]

    def _tried(self, tried: TriedSlices) -> str:
        taken = self._taken()
        if taken is None:
            return f"{tried.count}: no plan found"
        if tried is taken:
            return f"{tried.count}: taken"
        least = taken.cost or 0.0
        if tried.cost is None:
            more = tried.bound / least - 1
            return f"{tried.count}: " + (f"{more:+.1%} at least" if more >= 0 else "no plan found")
        return f"{tried.count}: {tried.cost / least - 1:+.1%}"

    def _taken(self) -> TriedSlices | None:
        count = self.micro_batches.count if self.micro_batches else 1
        found = (each for each in self.tried_slices if each.count == count and each.cost)
        return next(found, None)

    def _proof(self) -> str:
        """The proven quality of the plan, as a clause."""
        result, micro = self.result, self.micro_batches
        if (taken := self._taken()) is not None:
            gap = (taken.cost or 0.0) / min(each.bound for each in self.tried_slices) - 1
            *counts, last = (str(each.count) for each in self.tried_slices)
            space = f"in {', '.join(counts)}{' or ' if counts else ''}{last} micro-batches"
        elif micro:
            gap, space = micro.cost / micro.bound - 1, "in these micro-batches"
        elif result is None:
            return "nothing is faster than the plain step"
        else:
            is_optimal = result.status is SolveStatus.OPTIMAL or result.gap is None
            gap = 0.0 if is_optimal else result.gap or 0.0
            any_order = result.bound_covers == "any order"
            space = "in any order of ops" if any_order else "in this order of ops"
        if result and result.rules:
            space += f" ({result.rules})"
        if gap <= 0:
            return f"no plan {space} is faster"
        return f"at most {gap_text(gap)} slower than the best possible plan {space}"


def _solver(result: SolveResult) -> str:
    stats = result.stats
    solver = f"{stats.solver}, {stats.seconds:.2f} s, plan by {stats.found_by}"
    if result.status is SolveStatus.INTERRUPTED:
        solver += "; interrupted, the best plan until then"
    return solver


def _binding_layer(graph: DFGraph) -> str:
    op = floor(graph).op
    return layer_names(graph)[op] or graph.ops[op].name
