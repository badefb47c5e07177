"""The scores by which DTR evicts: each is a product of named factors, and the storage with the
lowest score is evicted first.

    score = cost / (bytes ^ size x staleness ^ staleness)

This is the only definition of the score: the pool uses it on arrays, the runtime on single
storages.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), section 4.1 and, for
leaving factors out, appendix D.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkmate.dtr.neighbourhood import Classes, Nothing, Own, Regions
from checkmate.dtr.storage import Storage
from checkmate.errors import CheckmateError

_COSTS = {
    "none": Nothing,
    "own": Own,
    "classes": Classes,
    "ancestors": lambda: Regions(descendants=False),
    "neighbourhood": lambda: Regions(descendants=True),
}


@dataclass(frozen=True, slots=True)
class Heuristic:
    """A score of a storage that is in memory. Evicting the one with the lowest should hurt least.

    Args:
      cost: Cost of having it back: "own", "ancestors" (and its evicted ancestors),
        "neighbourhood" (and its evicted descendants as well), "classes" (its evicted neighbourhood,
        approximately) or "none" (the same for all).
      size: Divide by its bytes.
      staleness: Divide by the time since it was last read, plus `horizon` where one is given.
      random: No score at all: any of them.

    A storage of zero bytes, or read this very moment, has an infinite score where that factor is
    used.

    Examples:
      >>> by_age = Heuristic("none", size=False)  # what was not read for longest goes first
      >>> str(by_age)
      'lru'
    """

    cost: str = "classes"
    size: bool = True
    staleness: bool = True
    random: bool = False

    def __post_init__(self) -> None:
        if self.cost not in _COSTS:
            raise CheckmateError(
                f"There is no cost {self.cost!r} for a heuristic. Known: {', '.join(_COSTS)}."
            )

    def neighbourhood(self) -> Own:
        """The object that counts the cost during one run."""
        return _COSTS[self.cost]()

    def __str__(self) -> str:
        """Its name, or what it is made of."""
        return next((name for name, known in HEURISTICS.items() if known == self), repr(self))

    def divisor(self, count: Any, last_access: Any, clock: float, horizon: float = 0) -> Any:
        """The divisor of the cost, for one storage (numbers) or for many (arrays).

        Args:
          count: Bytes.
          last_access: When it was last read.
          clock: See `score`.
          horizon: See `score`.
        """
        staleness = abs(clock - last_access) + horizon if self.staleness else 1
        return (count if self.size else 1) * staleness

    def score(self, cost: float, storage: Storage, clock: float, horizon: float = 0) -> float:
        """The score of one storage.

        Args:
          cost: Cost of having it back.
          storage: The storage.
          clock: The moment from which staleness is counted, in either direction.
          horizon: Added to the staleness. The larger, the less staleness decides.
        """
        divisor = self.divisor(storage.bytes, storage.last_access, clock, horizon)
        return float(quotient(cost, divisor))


def quotient(cost: Any, divisor: Any) -> Any:
    """cost / divisor, infinite where the divisor is 0; whole numbers are divided exactly, arrays
    element by element in floating point.

    Args:
      cost: A number or an array.
      divisor: The same.

    Examples:
      >>> quotient(3, 2), quotient(3, 0)
      (1.5, inf)
    """
    if not isinstance(divisor, np.ndarray):
        return cost / divisor if divisor > 0 else math.inf
    divisor = np.asarray(divisor, dtype=float)  # products beyond int64 are Python's own numbers
    scores = np.full(divisor.shape, math.inf)
    return np.divide(cost, divisor, out=scores, where=divisor > 0)


HEURISTICS: dict[str, Heuristic] = {
    "dtr": Heuristic("neighbourhood"),
    "dtr_eq": Heuristic("classes"),
    "local": Heuristic("own"),
    "lru": Heuristic("none", size=False),
    "size": Heuristic("none", staleness=False),
    "msps": Heuristic("ancestors", staleness=False),
    "random": Heuristic("none", random=True),
}
"""The heuristics that the paper compares, by name. `size` is what XLA's rematerialization does,
`msps` is that of Peng et al. (2020)."""


def make_heuristic(heuristic: str | Heuristic) -> Heuristic:
    """Returns the heuristic of this name, or the object itself.

    Args:
      heuristic: A name in `HEURISTICS` or a `Heuristic`.

    Raises:
      CheckmateError: There is none of this name.

    Examples:
      >>> make_heuristic("lru")
      Heuristic(cost='none', size=False, staleness=True, random=False)
    """
    if isinstance(heuristic, Heuristic):
        return heuristic
    key = str(heuristic).lower().replace("-", "_")
    if key not in HEURISTICS:
        raise CheckmateError(
            f"There is no heuristic {heuristic!r}. Known: {', '.join(HEURISTICS)}."
        )
    return HEURISTICS[key]
