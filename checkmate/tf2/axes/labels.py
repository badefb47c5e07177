"""Labels: how each value of a step follows from its values in slices of the batch, on the one graph
of the whole batch.

The label of the examples' axis begins at the arguments and spreads through the ops, inputs first,
by the rules of the table. An op that a slice can run on its own part gets a `Node`: its copy there,
in which only parts of shapes are smaller. What a copy needs of a value that is the same for all
slices is cut out of it, or made in part: the ops that make it are followed backwards.

An op whose outputs do not follow from those of the slices is computed once from whole values:
early, before the slices, if those depend on the step's arguments alone; otherwise late. What is
computed early enters the slices as a value that is the same for all, or cut into parts. A late op
that would have to keep the values of single examples for the whole batch binds them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntFlag
from functools import partial, reduce
from operator import or_
from typing import Any, NamedTuple

import tensorflow as tf

from checkmate.tf2.axes.keeping import Keeping
from checkmate.tf2.axes.variables import Accesses, handles, is_pure, is_write
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.operations import has_bodies, is_argument, is_call, may_run_again
from checkmate.tf2.ops.call import (
    Answer,
    Call,
    Relations,
    UnknownError,
    counted,
    shape_of,
)
from checkmate.tf2.ops.indices import is_random
from checkmate.tf2.ops.relation import SAME, SUMMED, WHOLE, ZERO, Kind, Relation, batched, fits
from checkmate.tf2.ops.signature import Signature, relate
from checkmate.tf2.ops.table import rule_of

_ALGORITHM = 3
_PHILOX = (1, 3)
"""tf.random.Algorithm: Philox, and the choice of TensorFlow, which is Philox on CPUs and GPUs."""

_BYTES = 16
"""Random bits, in bytes, of one count."""


class Of(IntFlag):
    """The dependences of a value that can be computed early. One that depends on both is an
    activation."""

    NOTHING = 0
    EXAMPLES = 1
    WEIGHTS = 2
    BOTH = 3


class Use(NamedTuple):
    """A value as a slice reads it.

    Attributes:
      node: The copy that makes it in the slice; None for the whole's value, which is known before
        the step runs or computed before the slices: in full, or the slice's part if it is BATCHED.
      share: It is the same for all slices, and each reads its share of it, as a part of a sum.
    """

    tensor: tf.Tensor
    relation: Relation
    node: Node | None
    share: bool = False


class Draw(NamedTuple):
    """How a slice draws its part of the whole batch's random numbers.

    Attributes:
      counter: Index of the input with the generator's count; None if the slice draws other numbers.
      numbers: How many there are for each example, one after another.
      group: How many are drawn with one count.
      runs: How often the examples follow each other, as there are axes before theirs.
    """

    counter: int | None
    numbers: int = 0
    group: int = 1
    runs: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """The copy of an op in a slice."""

    operation: tf.Operation
    inputs: tuple[Use, ...]
    answer: Answer
    draw: Draw | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SliceBody:
    """A function that a loop, condition or call runs, as it is for a slice; `value` returns what is
    known of a tensor before the step runs."""

    graph: Any
    value: Callable[[tf.Tensor], Any]
    arguments: Relations
    results: Relations
    uses: tuple[Use, ...]
    effects: tuple[Node, ...]


class _NeedsPart(Exception):
    """A function needs the slice's part of an argument that is the same for all slices."""

    def __init__(self, argument: tf.Operation, relation: Relation):
        self.argument, self.relation = argument, relation


