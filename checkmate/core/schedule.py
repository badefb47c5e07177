"""Schedule: the paper's matrices R and S, the stage-wise form of a plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkmate.errors import PlanError


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """R[t, i]: op i runs in stage t. S[t, i]: the value of op i is retained from stage t - 1 into
    stage t.

    Args:
      R: (T, n) bool.
      S: (T, n) bool. S[0] is empty, and what is retained was retained or computed in the stage
        before.

    Raises:
      PlanError: The matrices break one of these rules.

    Source: Checkmate (Jain et al., MLSys 2020), section 4.2. With T = n and op t first run in stage
    t the schedule is "frontier-advancing" (section 4.6).
    """

    R: np.ndarray
    S: np.ndarray

    def __post_init__(self) -> None:
        R, S = (np.array(matrix, dtype=bool) for matrix in (self.R, self.S))
        if R.ndim != 2 or R.shape != S.shape or 0 in R.shape:
            raise PlanError(
                f"R and S must be matrices of one shape (stages, ops); got {R.shape} and {S.shape}."
            )
        if S[0].any():
            raise PlanError(f"S retains op {int(S[0].argmax())} into stage 0, before anything ran.")
        wrong = S[1:] & ~(S[:-1] | R[:-1])
        if wrong.any():
            t, i = (int(x) for x in np.argwhere(wrong)[0])
            raise PlanError(
                f"S retains op {i} into stage {t + 1}, but it was not in memory in stage {t}."
            )
        for key, matrix in (("R", R), ("S", S)):
            matrix.setflags(write=False)
            object.__setattr__(self, key, matrix)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Schedule)
            and np.array_equal(self.R, other.R)
            and np.array_equal(self.S, other.S)
        )

    def __repr__(self) -> str:
        return (
            f"Schedule(stages={self.R.shape[0]}, ops={self.R.shape[1]},"
            f" evaluations={int(self.R.sum())})"
        )

    @classmethod
    def from_plan(cls, graph, plan) -> Schedule | None:
        """Returns R and S of a plan whose first evaluations come in index order, or None where no
        stage-wise form exists.

        Stage t ends with the first evaluation of op t. None when first evaluations are in another
        order, or an op runs twice, or in another than topological order, within one stage: R and S
        cannot say that.
        """
        from checkmate.core.plan import Compute

        n = len(graph)
        R, S = np.zeros((n, n), bool), np.zeros((n, n), bool)
        live = np.zeros(n, bool)
        stage, latest = 0, -1
        for step in plan.steps:
            if not isinstance(step, Compute):
                live[step.op] = False
                continue
            if stage >= n or step.op > stage or step.op <= latest:
                return None
            live[step.op] = R[stage, step.op] = True
            latest = step.op
            if step.op == stage:
                stage, latest = stage + 1, -1
                if stage < n:
                    S[stage] = live
        # Frees right after a stage's last op belong to that stage: what the next stages never read
        # is not retained.
        return cls(R, _used_only(graph, R, S)) if stage == n else None


def _used_only(graph, R: np.ndarray, S: np.ndarray) -> np.ndarray:
    """Clears the retained values that no later stage reads before they are computed again."""
    S = S.copy()
    wanted = np.zeros(len(graph), bool)
    wanted[list(graph.outputs)] = True
    for t in range(len(R) - 1, -1, -1):
        for i in R[t].nonzero()[0][::-1]:
            wanted[i] = False
            wanted[list(graph.deps[i])] = True
        S[t] &= wanted
    return S
