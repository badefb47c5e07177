"""The order in which planned ops first run.

A trace lists ops in the order in which the program made them. Three changes to that order lower
what plans need, without any more computation:

* Independent parts of the step, whose ops alternate in a trace, run one after another if that takes
  less memory.
* The optimizer's updates run right after their gradients, so that a gradient can be freed before
  the next one is made, unless an update itself needs so much memory that it should wait until the
  activations are freed.
* A value that can wait, most often because its inputs are kept for other ops anyway, is computed
  right before its first reader. The value of a bias is computed before the product that it is added
  to, so that TensorFlow can run the sum within the product's kernel.

Then neighbouring ops become one op of the DFGraph. A kernel whose value only the very next kernel
reads, and which is no smaller than what that one makes, is fused with it (convolution + bias +
activation). Retaining its value alone would never pay, and TensorFlow computes such pairs in place.
The two stay apart if one op would need much more memory at once than either of them, since it holds
all that both read.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from itertools import accumulate
from operator import or_

import tensorflow as tf

from checkmate.tf2.graph.flat_graph import FlatGraph, in_backward_scope
from checkmate.tf2.graph.operations import is_loop, is_stateful, source_of
from checkmate.tf2.ops.rule import Fusion
from checkmate.tf2.ops.table import rule_of

WORTH = 0.02
"""An order other than that of the trace has to lower the bytes that plans need by this share."""


def arrange(flat: FlatGraph, *, is_arranged: bool = False) -> tuple[Group, ...]:
    """Groups of planned ops, each of which becomes one op, in the order of the trace, or in a
    depth-first one if plans need less in it.

    Afterwards `flat.recomputable` has the ops that may be recomputed in that order: the more
    gradients do, the later updates run. With `is_arranged` ops are in the order in which they shall
    run, and only grouped.
    """
    update = update_only(flat)
    if is_arranged:
        best = _Arrangement(flat, flat.planned, update, flat.recomputable, is_arranged=True)
        flat.recomputable = best.recomputable
        return best.groups
    orders = [flat.planned, *(_DepthFirst(flat, update, early).order() for early in (True, False))]
    arrangements = (
        _Arrangement(flat, order, update, recomputable)
        for recomputable in (flat.recomputable, flat.maybe_recomputable)
        if recomputable is not None
        for order in orders
    )
    best = next(arrangements)
    for other in arrangements:
        best = other if other.is_lower_than(best) else best
    flat.recomputable = best.recomputable
    return best.groups


class _Arrangement:
    def __init__(
        self,
        flat: FlatGraph,
        order: list[tf.Operation],
        update: set[tf.Operation],
        recomputable: set[tf.Operation],
        *,
        is_arranged: bool = False,
    ):
        self.flat = flat
        hazards, self.recomputable = last_hazards(flat, order, recomputable)
        paired = paired_gradients(flat, order, update)
        if not is_arranged:
            order = _with_early_updates(flat, order, update, paired, hazards)
            order = _with_late_values(flat, order, paired)
            order = _with_biases_before_products(flat, order)
        self.groups = fused(flat, order, paired, self.recomputable)

    def is_lower_than(self, other: _Arrangement) -> bool:
        """True if one of the two `peaks` is lower by more than `WORTH`, and neither higher by
        more."""
        (plain, least), (others, others_least) = self.peaks, other.peaks
        tolerated = WORTH * others
        return (
            max(others - plain, others_least - least) > tolerated
            and min(others - plain, others_least - least) > -tolerated
        )

    @cached_property
    def peaks(self) -> tuple[int, int]:
        """The most bytes of values in memory, each kept until its last reader has run: of all
        values, and of those that may not be recomputed."""
        kept = (o for o in self.flat.planned if o not in self.recomputable)
        return self._peak(self.flat.planned), self._peak(kept)

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
        live = peak = 0
        for k, group in enumerate(self.groups):
            size, done = sum(sizes[k].values()), sum(flat.bytes_of(o) for o in ends[k])
            forwards = all(rule_of(o.type).is_elementwise for o in group) and done >= size
            peak = max(peak, live + (0 if forwards else size))
            live += size - done
        return peak


class _DepthFirst:
    """An order of the planned ops that ends one branch of the step before it begins the next.

    An op that frees at least as many bytes as it makes runs as soon as it can. Otherwise the op
    runs that became possible last. Without `early_updates` updates run when nothing else can: until
    then, what reads a variable may run again.
    """

    def __init__(self, flat: FlatGraph, update: set[tf.Operation], early_updates: bool):
        self.flat = flat
        self.late = set() if early_updates else update
        before = {o: flat.order_deps[o] | flat.overwritten.get(o, set()) for o in flat.planned}
        self.after: dict[tf.Operation, list[tf.Operation]] = {o: [] for o in flat.planned}
        for operation, needed in before.items():
            for each in needed:
                self.after[each].append(operation)
        self.missing = {o: len(needed) for o, needed in before.items()}
        self.unread = {o: set(flat.readers[o]) for o in flat.planned}
        self.ready_since = dict.fromkeys(flat.planned, 0)

    def order(self) -> list[tf.Operation]:
        flat, unread, missing = self.flat, self.unread, self.missing
        ready = [(self._rank(o), o) for o in flat.planned if not missing[o]]
        heapq.heapify(ready)
        order: dict[tf.Operation, None] = {}
        while ready:
            found, operation = heapq.heappop(ready)
            if operation in order or found != self._rank(operation):
                continue  # the heap also has the op with its present rank
            order[operation] = None
            for each in flat.data_deps[operation]:
                unread[each].discard(operation)
                if len(unread[each]) == 1 and not missing[last := next(iter(unread[each]))]:
                    heapq.heappush(ready, (self._rank(last), last))
            for each in self.after[operation]:
                missing[each] -= 1
                if not missing[each]:
                    self.ready_since[each] = len(order)
                    heapq.heappush(ready, (self._rank(each), each))
        return list(order)

    def _rank(self, operation: tf.Operation) -> tuple[int, int, int, int]:
        flat = self.flat
        freed = sum(
            flat.bytes_of(o)
            for o in flat.data_deps[operation]
            if self.unread[o] == {operation} and o not in flat.read_once
        )
        grows = flat.bytes_of(operation) - freed
        if operation in self.late:
            urgency = (2, 0)
        elif grows <= 0:
            urgency = (0, 0)
        else:
            urgency = (1, -self.ready_since[operation])
        return (*urgency, grows, flat.position[operation])


def _with_early_updates(
    flat: FlatGraph,
    order: list[tf.Operation],
    update: set[tf.Operation],
    paired: Pairs,
    hazards: Mapping[tf.Operation, int],
) -> list[tf.Operation]:
    """Moves the ops of the optimizer's update up as far as their inputs allow. One that overwrites
    a variable waits until no later op can need a value that is recomputed from the old content."""
    position = {operation: k for k, operation in enumerate(order)}
    late = late_updates(flat, order, update)
    key: dict[tf.Operation, tuple[int, float]] = {}
    for operation in order:
        own = position[operation]
        if operation in update:
            waits_for = flat.order_deps[operation] | flat.overwritten.get(operation, set())
            earliest = max((key[o][0] for o in waits_for), default=0)
            earliest = max(earliest, own if operation in late else hazards.get(operation, 0))
            # After the op there: a gradient that it waits for may have been moved to it.
            key[operation] = (earliest, own if own >= earliest else earliest + 0.5)
        elif operation in paired:
            key[operation] = (position[paired[operation]], -1)
        else:
            key[operation] = (own, own)
    return sorted(order, key=key.__getitem__)


def _with_late_values(
    flat: FlatGraph, order: list[tf.Operation], paired: Pairs
) -> list[tf.Operation]:
    """Moves ops down to right before their first reader if what must be kept for them until then is
    no larger than their value: most often it is kept for other ops anyway. Ops with side effects do
    not move, nor do ops whose inputs are overwritten before the reader."""
    position: dict[tf.Operation, float] = {operation: float(k) for k, operation in enumerate(order)}
    # So small that all ops together stay between a reader and the op before it.
    nudge = 0.25 / len(order) ** 2
    fixed = {*paired, *paired.values(), *flat.read_once}
    for operation in order:  # what other ops must follow without reading it
        fixed |= flat.order_deps[operation] - flat.data_deps[operation]
    ends = dict.fromkeys(order, float("inf"))
    for writer, overwritten in flat.overwritten.items():
        ends.update((o, min(ends[o], position[writer])) for o in overwritten)
    for number, operation in enumerate(reversed(order)):
        if operation in fixed or not flat.readers[operation] or not flat.may_repeat(operation):
            continue
        first = min(flat.readers[operation], key=position.__getitem__)
        kept_longer = _kept_longer(flat, operation, position, position[first])
        tolerated = min(flat.bytes_of(operation), max(flat.bytes_of(first), flat.small_bytes))
        if kept_longer <= tolerated and position[first] < ends[operation]:
            position[operation] = position[first] - (number + 1) * nudge
    return sorted(order, key=position.__getitem__)


def _kept_longer(
    flat: FlatGraph, operation: tf.Operation, position: Mapping[tf.Operation, float], until: float
) -> int:
    """Bytes of the op's inputs that no other op needs from position `until` on."""
    return sum(
        flat.bytes_of(o)
        for o in flat.data_deps[operation]
        if o not in flat.read_once
        and all(position[each] < until for each in flat.readers[o] if each is not operation)
    )


