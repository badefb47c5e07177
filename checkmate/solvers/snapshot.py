"""Snapshot: the default solver. Bounds come from a relaxation, plans from lifting its solutions and from local search.

    greedy      evict from the plain step until it fits; an answer within milliseconds
    snapshots   solve the relaxation with one snapshot at the plain step's peak: a bound, and values to drop. Lifted to a plan it is
                often within the budget, and then optimal, with the bound as certificate. Where it overflows, repair it, set one
                more snapshot there, and solve again
    improve     simulated annealing from the best plan; ruin and recreate where a process has not the seconds to load its machine code
    deepen      while a gap is left: more snapshots, each where the linear program says that it tells most, larger programs and more
                time for each, with annealing beside them on another core; then annealing alone, while it pays

A larger budget costs no more wherever plans are proven; between two searches that end with a gap it can, by a part of that gap
(`curve` mends that for many budgets at once).

The theorem behind the bound is in `relaxation`. Only the judge's figures count: a plan that rounding inside HiGHS made too large is
refused there, and the bound is lowered by more than HiGHS' tolerances before it is told. The effort is counted in moves
and branch-and-bound nodes, so the same graph and budget give the same plan on every machine, unless a time limit cuts in: the
search's, or that of a single call of HiGHS (a second; while deepening more).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from checkmate.core.plan import Plan
from checkmate.solvers.annealer import COMPILE_SECONDS, Annealer, is_compiled
from checkmate.solvers.local_search import Moves, Repair, improve, lift, trim
from checkmate.solvers.relaxation import Bound, SnapshotModel
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

FEW = 4
"""Snapshots set before local search; more only while deepening."""

NODES = (200, 20, 1000)
"""Branch-and-bound nodes for one snapshot, for several, and while deepening."""

CANDIDATES = 6
"""Stages among which linear programs choose the next snapshot while deepening."""

DEEP_SECONDS = 3.0
"""Longest first call of HiGHS while deepening; each further one may take half as long again."""

WORTH, PATIENCE = 0.02, 2
"""Deepening ends when so many snapshots in a row each took less than this share of what was missing."""

PRECISION = 0.05
"""Share of the missing cost to which the bound of several snapshots is worked out."""

SCAN, SCAN_OPS = 24, 500
"""Stages scanned for the best single snapshot, and ops up to which that is done."""

POLISH = 160
"""Work per op (see `Timetable.work`) for each repaired plan; 100,000 in all takes about half a second."""

LOAD_SECONDS = 4.0
"""Time that loading numba and the annealer's machine code may take; with less than this left they are not loaded."""

MILP_SECONDS = 1.0
"""Longest single call of HiGHS: it may hold back Ctrl-C for as long."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Finds plans by the snapshot relaxation, lifting, greedy repair and local search.

    Args:
      snapshots: Look at the memory of at most so many moments at once.
      proposals: Of annealing, per op in the first round. Each further round has twice as many.
      rounds: Rounds of annealing at most.
      seed: Of local search.
    """

    snapshots: int = 12
    proposals: int = 100
    rounds: int = 5
    seed: int = 0

    name = "snapshot"

    def run(self, search: Search) -> None:
        """Offers plans and bounds until one meets the other, the search stalls or the time is over."""
        _Run(self, search).run()


@dataclass(frozen=True, slots=True)
class _Look:
    """The choice of snapshots that told most: its bound, and by how much each stage of its lifted plan is over the budget."""

    bound: float
    chosen: tuple[int, ...]
    over: np.ndarray


@contextmanager
def _beside(work: Callable[[], Bound]) -> Iterator[Callable[[], Bound]]:
    """Does `work` in a thread while the body runs; what is yielded waits for its answer. HiGHS leaves Python to other threads meanwhile."""
    answers: list[Bound] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def answer() -> Bound:
        thread.join()
        if errors:
            raise errors[0]
        return answers[0]

    yield answer


