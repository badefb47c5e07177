"""regions_of(): which ops of a step can run tile by tile, so that none needs too much memory.

An op that reads and makes more bytes than allowed is split along an axis of its largest value. That
axis gets a label, which spreads to the ops around it in both directions, by the rules of the table:
a value between two ops of one region is never in memory as a whole. What enters a region is cut;
what leaves it is put together, or added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import tensorflow as tf

from checkmate.tf2.axes.labels import Labels, Node, Use
from checkmate.tf2.axes.variables import is_pure
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.operations import has_bodies, is_argument, is_call, role_of
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.call import Answer, UnknownError
from checkmate.tf2.ops.indices import is_random
from checkmate.tf2.ops.relation import SAME, ZERO, Kind, Relation, batched
from checkmate.tf2.ops.rule import Fusion, Role
from checkmate.tf2.ops.table import rule_of

MOST_TILES = 64

MOST_RUNS = 16
"""A tile draws random numbers of so many places, at most."""

LARGE = 1 / 8
"""A tensor is large if it has at least this share of the bytes of an op that needs too many."""

BETWEEN = 4
"""So many ops on small values may lie between two on large values of one region."""

_PAIRED = [Fusion.BIAS_GRADIENT, Fusion.FILTER_GRADIENT]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Ops that run in `tiles` parts, and the copy of each in a tile."""

    tiles: int
    nodes: Mapping[tf.Operation, Node]


def largest_need(function: Function) -> int:
    """The most bytes that an op reads and makes, without variables and arguments."""
    step = _Step(function, 0, None, set())
    kernels = (o for o in function.order if role_of(o) is Role.KERNEL)
    return max(map(step.needs, kernels), default=0)


Exact = Callable[[Node, int], bool]


def regions_of(
    traced: TracedStep, function: Function, most_bytes: int, exact: Exact | None
) -> list[Region]:
    """The regions in which ops that need more than `most_bytes` run in tiles.

    Args:
      function: What is known of the values of `traced.flat`.
      most_bytes: The bytes that an op may read and make, without variables and arguments.
      exact: Tells of an op's copies, in so many tiles, whether they make the bits of the whole;
        None where values may also be added up over tiles, which gives other last bits.
    """
    step = _Step.of(traced, function, most_bytes, exact)
    regions: list[Region] = []
    for operation in step.too_large:
        if operation not in step.taken and (region := step.best(operation)):
            step.taken.update(region.nodes)
            regions.append(region)
    return regions


