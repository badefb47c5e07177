"""Rows of the snapshot relaxation that span several intervals: which of them a linear solution
violates.

A *chain* is a list of ops, each of which reads the next. See `relaxation` for the snapshots, for P
and R, and for the row that a chain stands for, (8) or (9), with its proof. There are too many
chains to write all rows down, and few matter. The one that a solution violates most, for each pair
of snapshot a and interval b and each last op, is a longest path: from the last op to the first,

    least[i] = max(R[b, i], P[b, i] - P[a, i], least[j] - P[a, i] for the ops j that read i)

and the row is violated by least[i] less the sum of R[c, i] over a < c <= b. One sweep over the
edges does that for all pairs a, b at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkmate.core.graph import DFGraph

VIOLATION = 0.02
"""Least violation of a row that is returned, in evaluations."""

NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True)
class Chain:
    """Ops of which each reads the next. The first runs in interval b, or is `kept`: in memory at
    snapshot b."""

    a: int
    b: int
    ops: tuple[int, ...]
    kept: bool


def violated_chains(
    graph: DFGraph, snapshots: Sequence[int], P: np.ndarray, R: np.ndarray, *, limit: int
) -> list[Chain]:
    """The chains whose rows are violated most, at most `limit`: one for each a, b and last op.

    Args:
      snapshots: Stages t_0 < ... < t_{K-1}.
      P: (K, n) fractions of values in memory at each snapshot.
      R: (K + 1, n) fractions of evaluations in each interval.
    """
    K, n = P.shape
    a, b = (
        np.array(numbers)
        for numbers in zip(*((a, b) for a in range(K) for b in range(a + 1, K + 1)), strict=True)
    )
    # (n, pairs): the op has run by snapshot a.
    inside = np.arange(n)[:, None] <= np.array(snapshots)[a]
    at_a, at_b = P[a].T, np.vstack([P, np.zeros(n)])[b].T
    ran = np.cumsum(np.vstack([np.zeros(n), R]), axis=0)
    runs = (ran[b + 1] - ran[a + 1]).T
    least = R[b].T.copy()
    kept = inside & (at_b - at_a > least)
    least[kept] = (at_b - at_a)[kept]
    reader = np.full(least.shape, -1, np.int64)
    for j in range(n - 1, -1, -1):
        if least[j].max() > VIOLATION:
            for i in graph.deps[j]:
                more = (least[j] - at_a[i] > least[i] + NEGLIGIBLE) & inside[i]
                least[i, more] = (least[j] - at_a[i])[more]
                reader[i, more] = j
    excess = np.where(inside, least - runs, 0.0)
    last, pair = np.nonzero(excess > VIOLATION)
    worst = np.argsort(-excess[last, pair], kind="stable")[:limit]
    chains = []
    for op, k in zip(last[worst].tolist(), pair[worst].tolist(), strict=True):
        ops = [op]
        while (j := int(reader[ops[-1], k])) >= 0:
            ops.append(j)
        chains.append(Chain(int(a[k]), int(b[k]), tuple(reversed(ops)), bool(kept[ops[-1], k])))
    return chains