def _with_biases_before_products(flat: FlatGraph, order: list[tf.Operation]) -> list[tf.Operation]:
    """Moves the ops that make a bias of a weight, as in mixed precision, before the product."""
    position = {operation: float(k) for k, operation in enumerate(order)}
    for operation in order:
        if rule_of(operation.type).fusion is not Fusion.BIAS:
            continue
        product = source_of(operation.inputs[0]).op
        if product not in position or rule_of(product.type).fusion is not Fusion.PRODUCT:
            continue
        for before in flat.planned_sources(operation.inputs[1]):
            if position[before] > position[product] and not flat.order_deps[before]:
                position[before] = position[product] - 0.5
    return sorted(order, key=position.__getitem__)


def update_only(flat: FlatGraph) -> set[tf.Operation]:
    """The optimizer's update: no gradients, and only writes to variables depend on its ops."""
    update: set[tf.Operation] = set()
    for operation in reversed(flat.planned):
        if in_backward_scope(operation) or operation in flat.read_once:
            continue
        writes = (
            any(tensor.dtype == tf.resource for tensor in operation.inputs)
            and is_stateful(operation)
            and not flat.only_reads(operation)
        )
        if writes or (flat.readers[operation] and flat.readers[operation] <= update):
            update.add(operation)
    return update