@dataclass(slots=True, eq=False)
class _Step:
    """A step's ops on large values, and those that regions have taken."""

    function: Function
    most_bytes: int
    exact: Exact | None
    results: set[object]
    too_large: list[tf.Operation] = field(default_factory=list)
    large: dict[object, tf.Tensor] = field(default_factory=dict)
    candidates: set[tf.Operation] = field(default_factory=set)
    taken: set[tf.Operation] = field(default_factory=set)
    forward: Collection[str] = ()
    _labels: dict[int, Labels] = field(default_factory=dict)

    @classmethod
    def of(
        cls, traced: TracedStep, function: Function, most_bytes: int, exact: Exact | None
    ) -> _Step:
        found = cls(function, most_bytes, exact, {tensor.ref() for tensor in traced.flat.outputs})
        found.forward = traced.forward
        needs = {o: found.needs(o) for o in function.order if role_of(o) is Role.KERNEL}
        too_large = [o for o, needed in needs.items() if needed > most_bytes]
        for operation in too_large:
            for tensor in (*operation.inputs, *operation.outputs):
                if found.size(tensor) >= LARGE * needs[operation]:
                    found.large[tensor.ref()] = tensor
        found.too_large = sorted(too_large, key=lambda o: -needs[o])
        found.candidates = found._near_large()
        if exact is not None:  # oneDNN has one kernel for such a pair, which rounds otherwise
            for pair in chain.from_iterable(map(pairwise, traced.groups)):
                if [rule_of(each.type).fusion for each in pair] == _PAIRED:
                    found.candidates.difference_update(pair)
        return found

    def size(self, tensor: tf.Tensor) -> int:
        """Bytes that a tensor takes beyond variables, arguments and constants."""
        resident = role_of(tensor.op) is Role.SOURCE or self.function.value(tensor) is not None
        return 0 if resident else known_bytes([tensor])

    def needs(self, operation: tf.Operation) -> int:
        tensors = {tensor.ref(): tensor for tensor in (*operation.inputs, *operation.outputs)}
        return sum(map(self.size, tensors.values()))

    def _near_large(self) -> set[tf.Operation]:
        """The pure ops on large values, and those on a short way from one to another within the
        forward or the backward pass."""
        order = [o for o in self.function.order if self._may_split(o)]
        on_large = {o for o in order if any(t.ref() in self.large for t in (*o.inputs, *o.outputs))}
        before = {o: [t.op for t in o.inputs] for o in order}
        after = {o: [each for t in o.outputs for each in t.consumers()] for o in order}
        ways = [
            _distances(order, on_large, self.forward, before),
            _distances(order[::-1], on_large, self.forward, after),
        ]
        return {o for o in order if sum(way[o] for way in ways) <= BETWEEN}

    def _may_split(self, operation: tf.Operation) -> bool:
        opaque = any(
            t.dtype in (tf.variant, tf.resource) or not t.shape.is_fully_defined()
            for t in (*operation.inputs, *operation.outputs)
        )
        runs_functions = has_bodies(operation) or is_call(operation)
        known = [self.function.value(tensor) is not None for tensor in operation.outputs]
        source = is_argument(operation) or role_of(operation) is Role.SOURCE
        if opaque or runs_functions or source or not operation.outputs or all(known):
            return False
        return is_pure(operation, self.function.library)

    def labels(self, tiles: int) -> Labels:
        if tiles not in self._labels:
            labels = Labels(self.function, tiles, {})
            labels.relations = {o: [SAME] * len(o.outputs) for o in self.function.order}
            self._labels[tiles] = labels
        return self._labels[tiles]

    def best(self, operation: tf.Operation) -> Region | None:
        """The region around an op in which ops need least; None where they need as much as before.

        Whether copies are exact takes long to find out: that is asked of regions in the order of
        what they would save.
        """
        tensors = {t.ref(): t for t in (*operation.outputs, *operation.inputs)}
        most = max(map(self.size, tensors.values()))
        largest = [each for each in tensors.values() if 2 * self.size(each) >= most]
        wanted = math.ceil(self.needs(operation) / self.most_bytes)
        cuts = [
            (tensor, axis, n)
            for tensor in {t.ref(): t for each in largest for t in _reshaped(each)}.values()
            for axis, length in enumerate(tensor.shape.as_list())
            for n in _divisors(length or 1, wanted)
        ]
        hoped = [self._needed(self._spread(*cut, None), operation) for cut in cuts]
        best, least = None, (float(self.needs(operation)), 0.0)
        for k in sorted(range(len(cuts)), key=hoped.__getitem__):
            if hoped[k] >= least:
                break
            region = self._spread(*cuts[k], self.exact)
            if (needed := self._needed(region, operation)) < least:
                best, least = region, needed
        return best

    def _spread(self, tensor: tf.Tensor, axis: int, tiles: int, exact: Exact | None) -> Region:
        candidates = self.candidates - self.taken
        spread = _Spread(
            self.labels(tiles), candidates, exact, self.forward, sums=self.exact is None
        )
        return spread.run(tensor, batched(axis))

    def _needed(self, region: Region, operation: tf.Operation) -> tuple[float, float]:
        """The most bytes that an op of a region, or one beside it, needs then, and how many fewer
        bytes there are of large values as a whole."""
        if operation not in region.nodes:
            return math.inf, 0.0
        inside = {tensor.ref(): tensor for tensor in self._inside(region)}
        most = 0.0
        for each in self._at(region):
            tensors = {tensor.ref(): tensor for tensor in (*each.inputs, *each.outputs)}
            parts = sum(self.size(tensors[ref]) for ref in tensors.keys() & inside.keys())
            added = _summed(region.nodes.get(each))  # a tile's sum, and that of those before
            parts_left = parts * (1 - 1 / region.tiles) - sum(map(self.size, added))
            most = max(most, self.needs(each) - parts_left)
        return most, -sum(map(self.size, inside.values())) * (1 - 1 / region.tiles)

    def _at(self, region: Region) -> set[tf.Operation]:
        """The ops of a region, and those that read or make its large values as a whole."""
        tensors = {t.ref(): t for o in region.nodes for t in (*o.inputs, *o.outputs)}
        large = [tensor for ref, tensor in tensors.items() if ref in self.large]
        beside = {o for tensor in large for o in (tensor.op, *tensor.consumers())}
        return beside & self.candidates - self.taken | region.nodes.keys()

    def _inside(self, region: Region) -> Iterator[tf.Tensor]:
        """Yields large values that are never in memory as a whole."""
        for operation, node in region.nodes.items():
            for tensor, relation in zip(operation.outputs, node.answer.outputs, strict=False):
                is_part = relation.kind is Kind.BATCHED and tensor.ref() not in self.results
                readers = tensor.consumers() if is_part and tensor.ref() in self.large else []
                if readers and all(reads_part(region, o, tensor) for o in readers):
                    yield tensor


