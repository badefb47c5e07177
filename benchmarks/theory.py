"""What is proven of DTR, as programs to run: a chain that costs O(N), and an adversary that no
eviction rule beats.

Theorem 3.1: the training step of a chain of N equal layers, within Omega(sqrt N) memory, takes O(N)
ops under the score e* alone. Theorem 3.2: for any deterministic rule there are programs of N ops on
which DTR with memory B does Omega(N / B) times the work that is needed when ops may be reordered.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), section 3 and appendices A
and B.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from checkmate.dtr.heuristic import Heuristic
from checkmate.dtr.policy import CountingBackend
from checkmate.dtr.program import Program
from checkmate.dtr.runtime import Deallocation, Runtime
from checkmate.dtr.steps import Hold, Run, Step
from checkmate.dtr.storage import FRESH, Tensor

E_STAR = Heuristic("neighbourhood", size=False, staleness=False)
"""The score of Theorem 3.1: the cost of the evicted neighbourhood and nothing else."""


def linear_network(layers: int) -> Program:
    """Forward and backward pass of a chain: 2 * `layers` ops, each of cost 1 and 1 byte.

    The gradient of a layer reads the gradient from above and the layer's input; what has had its
    last use is released.
    """
    return Program(tuple(_linear_steps(layers)), f"linear{layers}")


def _linear_steps(layers: int) -> Iterator[Step]:
    for i in range(layers):
        yield Run(f"f{i}", (i - 1,) if i else (), (1,), (FRESH,), 1)
    above: tuple[int, ...] = ()
    for k, i in enumerate(reversed(range(layers))):
        yield Hold("release", i)
        gradient = layers + k
        yield Run(f"b{i}", (*((i - 1,) if i else ()), *above), (1,), (FRESH,), 1)
        yield from (Hold("release", tensor) for tensor in above)
        above = (gradient,)
    yield Hold("pin", above[0])


def square_root_budget(layers: int, factor: float = 2.0) -> int:
    """factor * sqrt(layers), rounded up: the memory that Theorem 3.1 speaks of; Chen et al. (2016)
    need a factor of 2."""
    return math.ceil(factor * math.sqrt(layers))


@dataclass(frozen=True, slots=True)
class Duel:
    """What the adversary made DTR do: `computed` ops for a program of `ops`, which need no more
    than `ops` in another order."""

    ops: int
    computed: int

    @property
    def ratio(self) -> float:
        """How many times the work that is needed."""
        return self.computed / self.ops


def adversary(heuristic: Heuristic, ops: int, budget: int) -> Duel:
    """Lets an adversary choose the program as it goes: `budget` chains from one root, and always
    the next op of one that is evicted.

    With unit sizes, of `budget` chains one has nothing in memory whenever the next op and its input
    take two places, so that the whole chain must run again. One chain after the other, the same ops
    would need three places and no recomputation.

    Args:
      ops: How many ops the program has.
      budget: Memory in units of one value; at least 3.
    """
    runtime = Runtime(
        CountingBackend(),
        budget_bytes=budget,
        heuristic=heuristic,
        deallocation=Deallocation.IGNORE,
    )

    def grow(tensor: Tensor | None) -> Tensor:
        return runtime.call("grow", [] if tensor is None else [tensor], [1], [FRESH], 1)[0]

    root = grow(None)
    chains: list[list[Tensor]] = [[] for _ in range(budget)]
    for _ in range(ops - 1):
        chain = max(chains, key=_evicted_at_the_end)
        chain.append(grow(chain[-1] if chain else root))
    return Duel(ops, ops + runtime.rematerializations)


def _evicted_at_the_end(chain: list[Tensor]) -> float:
    """How many ops must run again before a chain can grow; one that has not begun comes before one
    that can grow at once."""
    gone = 0
    for tensor in reversed(chain):
        if tensor.defined:
            break
        gone += 1
    return gone if chain else 0.5