def late_updates(
    flat: FlatGraph, order: list[tf.Operation], update: set[tf.Operation]
) -> set[tf.Operation]:
    """Returns the updates that stay at the end of the step, where they are in the trace.

    An early update adds its own memory to that of the activations; a late one keeps its gradient
    until the end. It is late if it would set the peak of the step when early, and not when late.
    """
    steps = [operation for operation in order if operation not in update]
    place = {operation: k for k, operation in enumerate(steps)}
    live = _live_bytes(flat, steps, place)
    late: set[tf.Operation] = set()
    for together in _by_variable(flat, update):
        gradients = {o for operation in together for o in flat.data_deps[operation] if o in place}
        if not gradients:
            continue
        ready = max(place[o] for o in gradients)
        gradient_bytes = sum(flat.bytes_of(o) for o in gradients)
        # Two of its values, or one and the gradient.
        largest = max(flat.bytes_of(operation) for operation in together)
        own = max(gradient_bytes, 2 * largest) - gradient_bytes
        early_peak = live[ready] + own
        late_peak = max(max(live[ready + 1 :]) + gradient_bytes, live[-1] + gradient_bytes + own)
        if early_peak > max(live) and late_peak < early_peak:
            late |= together
            for t in range(ready + 1, len(live)):
                live[t] += gradient_bytes
    return late


