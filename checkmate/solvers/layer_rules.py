"""LayerRules: the layers whose values a user has kept, or computed again, whatever a plan costs.

To keep a layer is to forbid its ops a second evaluation. To recompute one is to give the backward
pass copies of its ops: the graph that is solved has them right before what reads them, so that no
op of the backward pass reads a value of the forward pass. A plan of that graph is one of the given
graph, whose every copy stands for its op; its cost is the same or less, and so is its peak.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from checkmate.core.expansion import Expansion
from checkmate.core.graph import DFGraph
from checkmate.core.layer_names import fused_layer_names, layer_names
from checkmate.core.op import Op
from checkmate.errors import GraphError

Patterns = str | Iterable[str] | None
"""One or several names of layers, with `*`, `?` and `[abc]` as in names of files."""


def as_patterns(patterns: Patterns) -> tuple[str, ...]:
    """The patterns as a tuple; none for None. Raises `GraphError` for what is no text."""
    found = (patterns,) if isinstance(patterns, str) else () if patterns is None else patterns
    if not isinstance(found, Iterable) or not all(each and isinstance(each, str) for each in found):
        raise GraphError(
            f"Layers are named by text, such as 'block3*', or by several texts; got {patterns!r}."
        )
    return tuple(sorted({*found}))


def ops_of_layers(graph: DFGraph, patterns: Sequence[str], option: str) -> set[int]:
    """The ops of the forward pass in the layers of these names, or in layers within them. Raises
    `GraphError` where a pattern is the name of none."""
    own, fused = layer_names(graph), fused_layer_names(graph)
    forward = [i for i, op in enumerate(graph.ops) if not op.is_backward and own[i]]
    names = [(i, name) for i in forward for name in (own[i], *fused[i])]
    found = set[int]()
    for pattern in patterns:
        # A layer that is called twice has other numbers in the graph than its own.
        matched = {i for i, name in names if _matches(name, pattern)} or {
            i for i, name in names if _matches(re.sub(r"_\d+(?=/|$)", "", name), pattern)
        }
        if not matched:
            layers = list(dict.fromkeys(name for _, name in names))
            close = difflib.get_close_matches(pattern, layers, n=3, cutoff=0.5) or layers[:5]
            raise GraphError(
                f"{option}={pattern!r} is the name of no layer of {graph.name or 'the graph'!r}."
                f" It has {len(layers)}, such as {', '.join(map(repr, close))}."
            )
        found |= matched
    return found


def _matches(layer: str, pattern: str) -> bool:
    """Whether a layer, or one that contains it, has a name."""
    parts = layer.split("/")
    return any(
        fnmatchcase("/".join(parts[start:end]), pattern)
        for end in range(1, len(parts) + 1)
        for start in range(end)
    )


@dataclass(frozen=True, slots=True)
class LayerRules:
    """Rules for the layers of a graph, as a graph to be solved instead.

    Attributes:
      expansion: From the graph to one whose plans hold to the rules.
      once: The graph whose kept ops run once; a floor of it is one for all plans that hold to the
        rules.
      again: The ops of the graph that run again because they were to be recomputed.
      text: The rules in words, "" for none.
    """

    expansion: Expansion
    once: DFGraph
    again: frozenset[int] = frozenset()
    text: str = ""

    @classmethod
    def of(cls, graph: DFGraph, keep: Patterns = (), recompute: Patterns = ()) -> LayerRules:
        """Raises `GraphError`: a name of no layer, one that is to be both, or layers of which
        nothing may run again."""
        keep, recompute = as_patterns(keep), as_patterns(recompute)
        if not keep and not recompute:
            return cls(Expansion.one_to_one(graph, graph, range(len(graph))), graph)
        kept = ops_of_layers(graph, keep, "keep")
        asked = ops_of_layers(graph, recompute, "recompute")
        if both := kept & asked:
            raise GraphError(
                f"Layer {layer_names(graph)[min(both)]!r} is to be kept and to be recomputed."
                " Name it in one of keep and recompute."
            )
        again = _copied(graph, asked)
        if asked and not again:
            raise GraphError(
                f"recompute={', '.join(map(repr, recompute))}: no value of these layers is kept for"
                " the backward pass that may be computed again."
            )
        ops = tuple(
            replace(op, recomputable=op.recomputable and i not in kept)
            for i, op in enumerate(graph.ops)
        )
        once = replace(graph, ops=ops)
        rules = (
            (f"{word} {', '.join(names)}")
            for word, names in (("keep", keep), ("recompute", recompute))
            if names
        )
        expansion = Expansion.one_to_one(graph, *_with_copies(once, again))
        return cls(expansion, once, frozenset(again), "; ".join(rules))

    def bound(self, bound: float) -> float:
        """A lower bound on the cost of plans that hold to the rules, from one on those of `graph`.
        Where layers are recomputed, a plan of the given graph may have other ops read the copies,
        too: only the second evaluation of each is certain."""
        if not self.again:
            return bound
        ops, total = self.once.ops, self.once.total_cost
        return min(bound, total + sum(ops[i].cost for i in self.again))


def _copied(graph: DFGraph, asked: set[int]) -> set[int]:
    """The ops of which the backward pass gets copies: those that it reads, or that one of these
    reads, and that may run again where the copy would. What must be in memory at the end stays."""
    ops, users = graph.ops, graph.users
    left = {i for i in asked if ops[i].recomputable and i not in graph.outputs}
    while True:
        reader = dict[int, int]()  # op -> the first that reads its copy
        for i in sorted(left, reverse=True):
            readers = [u for u in users[i] if ops[u].is_backward]
            readers += [reader[u] for u in users[i] if u in reader]
            if readers:
                reader[i] = min(readers)
        late = {i for i, first in reader.items() if graph.expires[i] < first}
        if not late:
            return set(reader)
        left -= late


def _with_copies(graph: DFGraph, again: set[int]) -> tuple[DFGraph, tuple[int, ...]]:
    """The graph whose backward pass reads copies of these ops, and the op that each op of it stands
    for."""
    if not again:
        return graph, tuple(range(len(graph)))
    ops, original = list[Op](), list[int]()
    first, copy, begun = dict[int, int](), dict[int, int](), 0

    def moved(indices: Iterable[int], *, backward: bool) -> tuple[int, ...]:
        return tuple(copy[d] if backward and d in again else first[d] for d in indices)

    def add(i: int, op: Op) -> int:
        ops.append(op)
        original.append(i)
        return len(ops) - 1

    def copied(i: int) -> None:
        """Adds the copy of an op, after those that it reads."""
        if i in copy:
            return
        op = graph.ops[i]
        for d in sorted(set(op.deps) & again):
            copied(d)
        copy[i] = add(
            i,
            replace(
                op,
                name=str(len(ops)),  # a copy has no name of its own
                deps=moved(op.deps, backward=True),
                in_place=moved(op.in_place, backward=True),
                # Not before the backward pass, in whatever order.
                control_deps=tuple(
                    {*moved(op.control_deps, backward=False), begun or len(ops) - 1}
                ),
                is_backward=True,
            ),
        )

    for i, op in enumerate(graph.ops):
        if op.is_backward:
            for d in sorted(set(op.deps) & again):
                copied(d)
        overwrites = moved(op.overwrites, backward=False)
        first[i] = add(
            i,
            replace(
                op,
                name=str(len(ops)),
                deps=moved(op.deps, backward=op.is_backward),
                in_place=moved(op.in_place, backward=op.is_backward),
                control_deps=moved(op.control_deps, backward=False),
                overwrites=(*overwrites, *(copy[d] for d in op.overwrites if d in copy)),
            ),
        )
        begun = begun or (first[i] if op.is_backward else 0)
    outputs = tuple(first[i] for i in graph.outputs)
    return DFGraph(tuple(ops), outputs, graph.fixed_bytes, graph.name), tuple(original)