def _distances(
    order: Sequence[tf.Operation],
    starts: Collection[tf.Operation],
    forward: Collection[str],
    neighbours: Mapping[tf.Operation, Sequence[tf.Operation]],
) -> dict[tf.Operation, float]:
    """How far each op is from one of the starts, without leaving the forward or backward pass."""
    found: dict[tf.Operation, float] = {}
    for operation in order:
        phase = operation.name in forward
        near = (o for o in neighbours[operation] if (o.name in forward) == phase)
        nearest = min((found.get(o, math.inf) for o in near), default=math.inf)
        found[operation] = 0 if operation in starts else nearest + 1
    return found


def _reshaped(tensor: tf.Tensor) -> list[tf.Tensor]:
    """A tensor, and those of other shapes that are made of it, or it of them: rows that are merged
    into one axis can be cut as they were before."""
    views = [tensor.op, *tensor.consumers()]
    found = [
        each
        for view in views
        if role_of(view) is Role.VIEW
        for each in (view.inputs[0], *view.outputs)
        if each.shape.is_fully_defined() and each.dtype == tensor.dtype
    ]
    return [tensor, *found]


def _summed(node: Node | None) -> list[tf.Tensor]:
    pairs = zip(node.operation.outputs, node.answer.outputs, strict=False) if node else ()
    return [tensor for tensor, relation in pairs if relation.kind is Kind.SUMMED]


def reads_part(region: Region, operation: tf.Operation, tensor: tf.Tensor) -> bool:
    """True for an op of a region that reads a value as its tiles have made it."""
    node = region.nodes.get(operation)
    return node is not None and all(
        use.node is not None for use in node.inputs if use.tensor is tensor
    )


def _divisors(length: int, least: int) -> Iterator[int]:
    """Yields the smallest divisor that is not below `least`, or else the largest, and the one
    below: tiles of more than one entry may be exact where others are not."""
    found = [n for n in range(2, min(length, MOST_TILES) + 1) if length % n == 0]
    enough = [n for n in found if n >= least]
    largest = enough[0] if enough else max(found, default=0)
    yield from [n for n in found if n <= largest][-2:]


