"""The pool of storages that may be evicted, in the order in which they became evictable, and the
search for the lowest score.

Scores change with every tick of the clock, so all are worked out at every eviction, as arrays. The
costs in them change only where something was evicted or came back; the neighbourhood says where.
Between two evictions most storages come and go: the arrays have those of the last search.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from checkmate.dtr.heuristic import Heuristic, quotient
from checkmate.dtr.neighbourhood import Own
from checkmate.dtr.storage import Storage
from checkmate.errors import CheckmateError

WIDTH = 4
"""Classes per storage in the array; the few storages that touch more are worked out one by one."""

EXACT = 2.0**53
"""Whole numbers up to here are exact in floating point."""


@dataclass(frozen=True, slots=True)
class Search:
    """Which storages of the pool an eviction compares.

    Args:
      sample: Only about the square root of their number, drawn at random.
      smallest: Leave out storages smaller than this share of the mean size in the pool, as long as
        there are others.
      few: Up to so many storages, scores are worked out one after the other, which is then faster
        than arrays. The choice is the same.

    Source: Kirisame et al. (2021), appendix E.2: sampling, and a share of 0.01, make the search
    cheap in a prototype.
    """

    sample: bool = False
    smallest: float = 0.0
    seed: int = 0
    few: int = 12

    def __post_init__(self) -> None:
        if not self.smallest >= 0:
            raise CheckmateError(
                f"smallest is a share of the mean size, 0 or more; got {self.smallest!r}."
            )


class Pool:
    """Storages that may be evicted.

    Args:
      heuristic: The score; the lowest is evicted, of equal ones the latest in the pool, and the
        first that scores zero at once.
    """

    def __init__(self, heuristic: Heuristic, neighbourhood: Own, search: Search):
        self._heuristic, self._neighbourhood, self._search = heuristic, neighbourhood, search
        self._random = random.Random(search.seed)
        self._slots: list[Storage | None] = []
        self._filled = 0
        self._added: dict[Storage, None] = {}  # since the last search
        self._allocate(64)

    def __len__(self) -> int:
        return self._filled + len(self._added)

    def __iter__(self) -> Iterator[Storage]:
        yield from (storage for storage in self._slots if storage is not None)
        yield from self._added

    def add(self, storage: Storage) -> None:
        self._added[storage] = None

    def discard(self, storage: Storage) -> None:
        if storage.slot < 0:
            del self._added[storage]
            return
        self._slots[storage.slot] = None
        self._cost[storage.slot] = math.inf
        storage.slot = -1
        self._filled -= 1

    def touched(self, storage: Storage) -> None:
        if storage.slot >= 0:
            self._last[storage.slot] = storage.last_access

    def choose(self, clock: float, horizon: float = 0) -> Storage:
        """The storage to evict next, from a pool that is not empty; see `Heuristic.score`."""
        if self._heuristic.random:
            alive = list(self)
            return alive[self._random.randrange(len(alive))]
        if len(self) <= self._search.few and not (self._search.sample or self._search.smallest):
            return self._lowest(list(self), clock, horizon)
        self._refresh()
        if self._search.sample or self._search.smallest:
            return self._lowest(self._searched(), clock, horizon)
        end = len(self._slots)
        cost = self._cost[:end]
        if self._neighbourhood.table is not None:
            cost = cost + self._neighbourhood.table[self._classes[:, :end]].sum(axis=0)
        divisor = np.broadcast_to(
            self._heuristic.divisor(self._bytes[:end], self._last[:end], clock, horizon), end
        )
        score = quotient(cost, divisor)
        zero = np.flatnonzero(score == 0)
        if len(zero):
            score = score[: zero[0] + 1]
        least = np.fmin.reduce(score)
        if not least < math.inf:  # nor where costs are so large that no score is a number
            return next(storage for storage in reversed(self._slots) if storage is not None)
        if divisor.max() <= EXACT:
            return self._at(len(score) - 1 - int(score[::-1].argmin()))
        # The products are rounded: what is near the lowest score is worked out again in whole
        # numbers.
        near = np.flatnonzero(score <= least + 1e-12 * abs(least))
        return self._lowest([self._at(slot) for slot in near], clock, horizon)

    def _searched(self) -> list[Storage]:
        storages = list(self)
        if self._search.smallest:
            least = (
                self._search.smallest * sum(storage.bytes for storage in storages) / len(storages)
            )
            storages = [storage for storage in storages if storage.bytes >= least] or storages
        if self._search.sample:
            drawn = self._random.sample(range(len(storages)), math.isqrt(len(storages) - 1) + 1)
            storages = [storages[k] for k in sorted(drawn)]
        return storages

    def _lowest(self, storages: list[Storage], clock: float, horizon: float) -> Storage:
        best, chosen = math.inf, storages[-1]
        for storage in storages:
            score = self._heuristic.score(
                self._neighbourhood.cost(storage), storage, clock, horizon
            )
            if score <= best:
                best, chosen = score, storage
            if score == 0:
                break
        return chosen

    def _at(self, slot: int | np.integer) -> Storage:
        storage = self._slots[slot]
        assert storage is not None
        return storage

    def _refresh(self) -> None:
        stale = self._neighbourhood.stale
        for storage in self._added:
            if len(self._slots) == len(self._bytes):
                self._compact()
            slot = storage.slot = len(self._slots)
            self._slots.append(storage)
            self._bytes[slot], self._last[slot] = storage.bytes, storage.last_access
            stale[storage] = None
        self._filled += len(self._added)
        self._added.clear()
        wide = []
        for storage in stale:
            slot = storage.slot
            if slot < 0:
                continue
            cost, classes = self._neighbourhood.own(storage), self._neighbourhood.classes(storage)
            if len(classes) > WIDTH:
                cost, classes = self._neighbourhood.cost(storage), ()
                wide.append(storage)
            self._cost[slot] = cost
            for k in range(WIDTH):
                self._classes[k, slot] = classes[k] if k < len(classes) else 0
        stale.clear()
        stale.update(dict.fromkeys(wide))

    def _allocate(self, capacity: int) -> None:
        self._bytes, self._last, self._cost = (np.zeros(capacity) for _ in range(3))
        self._classes = np.zeros((WIDTH, capacity), dtype=np.int64)

    def _compact(self) -> None:
        kept = [storage for storage in self._slots if storage is not None]
        slots = [storage.slot for storage in kept]
        columns, classes = (self._bytes, self._last, self._cost), self._classes
        self._allocate(max(64, 2 * len(kept)))
        for new, old in zip((self._bytes, self._last, self._cost), columns, strict=True):
            new[: len(kept)] = old[slots]
        self._classes[:, : len(kept)] = classes[:, slots]
        self._slots = [*kept]
        for slot, storage in enumerate(kept):
            storage.slot = slot
