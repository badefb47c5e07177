"""Rules of loops, conditions and lists of tensors. The relation of a list is that of each of its
entries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import tensorflow as tf

from checkmate.tf2.ops.call import Answer, Body, Call, Relations, Rule
from checkmate.tf2.ops.relation import SAME, SIZE, WHOLE, ZERO, Kind, Relation, join, moved

_MOST_ROUNDS = 8


def loop(call: Call) -> Answer | None:
    """A carried value has one relation before and after each iteration; all slices must do the same
    number of iterations."""
    body, condition = call.bodies()
    state = [call.asked.get(k, relation) for k, relation in enumerate(call.inputs)]
    for _ in range(_MOST_ROUNDS):
        found = call.inside(body, state, state)
        if found is None:
            return None
        joined = _joined(found.arguments, found.results)
        if WHOLE in joined:
            return None
        if _agree(joined, state):
            again = call.inside(condition, state, None)
            if again is None or again.results != [SAME] or again.arguments != state:
                return None
            return Answer(state, state, bodies=(found, again))
        state = joined
    return None


def condition(call: Call) -> Answer | None:
    """All slices take the same branch; its results may come from any."""
    if call.inputs[0] != SAME:
        return None
    found = _alike(call, call.bodies(), call.inputs[1:])
    if found is None:
        return None
    arguments = [SAME, *found[0].arguments]
    return Answer(found[0].results, arguments, bodies=tuple(found))


def function_call(call: Call) -> Answer | None:
    found = _alike(call, call.bodies(), call.inputs)
    if found is None:
        return None
    return Answer(found[0].results, found[0].arguments, bodies=tuple(found))


def _alike(call: Call, graphs: Sequence[Any], arguments: Relations) -> list[Body] | None:
    """Functions with the same relations of arguments and of results."""
    arguments, results = list(arguments), None
    for _ in range(_MOST_ROUNDS):
        if results is not None:
            results = [call.asked.get(k, relation) for k, relation in enumerate(results)]
        found = [call.inside(graph, arguments, results) for graph in graphs]
        bodies = [each for each in found if each is not None]
        if len(bodies) < len(found):
            return None
        arguments = reduce(_joined, (each.arguments for each in bodies))
        results = reduce(_joined, (each.results for each in bodies))
        if WHOLE in (*arguments, *results):
            return None
        if all(each.arguments == arguments and each.results == results for each in bodies):
            return bodies
    return None


def _agree(first: Relations, second: Relations) -> bool:
    pairs = zip(first, second, strict=True)
    return all(one == other and one.named == other.named for one, other in pairs)


def _joined(first: Relations, second: Relations) -> Relations:
    return [join(*each) for each in zip(first, second, strict=True)]


def empty(call: Call) -> Answer | None:
    """An empty list, whose entries have any relation."""
    relation = call.asked.get(0, ZERO)
    if not call.inputs or call.operation.inputs[0].dtype == tf.variant:
        return Answer([relation], list(call.inputs))
    fits = call.inputs[0].kind in (Kind.SAME, Kind.SIZE)
    return Answer([relation], list(call.inputs), _scaled(call, 0, relation)) if fits else None


def of_one(call: Call) -> Relations | None:
    relation = call.inputs[0]
    several = len(call.inputs) > 1
    return None if several or relation.kind in (Kind.WHOLE, Kind.SIZE) else [relation]


def of_rows(call: Call) -> Answer | None:
    found = moved(call.inputs[0], -1)
    if found.kind in (Kind.WHOLE, Kind.SIZE):
        return None
    return Answer([found], list(call.inputs), _scaled(call, 1, found))


def stacked(call: Call) -> Answer | None:
    relation = call.inputs[0]
    if relation.kind in (Kind.WHOLE, Kind.SIZE):
        return None
    return Answer([moved(relation, 1)], list(call.inputs), _scaled(call, 1, relation))


def entry(call: Call) -> Answer | None:
    """An entry of a list, or the list itself."""
    relation = call.inputs[0]
    scaled = _scaled(call, 2, relation) if len(call.inputs) > 2 else {}
    several = len(call.operation.outputs) > 1  # of an optional
    return None if several or relation == WHOLE else Answer([relation], list(call.inputs), scaled)


def popped(call: Call) -> Answer | None:
    relation = call.inputs[0]
    if relation == WHOLE:
        return None
    return Answer([relation] * 2, list(call.inputs), _scaled(call, 1, relation))


def with_entry(position: int) -> Rule:
    """The rule of an op that adds or replaces an entry, which is input `position`."""

    def rule(call: Call) -> Answer | None:
        found = join(call.inputs[0], call.inputs[position])
        inputs = list(call.inputs)
        inputs[0] = inputs[position] = found
        return None if found == WHOLE else Answer([found], inputs)

    return rule


def shape_of_entry(call: Call) -> Relations | None:
    """The shape of an entry, which is that of a part for a slice."""
    return None if call.inputs[0] == WHOLE else [SIZE]


def length(call: Call) -> Relations | None:
    """The number of entries, which is the same for each slice."""
    return None if call.inputs[0] == WHOLE else [SAME]


def added(call: Call) -> Answer | None:
    found = reduce(join, call.inputs, ZERO)
    return None if found == WHOLE else Answer([found], [found] * len(call.inputs))


def _scaled(call: Call, k: int, relation: Relation) -> dict[int, int]:
    """The entry of the shape of a list's entries that is smaller in a slice. Lists have none."""
    if call.attr("element_dtype") == tf.variant:
        return {}
    return call.scaled(k, relation.axis) if relation.kind is Kind.BATCHED else {}
