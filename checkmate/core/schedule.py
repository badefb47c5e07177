"""Schedule: the paper's matrices R and S, the stage-wise form of a plan; `lower` makes a plan of
it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Compute, Plan
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

    Examples:
      >>> Schedule(R=[[1, 0], [0, 1]], S=[[0, 0], [1, 0]])
      Schedule(stages=2, ops=2, evaluations=2)

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
    def from_plan(cls, graph: DFGraph, plan: Plan) -> Schedule | None:
        """Returns R and S of a plan, or None if the plan has no stage-wise form.

        Stage t ends with the first evaluation of op t. There is no such form if first evaluations
        are not in index order, or if within one stage an op runs twice or ops are not in
        topological order.

        Args:
          graph: The graph, of n ops.
          plan: A plan that is legal for it.
        """
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
        # Frees directly after a stage's last op belong to that stage: values that later stages
        # never read are not retained.
        return cls(R, S & retained(graph, R)) if stage == n else None


def lower(graph: DFGraph, schedule: Schedule) -> Plan:
    """Returns the plan of a schedule: stage by stage, within a stage in topological order, each
    value freed after its last use.

    A value that S retains although no later op reads it is freed at once, so the plan never needs
    more memory than the schedule.

    Args:
      graph: The graph, of n ops.
      schedule: R and S of shape (T, n).

    Raises:
      PlanError: The shapes do not fit, or an op runs in a stage where an input is neither retained
        nor computed.

    Examples:
      >>> chain = DFGraph((checkmate.Op("a"), checkmate.Op("b", (0,))), outputs=(1,))
      >>> lower(chain, Schedule(R=[[1, 0], [0, 1]], S=[[0, 0], [1, 0]])).computed
      (0, 1)
    """
    R, S = schedule.R, schedule.S
    if R.shape[1] != len(graph):
        raise PlanError(
            f"The schedule has {R.shape[1]} columns and the graph {len(graph)} ops. It belongs to"
            " another graph."
        )
    order = []
    for t in range(R.shape[0]):
        for i in map(int, R[t].nonzero()[0]):
            for d in graph.deps[i]:
                if not (R[t, d] or S[t, d]):
                    raise PlanError(
                        f"In stage {t} op {i} {graph.ops[i].name!r} runs, but its input {d}"
                        f" {graph.ops[d].name!r} is neither retained nor computed."
                    )
            order.append(i)
    return Plan.from_order(graph, order)


def retained(graph: DFGraph, R: np.ndarray) -> np.ndarray:
    """Returns the least S that R needs: values that a later evaluation, or the end, reads before
    they are recomputed."""
    S = np.zeros(R.shape, bool)
    needed = np.isin(np.arange(len(graph)), graph.outputs)
    for t in range(len(R) - 1, -1, -1):
        for i in R[t].nonzero()[0][::-1]:
            needed[i] = False
            needed[list(graph.deps[i])] = True
        S[t] = needed
    return S


def may_run(graph: DFGraph, stages: int | None = None) -> np.ndarray:
    """Returns (stages, n) bool, by default n stages: op i may run in stage t. It must run in stage
    i; later only if it is recomputable and what it reads is not overwritten."""
    n = len(graph)
    stages = n if stages is None else stages
    allowed = np.tri(stages, n, dtype=bool) & graph.recomputable
    allowed &= np.arange(stages)[:, None] <= graph.expires
    return allowed | np.eye(stages, n, dtype=bool)


def complete(graph: DFGraph, S: np.ndarray) -> Schedule:
    """Phase two: returns the schedule that retains the values in S, and recomputes other values
    that are needed.

    Stages and ops are visited from the last to the first, each once. Values in S that no op needs
    are not retained; needed values that may not be recomputed are retained even if they are not in
    S.
    """
    n, allowed = len(graph), may_run(graph)
    R, kept = np.eye(n, dtype=bool), np.zeros((n, n), bool)
    wanted = np.isin(np.arange(n), graph.outputs)
    for t in range(n - 1, -1, -1):
        wanted[t] = True
        for i in range(t, -1, -1):
            if not wanted[i]:
                continue
            if i == t or (allowed[t, i] and not S[t, i]):
                R[t, i] = True
                wanted[list(graph.deps[i])] = True
            else:
                kept[t, i] = True
        wanted = kept[t].copy()
    return Schedule(R, kept)
