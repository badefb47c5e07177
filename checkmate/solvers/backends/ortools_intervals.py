"""CP-SAT on retention intervals, called through `engines.solve_intervals`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from checkmate.errors import SolverFailedError
from checkmate.solvers.backends.matrices import AnswerStatus

Intervals = list[list[dict[str, Any]]]
"""intervals[v][k]: the variables of interval k of value v, in order of time."""


@dataclass(frozen=True, slots=True)
class IntervalProblem:
    """Choose when values are in memory. Times are whole numbers from 0; a value is in memory from
    its start up to, not including, its end.

    Each value has one or more *intervals*, ordered in time and disjoint; the first is always
    present. When an interval starts, every value in `reads` of its value must have been in memory
    before. If a value in `in_place` leaves memory one later, the interval may reuse its memory,
    and counts from then on. Minimize the cost of the intervals that are present.

    Args:
      starts: starts[v][k]: the times at which interval k of value v may start, ascending; one for
        the first.
      reads: reads[v]: the values that must be in memory at each start of value v.
      sizes: Memory of each value.
      costs: Cost of each interval of a value beyond the first.
      kept: Values that must be in memory at the horizon.
      in_place: in_place[v]: those of `reads` whose memory value v may reuse.
    """

    starts: tuple[tuple[tuple[int, ...], ...], ...]
    reads: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    workspaces: tuple[int, ...]
    costs: tuple[int, ...]
    kept: frozenset[int]
    horizon: int
    capacity: int
    in_place: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class IntervalAnswer:
    """The answer of CP-SAT; `starts[v]` are the starts of the intervals of value v that are
    present, and `starts` is None if nothing was found."""

    status: AnswerStatus
    starts: tuple[tuple[int, ...], ...] | None = None


def solve(
    problem: IntervalProblem, *, engine: str, time_limit_s: float, start: Any
) -> IntervalAnswer:
    """Solves with CP-SAT on one thread: on several the answer can differ from run to run."""
    from ortools.sat.python import cp_model

    began = time.monotonic()
    model = cp_model.CpModel()
    intervals = _intervals(cp_model, model, problem)
    _reads(model, problem, intervals)
    _reuse_inputs(model, problem, intervals)
    _capacity(model, problem, intervals)
    again = ((v, entry) for v, of_value in enumerate(intervals) for entry in of_value[1:])
    model.minimize(sum(problem.costs[v] * entry["there"] for v, entry in again))
    if start is not None:
        _hint(model, problem, intervals, start)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.1, time_limit_s - (time.monotonic() - began))
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    if status == cp_model.MODEL_INVALID:
        raise SolverFailedError(
            f"CP-SAT refuses the model: {model.validate()}. Try another solver."
        )
    if status == cp_model.INFEASIBLE:
        return IntervalAnswer(AnswerStatus.INFEASIBLE)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return IntervalAnswer(AnswerStatus.UNKNOWN)
    starts = tuple(
        tuple(solver.value(e["start"]) for e in of_value if solver.value(e["there"]))
        for of_value in intervals
    )
    ended = AnswerStatus.OPTIMAL if status == cp_model.OPTIMAL else AnswerStatus.FEASIBLE
    return IntervalAnswer(ended, starts)


def _capacity(model: Any, problem: IntervalProblem, intervals: Intervals) -> None:
    spans = [entry["span"] for of_value in intervals for entry in of_value]
    sizes = [problem.sizes[v] for v, of_value in enumerate(intervals) for _ in of_value]
    for v, of_value in enumerate(intervals):
        for entry in of_value if problem.workspaces[v] else ():
            times = entry["start"], 1, entry["there"], ""
            spans.append(model.new_optional_fixed_size_interval_var(*times))
            sizes.append(problem.workspaces[v])
    model.add_cumulative(spans, sizes, problem.capacity)


def _intervals(cp_model: Any, model: Any, problem: IntervalProblem) -> Intervals:
    intervals: Intervals = []
    for v, choices in enumerate(problem.starts):
        of_value: list[dict[str, Any]] = []
        for k, times in enumerate(choices):
            there = model.new_constant(1) if k == 0 else model.new_bool_var("")
            start = model.new_int_var_from_domain(cp_model.Domain.from_values(list(times)), "")
            length = model.new_int_var(1, problem.horizon, "")
            end = model.new_int_var(times[0] + 1, problem.horizon, "")
            entry = {"there": there, "start": start, "length": length, "end": end}
            entry["span"] = model.new_optional_interval_var(start, length, end, there, "")
            if of_value:
                model.add_implication(there, of_value[-1]["there"])
                model.add(start >= of_value[-1]["end"]).only_enforce_if(there)
            of_value.append(entry)
        if v in problem.kept:
            until_the_end = [model.new_bool_var("") for _ in of_value]
            for chosen, entry in zip(until_the_end, of_value, strict=True):
                model.add(entry["end"] == problem.horizon).only_enforce_if(chosen)
                model.add_implication(chosen, entry["there"])
            model.add_bool_or(until_the_end)
        intervals.append(of_value)
    return intervals


def _reads(model: Any, problem: IntervalProblem, intervals: Intervals) -> None:
    """Each present start has, for each value that it reads, an interval that covers it."""
    for v, of_value in enumerate(intervals):
        for entry in of_value:
            entry["read_from"] = {}
            for d in problem.reads[v]:
                chosen = [model.new_bool_var("") for _ in intervals[d]]
                for literal, other in zip(chosen, intervals[d], strict=True):
                    model.add_implication(literal, other["there"])
                    model.add(other["start"] < entry["start"]).only_enforce_if(literal)
                    model.add(other["end"] > entry["start"]).only_enforce_if(literal)
                model.add_bool_or(chosen).only_enforce_if(entry["there"])
                entry["read_from"][d] = chosen


def _reuse_inputs(model: Any, problem: IntervalProblem, intervals: Intervals) -> None:
    """An interval in place counts from one after its start if an interval of the input that it
    reuses ends there, but not at the horizon."""
    for v, allowed in enumerate(problem.in_place):
        for entry in intervals[v] if allowed else ():
            ending = []
            for d in allowed:
                for literal, other in zip(entry["read_from"][d], intervals[d], strict=True):
                    ends_here = model.new_bool_var("")
                    model.add_implication(ends_here, literal)
                    model.add(other["end"] == entry["start"] + 1).only_enforce_if(ends_here)
                    if d in problem.kept:
                        model.add(other["end"] < problem.horizon).only_enforce_if(ends_here)
                    ending.append(ends_here)
            reuses = model.new_bool_var("")
            model.add_bool_or(ending).only_enforce_if(reuses)
            begin, length = (model.new_int_var(0, problem.horizon, "") for _ in range(2))
            model.add(begin == entry["start"] + reuses)
            model.add(entry["start"] + entry["length"] == entry["end"])
            span = begin, length, entry["end"], entry["there"], ""
            entry["span"] = model.new_optional_interval_var(*span)


def _hint(model: Any, problem: IntervalProblem, intervals: Intervals, start: Any) -> None:
    for v, of_value in enumerate(intervals):
        for k, entry in enumerate(of_value):
            there = k < len(start[v])
            if k:
                model.add_hint(entry["there"], there)
            if not there:
                continue
            begins, ends = start[v][k]
            if k:
                model.add_hint(entry["start"], begins)
            model.add_hint(entry["length"], ends - begins)
            model.add_hint(entry["end"], ends)
            for d, chosen in entry["read_from"].items():
                for literal, (from_, until) in zip(chosen, start[d], strict=False):
                    model.add_hint(literal, from_ < begins < until)