def _live_bytes(
    flat: FlatGraph, steps: list[tf.Operation], place: dict[tf.Operation, int]
) -> list[int]:
    """Bytes in memory at each step, and after the last one, if every value is freed after its last
    reader among the steps."""
    change = [0] * (len(steps) + 1)
    for k, operation in enumerate(steps):
        readers = (place[reader] for reader in flat.readers[operation] if reader in place)
        change[k] += flat.bytes_of(operation)
        change[max(readers, default=k) + 1] -= flat.bytes_of(operation)
    return list(accumulate(change))


def _by_variable(flat: FlatGraph, update: set[tf.Operation]) -> list[set[tf.Operation]]:
    """The update in parts that do not depend on each other, the one with the largest values
    first."""
    part: dict[tf.Operation, set[tf.Operation]] = {}
    for operation in flat.planned:
        if operation in update:
            joined = {operation}.union(*(part[o] for o in flat.order_deps[operation] if o in part))
            part.update((o, joined) for o in joined)
    parts = {id(each): each for each in part.values()}.values()
    return sorted(parts, key=lambda each: -max(flat.bytes_of(o) for o in each))


def last_hazards(
    flat: FlatGraph, order: Sequence[tf.Operation], recomputable: set[tf.Operation]
) -> tuple[dict[tf.Operation, int], set[tf.Operation]]:
    """For each op that overwrites a variable, the position of the last op that could need the
    recomputation of a reader of the old content; and those of the ops `recomputable` that are.

    A value that ops after the writer read, most often metrics of the prediction, is retained, so
    that they need no such recomputation; or what it is made of, if that is less.
    """
    recomputable = set(recomputable)
    bit = {o: 1 << k for k, o in enumerate(order)}
    old_readers = {writer: sum(bit[o] for o in read) for writer, read in flat.overwritten.items()}
    again: dict[tf.Operation, int] = {}  # op -> the ops that may have to run again for it, as bits
    overwritten = 0

    def all_again(operation: tf.Operation) -> int:
        needed = (d for d in flat.data_deps[operation] if d in recomputable)
        return reduce(or_, (bit[before] | again[before] for before in needed), 0)

    def retained(value: tf.Operation, made: Sequence[tf.Operation]) -> set[tf.Operation]:
        """The values, of few bytes, with which nothing needs old content to make this one."""
        enough: dict[tf.Operation, set[tf.Operation]] = {}
        for each in made:
            if each not in recomputable or not (bit[each] | again[each]) & overwritten:
                continue
            found = set().union(*(enough.get(d, ()) for d in flat.data_deps[each]))
            less = sum(map(flat.bytes_of, found)) < flat.bytes_of(each)
            enough[each] = found if less and not bit[each] & overwritten else {each}
        return enough[value]

    for k, operation in enumerate(order):
        for before in flat.data_deps[operation]:
            if before in recomputable and (bit[before] | again[before]) & overwritten:
                kept = retained(before, order[:k])
                recomputable -= kept
                if kept != {before}:
                    for each in order[:k]:
                        again[each] = all_again(each)
        again[operation] = all_again(operation)
        overwritten |= old_readers.get(operation, 0)
    last_needed: dict[tf.Operation, int] = {}  # reader of old content -> where it may run last
    open_readers = overwritten
    for position in reversed(range(len(order))):
        found = again[order[position]] & open_readers & ~old_readers.get(order[position], 0)
        open_readers &= ~found
        while found:
            last_needed[order[found.bit_length() - 1]] = position
            found ^= 1 << (found.bit_length() - 1)
    hazards = {
        writer: max((last_needed[o] for o in read if o in last_needed), default=-1)
        for writer, read in flat.overwritten.items()
    }
    return {writer: last for writer, last in hazards.items() if last >= 0}, recomputable


Group = tuple[tf.Operation, ...]
Pairs = Mapping[tf.Operation, tf.Operation]