@dataclass(slots=True, eq=False)
class Labels:
    """The relations of the values of a step, or of a function that it runs.

    Attributes:
      keeping: The values that may be kept for the whole batch; None within a function, where
        nothing is computed early or late.
      once: Ops that draw their random numbers for the whole batch.
      parts: Loops and conditions -> index of a result -> the relation in which slices read it,
        though all slices could have the same.
      asked: Those that were found to be read so.
      early: Ops whose values for the whole batch can be computed before the slices, and what they
        depend on.
      binding: The first op that needs the values of all examples at once.
    """

    function: Function
    examples: int
    arguments: dict[tf.Operation, Relation]
    keeping: Keeping | None = None
    once: Collection[tf.Operation] = ()
    parts: Mapping[tf.Operation, Mapping[int, Relation]] = field(default_factory=dict)
    asked: dict[tf.Operation, dict[int, Relation]] = field(default_factory=dict)
    relations: dict[tf.Operation, Relations] = field(default_factory=dict)
    nodes: dict[tuple[Any, Relation], Node | None] = field(default_factory=dict)
    effects: dict[tf.Operation, Node] = field(default_factory=dict)
    early: dict[tf.Operation, Of] = field(default_factory=dict)
    late: set[tf.Operation] = field(default_factory=set)
    accesses: Accesses = field(default_factory=Accesses)
    binding: tf.Operation | None = None

    @property
    def graph(self) -> Any:
        return self.function.graph

    @property
    def order(self) -> list[tf.Operation]:
        return self.function.order

    def run(self) -> None:
        for operation in self.order:
            if self._is_known(operation):
                continue
            if is_argument(operation):
                relation = self.arguments.get(operation, SAME)
                self.relations[operation] = [relation]
                self.early[operation] = Of.NOTHING if relation == SAME else Of.EXAMPLES
            elif is_write(operation, self.function.library):
                self._write(operation)
            else:
                self._visit(operation)
            if self.binding is not None:
                return

    def _is_known(self, operation: tf.Operation) -> bool:
        outputs = operation.outputs
        return bool(outputs) and all(self.value(tensor) is not None for tensor in outputs)

    def value(self, tensor: tf.Tensor) -> Any:
        return self.function.value(tensor)

    def natural(self, tensor: tf.Tensor) -> Relation:
        """The relation that a value has of itself; one that is computed early is there in full."""
        known = self.value(tensor)
        if known is not None:
            return SAME if known.size == 0 or known.any() else ZERO
        operation = tensor.op
        relation = self.relations[operation][tensor.value_index]
        if relation == WHOLE and self.keeping is not None:
            if operation in self.early:
                return SAME
            if operation not in self.late:
                self.binding = operation
        return relation

    def use(self, tensor: tf.Tensor, relation: Relation, *, whole: bool = False) -> Use | None:
        """How a slice gets a value in this relation (the whole's value, with `whole`, or a part of
        it); None if it cannot."""
        if whole:
            return self._part(tensor, relation)
        known, natural = self.value(tensor), self.natural(tensor)
        zero = natural == ZERO and relation.kind in (Kind.SAME, Kind.SUMMED, Kind.SIZE)
        if natural == relation or zero:
            return Use(tensor, relation, self.nodes.get((tensor.ref(), natural)))
        listed = tensor.dtype == tf.variant and relation == SUMMED
        if (relation.kind is Kind.BATCHED or listed) and natural in (SAME, ZERO):
            if known is not None:
                fit = fits(relation, known.shape, self.examples)
                return Use(tensor, relation, None) if fit else None
            node = self._made_in_part(tensor, relation)
            return Use(tensor, relation, node) if node else self._part(tensor, relation)
        if relation == SUMMED and natural == SAME and tensor.dtype.is_floating:
            return Use(tensor, relation, self.nodes.get((tensor.ref(), natural)), share=True)
        return None

    def inside(
        self, function: Function | None, arguments: Relations, results: Relations | None
    ) -> SliceBody | None:
        """A function as it is for a slice; None if it needs the whole batch. Where it needs the
        part of an argument that is the same for all, the relation of that argument changes."""
        if function is None:
            return None
        inputs = (tensor.op for tensor in function.graph.inputs)
        found = dict(zip(inputs, arguments, strict=True))
        for _ in range(len(found) + 1):
            try:
                return Labels(function, self.examples, found)._body(results)
            except _NeedsPart as asked:
                found = found | {asked.argument: asked.relation}
        return None

    def _body(self, results: Relations | None) -> SliceBody | None:
        for operation in self.order:
            if is_argument(operation):
                self.relations[operation] = [self.arguments[operation]]
            elif not self._is_known(operation):
                if not is_pure(operation, self.function.library):
                    return None
                self._put(operation, self._node_of(operation))
        uses = []
        for k, tensor in enumerate(self.graph.outputs):
            natural = self.natural(tensor)
            asked = results[k] if results else natural
            use = self.use(tensor, asked) or self.use(tensor, natural)
            if use is None or natural == WHOLE:
                return None
            uses.append(use)
        found = [use.relation for use in uses]
        arguments = [self.arguments[tensor.op] for tensor in self.graph.inputs]
        effects = tuple(self.effects.values())
        return SliceBody(self.graph, self.value, arguments, found, tuple(uses), effects)

    def _visit(self, operation: tf.Operation) -> None:
        inputs = [self.natural(tensor) for tensor in operation.inputs]
        if not self.accesses.read(operation):
            self._put(operation, None)
            self.late.add(operation)
            self._check(operation, inputs)
            return
        runs_again = may_run_again(operation)
        if is_random(operation.type) and not runs_again and _are_same(inputs):
            self.relations[operation] = [SAME] * len(operation.outputs)
            self.early[operation] = Of.NOTHING
            self.accesses.once.add(operation)
            return
        node = self._node_of(operation) if is_pure(operation, self.function.library) else None
        self._put(operation, node)
        of = self._depends(operation)
        if of is not Of.BOTH:
            self.early[operation] = of
            if node is None and not runs_again:
                self.accesses.once.add(operation)
        elif node is None:
            self.late.add(operation)
            self._check(operation, inputs)

    def _depends(self, operation: tf.Operation) -> Of:
        reads = any(handle.outputs[0].dtype == tf.resource for handle in handles(operation))
        floats = any(tensor.dtype.is_floating for tensor in operation.outputs)
        unknown = (t for t in operation.inputs if self.value(t) is None)
        found = (self.early.get(tensor.op, Of.BOTH) for tensor in unknown)
        return Of(reduce(or_, found, Of.WEIGHTS if reads and floats else Of.NOTHING))

    def _write(self, operation: tf.Operation) -> None:
        inputs = [self.natural(tensor) for tensor in operation.inputs]
        unknown = (t for t in operation.inputs if self.value(t) is None)
        is_early = all(t.op in self.early for t in unknown) and self.accesses.read(operation)
        read = is_early and bool(operation.outputs)
        self.accesses.write(operation, early=is_early, read=read)
        self._put(operation, None)
        if is_early:
            self.early[operation] = self._depends(operation)
        else:
            self.late.add(operation)
            self._check(operation, inputs)

    def _put(self, operation: tf.Operation, node: Node | None) -> None:
        found = node.answer.outputs if node else []
        missing = len(operation.outputs) - len(found)
        self.relations[operation] = [*found, *[WHOLE] * missing]
        if node and not operation.outputs:
            self.effects[operation] = node

    def _node_of(self, operation: tf.Operation) -> Node | None:
        """The copy of an op; None if it needs the whole batch. Where its inputs do not go together
        as the slices have them, those that can be computed early may."""
        inputs = [self.natural(tensor) for tensor in operation.inputs]
        node = self._node(operation, self.answer(operation, inputs))
        is_early = [tensor.op in self.early for tensor in operation.inputs]
        if node is not None or self._depends(operation) is not Of.BOTH:
            return node
        if self.keeping is None and SUMMED in inputs:
            found = [
                SUMMED if relation == SAME and tensor.dtype.is_floating else relation
                for tensor, relation in zip(operation.inputs, inputs, strict=True)
            ]
            return self._node(operation, self.answer(operation, found))
        for kinds in ((Kind.SUMMED,), (Kind.SUMMED, Kind.BATCHED)):
            fed = {k for k, r in enumerate(inputs) if r.kind in kinds and is_early[k]}
            found = [SAME if k in fed else relation for k, relation in enumerate(inputs)]
            if fed and (node := self._node(operation, self.answer(operation, found), fed)):
                return node
        return None

    def answer(
        self,
        operation: tf.Operation,
        inputs: Relations,
        asked: Mapping[int, Relation] | None = None,
    ) -> Answer | None:
        row, answer = rule_of(operation.type), None
        is_list = bool(operation.outputs) and operation.outputs[0].dtype == tf.variant
        rule = row.list_axes if is_list and row.list_axes else row.axes
        known = [self.value(tensor) for tensor in operation.inputs]
        functions = partial(self.function.inner, operation)
        shall = asked or self.parts.get(operation, {})
        call = Call(operation, inputs, known, self.examples, self.inside, functions, shall)
        same = _are_same(inputs)
        if rule is not None and not (same and _runs_functions(operation) and not shall):
            try:
                found = rule(call)
                found = relate(found, call) if isinstance(found, Signature) else found
                answer = Answer(found, list(inputs)) if isinstance(found, list) else found
            except UnknownError:
                answer = None
        if answer is None and same and not asked:
            answer = Answer([SAME] * len(operation.outputs), list(inputs))
        if answer is None or not self._fit(operation, answer):
            return None
        if row.places and answer.outputs[0].kind is Kind.BATCHED:
            leading = row.leading(call, answer) if row.leading else 0
            first = replace(answer.outputs[0], places=row.places(call, answer), leading=leading)
            answer = replace(answer, outputs=[first, *answer.outputs[1:]])
        return answer

    def _fit(self, operation: tf.Operation, answer: Answer) -> bool:
        if operation.outputs and all(each == WHOLE for each in answer.outputs):
            return False
        for relation, tensor in zip(answer.outputs, operation.outputs, strict=False):
            if relation.kind is Kind.BATCHED and tensor.dtype not in (tf.variant, tf.resource):
                if tensor.shape.rank is None:
                    return False
                if not fits(relation, shape_of(tensor), self.examples):
                    return False
        return True

    def _node(
        self, operation: tf.Operation, answer: Answer | None, fed: Collection[int] = ()
    ) -> Node | None:
        if answer is None:
            return None
        uses = []
        for k, (tensor, relation) in enumerate(zip(operation.inputs, answer.inputs, strict=True)):
            use = self.use(tensor, relation, whole=k in fed)
            if use is None:
                return None
            uses.append(use)
        draw = None
        if is_random(operation.type) and answer.outputs[0].kind is Kind.BATCHED:
            draw = self.draw(operation, answer.outputs[0])
            if draw is None:
                return None
        node = Node(operation, tuple(uses), answer, draw)
        for tensor, relation in zip(operation.outputs, answer.outputs, strict=False):
            self.nodes[tensor.ref(), relation] = node
        return node

    def _made_in_part(self, tensor: tf.Tensor, relation: Relation) -> Node | None:
        """The copy that makes the slice's part of a value that is the same for all slices."""
        key, operation = (tensor.ref(), relation), tensor.op
        if key in self.nodes:
            return self.nodes[key]
        self.nodes[key] = None
        if is_argument(operation):
            return None
        if self.relations[operation][tensor.value_index] not in (SAME, ZERO):
            return None
        draws = is_random(operation.type) and not may_run_again(operation)
        if draws and (operation in self.once or self._is_small(tensor)):
            return None
        if not draws and not is_pure(operation, self.function.library):
            return None
        asked = {tensor.value_index: relation}
        if _runs_functions(operation):
            self.asked.setdefault(operation, {}).setdefault(tensor.value_index, relation)
        for inputs in self.candidates(operation, relation):
            answer = self.answer(operation, inputs, asked)
            fit = answer is not None and answer.outputs[tensor.value_index] == relation
            if fit and (node := self._node(operation, answer)):
                return node
        return None

    def candidates(self, operation: tf.Operation, relation: Relation) -> Iterator[Relations]:
        """The relations that an op's inputs may need for an output to have `relation`."""
        natural = [self.natural(tensor) for tensor in operation.inputs]
        yield natural
        if _runs_functions(operation):
            return
        for k, tensor in enumerate(operation.inputs):
            if natural[k] in (SAME, ZERO) and tensor.shape.rank is not None:
                if tensor.dtype == tf.variant:
                    yield [*natural[:k], relation, *natural[k + 1 :]]
                    continue
                for axis in range(tensor.shape.rank):
                    known = self.value(tensor)
                    places = 0 if known is None else counted(known, axis, self.examples)
                    part = batched(axis, 1, places)
                    if fits(part, shape_of(tensor), self.examples):
                        yield [*natural[:k], part, *natural[k + 1 :]]

    def _part(self, tensor: tf.Tensor, relation: Relation) -> Use | None:
        """The whole's value, which is there before the slices, or a part of it."""
        operation, in_part = tensor.op, relation != SAME
        if in_part and tensor.dtype != tf.variant:
            if tensor.shape.rank is None:
                return None
            if not fits(relation, shape_of(tensor), self.examples):
                return None
        if self.keeping is None:
            if in_part and is_argument(operation):
                raise _NeedsPart(operation, relation)
            return None
        there = operation in self.early and (tensor.dtype != tf.variant or not in_part)
        return Use(tensor, relation, None) if there else None

    def draw(self, operation: tf.Operation, relation: Relation, most_runs: int = 1) -> Draw | None:
        """How a slice draws its part of an op's numbers; None if it cannot."""
        if not may_run_again(operation):
            return Draw(None)
        counter, result = rule_of(operation.type).counter, operation.outputs[0]
        shape, algorithm = result.shape.as_list(), self.value(operation.inputs[_ALGORITHM])
        runs = math.prod(shape[: relation.axis]) * relation.blocks
        if counter is None or algorithm not in _PHILOX or runs > most_runs:
            return None
        group = _BYTES // max(4, result.dtype.size)
        return Draw(counter, math.prod(shape) // (self.examples * runs), group, runs)

    def _is_small(self, tensor: tf.Tensor) -> bool:
        return self.keeping is not None and self.keeping.is_small(tensor)

    def _check(self, operation: tf.Operation, inputs: Sequence[Relation]) -> None:
        """Finds out whether a late op would need values of single examples that are not kept."""
        keeping = self.keeping
        assert keeping is not None
        pairs = list(zip(operation.inputs, inputs, strict=True))
        last = self._ends(operation, inputs) or keeping.has_results_only(operation)
        for k, (tensor, relation) in enumerate(pairs):
            if self.value(tensor) is not None:
                continue
            if tensor.dtype == tf.variant and relation.kind in (Kind.BATCHED, Kind.SUMMED):
                self.binding = operation  # a list is not handed on
            whole = self.relations[tensor.op][tensor.value_index] == WHOLE
            of = self.early.get(tensor.op, Of.BOTH)
            examples = relation.kind is Kind.BATCHED or (whole and of is Of.EXAMPLES)
            if not examples or keeping.is_there(tensor):
                continue
            if not keeping.may_keep(operation, k, early=of is not Of.BOTH, last=last):
                self.binding = operation

    def _ends(self, operation: tf.Operation, inputs: Sequence[Relation]) -> bool:
        """True if no axis of an op's outputs is as long as one along which the examples lie."""
        lengths = {self.examples}
        for tensor, relation in zip(operation.inputs, inputs, strict=True):
            if relation.kind is Kind.BATCHED and tensor.shape.rank:
                lengths.add(tensor.shape[relation.axis])
        shapes = [tensor.shape for tensor in operation.outputs]
        return all(each.rank is not None and lengths.isdisjoint(each) for each in shapes)


def _are_same(inputs: Sequence[Relation]) -> bool:
    return all(relation in (SAME, ZERO) for relation in inputs)


def _runs_functions(operation: tf.Operation) -> bool:
    return has_bodies(operation) or is_call(operation)
