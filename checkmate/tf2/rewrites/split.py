"""Split: how a step runs whose largest ops run in parts, within one function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from checkmate.tf2.axes.regions import Region, largest_need, regions_of
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.rewrites.exact import same_bits
from checkmate.tf2.rewrites.segments import pairs_of, segmented
from checkmate.tf2.rewrites.tiles import tiled

KINDS = ("tiles", "segments")
"""The ways to split an op: along an axis of its values; a loop by its turns."""

MOST_TRIES = 4
"""How often the bytes of an op are halved, at most."""

MOST_OPS = 15_000
"""Parts get no smaller once there are so many copies of ops: solvers take longer than they save."""


@dataclass(frozen=True, slots=True)
class Split:
    """Ops are split that need more than `above_bytes` without variables and arguments, in these
    `KINDS` of ways, and with `sums` also where parts of sums are added up in another order.

    Attributes:
      tried: Tiles run on random numbers first, and only those are used that have the bits of the
        whole; else, as on paper, rules alone tell which have.

    Examples:
      >>> traced = checkmate.tf2.trace(train_step, images, labels)
      >>> parts = Split(above_bytes=2**20).of(traced)
    """

    above_bytes: int
    kinds: tuple[str, ...] = KINDS
    sums: bool = False
    tried: bool = True

    def of(self, traced: TracedStep) -> TracedStep | None:
        """The trace of the step in parts; None where nothing is split."""
        splits = Splits(traced, self)
        return splits.written(self, splits.regions(self))


@dataclass(slots=True, eq=False)
class Splits:
    """The splits of a step, of those kinds that are `allowed`."""

    traced: TracedStep
    allowed: Split
    function: Function = field(init=False)
    _stacks: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.function = Function(self.traced.flat.graph, self.traced.function.graph)
        self._stacks = [pair.stack_bytes for pair in pairs_of(self.traced)]

    @property
    def largest_bytes(self) -> int:
        """The most bytes that an op reads and makes, or that a loop leaves its gradient."""
        return max([largest_need(self.function), *self._stacks])

    def regions(self, split: Split) -> list[Region]:
        if "tiles" not in split.kinds:
            return []
        exact = partial(same_bits, self.function) if split.tried else lambda node, tiles: True
        most = split.above_bytes
        return regions_of(self.traced, self.function, most, None if split.sums else exact)

    def written(self, split: Split, regions: list[Region]) -> TracedStep | None:
        """The trace of the step in these tiles, its loops in segments; None without any."""
        most, found = split.above_bytes, None
        if regions:
            found = tiled(self.traced, self.function, regions, most)
        if "segments" in split.kinds and self._stacks:
            return segmented(found or self.traced, most) or found
        return found

    def within(self, room_bytes: int) -> Iterator[tuple[Split, TracedStep]]:
        """Yields splits in ever smaller parts, so that some ops together fit in `room_bytes`, as
        long as parts get smaller."""
        most, last = min(self.largest_bytes, room_bytes) // 2, None
        for _ in range(MOST_TRIES):
            split = replace(self.allowed, above_bytes=most)
            regions = self.regions(split)
            parts = [(each.tiles, each.nodes.keys()) for each in regions]
            now = parts, [-(-stacks // max(1, most)) for stacks in self._stacks]
            if last and sum(tiles * len(nodes) for tiles, nodes in parts) > MOST_OPS:
                return
            if now != last and (found := self.written(split, regions)) is not None:
                yield split, found
            most, last = most // 2, now
