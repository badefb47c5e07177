"""Highs: the calls of HiGHS that "auto" makes, each in a thread, within its time, with annealing
beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from checkmate.solvers.auto.primal import GOOD_ENOUGH, TICK, Finder
from checkmate.solvers.auto.relaxation import SnapshotModel
from checkmate.solvers.background import Beside

SMALL_MODEL = 700
"""Variables up to which snapshots are added even while they teach little, and one snapshot is
solved to the last digit."""

PRECISION = 0.05
"""Share of the missing cost to which the bound of several snapshots is worked out."""

SOONEST = (0.03, 1e-4)
"""Shares of the missing cost, and of the plain step's, that the bound of several snapshots may be
less; the smaller counts."""

GRACE = 0.05
"""Share of the time limit by which HiGHS may be late."""


class Highs:
    """Asks HiGHS about snapshots, and tells the search what linear programs prove.

    Args:
      finder: Of the search; it goes on while HiGHS works.
    """

    def __init__(self, finder: Finder):
        self.finder, self.search = finder, finder.search

    def model(self, snapshots: Sequence[int]) -> SnapshotModel:
        """The relaxation with these snapshots."""
        return SnapshotModel(self.search.graph, self.search.budget_bytes, snapshots)

    def linear_bound(self, model: SnapshotModel, seconds: float) -> float | None:
        """Takes the bound of the linear program, once; None when it does not come back in time."""
        if model.linear_bound is not None:
            return model.linear_bound
        limit = self.limit(seconds)
        bound = self.answer(Beside(lambda: model.tighten(time_limit_s=limit)), limit)
        if bound is not None and np.isinf(bound):
            self.search.prove_infeasible(model.why_none())
        elif bound is not None:
            self.search.raise_bound(bound, by=f"{model.label}, linear")
        return bound

    def begin(self, model: SnapshotModel, nodes: int, limit: float) -> Beside:
        """Begins to solve the integer program, with so many branch-and-bound nodes and seconds."""
        precision, soonest = self._precision(model), self._soonest(model)
        return Beside(
            lambda: model.solve(
                time_limit_s=limit, nodes=nodes, precision=precision, soonest=soonest
            )
        )

    def limit(self, seconds: float) -> float:
        """Seconds for a call of HiGHS: half of what is left at most, as plans take time, too."""
        return self.search.at_most(min(seconds, self.search.remaining_s / 2))

    def answer(self, beside: Beside, limit: float) -> Any:
        """The answer of a call that had so many seconds, with annealing beside it; None when it is
        late, or not needed any more."""
        finder, search = self.finder, self.search
        seconds = min(limit, search.remaining_s) + GRACE * search.time_limit_s
        while beside.busy and seconds > 0 and not search.deterministic:
            if finder.finished() and not finder.out_of_time():
                return None
            finder.go_on()
            began = time.monotonic()
            beside.wait(min(TICK, seconds))
            seconds -= time.monotonic() - began
        return beside.answer(max(0.0, seconds))

    def _precision(self, model: SnapshotModel) -> float:
        """Share of the recomputed cost to know the bound to. What is good enough, or much is
        missing, makes it rough, and much sooner there."""
        again = self.search.bound - self.search.graph.total_cost
        if len(model.snapshots) > 1:
            return max(1e-6, PRECISION * (missing := self.finder.missing()) / (again + missing))
        return (
            1e-6
            if model.size <= SMALL_MODEL or again <= 0
            else max(1e-6, 0.3 * GOOD_ENOUGH * self.search.bound / again)
        )

    def _soonest(self, model: SnapshotModel) -> float:
        """What the bound of several snapshots may lose so that their solution is nearer to a plan,
        in plain steps."""
        if len(model.snapshots) == 1 or self.search.plan is None:
            return 0.0
        return min(
            SOONEST[0] * self.finder.missing() / (self.search.graph.total_cost or 1.0), SOONEST[1]
        )
