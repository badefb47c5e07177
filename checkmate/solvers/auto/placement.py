"""Stages at which snapshots are set: where memory is fullest, or all over what is too much. What
their models tell is `snapshot`'s business."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

APART = 1 / 40
"""Distance from which stages tell something else, as a share of all: neighbours tell much the
same."""


def fullest(
    over: np.ndarray, chosen: Iterable[int], most: int, *, apart: bool = False
) -> list[int]:
    """Returns the stages that are most over the budget, the first the fullest; no two are
    neighbours.

    Args:
      over: (n,) bytes above the budget in each stage, or any other measure of that; only stages
        above zero are returned.
      chosen: Stages that are not returned.
      most: So many at most.
      apart: All stay at a distance from each other, and from those chosen.
    """
    distance = max(1, int(APART * len(over))) if apart else 1
    left, found = over.copy(), list[int]()
    for t in chosen:
        left[_around(t, distance if apart else 0)] = 0
    while len(found) < most and left.max(initial=0) > 0:
        found.append(int(left.argmax()))
        left[_around(found[-1], distance)] = 0
    return found


def at_equal_steps(held: np.ndarray, budget_bytes: int, many: int) -> list[int]:
    """Returns so many stages, fewer where some are the same: the fullest, and the last that hold so
    many equal parts less of what is too much.

    Args:
      held: (n,) bytes of each stage, at least one of them over the budget.
    """
    levels = np.linspace(held.max(), budget_bytes, many, endpoint=False)
    return sorted(
        {int(held.argmax()), *(int(np.nonzero(held >= level)[0][-1]) for level in levels[1:])}
    )


def _around(t: int, distance: int) -> slice:
    return slice(max(0, t - distance), t + distance + 1)
