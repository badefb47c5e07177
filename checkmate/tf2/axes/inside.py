"""inside(): the relations of what a function returns that a loop or a condition runs.

Within such a function nothing can be computed early or late, and no slice can be handed a number of
the whole batch: a function in which any of that is needed needs the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from checkmate.errors import TraceError
from checkmate.tf2.axes.pairing import Graphs, paired
from checkmate.tf2.axes.rules import outputs_of, relation_of_known
from checkmate.tf2.axes.variables import graphs_of, is_pure
from checkmate.tf2.graph.operations import is_argument
from checkmate.tf2.ops.call import Call, Pair, Relations
from checkmate.tf2.ops.indices import is_random
from checkmate.tf2.ops.relation import SAME, WHOLE, Count, Kind, Relation


def bodies_of(pair: Pair, functions: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    """The graphs of the functions that a loop, condition or call runs, for the whole and for a
    slice; `functions` are the graphs that have them."""
    found = (graphs_of(graph, side) for graph, side in zip(functions, pair, strict=True))
    return list(zip(*found, strict=True))


def call_of(
    graphs: Graphs,
    pair: Pair,
    relations: Relations,
    known: list[tuple[Any, Any] | None],
    count: Count,
    functions: tuple[Any, Any],
) -> Call:
    inner = partial(inside, count), partial(bodies_of, pair, functions)
    return Call(pair, graphs.inputs(pair), relations, known, count, *inner)


def inside(count: Count, whole: Any, part: Any, arguments: Sequence[Relation]) -> Relations | None:
    """The relations of what a function returns, or None if it needs the whole batch."""
    if whole is None or part is None:
        return None
    given = {a.op: b.op for a, b in zip(whole.inputs, part.inputs, strict=True)}
    try:
        graphs = paired(whole, part, given)
    except TraceError:
        return None
    found: dict[Pair, Relations] = {
        Pair(*each): [relation] for each, relation in zip(given.items(), arguments, strict=True)
    }
    for pair in graphs.pairs:
        if not is_argument(pair.whole):
            if not is_pure(pair.whole, whole):
                return None
            found[pair] = _outputs(graphs, pair, found, count)
    results = zip(whole.outputs, part.outputs, strict=True)
    return [_read(graphs, *each, found, count)[0] for each in results]


def _outputs(graphs: Graphs, pair: Pair, found: dict[Pair, Relations], count: Count) -> Relations:
    read = [_read(graphs, *each, found, count) for each in graphs.inputs(pair)]
    known = [graphs.known(*each) for each in graphs.inputs(pair)]
    functions = graphs.whole, graphs.part
    relations = [relation for relation, _ in read]
    answer = outputs_of(call_of(graphs, pair, relations, known, count, functions))
    draws = is_random(pair.whole.type) and answer is not None and answer.outputs != [SAME]
    if answer is None or answer.average or draws or any(read[k][1] for k in answer.read):
        return [WHOLE] * len(pair.whole.outputs)
    return answer.outputs


def _read(
    graphs: Graphs, whole: Any, part: Any, found: dict[Pair, Relations], count: Count
) -> tuple[Relation, bool]:
    """The relation of a value, and whether a slice would have to read another one instead."""
    known = graphs.known(whole, part)
    if known is None:
        return found[Pair(whole.op, part.op)][whole.value_index], False
    relation, instead = relation_of_known(*known, count)
    return relation, relation.kind is Kind.WHOLE or instead is not None
