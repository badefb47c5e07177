"""ReportFacts: what a report says, as rows of a table."""

from __future__ import annotations

from dataclasses import dataclass

from checkmate.core.plan import Plan
from checkmate.solvers.result import SolveResult, SolveStatus, gap_text
from checkmate.tf2.report_figures import MicroBatches, ReportFigures, TriedSlices
from checkmate.units import format_bytes


@dataclass(frozen=True, slots=True)
class ReportFacts(ReportFigures):
    """The figures of a `Report` in words."""

    def facts(self) -> list[tuple[str, str]]:
        """What is printed, as (what, value) in order."""
        rows = self.memory_facts()
        if self.micro_batches:
            rows.append(("micro-batches", _split(self.micro_batches)))
        if self.tried_slices:
            rows.append(("looked at", "; ".join(map(self._tried, self.tried_slices))))
        if self.result and self.result.plan:
            rows += self._plan_facts(self.result, self.result.plan)
        elif self.micro_batches:
            rows.append(("plan", "none needed: a slice runs unchanged"))
        else:
            rows.append(("plan", "none needed: the step runs unchanged"))
        if self.step_seconds:
            rows.append(("step", f"{self.step_seconds:.3g} s, the shortest of {self.steps}"))
        if self.result or self.micro_batches:
            rows.append(("proven", self._proof()))
        if self.result:
            rows.append(("solver", _solver(self.result)))
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
        steps = f"{self.steps} step{'s' * (self.steps != 1)}"
        measured = (
            f"{format_bytes(self.measured_peak_bytes)} measured in {steps}"
            if self.measured_peak_bytes
            else "no step ran yet"
        )
        share = self.expected_peak_bytes / self.plain_peak_bytes
        plain = f"{format_bytes(self.plain_peak_bytes)} predicted"
        return [
            (
                "peak, this step",
                f"{format_bytes(predicted)} predicted, {share:.0%} of plain; {measured}",
            ),
            ("peak, plain step", plain),
        ]

    def _plan_facts(self, result: SolveResult, plan: Plan) -> list[tuple[str, str]]:
        again = plan.recomputed
        recomputed = (
            f"{len(again)} of {self.ops} ops are recomputed, {sum(again.values())} evaluations more"
            f" ({self.tensorflow_ops} TensorFlow ops)"
        )
        cost = self.micro_batches.cost if self.micro_batches else result.cost
        more = f"{self.predicted_slowdown - 1:+.2%} on {self._plain_kernels()}"
        return [
            ("plan", recomputed),
            ("predicted cost", f"{cost:.4g} s of kernels, {more}"),
            ("predicted time", f"{self.predicted_slowdown:.3f} times the plain step"),
        ]

    def _plain_kernels(self) -> str:
        """What the predicted time is compared with."""
        micro = self.micro_batches
        if micro and micro.plain_cost is None:
            return "those of the same slices without recomputation"
        return "the plain step's"

    def _tried(self, tried: TriedSlices) -> str:
        """A number of micro-batches that was looked at, in a few words."""
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
        """The number of micro-batches that the step runs in, where it was looked at."""
        count = self.micro_batches.count if self.micro_batches else 1
        found = (each for each in self.tried_slices if each.count == count and each.cost)
        return next(found, None)

    def _more_time(self) -> str:
        more = self.predicted_slowdown - 1
        return f"a predicted {abs(more):.2%} {'more' if more >= 0 else 'less'} time"

    def _proof(self) -> str:
        """What is proven of the plan, as a clause."""
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
        if gap <= 0:
            return f"no plan {space} is faster"
        return f"at most {gap_text(gap)} slower than the best possible plan {space}"


def _split(micro: MicroBatches) -> str:
    return (
        f"{micro.count} slices of {micro.size} examples, of {micro.examples}; sums and results take"
        f" {format_bytes(micro.kept_bytes)}"
    )


def _solver(result: SolveResult) -> str:
    stats = result.stats
    solver = f"{stats.solver}, {stats.seconds:.2f} s, plan by {stats.found_by}"
    if result.status is SolveStatus.INTERRUPTED:
        solver += "; interrupted, the best plan until then"
    return solver
