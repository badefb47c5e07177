"""Snapshot: the default solver. Bounds come from a relaxation, plans from lifting its solutions and
from local search.

    greedy      evict from the plain step until it fits; where that takes milliseconds, it comes
                first
    exact       the cheapest path through the states of memory (`state_space`), where ops are few:
                nothing is left to do when it ends
    snapshots   solve the relaxation with one snapshot at the plain step's peak, as a linear program
                and then as an integer one: a bound, and values to drop. Lifted to a plan it is
                often within the budget, and then optimal, with the bound as certificate. Where it
                overflows, repair it, set one more snapshot there, or on large graphs several all
                over what is too much, and solve again. Where repair fails, a snapshot at the stage
                that it could not empty may prove that nothing fits there
    others      without a plan, or without the annealer where more than a hundredth is missing: what
                dynamic rematerialization and the baselines make of it, trimmed
    deepen      while a gap is left: more snapshots, each where the linear program says that it
                tells most, a few at once while the gap is large; then annealing alone, while it
                pays

The annealer is loaded beside all that, once one snapshot was not enough. From then on it anneals,
from the last solution as it is, from the best plan and from crossed plans (`crossing`), on another
core, whatever HiGHS and Python do; until it is there, ruin and recreate does what it can.

A larger budget costs no more wherever plans are proven; between two searches that end with a gap it
can, by a part of that gap (`curve` mends that for many budgets at once).

The theorem behind the bound is in `relaxation`. Only the judge's figures count: a plan that
rounding inside HiGHS made too large is refused there, and the bound is lowered by more than HiGHS'
tolerances before it is told. The effort is counted in moves and branch-and-bound nodes. So with
`solve(..., deterministic=True)` the same graph and budget give the same plan on every machine;
without it, unless a time limit cuts in: the search's, or that of a single call of HiGHS. HiGHS runs
in a thread, and is left alone there when it does not come back in time: so the deadline holds, and
Ctrl-C comes through at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module

import numpy as np

from checkmate.solvers.auto.highs import SMALL_MODEL, Highs
from checkmate.solvers.auto.placement import at_equal_steps, fullest
from checkmate.solvers.auto.primal import NEARLY, Finder
from checkmate.solvers.auto.relaxation import Bound, SnapshotModel
from checkmate.solvers.background import Beside
from checkmate.solvers.baselines.chen import ChenGreedy
from checkmate.solvers.baselines.dtr import DTR
from checkmate.solvers.baselines.revolve import Revolve
from checkmate.solvers.exact.a_star import Paths
from checkmate.solvers.local.repair import lift
from checkmate.solvers.search import Search

MODEL_SIZE = 6000
"""Variables up to which another snapshot is worth its time; the linear programs grow faster than
what they teach."""

FEW = 4
"""Snapshots set before local search, one more on large graphs; more only while deepening."""

NODES = (200, 20, 1000)
"""Branch-and-bound nodes for one snapshot, for several, and while deepening; on wide models as for
several where no clock would end that."""

DEEP_MODEL, WIDE_MODEL, QUICK_MODEL = 16000, 4000, 2500
"""Variables beyond which deepening ends, up to which it looks at linear programs alone while far,
and up to which it sets several snapshots at once."""

CANDIDATES = 4
"""Stages among which linear programs choose the next snapshot while deepening; all of them are
taken where the model stays quick."""

FIRST_SECONDS, SECONDS, QUICK_SECONDS = 10.0, 4.0, 1.5
"""Longest call of HiGHS for one snapshot, for the linear program of several, and for their integer
one before there is nothing else to do."""

LINEAR_SHARE, DEEP_SHARE, DEEP_SECONDS = 0.2, 0.7, 20.0
"""Shares of the time that is left for one linear program and for one integer program while
deepening, where that is more than `SECONDS` and than so many seconds; else half of it for the
latter."""

WORTH, PATIENCE = 0.02, (2, 4)
"""Deepening ends when so many models in a row, more when far, each took less than this share of
what was missing."""

SCAN, SCAN_OPS = 24, 500
"""Stages scanned for the best single snapshot, and ops up to which that is done, and up to which
greed comes first."""

FEW_OPS, STATES = 48, (1000, 10_000, 50_000)
"""Ops up to which states are searched, and how many: before anything else, while there is a gap,
and where one is left at the end."""

AT_ONCE_SHARE, STATES_SHARE = 0.15, 0.3
"""Shares of the time for the first two of these."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Finds plans by the snapshot relaxation, lifting, greedy repair and local search.

    Args:
      snapshots: Look at the memory of at most so many moments at once.
      proposals: Of annealing, per op in the first round. Each further round has twice as many.
      rounds: Rounds of annealing at most.
      seed: Of local search.
    """

    snapshots: int = 64
    proposals: int = 100
    rounds: int = 8
    seed: int = 0

    name = "snapshot"

    def run(self, search: Search) -> None:
        """Offers plans and bounds until one meets the other, the search stalls or the time is
        over."""
        _Run(self, search).run()


@dataclass(frozen=True, slots=True)
class _Look:
    """The model that told most: its bound, and by how much each stage of its lifted solution is
    over the budget."""

    bound: float = 0.0
    model: SnapshotModel | None = None
    over: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def chosen(self) -> tuple[int, ...]:
        """Its snapshots."""
        return self.model.snapshots if self.model else ()


class _Run:
    """One call of the solver."""

    def __init__(self, options: Snapshot, search: Search):
        self.options = options
        self.search = search
        self.finder = Finder(
            search, proposals=options.proposals, rounds=options.rounds, seed=options.seed
        )
        self.highs = Highs(self.finder)
        self.timetable = self.finder.timetable
        self.plain_bytes = self.timetable.bytes_in[: len(search.graph)].copy()
        self.peak = int(self.plain_bytes.argmax())
        self.few = min(FEW + (len(search.graph) > SCAN_OPS), options.snapshots)
        self.looked = _Look()
        self.doubted: set[int] = set()

    def run(self) -> None:
        try:
            for part in (self._at_once, self._first_look, self._others, self._to_the_end):
                if self.finder.finished():
                    return
                part()
        finally:
            self.finder.stop()

    def _at_once(self) -> None:
        """What takes milliseconds, before SciPy is loaded."""
        n = len(self.search.graph)
        self.paths = Paths(self.search) if n <= FEW_OPS else None
        if n <= SCAN_OPS:
            self.finder.settle(by="greedy")
        self._advance(STATES[0], AT_ONCE_SHARE)
        if self.search.plan is None and not self.finder.finished():
            self.finder.load()

    def _first_look(self) -> None:
        """One snapshot or a few, at the peak of the plain step and where one tells most."""
        scipy = Beside(lambda: import_module("scipy.optimize"), may_be_cut_off=True)
        scipy.answer(self.search.remaining_s)  # that takes a moment, which is none of HiGHS' own
        n, finished = len(self.search.graph), self.finder.finished
        self._refine(self.peak)
        if not finished() and n > SCAN_OPS and self.finder.far():
            self.timetable.move_to(())
            self.finder.settle(by="greedy")
        self._advance(STATES[1], STATES_SHARE)
        if not finished() and not self.looked.chosen:  # it was late
            self._refine(self.peak)
        self._doubt()
        if (
            not finished()
            and n <= SCAN_OPS
            and abs((other := self._best_stage()) - self.peak) > n // 50
        ):
            self._refine(other)

    def _others(self) -> None:
        """Plans of other solvers, while there is none, or a poor one."""
        for solver in (ChenGreedy(), DTR(budgets=4), Revolve()):
            poor = self.finder.far() and not self.finder.has_annealer
            if not self.finder.finished() and (self.search.plan is None or poor):
                self.finder.ask(solver)

    def _to_the_end(self) -> None:
        """Annealing and deepening in turn, until nothing comes of it any more."""
        self.finder.improve(wait_s=self.search.remaining_s / 4)
        if not self.finder.finished():
            self._deepen()
        while not self.finder.finished() and self.finder.improve(
            wait_s=self.search.remaining_s / 2
        ):
            pass
        self._advance(STATES[2], 1.0, hopeful=True)

    def _advance(self, states: int, share: float, *, hopeful: bool = False) -> None:
        """Where ops are few, looks at so many states more, in this share of the time; less if they
        will not do, unless nothing else is left."""
        if self.paths is None or self.finder.finished():
            return
        until = (1 - share) * self.search.remaining_s
        self.paths.advance(
            states,
            lambda: not self.search.deterministic and self.search.remaining_s <= until,
            hopeful=hopeful,
        )

    def _refine(self, first: int) -> None:
        """Solves the relaxation, lifts, and looks again where the lifted plan overflows."""
        model: SnapshotModel | None = self.highs.model([first])
        while model is not None and not self.finder.finished():
            several = len(model.snapshots) > 1
            if several and model.size > MODEL_SIZE:
                return
            missing = self.finder.missing()
            seconds = SECONDS if several else FIRST_SECONDS
            if (several or model.size > SMALL_MODEL) and (
                self.highs.linear_bound(model, seconds) is None or self.finder.finished()
            ):
                return  # a small model of one snapshot is solved as soon as its linear program
            limit = self.highs.limit(QUICK_SECONDS if several else FIRST_SECONDS)
            beside = self.highs.begin(model, NODES[several], limit)
            if several:
                self.finder.improve(beside=beside)
            found = self.highs.answer(beside, limit)
            over = found and self._learn(model, found)
            stuck = (
                self.finder.missing() > 0.97 * missing
                if several
                else self.finder.missing() < NEARLY * self.search.bound
            )
            if not self.finder.finished():
                self.finder.load()
            if (
                over is None
                or len(model.snapshots) >= self.few
                or (model.size > SMALL_MODEL and stuck)
            ):
                return
            model = self._next_model(model, over)

    def _next_model(self, model: SnapshotModel, over: np.ndarray) -> SnapshotModel | None:
        """The model with one snapshot more, where the lifted plan overflows most; None where there
        is no such stage.

        Where one block of ops is like the next, each such snapshot only pushes what is too much to
        the next block. So on large graphs the second model has snapshots at equal steps of bytes,
        from the plain step's peak on, where linear programs say that they tell as much.
        """
        found = fullest(over, model.snapshots, 1, apart=True)
        if not found:
            return None
        one_more = self.highs.model([*model.snapshots, *found])
        if len(model.snapshots) > 1 or self.few <= FEW:
            return one_more
        spread = self.highs.model(at_equal_steps(self.plain_bytes, self.search.budget_bytes, FEW))
        if spread.size > MODEL_SIZE:
            return one_more
        bounds = [self.highs.linear_bound(other, SECONDS) or 0.0 for other in (one_more, spread)]
        return spread if bounds[1] >= bounds[0] else one_more

    def _deepen(self) -> None:
        """Adds snapshots to those that told most, while it pays."""
        search, fruitless = self.search, 0
        while (
            fruitless < PATIENCE[self.finder.far()]
            and 0 < len(self.looked.chosen) < self.options.snapshots
            and not self.finder.finished()
        ):
            missing = self.finder.missing()
            model = self._wider_model()
            if model is None or self.finder.finished():
                return
            seconds = DEEP_SHARE * search.remaining_s
            limit = search.at_most(seconds) if seconds > DEEP_SECONDS else self.highs.limit(seconds)
            beside = self.highs.begin(
                model, NODES[1 if search.deterministic and model.size > WIDE_MODEL else 2], limit
            )
            self.finder.improve(beside=beside)
            found = self.highs.answer(beside, limit)
            if found is None:
                return
            self._learn(model, found, deeper=True)
            fruitless = 0 if self.finder.missing() < (1 - WORTH) * missing else fruitless + 1

    def _wider_model(self) -> SnapshotModel | None:
        """The model with a few snapshots more, each where linear programs say that it tells most;
        None when it becomes too large.

        What an integer program of few snapshots has learnt is of no use to the next: so far from a
        proof it is not worth its time.
        """
        model = (
            self._much_wider_model()
            if self.finder.far() and len(self.search.graph) > SCAN_OPS
            else None
        )
        if model is not None or self.finder.finished():
            return model
        wider, widest = self._telling_model(), len(self.looked.chosen) + CANDIDATES
        while wider is not None and (model is None or wider.size <= WIDE_MODEL):
            model = wider
            if not self.finder.far() or len(model.snapshots) >= widest or self.finder.finished():
                break
            self.looked = _Look(self.looked.bound, model, self._lift(model, model.rounded))
            wider = self._telling_model()
        return model

    def _much_wider_model(self) -> SnapshotModel | None:
        """The model with several snapshots more at once, and again, as long as its linear program
        alone raises the bound; None where it never does."""
        model = None
        while not self.finder.finished():
            before, missing = self.search.bound, self.finder.missing()
            wider = self._telling_model(many=True)
            if wider is None or self.search.bound < before + WORTH * missing:
                break
            model = wider
            self.looked = _Look(self.looked.bound, model, self._lift(model, model.rounded))
        return model

    def _lift(
        self, model: SnapshotModel, dropped: tuple[tuple[int, ...], ...] | None
    ) -> np.ndarray:
        """Makes the timetable what a solution of the relaxation says. Returns by how much each
        stage is over the budget."""
        n = len(self.search.graph)
        if dropped is None:
            return np.zeros(n)
        self.timetable.move_to(())
        lift(self.timetable, model.snapshots, dropped)
        return self.timetable.bytes_in[:n] - float(self.search.budget_bytes)

    def _doubt(self) -> None:
        """Without a plan, asks at the stages that repairs could not empty whether anything fits
        there."""
        for stage in sorted(self.finder.stuck - self.doubted):
            if self.search.plan is None and not self.finder.finished():
                self.doubted.add(stage)
                self.highs.linear_bound(self.highs.model([stage]), SECONDS)

    def _learn(
        self, model: SnapshotModel, found: Bound, *, deeper: bool = False
    ) -> np.ndarray | None:
        """Takes the bound, lifts the solution and offers it, repaired if need be.

        Returns by how much each stage of the lifted plan is over the budget; None when there is
        nothing more to learn there.
        """
        search = self.search
        if np.isinf(found.cost):
            search.prove_infeasible(model.why_none())
            return None
        search.raise_bound(found.cost, by=model.label)
        over = self._lift(model, found.dropped)
        if found.cost > self.looked.bound or deeper:
            self.looked = _Look(max(found.cost, self.looked.bound), model, over)
        if found.dropped is None:
            return None
        if self.timetable.peak_bytes <= search.budget_bytes:
            self.finder.offer(by="lifted snapshot")
            return None
        if search.timeline is None or self.timetable.cost < search.timeline.cost:
            self.finder.wish()
            self.finder.settle(by="repaired snapshot")
            self._doubt()
            if not self.finder.has_annealer:
                self.finder.polish()
        return over

    def _telling_model(self, *, many: bool = False) -> SnapshotModel | None:
        """The model with one snapshot more where the lifted or the best plan is fullest, of the
        best linear bound; with several while small, or `many`."""
        chosen = self.looked.chosen
        most = min(CANDIDATES, self.options.snapshots - len(chosen))
        more = fullest(self.looked.over, chosen, most, apart=many)
        if not more:
            self.finder.go_to_best()
            held = self.timetable.bytes_in[:-1]
            more = fullest(held - float(held.min()), chosen, most, apart=many)
        at_once = more and (many or self.highs.model([*chosen, *more]).size <= QUICK_MODEL)
        choices = [[*chosen, *more]] if at_once else [[*chosen, t] for t in more]
        best, best_bound = None, -1.0
        for choice in choices:
            model = self.highs.model(choice)
            if model.size > DEEP_MODEL:
                return None
            if self.looked.model is not None:
                model.adopt(self.looked.model)
            seconds = max(SECONDS, LINEAR_SHARE * self.search.remaining_s)
            bound = None if self.finder.finished() else self.highs.linear_bound(model, seconds)
            if bound is not None and bound > best_bound:
                best, best_bound = model, bound
        return best

    def _best_stage(self) -> int:
        """The stage whose single snapshot bounds best, by linear programming over stages where the
        best plan is tight."""
        search = self.search
        self.finder.go_to_best()
        fullest = np.argsort(-self.timetable.bytes_in[: len(search.graph)], kind="stable")[
            : 4 * SCAN
        ]
        scanned = np.unique(fullest)[:: max(1, len(fullest) // SCAN)]
        limit = self.highs.limit(SECONDS)

        def scan() -> int:
            models = (self.highs.model([int(t)]) for t in scanned)
            return int(
                scanned[int(np.argmax([model.tighten(time_limit_s=limit) for model in models]))]
            )

        return self.highs.answer(Beside(scan), 2 * limit) or self.peak
