"""REWRITES: the ways to write a step otherwise, a row for each. Planning, plan files and the laws
in `tests/laws/test_rewrites.py` read it."""

from __future__ import annotations

from collections.abc import Callable

from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.rewrites.small_batches import SmallBatches
from checkmate.tf2.rewrites.step import Rewrite
from checkmate.tf2.rewrites.tile import Tile

REWRITES: dict[str, Callable[[Scratch], Rewrite]] = {
    "tile": Tile,
    "small_batches": SmallBatches,
}
"""Name -> a function of the memory in which pieces leave what is read after them. The first that
applies is taken where a number of slices is asked for."""
