"""Snapshot: the default solver. Bounds come from a relaxation, plans from lifting its solutions and from local search.

    greedy      evict from the plain step until it fits; an answer within milliseconds
    snapshots   solve the relaxation with one snapshot at the plain step's peak: a bound, and values to drop. Lifted to a plan it is
                often within the budget, and then optimal, with the bound as certificate. Where it overflows, repair it, set one
                more snapshot there, and solve again
    improve     ruin and recreate from the best plans, while it pays

The theorem behind the bound is in `relaxation`. Only the judge's figures count: a plan that rounding inside HiGHS made too large is
refused there, and the bound is lowered by more than HiGHS' tolerances before it is told. The effort is counted in moves
and branch-and-bound nodes, so the same graph and budget give the same plan on every machine, unless a time limit cuts in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkmate.solvers.local_search import Moves, Repair, improve, lift, trim
from checkmate.solvers.relaxation import SnapshotModel
from checkmate.solvers.search import Search
from checkmate.solvers.timetable import Timetable
from checkmate.units import format_bytes

GOOD_ENOUGH = 1e-4
"""The search ends when the plan is proven to be within this share of the cheapest."""

MODEL_SIZE = 4000
"""Variables up to which another snapshot is worth its time; the linear programs grow faster than what they teach."""

MILP_SECONDS = 2.0
"""Longest single call of HiGHS: it may hold back Ctrl-C for as long."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Finds plans by the snapshot relaxation, lifting, greedy repair and local search.

    Args:
      snapshots: Look at the memory of at most so many moments at once.
      effort: Moves for one round of local search; a round that finds a cheaper plan is followed by another.
      rounds: Rounds at most.
      seed: Of the local search.
    """

    snapshots: int = 4
    effort: int = 30_000
    rounds: int = 8
    seed: int = 0

    name = "snapshot"

    def run(self, search: Search) -> None:
        """Offers plans and bounds until one meets the other, the search stalls or the time is over."""
        _Run(self, search).run()


class _Run:
    """One call of the solver: the timetable at work, and the plans to start local search from."""

    def __init__(self, options: Snapshot, search: Search):
        self.options = options
        self.search = search
        self.timetable = Timetable(search.graph)
        self.starts: list[tuple[float, Moves]] = []

    def run(self) -> None:
        self._settle(by="greedy")
        if not self._finished():
            self._refine()
        for number in range(self.options.rounds):
            if self._finished() or not self.starts:
                return
            cost, moves = min(self.starts)
            self.timetable.move_to(moves)
            improve(
                self.timetable,
                self.search.budget_bytes,
                work=self.options.effort,
                seed=self.options.seed + number,
                out_of_time=self._out_of_time,
            )
            if self.timetable.cost > cost * (1 - GOOD_ENOUGH):
                break
            self._offer(by="local search")

    def _refine(self) -> None:
        """Solves the relaxation, lifts, and looks again where the lifted plan overflows."""
        search, graph = self.search, self.search.graph
        chosen = [int(Timetable(graph).bytes_in[: len(graph)].argmax())]
        while not self._finished():
            model = SnapshotModel(graph, search.budget_bytes, chosen)
            if len(chosen) > 1 and model.size > MODEL_SIZE:
                return
            found = model.solve(time_limit_s=min(MILP_SECONDS, search.remaining_s))
            if np.isinf(found.cost):
                search.prove_infeasible(self._why_none(model))
                return
            search.raise_bound(found.cost, by=f"{len(chosen)} snapshot{'s' * (len(chosen) > 1)}")
            if found.dropped is None:
                return
            self.timetable.move_to(())
            lift(self.timetable, model.snapshots, found.dropped)
            over = self.timetable.bytes_in[: len(graph)] - search.budget_bytes
            if self.timetable.peak_bytes <= search.budget_bytes:
                self._offer(by="lifted snapshot")
                return
            self._settle(by="repaired snapshot")
            for t in chosen:
                over[max(0, t - 1) : t + 2] = 0
            if len(chosen) == self.options.snapshots or over.max() <= 0:
                return
            chosen.append(int(over.argmax()))

    def _settle(self, *, by: str) -> None:
        """Brings the timetable within the budget and offers it; offers it all the same where that fails, for the record."""
        Repair(self.timetable, self.search.budget_bytes, self._out_of_time).run()
        trim(self.timetable, self.search.budget_bytes)
        self._offer(by=by)

    def _offer(self, *, by: str) -> None:
        timeline = self.search.offer(self.timetable.plan(), by=by)
        if timeline.peak_bytes <= self.search.budget_bytes:
            self.starts.append((self.timetable.cost, self.timetable.moves()))

    def _finished(self) -> bool:
        search = self.search
        cost = search.timeline.cost if search.timeline else np.inf
        return bool(search.infeasible) or self._out_of_time() or cost <= search.bound * (1 + GOOD_ENOUGH)

    def _out_of_time(self) -> bool:
        return self.search.remaining_s <= 0

    def _why_none(self, model: SnapshotModel) -> str:
        graph = self.search.graph
        names = " and ".join(f"op {t} {graph.ops[t].name!r}" for t in model.snapshots)
        return (
            f"whatever is recomputed, the values that must be in memory when {names} run{'s' * (len(model.snapshots) == 1)} need more than "
            f"{format_bytes(self.search.budget_bytes)}, as some of them may not be recomputed."
        )
