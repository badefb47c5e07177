"""The evicted neighbourhood of a storage, which would have to run again: exact or by classes.

The cost of evicting a storage is its own cost plus that of evicted storages around it, because
bringing the storage back may need those, and bringing those back may need the storage. Three ways
to count, from cheap to expensive:

    Own          no neighbourhood
    Classes      the evicted components it touches, kept by union-find; a component is never split
                 again when a part of it comes back, only its cost is lowered (h_DTR^eq)
    Regions      all evicted ancestors and all evicted descendants that are reached through evicted
                 storages only, exactly (e*)

A storage whose call has never run counts as evicted: while a call waits for its inputs, its outputs
are linked and not in memory.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), section 4.1 and appendix C.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from checkmate.dtr.storage import Storage


class Own:
    """Counts the storage itself only.

    Attributes:
      stale: Storages in the pool's arrays whose cost may have changed since the last search. The
        pool empties it.
      table: The value of each class as an array, or None where there are no classes.
    """

    table: np.ndarray | None = None
    counts_first_runs = False
    """It has to be told also of storages that come into memory for the first time, unless these are
    linked before."""

    def __init__(self) -> None:
        self.stale: dict[Storage, None] = {}

    def mark(self, storages: Iterable[Storage]) -> None:
        self.stale.update([(storage, None) for storage in storages if storage.slot >= 0])

    def restart(self, storages: Iterable[Storage]) -> None:
        """Works everything out from which of the `storages`, all that there are, are in memory."""

    def evicted(self, storage: Storage) -> None:
        """Told that `storage` has just been evicted."""

    def rematerialized(self, storages: Iterable[Storage]) -> None:
        """Told that `storages` have just come into memory, together, for the first time or again,
        or got new inputs."""

    def detach(self, storage: Storage) -> None:
        """Cuts an evicted storage that will never come back out of the graph."""
        storage.detach()

    def own(self, storage: Storage) -> float:
        """The part of the cost that no other storage shares."""
        return storage.cost * storage.weight

    def classes(self, storage: Storage) -> Sequence[int]:
        """The classes whose values (`Classes.values`) add to the cost."""
        return ()

    def cost(self, storage: Storage) -> float:
        return self.own(storage)


class Nothing(Own):
    """Every storage costs the same: for scores that do not depend on the cost."""

    def own(self, storage: Storage) -> float:
        return storage.weight


class Classes(Own):
    """Evicted storages in union-find classes; a storage costs itself and each class that it
    touches.

    Attributes:
      values: The cost of each class, exactly as it was added up. Class 0 is that of storages that
        never ran: nothing.
      table: The same as an array, for many storages at once.
    """

    table: np.ndarray

    def __init__(self) -> None:
        super().__init__()
        self._clear()

    def _clear(self) -> None:
        self.values: list[float] = [0]
        self.table = np.zeros(1024)
        self._parent = [0]
        # By the class's root: storages whose cost may count the class.
        self._near: list[dict[Storage, None]] = [{}]

    def restart(self, storages: Iterable[Storage]) -> None:
        self._clear()
        self.mark(storages)
        gone = [storage for storage in storages if not storage.material]
        for storage in gone:
            storage.around = 0
        for storage in gone:
            self.evicted(storage)

    def evicted(self, storage: Storage) -> None:
        """Joins all classes around `storage`, and it, into one."""
        gone = [other for other in storage.neighbours() if not other.material]
        roots = {self._root(other.around) for other in gone if other.around}
        root = self._joined(roots) if roots else self._new()
        self._add(root, storage.cost)
        storage.around = root
        for other in gone:
            if not other.around:
                other.around = root  # it never ran; its neighbours touch the class from now on
                self.mark(other.neighbours())
        self.mark(storage.neighbours())

    def rematerialized(self, storages: Iterable[Storage]) -> None:
        """Takes the storages' own costs out of their classes, which otherwise stay as they are."""
        for storage in storages:
            if storage.around:
                self._add(self._root(storage.around), -storage.cost)
            storage.around = 0
            self.mark(storage.neighbours())

    def detach(self, storage: Storage) -> None:
        self.rematerialized([storage])
        super().detach(storage)

    def classes(self, storage: Storage) -> Sequence[int]:
        if not storage.weight:
            return ()
        roots = tuple(
            dict.fromkeys(
                self._root(other.around)
                for other in storage.neighbours()
                if not other.material and other.around
            )
        )
        for root in roots:
            self._near[root][storage] = None
        return roots

    def cost(self, storage: Storage) -> float:
        return self.own(storage) + sum(self.values[root] for root in self.classes(storage))

    def _new(self) -> int:
        number = len(self.values)
        self.values.append(0)
        self._parent.append(number)
        self._near.append({})
        if number == len(self.table):
            self.table = np.concatenate([self.table, np.zeros(number)])
        return number

    def _root(self, number: int) -> int:
        parent = self._parent
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    def _joined(self, roots: set[int]) -> int:
        kept = max(sorted(roots), key=lambda root: len(self._near[root]))
        for root in sorted(roots - {kept}):
            self._parent[root] = kept
            self._add(kept, self.values[root])
            self.mark(self._near[root])
            self._near[kept].update(self._near[root])
            self._near[root] = {}
        return kept

    def _add(self, root: int, cost: float) -> None:
        self.values[root] += cost
        self.table[root] = self.values[root]


