"""The scores by which DTR evicts: each is a product of named factors, and the lowest goes first.

    score = cost / (bytes ^ size x staleness ^ staleness)

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), section 4.1 and, for
leaving factors out, appendix D.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
      cost: What it would cost to have it back: "own", "ancestors" (and its evicted ancestors),
        "neighbourhood" (and its evicted descendants as well), "classes" (its evicted neighbourhood,
        approximately) or "none" (the same for all).
      size: Divide by its bytes.
      staleness: Divide by the time since it was last read, plus `horizon` where one is given.
      random: No score at all: any of them.

    A storage of zero bytes, or read this very moment, has an infinite score where that factor is
    used.
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
        """What counts the cost during one run."""
        return _COSTS[self.cost]()

    def __str__(self) -> str:
        """Its name, or what it is made of."""
        return next((name for name, known in HEURISTICS.items() if known == self), repr(self))

    def score(self, cost: float, storage: Storage, clock: float, horizon: float = 0) -> float:
        """The score of one storage whose cost is `cost`, without rounding before the division."""
        below = (storage.bytes if self.size else 1) * (
            abs(clock - storage.last_access) + horizon if self.staleness else 1
        )
        return cost / below if below > 0 else math.inf


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
    """Returns the heuristic of this name, or the object itself."""
    if isinstance(heuristic, Heuristic):
        return heuristic
    key = str(heuristic).lower().replace("-", "_")
    if key not in HEURISTICS:
        raise CheckmateError(
            f"There is no heuristic {heuristic!r}. Known: {', '.join(HEURISTICS)}."
        )
    return HEURISTICS[key]