RAISED_SHARE = 0.25
"""A fused op may need more bytes at once than each of its parts by this share of the most that any
op needs."""


def values_of(flat: FlatGraph, group: Group) -> Group:
    inside = set(group)
    return tuple(
        o for o in group if o is group[-1] or o in flat.read_once or not flat.readers[o] <= inside
    )


def paired_gradients(
    flat: FlatGraph, order: list[tf.Operation], update: set[tf.Operation]
) -> dict[tf.Operation, tf.Operation]:
    """The gradients of biases -> the filter gradient of the same convolution: both read one
    tensor."""
    makes = [o for o in order if rule_of(o.type).fusion is Fusion.FILTER_GRADIENT]
    filters = {source_of(o.inputs[2]).ref(): o for o in makes}
    position = {operation: k for k, operation in enumerate(order)}
    paired: dict[tf.Operation, tf.Operation] = {}
    for operation in order:
        if rule_of(operation.type).fusion is not Fusion.BIAS_GRADIENT:
            continue
        filter_gradient = filters.pop(source_of(operation.inputs[0]).ref(), None)
        if filter_gradient is not None and all(
            o in update or position[o] > position[filter_gradient] for o in flat.readers[operation]
        ):
            paired[operation] = filter_gradient
    return paired


def fused(
    flat: FlatGraph, order: list[tf.Operation], paired: Pairs, recomputable: set[tf.Operation]
) -> tuple[Group, ...]:
    """Neighbouring planned ops that become one op each, whose inner values they alone read."""
    tolerated = RAISED_SHARE * max(_needed_bytes(flat, [operation]) for operation in order)

    def fits(one: Sequence[tf.Operation], other: Sequence[tf.Operation]) -> bool:
        apart = max(_needed_bytes(flat, one), _needed_bytes(flat, other))
        return _needed_bytes(flat, [*one, *other]) <= apart + tolerated

    def belong(before: list[tf.Operation], group: list[tf.Operation]) -> bool:
        last, operation = before[-1], group[-1]
        if paired.get(last) is operation:
            return True
        # Two segments of a loop read stacks that need not be in memory at the same time.
        if is_loop(last) and any(map(is_loop, group)):
            return False
        alike = all((last in kind) == (operation in kind) for kind in (recomputable, flat.backward))
        # The next op must be a reader, or all that an update of many variables waits for would
        # become one op with it.
        readers = flat.readers[last]
        alone = last not in flat.read_once and group[0] in readers and readers <= set(group)
        # Retaining a smaller input instead of the value can pay, if the value can be recomputed.
        no_smaller = flat.bytes_of(last) >= flat.bytes_of(operation)
        pays = operation not in recomputable or no_smaller
        return alike and alone and pays and fits(before, group)

    groups: list[list[tf.Operation]] = []
    for operation in order:
        group = [operation]
        while groups and belong(groups[-1], group):
            group = groups.pop() + group
        groups.append(group)
    return tuple(map(tuple, groups))


def _needed_bytes(flat: FlatGraph, group: Sequence[tf.Operation]) -> int:
    """Bytes that one op of these ops needs at once: all that it reads, from its beginning to its
    end, and its inner values. A value that is never freed does not count."""
    inside = set(group)
    read = {before for operation in group for before in flat.data_deps[operation]}
    read -= inside | flat.read_once
    outer = sum(map(flat.bytes_of, read))
    if all(rule_of(operation.type).is_elementwise for operation in group):
        largest = max(map(flat.bytes_of, group))
        if any(flat.bytes_of(before) >= largest for before in read):
            return outer  # every op forwards what it reads
    peak = live = 0
    for k, operation in enumerate(group):
        size, left = flat.bytes_of(operation), set(group[k + 1 :])
        done = [o for o in flat.data_deps[operation] & inside if not flat.readers[o] & left]
        forwards = rule_of(operation.type).is_elementwise and any(
            flat.bytes_of(before) >= size for before in done
        )
        peak = max(peak, live + (0 if forwards else size))
        live += size - sum(map(flat.bytes_of, done))
    return outer + peak
