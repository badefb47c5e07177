"""In which order real tensors go: the scores of `checkmate.dtr`, within ranks that paper does not
need.

What nothing refers to goes first: a value that came back only so that another could, or that no
tape and no handle asks for. Gradients go last, since having one back takes the whole backward pass
up to it. Between these, the heuristic decides.

Before the first eviction no score is wanted, and no note for it is kept: `Asleep` and `Unsorted`
stand in for the neighbourhood and the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from checkmate.dtr.heuristic import Heuristic
from checkmate.dtr.neighbourhood import Classes, Nothing, Own, Regions
from checkmate.dtr.storage import Storage
from checkmate.tf2.eager.tensors import EagerStorage

GRADIENTS_LAST = 1e9
"""What the cost of a gradient is multiplied with in a score."""


class Ranked(Own):
    """Costs nothing to evict what nobody refers to, and very much to evict a gradient.

    Attributes:
      listens: It wants to be told what is made.
    """

    listens = False

    def made(self, storages: Sequence[Storage]) -> None:
        """Tells that `storages` are in memory for the first time, made of inputs that are all
        there."""

    def restart(self, storages: Iterable[Storage]) -> None:
        """Works everything out from what is in memory and what is not."""

    def own(self, storage: Storage) -> float:
        """As without ranks, times that of the rank."""
        if not storage.refs:
            return 0.0
        assert isinstance(storage, EagerStorage)
        cost = super().own(storage)
        return cost * GRADIENTS_LAST if storage.is_gradient else cost

    def classes(self, storage: Storage) -> Sequence[int]:
        """None for what goes first anyway."""
        return super().classes(storage) if storage.refs else ()

    def cost(self, storage: Storage) -> float:
        """Nothing for what goes first."""
        return super().cost(storage) if storage.refs else 0.0


class _RankedOwn(Ranked, Own):
    pass


class _RankedNothing(Ranked, Nothing):
    pass


class _RankedClasses(Ranked, Classes):
    def restart(self, storages: Iterable[Storage]) -> None:
        gone = [storage for storage in storages if not storage.material]
        for storage in gone:
            storage.around = 0
        for storage in gone:
            self.evicted(storage)


class _RankedRegions(Ranked, Regions):
    listens = True

    def made(self, storages: Sequence[Storage]) -> None:
        self.rematerialized(storages)

    def restart(self, storages: Iterable[Storage]) -> None:
        self.rematerialized([storage for storage in storages if storage.material])


def ranked(heuristic: Heuristic) -> Ranked:
    """What counts costs for a heuristic, with ranks."""
    plain = heuristic.neighbourhood()
    if isinstance(plain, Regions):
        return _RankedRegions(descendants=heuristic.cost == "neighbourhood")
    return {Own: _RankedOwn, Nothing: _RankedNothing, Classes: _RankedClasses}[type(plain)]()


class Asleep(Ranked):
    """Keeps no notes."""


class Unsorted:
    """What may be evicted, as a set."""

    def __init__(self) -> None:
        self._storages: dict[Storage, None] = {}
        self.add, self.discard = self._storages.setdefault, self._storages.pop

    def __len__(self) -> int:
        return len(self._storages)

    def __iter__(self) -> Iterator[Storage]:
        return iter(self._storages)

    def touched(self, storage: Storage) -> None:
        """Nobody asks yet when it was read."""

    def choose(self, clock: float, horizon: float = 0) -> Storage:
        """The one that has been in it for longest."""
        return next(iter(self))