@dataclass(slots=True, eq=False)
class _Spread:
    """The spread of one label from a value over the ops around it."""

    labels: Labels
    candidates: Collection[tf.Operation]
    exact: Exact | None
    forward: Collection[str]
    sums: bool
    relations: dict[object, Relation] = field(default_factory=dict)
    answers: dict[tf.Operation, Answer] = field(default_factory=dict)

    def run(self, tensor: tf.Tensor, relation: Relation) -> Region:
        pending = self._label(tensor, relation)
        while pending:
            operation = pending.pop()
            if operation not in self.candidates or operation in self.answers:
                continue
            if (answer := self._answer(operation)) is not None:
                self.answers[operation] = answer
                for each, found in _pairs(operation, answer):
                    is_new = each.ref() not in self.relations and not self._is_resident(each)
                    if found.kind is Kind.BATCHED and is_new:
                        pending += self._label(each, found)
        nodes = self._nodes()
        if read := self._read_anew(nodes):
            nodes = self._nodes(read)
        return Region(self.labels.examples, nodes)

    def _read_anew(self, nodes: Mapping[tf.Operation, Node]) -> set[object]:
        """Values of the forward pass that the backward pass reads as a whole. There copies read
        parts of that: if they read those of the forward pass, a value was kept twice."""
        return {
            tensor.ref()
            for operation in nodes
            if operation.name in self.forward
            for tensor in operation.outputs
            for reader in tensor.consumers()
            if reader not in nodes and reader.name not in self.forward
        }

    def _is_resident(self, tensor: tf.Tensor) -> bool:
        return role_of(tensor.op) is Role.SOURCE or self.labels.value(tensor) is not None

    def _label(self, tensor: tf.Tensor, relation: Relation) -> list[tf.Operation]:
        self.relations[tensor.ref()] = relation
        return [*tensor.consumers(), tensor.op]

    def _answer(self, operation: tf.Operation) -> Answer | None:
        """An op's copy in a tile, by the labels of its inputs and outputs."""
        given = [self._known_or(tensor) for tensor in operation.inputs]
        asked = {
            k: self.relations[tensor.ref()]
            for k, tensor in enumerate(operation.outputs)
            if tensor.ref() in self.relations
        }
        for inputs in self._inputs(operation, given, asked):
            answer = self.labels.answer(operation, inputs, asked)
            if answer is not None and self._fits(operation, answer, asked):
                return answer
        return None

    def _known_or(self, tensor: tf.Tensor) -> Relation:
        natural = self.labels.natural(tensor)
        return self.relations.get(tensor.ref(), natural) if natural in (SAME, ZERO) else natural

    def _inputs(
        self, operation: tf.Operation, given: list[Relation], asked: Mapping[int, Relation]
    ) -> Iterator[list[Relation]]:
        yield given
        if asked and all(relation.kind is not Kind.BATCHED for relation in given):
            try:
                yield from self.labels.candidates(operation, next(iter(asked.values())))
            except UnknownError:
                return

    def _fits(self, operation: tf.Operation, answer: Answer, asked: Mapping[int, Relation]) -> bool:
        outputs = answer.outputs
        if any(self.labels.value(operation.inputs[k]) is None for k in answer.shifted):
            return False  # whether places are a tile's own shows when the step runs
        kinds = {Kind.BATCHED, Kind.SAME} | ({Kind.SUMMED} if self.sums else set())
        if len(outputs) < len(operation.outputs) or any(r.kind not in kinds for r in outputs):
            return False
        if any(outputs[k] != relation for k, relation in asked.items()):
            return False
        return any(relation.kind in (Kind.BATCHED, Kind.SUMMED) for relation in outputs)

    def _nodes(self, anew: Collection[object] = ()) -> dict[tf.Operation, Node]:
        """The copies, inputs first; an op whose inputs' copies do not go together has none. Those
        of the backward pass read parts of the values `anew` of the forward pass."""
        nodes: dict[tf.Operation, Node] = {}
        for operation in self.labels.order:
            answer = self.answers.get(operation)
            if answer is None:
                continue
            uses = [
                Use(tensor, relation, _maker(nodes, tensor, relation))
                for tensor, relation in zip(operation.inputs, answer.inputs, strict=True)
            ]
            if any(use.node is None and use.tensor.op in nodes for use in uses):
                continue  # it would wait for all tiles
            if operation.name not in self.forward:
                uses = [u._replace(node=None) if u.tensor.ref() in anew else u for u in uses]
            draw = None
            if is_random(operation.type) and answer.outputs[0].kind is Kind.BATCHED:
                draw = self.labels.draw(operation, answer.outputs[0], MOST_RUNS)
                if draw is None or draw.counter is None:
                    continue
            node = Node(operation, tuple(uses), answer, draw)
            if self.exact is None or self.exact(node, self.labels.examples):
                nodes[operation] = node
        return nodes


def _maker(
    nodes: Mapping[tf.Operation, Node], tensor: tf.Tensor, relation: Relation
) -> Node | None:
    node = nodes.get(tensor.op)
    made = node.answer.outputs[tensor.value_index] if node else None
    return node if made == relation and relation.kind is Kind.BATCHED else None


def _pairs(operation: tf.Operation, answer: Answer) -> Iterator[tuple[tf.Tensor, Relation]]:
    yield from zip(operation.inputs, answer.inputs, strict=True)
    yield from zip(operation.outputs, answer.outputs, strict=False)