class _Run:
    """One call of the solver: the timetable at work, and the plans to start local search from."""

    def __init__(self, options: Snapshot, search: Search):
        self.options = options
        self.search = search
        self.timetable = Timetable(search.graph)
        self.starts: list[tuple[float, Moves]] = []
        self.looked = _Look(0.0, (), np.zeros(0))
        self.annealer: Annealer | None = None
        self.round, self.patience = 0, PATIENCE

    def run(self) -> None:
        self._settle(by="greedy")
        if not self._finished():
            n = len(self.search.graph)
            peak = int(Timetable(self.search.graph).bytes_in[:n].argmax())
            self._refine(peak)
            if not self._finished() and n <= SCAN_OPS and abs((other := self._best_stage()) - peak) > n // 50:
                self._refine(other)
        if not self._finished():
            self._improve()
        if not self._finished():
            self._deepen()
        while not self._finished() and self._improve():
            pass

    def _refine(self, first: int) -> None:
        """Solves the relaxation, lifts, and looks again where the lifted plan overflows."""
        chosen = [first]
        while not self._finished():
            model = SnapshotModel(self.search.graph, self.search.budget_bytes, chosen)
            several = len(chosen) > 1
            if several and model.size > MODEL_SIZE:
                return
            missing = self._missing()
            found = model.solve(
                time_limit_s=min(MILP_SECONDS, self.search.remaining_s), nodes=NODES[several], precision=self._precision(several)
            )
            over = self._learn(model, found)
            stuck = self._missing() > 0.97 * missing if several else self._missing() < NEARLY * self.search.bound
            if over is None or len(chosen) >= min(FEW, self.options.snapshots) or (model.size > SMALL_MODEL and stuck):
                return
            for t in chosen:
                over[max(0, t - 1) : t + 2] = 0
            if over.max() <= 0:
                return
            chosen.append(int(over.argmax()))

    def _deepen(self) -> None:
        """Adds snapshots to those that told most, while it pays."""
        search, graph, options = self.search, self.search.graph, self.options
        seconds, patience = DEEP_SECONDS, PATIENCE
        while patience and self.looked.chosen and len(self.looked.chosen) < options.snapshots and not self._finished():
            missing = self._missing()
            more = self._telling_stage()
            if more is None:
                return
            model = SnapshotModel(graph, search.budget_bytes, [*self.looked.chosen, more])
            time_limit_s, precision = min(seconds, search.remaining_s), self._precision(True)
            with _beside(lambda: model.solve(time_limit_s=time_limit_s, nodes=NODES[2], precision=precision)) as answer:  # noqa: B023
                self._improve()
            self._learn(model, answer(), deeper=True)
            patience = PATIENCE if self._missing() < (1 - WORTH) * missing else patience - 1
            seconds *= 1.5

    def _improve(self) -> bool:
        """One round of local search from the best plan, each longer than the last. Returns whether there may be sense in another."""
        search, options = self.search, self.options
        if search.plan is None or self.round >= options.rounds or not self.patience:
            return False
        before, number, self.round = search.timeline.cost if search.timeline else np.inf, self.round, self.round + 1
        annealer = self._annealer(search.plan.computed)
        if annealer is not None:
            annealer.run(options.proposals * len(search.graph) << number, remaining_s=lambda: search.remaining_s)
            if annealer.best is not None and annealer.best_cost < before:
                search.offer(Plan.from_order(search.graph, annealer.best), by="annealing")
        else:
            self.timetable.move_to(min(self.starts)[1] if self.starts else [])
            self._polish(options.proposals << number)
        self.patience = PATIENCE if search.timeline is not None and search.timeline.cost < before else self.patience - 1
        return True

    def _polish(self, work_per_op: int) -> None:
        """Ruin and recreate on the timetable, where it is within the budget."""
        search = self.search
        if self.timetable.peak_bytes <= search.budget_bytes and not self._finished():
            work, seed = work_per_op * len(search.graph), self.options.seed + self.round
            improve(self.timetable, search.budget_bytes, work=work, seed=seed, out_of_time=self._out_of_time)
            self._offer(by="ruin and recreate")

    def _annealer(self, start: Sequence[int]) -> Annealer | None:
        """The annealer, set to a plan; None where there is not the time to load it."""
        search = self.search
        if self.annealer is not None:
            self.annealer.restart(start)
            return self.annealer
        loaded = "checkmate.solvers.annealing" in sys.modules
        if not loaded and (search.remaining_s < LOAD_SECONDS or (search.remaining_s < COMPILE_SECONDS and not is_compiled())):
            return None
        self.annealer = Annealer(search.graph, search.budget_bytes, start, seed=self.options.seed)
        return self.annealer

    def _learn(self, model: SnapshotModel, found: Bound, *, deeper: bool = False) -> np.ndarray | None:
        """Takes the bound, lifts the solution and offers it, repaired if need be.

        Returns by how much each stage of the lifted plan is over the budget; None when there is nothing more to learn there.
        """
        search, n = self.search, len(self.search.graph)
        if np.isinf(found.cost):
            search.prove_infeasible(self._why_none(model))
            return None
        search.raise_bound(found.cost, by=f"{len(model.snapshots)} snapshot{'s' * (len(model.snapshots) > 1)}")
        over: np.ndarray = np.zeros(n)
        if found.dropped is not None:
            self.timetable.move_to(())
            lift(self.timetable, model.snapshots, found.dropped)
            over = self.timetable.bytes_in[:n] - float(search.budget_bytes)
        if found.cost > self.looked.bound or deeper:
            self.looked = _Look(max(found.cost, self.looked.bound), model.snapshots, over)
        if found.dropped is None:
            return None
        if self.timetable.peak_bytes <= search.budget_bytes:
            self._offer(by="lifted snapshot")
            return None
        self._settle(by="repaired snapshot")
        self._polish(POLISH)
        return over

    def _precision(self, several: bool) -> float:
        """While much is missing, a rough bound and a plan that needs repair anyway come much sooner."""
        missing = self._missing()
        return max(1e-6, PRECISION * missing / (self.search.bound + missing - self.search.graph.total_cost)) if several else 1e-6

    def _telling_stage(self) -> int | None:
        """The stage whose snapshot, beside those chosen, gives the best linear bound, among where their lifted plan or the best plan is fullest."""
        search, chosen, over = self.search, self.looked.chosen, self.looked.over.copy()
        if over.max(initial=0) <= 0:
            self.timetable.move_to(min(self.starts)[1] if self.starts else ())
            over = self.timetable.bytes_in[: len(search.graph)] - float(self.timetable.bytes_in.min())
        candidates: list[int] = []
        for t in (int(t) for t in np.argsort(-over, kind="stable")):
            if over[t] > 0 and all(abs(t - other) > 1 for other in (*chosen, *candidates)):
                candidates.append(t)
            if len(candidates) == CANDIDATES:
                break
        bounds = []
        for t in candidates:
            model = SnapshotModel(search.graph, search.budget_bytes, [*chosen, t])
            bounds.append(model.solve(time_limit_s=min(MILP_SECONDS, search.remaining_s), relaxed=True).cost)
        return candidates[int(np.argmax(bounds))] if bounds else None

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
