"""The order in which planned ops first run, and which of them become one op of the DFGraph.

A trace lists ops as the program made them. Four changes lower what plans need, and add no
computation:

* parts of the step that do not depend on each other, which a trace has side by side, come one after
  another where that takes less memory;
* the optimizer's updates come right after their gradients, so that a gradient can be freed before
  the next one is made, except where an update needs so much memory itself that it better waits
  until the activations are gone;
* a value that can wait, most often because its inputs are kept for others anyway, is made right
  before it is wanted; that of a bias before the product it is added to, with which TensorFlow may
  run the sum within one kernel;
* a kernel whose value only the very next kernel reads, and which is no smaller than what that one
  makes, is fused with it (convolution + bias + activation): keeping its value alone would never
  pay, and TensorFlow computes such pairs in place. They are left apart where one op would need much
  more at once than either of the two, as it holds all that both read.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate

import tensorflow as tf

from checkmate.tf2 import ops as op_rules
from checkmate.tf2.graph.flat_graph import FlatGraph, in_backward_scope

Group = tuple[tf.Operation, ...]

WORTH = 0.02
"""By which share of the plain step's peak another order than that of the trace has to lower what
plans need."""

RAISED_SHARE = 0.25
"""By how much more than each of two ops their fusion may need at once, as a share of the most that
an op needs."""


def arrange(flat: FlatGraph) -> tuple[Group, ...]:
    """Returns the planned ops in groups, each of which becomes one op, in the order of their first
    evaluation.

    The order is that of the trace, or a depth-first one where plans need less in that. What may not
    be recomputed in it is taken out of `flat.recomputable`.
    """
    update = _update_only(flat)
    best = _Arrangement(flat, flat.planned, update)
    for order in (_depth_first(flat, update, early_updates) for early_updates in (True, False)):
        other = _Arrangement(flat, order, update)
        best = other if other.is_lower_than(best) else best
    flat.recomputable = best.recomputable
    return best.groups


class _Arrangement:
    """The groups that come of an order of the planned ops."""

    def __init__(self, flat: FlatGraph, order: list[tf.Operation], update: set[tf.Operation]):
        self.flat = flat
        last_hazard, self.recomputable = _last_hazards(flat, order)
        twins = _twins(flat, order, update)
        order = _with_early_updates(flat, order, update, twins, last_hazard)
        order = _with_late_values(flat, order, twins)
        self.groups = _fused(
            flat, _with_biases_before_products(flat, order), twins, self.recomputable
        )

    def is_lower_than(self, other: _Arrangement) -> bool:
        """True where plans need less: the plain one, or each of them for what may not be
        recomputed, and neither needs more."""
        (plain, least), (others, others_least) = self.peaks, other.peaks
        tolerated = WORTH * others
        return (
            max(others - plain, others_least - least) > tolerated
            and min(others - plain, others_least - least) > -tolerated
        )

    @cached_property
    def peaks(self) -> tuple[int, int]:
        """Bytes of all values at most, each kept until its last reader has run; and of those values
        that may not be recomputed."""
        return self._peak(self.flat.planned), self._peak(
            o for o in self.flat.planned if o not in self.recomputable
        )

    def _peak(self, among: Iterable[tf.Operation]) -> int:
        flat, counted = self.flat, set(among)
        place = {o: k for k, group in enumerate(self.groups) for o in group}
        ends: list[list[tf.Operation]] = [[] for _ in self.groups]
        sizes = [
            {o: flat.bytes_of(o) for o in values_of(flat, group) if o in counted}
            for group in self.groups
        ]
        for k, values in enumerate(sizes):
            for o in values:
                if o not in flat.read_once:
                    ends[max((place[reader] for reader in flat.readers[o]), default=k)].append(o)
        held = most = 0
        for k, group in enumerate(self.groups):
            size, done = sum(sizes[k].values()), sum(flat.bytes_of(o) for o in ends[k])
            over = all(o.type in op_rules.IN_PLACE for o in group) and done >= size
            most = max(most, held + (0 if over else size))
            held += size - done
        return most


def values_of(flat: FlatGraph, group: Group) -> Group:
    """The ops of a group that others read, and its last one."""
    inside = set(group)
    return tuple(
        o for o in group if o is group[-1] or o in flat.read_once or not flat.readers[o] <= inside
    )


def _depth_first(
    flat: FlatGraph, update: set[tf.Operation], early_updates: bool
) -> list[tf.Operation]:
    """The planned ops in an order that ends one branch of the step before it begins the next.

    An op that frees at least as much as it makes runs as soon as it can; else the order goes on
    with what has become possible last. Without `early_updates` those come when nothing else can:
    what reads a variable may run again until then.
    """
    before = {o: flat.order_deps[o] | flat.overwritten.get(o, set()) for o in flat.planned}
    after: dict[tf.Operation, list[tf.Operation]] = {o: [] for o in flat.planned}
    for operation, needed in before.items():
        for each in needed:
            after[each].append(operation)
    missing = {o: len(needed) for o, needed in before.items()}
    unread = {o: set(flat.readers[o]) for o in flat.planned}
    ready_since = dict.fromkeys(flat.planned, 0)

    def rank(operation: tf.Operation) -> tuple[int, int, int, int]:
        freed = sum(
            flat.bytes_of(o)
            for o in flat.data_deps[operation]
            if unread[o] == {operation} and o not in flat.read_once
        )
        grows = flat.bytes_of(operation) - freed
        urgency = (
            (2, 0)
            if operation in update and not early_updates
            else (0, 0)
            if grows <= 0
            else (1, -ready_since[operation])
        )
        return (*urgency, grows, flat.position[operation])

    ready = [(rank(o), o) for o in flat.planned if not missing[o]]
    heapq.heapify(ready)
    order: dict[tf.Operation, None] = {}
    while ready:
        found, operation = heapq.heappop(ready)
        if operation in order or found != rank(operation):
            continue  # its rank has changed since, and it is there with the new one
        order[operation] = None
        for each in flat.data_deps[operation]:
            unread[each].discard(operation)
            if len(unread[each]) == 1 and not missing[last := next(iter(unread[each]))]:
                heapq.heappush(ready, (rank(last), last))
        for each in after[operation]:
            missing[each] -= 1
            if not missing[each]:
                ready_since[each] = len(order)
                heapq.heappush(ready, (rank(each), each))
    return list(order)


def _with_early_updates(
    flat: FlatGraph,
    order: list[tf.Operation],
    update: set[tf.Operation],
    twins: Mapping[tf.Operation, tf.Operation],
    last_hazard: Mapping[tf.Operation, int],
) -> list[tf.Operation]:
    """The planned ops, those of the optimizer's update moved up as far as their inputs allow.

    An update that overwrites a variable waits until no op after it can want a value again that is
    recomputed from the old content.
    """
    position = {operation: k for k, operation in enumerate(order)}
    waiting = _better_late(flat, order, update)
    key: dict[tf.Operation, tuple[int, int]] = {}
    for operation in order:
        own = position[operation]
        if operation in update and operation not in waiting:
            waits_for = flat.order_deps[operation] | flat.overwritten.get(operation, set())
            earliest = max((key[o][0] for o in waits_for), default=0)
            key[operation] = (max(earliest, last_hazard.get(operation, 0)), own)
        elif operation in twins:
            key[operation] = (position[twins[operation]], -1)
        else:
            key[operation] = (own, own)
    return sorted(order, key=key.__getitem__)


def _with_late_values(
    flat: FlatGraph, order: list[tf.Operation], twins: Mapping[tf.Operation, tf.Operation]
) -> list[tf.Operation]:
    """Moves ops down to right before their first reader where what must be kept for them until then
    is no larger than their value.

    Most often it is kept for others anyway. Ops with side effects stay where they are, and so does
    what is overwritten before.
    """
    position: dict[tf.Operation, float] = {operation: float(k) for k, operation in enumerate(order)}
    # So small that even all ops together stay within the place before one reader.
    nudge = 0.25 / len(order) ** 2
    fixed = {*twins, *twins.values(), *flat.read_once}
    for operation in order:  # what others must follow without reading it
        fixed |= flat.order_deps[operation] - flat.data_deps[operation]
    ends = dict.fromkeys(order, float("inf"))
    for writer, overwritten in flat.overwritten.items():
        ends.update((o, min(ends[o], position[writer])) for o in overwritten)
    for number, operation in enumerate(reversed(order)):
        if operation in fixed or not flat.readers[operation] or not flat.may_repeat(operation):
            continue
        first = min(flat.readers[operation], key=position.__getitem__)
        wanted = position[first]
        kept_longer = sum(
            flat.bytes_of(o)
            for o in flat.data_deps[operation]
            if o not in flat.read_once
            and all(
                position[reader] < wanted for reader in flat.readers[o] if reader is not operation
            )
        )
        stays = kept_longer <= min(
            flat.bytes_of(operation), max(flat.bytes_of(first), flat.small_bytes)
        )
        if stays and wanted < ends[operation]:
            position[operation] = wanted - (number + 1) * nudge
    return sorted(order, key=position.__getitem__)


def _with_biases_before_products(flat: FlatGraph, order: list[tf.Operation]) -> list[tf.Operation]:
    """Moves what makes a bias of a weight, as in mixed precision, up to right before the product
    that it is added to."""
    position = {operation: float(k) for k, operation in enumerate(order)}
    for operation in order:
        product = op_rules.source(operation.inputs[0]).op if operation.type == "BiasAdd" else None
        if product not in position or product.type not in op_rules.PRODUCTS:
            continue
        for before in flat.planned_behind(operation.inputs[1]):
            if position[before] > position[product] and not flat.order_deps[before]:
                position[before] = position[product] - 0.5
    return sorted(order, key=position.__getitem__)


def _fused(
    flat: FlatGraph,
    order: list[tf.Operation],
    twins: Mapping[tf.Operation, tf.Operation],
    recomputable: set[tf.Operation],
) -> tuple[Group, ...]:
    """Groups of neighbouring planned ops that become one op each, since their inner values are read
    inside the group only."""
    groups: list[list[tf.Operation]] = []
    tolerated = RAISED_SHARE * max(_needs(flat, [operation]) for operation in order)

    def fits(one: Sequence[tf.Operation], other: Sequence[tf.Operation]) -> bool:
        return (
            _needs(flat, [*one, *other]) <= max(_needs(flat, one), _needs(flat, other)) + tolerated
        )

    for operation in order:
        group = [operation]
        while groups:
            last = groups[-1][-1]
            alike = all(
                (last in kind) == (operation in kind) for kind in (recomputable, flat.backward)
            )
            # By the next one too: else all that an update of many variables waits for would become
            # one op with it.
            alone = (
                last not in flat.read_once
                and group[0] in flat.readers[last]
                and flat.readers[last] <= set(group)
            )
            # Keeping a smaller input instead of the value can pay, but only where the value can be
            # had again.
            worth = operation not in recomputable or flat.bytes_of(last) >= flat.bytes_of(operation)
            if not (
                twins.get(last) is operation
                or (alike and alone and worth and fits(groups[-1], group))
            ):
                break
            group = groups.pop() + group
        groups.append(group)
    return tuple(map(tuple, groups))


def _needs(flat: FlatGraph, group: Sequence[tf.Operation]) -> int:
    """Bytes that one op of these ops needs at once: all that it reads, from the beginning to the
    end, and its inner values.

    What is never freed counts nowhere.
    """
    inside = set(group)
    read = (
        {before for operation in group for before in flat.data_deps[operation]}
        - inside
        - flat.read_once
    )
    outer = sum(map(flat.bytes_of, read))
    if all(operation.type in op_rules.IN_PLACE for operation in group):
        most = max(map(flat.bytes_of, group))
        if any(flat.bytes_of(before) >= most for before in read):
            return outer  # all of it is written over what it reads
    inner = held = 0
    for k, operation in enumerate(group):
        size, left = flat.bytes_of(operation), set(group[k + 1 :])
        done = [
            before
            for before in flat.data_deps[operation] & inside
            if not flat.readers[before] & left
        ]
        over = operation.type in op_rules.IN_PLACE and any(
            flat.bytes_of(before) >= size for before in done
        )
        inner = max(inner, held + (0 if over else size))
        held += size - sum(map(flat.bytes_of, done))
    return outer + inner


def _twins(
    flat: FlatGraph, order: list[tf.Operation], update: set[tf.Operation]
) -> dict[tf.Operation, tf.Operation]:
    """Gradients of a bias, each with the gradient of the filter of the same convolution, which come
    from the same tensor."""
    filters = {
        op_rules.source(o.inputs[2]).ref(): o for o in order if o.type in op_rules.FILTER_GRADIENTS
    }
    position = {operation: k for k, operation in enumerate(order)}
    twins: dict[tf.Operation, tf.Operation] = {}
    for operation in order:
        if operation.type != "BiasAddGrad":
            continue
        twin = filters.pop(op_rules.source(operation.inputs[0]).ref(), None)
        if twin is not None and all(
            o in update or position[o] > position[twin] for o in flat.readers[operation]
        ):
            twins[operation] = twin
    return twins


def _update_only(flat: FlatGraph) -> set[tf.Operation]:
    """The optimizer's update: ops, not gradients themselves, from which nothing but writes to
    variables comes."""
    update: set[tf.Operation] = set()
    for operation in reversed(flat.planned):
        if in_backward_scope(operation) or operation in flat.read_once:
            continue
        writes = (
            any(tensor.dtype == tf.resource for tensor in operation.inputs)
            and op_rules.is_stateful(operation)
            and not flat.only_reads(operation)
        )
        if writes or (flat.readers[operation] and flat.readers[operation] <= update):
            update.add(operation)
    return update


def _better_late(
    flat: FlatGraph, order: list[tf.Operation], update: set[tf.Operation]
) -> set[tf.Operation]:
    """The updates that stay at the end of the step, where they are in the trace.

    An early update adds its own memory to that of the activations; a late one keeps its gradient
    until the end. An update is late where being early would set the peak of the whole step, and
    being late would not.
    """
    steps = [operation for operation in order if operation not in update]
    place = {operation: k for k, operation in enumerate(steps)}
    change = [0] * (len(steps) + 1)
    for k, operation in enumerate(steps):
        last = max(
            (place[reader] for reader in flat.readers[operation] if reader in place), default=k
        )
        change[k] += flat.bytes_of(operation)
        change[last + 1] -= flat.bytes_of(operation)
    live = list(accumulate(change))
    late: set[tf.Operation] = set()
    for together in _update_by_variable(flat, update):
        gradients = {o for operation in together for o in flat.data_deps[operation] if o in place}
        if not gradients:
            continue
        ready, held = max(place[o] for o in gradients), sum(flat.bytes_of(o) for o in gradients)
        # Two of its values, or one and the gradient.
        own = max(held, 2 * max(flat.bytes_of(operation) for operation in together)) - held
        early = live[ready] + own
        waits = max(max(live[ready + 1 :]) + held, live[-1] + held + own)
        if early > max(live) and waits < early:
            late |= together
            for t in range(ready + 1, len(live)):
                live[t] += held
    return late


def _update_by_variable(flat: FlatGraph, update: set[tf.Operation]) -> list[set[tf.Operation]]:
    """The update in parts that have nothing to do with each other, the one with the largest values
    first."""
    part: dict[tf.Operation, set[tf.Operation]] = {}
    for operation in flat.planned:
        if operation in update:
            joined = {operation}.union(*(part[o] for o in flat.order_deps[operation] if o in part))
            part.update((o, joined) for o in joined)
    parts = {id(each): each for each in part.values()}.values()
    return sorted(parts, key=lambda each: -max(flat.bytes_of(o) for o in each))


def _last_hazards(
    flat: FlatGraph, order: Sequence[tf.Operation]
) -> tuple[dict[tf.Operation, int], set[tf.Operation]]:
    """For each op that overwrites a variable, the position of the last op that could ask for a
    recomputed reader of it; and what may be recomputed.

    What ops after the writer read (metrics of the prediction, most often) is kept, so that they
    cannot ask for one.
    """
    recomputable = set(flat.recomputable)
    bit = {o: 1 << k for k, o in enumerate(order)}
    read_by_then = {writer: sum(bit[o] for o in read) for writer, read in flat.overwritten.items()}
    again: dict[tf.Operation, int] = {}  # op -> what may have to run again for it, as bits
    overwritten = 0
    for operation in order:
        bits = 0
        for before in flat.data_deps[operation]:
            if before in recomputable and (bit[before] | again[before]) & overwritten:
                recomputable.discard(before)
            if before in recomputable:
                bits |= bit[before] | again[before]
        again[operation] = bits
        overwritten |= read_by_then.get(operation, 0)
    asked_last: dict[
        tf.Operation, int
    ] = {}  # reader of what is overwritten -> where it may last be wanted again
    wanted = overwritten
    for position in reversed(range(len(order))):
        found = again[order[position]] & wanted & ~read_by_then.get(order[position], 0)
        wanted &= ~found
        while found:
            asked_last[order[found.bit_length() - 1]] = position
            found ^= 1 << (found.bit_length() - 1)
    hazards = {
        writer: max((asked_last[o] for o in read if o in asked_last), default=-1)
        for writer, read in flat.overwritten.items()
    }
    return {writer: last for writer, last in hazards.items() if last >= 0}, recomputable