class _Region:
    """One direction: the evicted storages reached (`interior`), and those in memory where that ends
    (`frontier`)."""

    __slots__ = ("cost", "frontier", "interior")

    def __init__(self) -> None:
        self.cost: float = 0
        self.interior: dict[Storage, None] = {}
        self.frontier: dict[Storage, None] = {}

    def absorb(self, storage: Storage, region: _Region, base: Storage) -> None:
        """`storage`, so far on the frontier, has been evicted; `region` was its own in this
        direction."""
        self.frontier.pop(storage, None)
        self.frontier.update(region.frontier)
        self.frontier.pop(base, None)
        for other in (*region.interior, storage):
            if other not in self.interior:
                self.interior[other] = None
                self.cost += other.cost


class Regions(Own):
    """Evicted ancestors, and descendants if asked, of every storage in memory; kept up to date at
    each eviction and return.

    Args:
      descendants: Count them too. h_MSPS counts the ancestors only.

    Work grows with the size of the evicted neighbourhoods; `Classes` is the cheap stand-in.
    """

    counts_first_runs = True

    def __init__(self, *, descendants: bool) -> None:
        super().__init__()
        self._descendants = descendants

    def restart(self, storages: Iterable[Storage]) -> None:
        self.rematerialized([storage for storage in storages if storage.material])

    def evicted(self, storage: Storage) -> None:
        """Searches from both frontiers go on through `storage`."""
        up, down = storage.around
        storage.around = None
        for other in up.frontier:
            other.around[1].absorb(storage, down, other)
        for other in down.frontier:
            other.around[0].absorb(storage, up, other)
        self.mark(up.frontier)
        self.mark(down.frontier)

    def rematerialized(self, storages: Iterable[Storage]) -> None:
        above: dict[Storage, None] = {}
        below: dict[Storage, None] = {}
        for storage in storages:
            storage.around = (_searched(storage, up=True), _searched(storage, up=False))
            above.update(storage.around[0].frontier)
            below.update(storage.around[1].frontier)
        for other in above:
            other.around = (other.around[0], _searched(other, up=False))
        for other in below:
            other.around = (_searched(other, up=True), other.around[1])
        self.mark(above)
        self.mark(below)
        self.mark(storages)

    def detach(self, storage: Storage) -> None:
        seen = _searched(storage, up=True).frontier | _searched(storage, up=False).frontier
        super().detach(storage)
        self.rematerialized(seen)

    def own(self, storage: Storage) -> float:
        up, down = storage.around
        around = up.cost + (down.cost if self._descendants else 0)
        return (storage.cost + around) * storage.weight


def _searched(base: Storage, *, up: bool) -> _Region:
    region = _Region()
    interior, frontier = region.interior, region.frontier
    stack = [base]
    while stack:
        storage = stack.pop()
        for other in storage.deps if up else storage.users:
            if other.material:
                frontier[other] = None
            elif other not in interior:
                interior[other] = None
                region.cost += other.cost
                stack.append(other)
    frontier.pop(base, None)
    return region
