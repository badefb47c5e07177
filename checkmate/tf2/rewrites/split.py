"""Split: how a step runs whose largest ops run in parts, within one function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from checkmate.tf2.axes.regions import largest_need, regions_of
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.rewrites.exact import same_bits
from checkmate.tf2.rewrites.segments import pairs_of, segmented
from checkmate.tf2.rewrites.tiles import tiled

KINDS = ("tiles", "segments")
"""The ways to split an op: along an axis of its values; a loop by its turns."""

MOST_TRIES = 4
"""How often the bytes of an op are halved, at most."""


@dataclass(frozen=True, slots=True)
class Split:
    """Ops are split that need more than `above_bytes` without variables and arguments, in these
    `KINDS` of ways, and with `sums` also where parts of sums are added up in another order.

    Examples:
      >>> traced = checkmate.tf2.trace(train_step, images, labels)
      >>> parts = Split(above_bytes=2**20).of(traced)
    """

    above_bytes: int
    kinds: tuple[str, ...] = KINDS
    sums: bool = False

    def of(self, traced: TracedStep) -> TracedStep | None:
        """The trace of the step in parts; None where nothing is split."""
        return Splits(traced, self).at(self)


@dataclass(slots=True, eq=False)
class Splits:
    """The splits of a step, of those kinds that are `allowed`."""

    traced: TracedStep
    allowed: Split
    _function: Function | None = field(default=None)
    _largest: int | None = None

    @property
    def function(self) -> Function:
        if self._function is None:
            self._function = Function(self.traced.flat.graph, self.traced.function.graph)
        return self._function

    @property
    def largest_bytes(self) -> int:
        """The most bytes that an op reads and makes, or that a loop leaves its gradient."""
        if self._largest is None:
            stacks = [pair.stack_bytes for pair in pairs_of(self.traced)]
            self._largest = max([largest_need(self.function), *stacks])
        return self._largest

    def at(self, split: Split) -> TracedStep | None:
        tiles = self._in_tiles(split) if "tiles" in split.kinds else None
        if "segments" not in split.kinds:
            return tiles
        return segmented(tiles or self.traced, split.above_bytes) or tiles

    def _in_tiles(self, split: Split) -> TracedStep | None:
        exact = None if split.sums else partial(same_bits, self.function)
        regions = regions_of(self.traced, self.function, split.above_bytes, exact)
        if not regions:
            return None
        return tiled(self.traced, self.function, regions, split.above_bytes)

    def within(self, room_bytes: int) -> Iterator[tuple[Split, TracedStep]]:
        """Yields splits in ever smaller parts, so that some ops together fit in `room_bytes`, as
        long as parts get smaller."""
        most, last = min(self.largest_bytes, room_bytes) // 2, self.traced
        for _ in range(MOST_TRIES):
            split = replace(self.allowed, above_bytes=most)
            found = self.at(split)
            if found is not None and len(found.graph) != len(last.graph):
                yield split, found
                last = found
            most //= 2
