"""Rules of loops, conditions and lists of tensors. The relation of a list is that of each of its
entries."""

from __future__ import annotations

from collections.abc import Sequence

from checkmate.tf2.ops.call import Call, Relations, Rule
from checkmate.tf2.ops.relation import (
    SAME,
    SIZE,
    SUMMED,
    WHOLE,
    ZERO,
    Kind,
    Relation,
    batched,
    join,
)

_MOST_ROUNDS = 8


def loop(call: Call) -> Relations | None:
    """A carried value has one relation before and after each iteration; all slices must do the same
    number of iterations."""
    body, condition = call.bodies()
    state = list(call.inputs)
    for _ in range(_MOST_ROUNDS):
        found = call.inside(*body, state)
        if found is None:
            return None
        joined = [join(*each) for each in zip(state, found, strict=True)]
        if joined.count(WHOLE) > state.count(WHOLE):
            return None
        if joined == state:
            again = call.inside(*condition, state)
            return state if again == [SAME] else None
        state = joined
    return None


def condition(call: Call) -> Relations | None:
    """All slices take the same branch; its results may come from any."""
    if call.inputs[0] != SAME:
        return None
    found: Relations | None = None
    for each in call.bodies():
        branch = call.inside(*each, call.inputs[1:])
        if branch is None:
            return None
        pairs = zip(found or branch, branch, strict=True)
        found = [join(*pair) for pair in pairs]
    return found


def function_call(call: Call) -> Relations | None:
    (body,) = call.bodies()
    return call.inside(*body, call.inputs)


def empty(call: Call) -> Relations:
    return [ZERO]


def of_rows(call: Call) -> Relations | None:
    return _moved(call.inputs[0], -1)


def stacked(call: Call) -> Relations | None:
    return _moved(call.inputs[0], 1)


def entry(call: Call) -> Relations:
    return [call.inputs[0]]


def popped(call: Call) -> Relations:
    return [call.inputs[0]] * 2


def with_entry(position: int) -> Rule:
    """The rule of an op that adds or replaces an entry, which is input `position`."""

    def rule(call: Call) -> Relations | None:
        return _or_none([join(call.inputs[0], call.inputs[position])])

    return rule


def shape_of_entry(call: Call) -> Relations | None:
    """The shape of an entry, which is that of a part for a slice."""
    return None if call.inputs[0] == WHOLE else [SIZE]


def length(call: Call) -> Relations | None:
    """The number of entries, which is the same for each slice."""
    return None if call.inputs[0] == WHOLE else [SAME]


def added(call: Call) -> Relations | None:
    relations = set(call.inputs) - {ZERO}
    if relations in ({SAME}, {SUMMED}, set()):
        return [next(iter(relations), ZERO)]
    if any(relation.kind is not Kind.BATCHED for relation in relations):
        return None
    return _or_none([_joined(call.inputs)])


def _joined(relations: Sequence[Relation]) -> Relation:
    found = ZERO
    for relation in relations:
        found = join(found, relation)
    return found


def _moved(relation: Relation, by: int) -> Relations | None:
    if relation.kind is not Kind.BATCHED:
        return None if relation in (WHOLE, SIZE) else [relation]
    axis = relation.axis + by
    return None if axis < 0 else [batched(axis, relation.blocks)]


def _or_none(relations: Relations) -> Relations | None:
    return None if WHOLE in relations else relations
