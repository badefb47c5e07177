"""In which order real tensors are evicted: by the scores of `checkmate.dtr`, within three ranks.

Storages that nothing refers to are evicted first: a value that came back only so that another
could, or that no tape and no handle asks for. Gradients are evicted last, since to have one back
takes the whole backward pass up to it. For all others, the heuristic decides.

Before the first eviction no score is needed, and nothing is noted for one: `Asleep` and `Unsorted`
take the places of the neighbourhood and the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from checkmate.dtr.heuristic import Heuristic
from checkmate.dtr.neighbourhood import Own, Regions
from checkmate.dtr.storage import Storage
from checkmate.tf2.eager.storage import EagerStorage

GRADIENTS_LAST = 1e9
"""Factor of a gradient's cost in its score."""


class Ranked(Own):
    """The costs of another neighbourhood, but 0 for what nothing refers to, and very high for a
    gradient.

    Args:
      plain: Counts the costs; told of each eviction and return.

    Attributes:
      counts_made: It has to be told also of what is in memory for the first time.
    """

    def __init__(self, plain: Own):
        self.plain = plain
        self.stale = plain.stale
        self.counts_made = isinstance(plain, Regions)

    @property
    def table(self):  # type: ignore[override]  # an array that the plain one replaces as it grows
        """The value of each class."""
        return self.plain.table

    def restart(self, storages: Iterable[Storage]) -> None:
        """As the plain one."""
        self.plain.restart(storages)

    def forget_dead(self) -> None:
        """Drops storages from `stale` that are not in the pool."""
        alive = [storage for storage in self.stale if storage.slot >= 0]
        self.stale.clear()
        self.stale.update(dict.fromkeys(alive))

    def evicted(self, storage: Storage) -> None:
        """As the plain one."""
        self.plain.evicted(storage)

    def rematerialized(self, storages: Iterable[Storage]) -> None:
        """As the plain one."""
        self.plain.rematerialized(storages)

    def detach(self, storage: Storage) -> None:
        """As the plain one."""
        self.plain.detach(storage)

    def own(self, storage: Storage) -> float:
        """That of the plain one, times the rank's factor."""
        if not storage.refs:
            return 0.0
        assert isinstance(storage, EagerStorage)
        cost = self.plain.own(storage)
        return cost * GRADIENTS_LAST if storage.is_gradient else cost

    def classes(self, storage: Storage) -> Sequence[int]:
        """None for what is evicted first."""
        return self.plain.classes(storage) if storage.refs else ()

    def class_cost(self, storage: Storage) -> float:
        """0 for what is evicted first."""
        return self.plain.class_cost(storage) if storage.refs else 0.0


def ranked(heuristic: Heuristic) -> Ranked:
    """Counts costs for a heuristic, with ranks."""
    return Ranked(heuristic.neighbourhood())


class Asleep(Ranked):
    """Notes nothing."""

    def __init__(self) -> None:
        super().__init__(Own())


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
        """When it was read does not matter yet."""

    def choose(self, clock: float, horizon: float = 0) -> Storage:
        """The one that has been in the set for longest."""
        return next(iter(self))
