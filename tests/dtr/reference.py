"""DTR written down once more, naively and from the paper, to compare decisions with: sets,
recursion, and every score from scratch.

An evicted neighbourhood grows when its edge is evicted, and is searched again when something in it
comes back. Storages that are linked but never ran yet are evicted ones that nobody has evicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


class GaveUp(Exception):
    """The run is over; the argument is its status."""


@dataclass(eq=False)
class Block:
    """A storage."""

    size: int
    cost: int = 0
    views: list = field(default_factory=list)
    there: bool = False
    locks: int = 0
    refs: int = 0
    pinned: bool = False
    last: int = 0
    family: object = None  # the class of dtr_eq: a list [cost, parent]
    seen: dict = field(default_factory=lambda: {"up": set(), "down": set()})

    def near(self, way):
        tensors = [t for view in self.views for t in (view.inputs if way == "up" else view.readers)]
        return {t.block for t in tensors} - {self}

    def search(self, way):
        """Evicted blocks reached through evicted ones, and those in memory where that ends."""
        inside, edge, waiting = set(), set(), [self]
        while waiting:
            for other in waiting.pop().near(way):
                if other.there:
                    edge.add(other)
                elif other not in inside:
                    inside.add(other)
                    waiting.append(other)
        return inside, edge - {self}


@dataclass(eq=False)
class View:
    """A tensor."""

    block: Block
    inputs: list
    size: int
    cost: int
    op: list = field(default_factory=list)  # all outputs of its op
    readers: list = field(default_factory=list)
    defined: bool = False


def root(family):
    while family[1] is not None:
        family = family[1]
    return family


class Reference:
    def __init__(self, budget, heuristic, limit, eager=True):
        self.budget, self.heuristic, self.limit, self.eager = budget, heuristic, limit, eager
        self.used = self.peak = self.extra = self.again = 0
        self.clock = 1
        self.pool, self.blocks, self.decisions = [], [], []

    def score(self, block):
        around = {
            "dtr": lambda: sum(b.cost for way in ("up", "down") for b in block.seen[way]),
            "msps": lambda: sum(b.cost for b in block.seen["up"]),
            "dtr_eq": lambda: sum(f[0] for f in {id(f): f for f in self.families(block)}.values()),
        }.get(self.heuristic, lambda: 0)()
        cost = 1 if self.heuristic in ("lru", "size") else block.cost + around
        below = (1 if self.heuristic == "lru" else block.size) * (
            1 if self.heuristic in ("size", "msps") else self.clock - block.last
        )
        return cost / below if below else math.inf

    def families(self, block):
        return [
            root(other.family)
            for way in ("up", "down")
            for other in block.near(way)
            if not other.there and other.family
        ]

    def evict(self, block):
        self.decisions.append(self.blocks.index(block))
        for way in ("up", "down"):
            for other in self.blocks:
                if (
                    other.there
                    and other is not block
                    and block in set().union(*(b.near(way) for b in {other, *other.seen[way]}))
                ):
                    other.seen[way] |= {block} | block.seen[way]
        block.there = False
        self.used -= block.size
        self.pool.remove(block)
        for view in block.views:
            view.defined = False
        block.seen = {"up": set(), "down": set()}
        block.family = [block.cost, None]
        for family in self.families(block):
            if root(family) is not root(block.family):
                root(block.family)[0] += root(family)[0]
                root(family)[1] = root(block.family)
        for way in ("up", "down"):
            for other in block.near(way):
                if not other.there and other.family is None:
                    other.family = block.family

    def make_room(self, size):
        while self.used + size > self.budget:
            if not self.pool:
                raise GaveUp("oom")
            best, chosen = math.inf, None
            for block in self.pool:
                score = self.score(block)
                if score <= best:
                    best, chosen = score, block
                if score == 0:
                    break
            self.evict(chosen)

    def lock(self, block):
        if not block.locks:
            self.pool.remove(block)
        block.locks += 1

    def unlock(self, block):
        block.locks -= 1
        if not block.locks:
            self.pool.append(block)

    def bring(self, view, first=False):
        for t in view.inputs:
            t.block.last = self.clock
        present = [t for t in view.inputs if t.defined]
        missing = [t for t in view.inputs if not t.defined]
        for t in present:
            self.lock(t.block)
        for t in missing:
            if not t.defined:
                self.bring(t)
            self.lock(t.block)
        size = sum(t.size for t in view.op)
        self.make_room(size)
        others = [t for t in view.op if t is not view]
        self.used += size
        self.clock += view.cost
        self.peak = max(self.peak, self.used)
        self.used -= sum(t.size for t in others if t.defined)
        fresh = [t.block for t in [*others, view] if not t.block.there]
        for t in view.op:
            t.defined = t.block.there = True
        self.pool += fresh
        for block in fresh:
            if block.family:
                root(block.family)[0] -= block.cost
            block.family = None
        for way in ("up", "down"):
            for block in self.blocks:
                inside, edge = block.search(way) if block.there else ((), ())
                if block.there and (block in fresh or edge & set(fresh)):
                    block.seen[way] = set(inside)
        for t in view.inputs:
            self.unlock(t.block)
        if not first:
            self.again += 1
            self.extra += view.cost
        if self.extra > self.limit:
            raise GaveUp("thrashed")

    def call(self, inputs, sizes, aliases, cost):
        op = []
        for size, alias in zip(sizes, aliases, strict=True):
            block = Block(size) if alias < 0 else inputs[alias].block
            if alias < 0:
                self.blocks.append(block)
            if not any(view.op is op for view in block.views):
                block.cost += cost
            view = View(block, list(inputs), size if alias < 0 else 0, cost, op)
            block.views.append(view)
            block.refs += 1
            op.append(view)
        for t in inputs:
            t.readers += op
        self.bring(op[0], first=True)
        for view in op:
            view.block.last = self.clock
        return op

    def release(self, view):
        view.block.refs -= 1
        if self.eager and not view.block.refs and view.block.there and not view.block.locks:
            self.evict(view.block)

    def pin(self, view):
        if not view.defined:
            self.bring(view)
        if not view.block.pinned:
            self.lock(view.block)
            view.block.pinned = True
