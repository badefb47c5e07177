"""Snapshot: the default solver. Bounds come from a relaxation, plans from lifting its solutions and from local search.

    greedy      evict from the plain step until it fits; an answer within milliseconds
    snapshots   solve the relaxation with one snapshot at the plain step's peak: a bound, and values to drop. Lifted to a plan it is
                often within the budget, and then optimal, with the bound as certificate. Where it overflows, repair it, set one
                more snapshot there, and solve again
    improve     ruin and recreate from the best plans, while it pays

A larger budget costs no more wherever plans are proven; between two searches that end with a gap it can, by a part of that gap.

The theorem behind the bound is in `relaxation`. Only the judge's figures count: a plan that rounding inside HiGHS made too large is
refused there, and the bound is lowered by more than HiGHS' tolerances before it is told. The effort is counted in moves
and branch-and-bound nodes, so the same graph and budget give the same plan on every machine, unless a time limit cuts in: the
search's, or the one second of a single call of HiGHS.
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

NEARLY = 5e-4
"""Share of the cost below which what is missing is worth little time."""

SMALL_MODEL = 700
"""Variables up to which snapshots are added even while they teach little."""

NODES = (200, 20)
"""Branch-and-bound nodes for one snapshot and for several."""

PRECISION = 0.05
"""Share of the missing cost to which the bound of several snapshots is worked out."""

STARTS = 3
"""Plans from which local search sets out."""

SCAN, SCAN_OPS = 24, 500
"""Stages scanned for the best single snapshot, and ops up to which that is done."""

MILP_SECONDS = 1.0
"""Longest single call of HiGHS: it may hold back Ctrl-C for as long."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Finds plans by the snapshot relaxation, lifting, greedy repair and local search.

    Args:
      snapshots: Look at the memory of at most so many moments at once.
      effort: Work per op for one round of local search (see `Timetable.work`); 100,000 in all takes about half a second.
      rounds: Rounds at most.
      seed: Of the local search.
    """

    snapshots: int = 4
    effort: int = 160
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
            n = len(self.search.graph)
            peak = int(Timetable(self.search.graph).bytes_in[:n].argmax())
            self._refine(peak)
            if not self._finished() and n <= SCAN_OPS and abs((other := self._best_stage()) - peak) > n // 50:
                self._refine(other)
        if not self._finished():
            self._search_locally()

    def _search_locally(self) -> None:
        """Improves the cheapest plans, a round at a time: always the one that, gaining as much again as last time, comes out cheapest.

        The repaired plan of a relaxation is often dearer than the greedy one, and yet the better one to start from.
        """
        search, options = self.search, self.options
        nearly = self._missing() < NEARLY * search.bound
        pool = [(cost, float("inf"), moves) for cost, moves in sorted(self.starts)[: 1 if nearly else STARTS]]
        for number in range(options.rounds):
            if not pool or self._finished() or search.timeline is None:
                return
            cost, gain, moves = pool.pop(min(range(len(pool)), key=lambda k: pool[k][0] - pool[k][1]))
            if cost - gain > search.timeline.cost - 0.03 * self._missing():
                return
            self.timetable.move_to(moves)
            work = options.effort * len(search.graph)
            improve(self.timetable, search.budget_bytes, work=work, seed=options.seed + number, out_of_time=self._out_of_time)
            pool.append((self.timetable.cost, cost - self.timetable.cost, self.timetable.moves()))
            search.offer(self.timetable.plan(), by="local search")

    def _refine(self, first: int) -> None:
        """Solves the relaxation, lifts, and looks again where the lifted plan overflows."""
        search, graph = self.search, self.search.graph
        chosen = [first]
        while not self._finished():
            model = SnapshotModel(graph, search.budget_bytes, chosen)
            if len(chosen) > 1 and model.size > MODEL_SIZE:
                return
            missing = self._missing()
            # While much is missing, a rough bound and a plan that needs repair anyway come much sooner.
            precision = max(1e-6, PRECISION * missing / (search.bound + missing - graph.total_cost)) if len(chosen) > 1 else 1e-6
            found = model.solve(time_limit_s=min(MILP_SECONDS, search.remaining_s), nodes=NODES[len(chosen) > 1], precision=precision)
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
            stuck = self._missing() < NEARLY * search.bound if len(chosen) == 1 else self._missing() > 0.97 * missing
            if model.size > SMALL_MODEL and stuck:
                return
            for t in chosen:
                over[max(0, t - 1) : t + 2] = 0
            if len(chosen) == self.options.snapshots or over.max() <= 0:
                return
            chosen.append(int(over.argmax()))

    def _best_stage(self) -> int:
        """The stage whose single snapshot bounds best, by linear programming over stages where the best plan is tight."""
        search = self.search
        self.timetable.move_to(min(self.starts)[1] if self.starts else ())
        fullest = np.argsort(-self.timetable.bytes_in[: len(search.graph)], kind="stable")[: 4 * SCAN]
        scanned = np.unique(fullest)[:: max(1, len(fullest) // SCAN)]
        bounds = [SnapshotModel(search.graph, search.budget_bytes, [int(t)]).solve(time_limit_s=1, relaxed=True).cost for t in scanned]
        return int(scanned[int(np.argmax(bounds))])

    def _missing(self) -> float:
        """What the best plan costs more than is proven to be needed."""
        return (self.search.timeline.cost if self.search.timeline else 2 * self.search.bound) - self.search.bound

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
