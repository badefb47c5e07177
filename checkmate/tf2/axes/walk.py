"""Walk: goes through a step's graph, inputs first, and finds the relation of each value.

An op whose outputs do not follow from those of the slices is computed once from whole values:
early, before the slices, if those depend on the step's arguments alone; otherwise late. What is
computed early enters the slices as a value that is the same for all, or cut into parts. A late op
that would have to keep the values of single examples for the whole batch binds them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import Any

import tensorflow as tf

from checkmate.tf2.axes.inside import call_of
from checkmate.tf2.axes.keeping import Keeping
from checkmate.tf2.axes.pairing import Graphs
from checkmate.tf2.axes.rules import Draw, Found, draw_of, outputs_of, relation_of_known
from checkmate.tf2.axes.variables import Accesses, handles, is_pure, is_write
from checkmate.tf2.graph.operations import is_argument, may_run_again
from checkmate.tf2.ops.call import Pair, Relations
from checkmate.tf2.ops.indices import is_random
from checkmate.tf2.ops.relation import SAME, WHOLE, Kind, Relation, batch_axis, batched

Read = tuple[Pair, int]


class Of(IntFlag):
    """The dependences of a value that can be computed early. One that depends on both is an
    activation."""

    NOTHING = 0
    EXAMPLES = 1
    WEIGHTS = 2
    BOTH = 3


@dataclass(slots=True)
class Input:
    """One input of an op.

    Attributes:
      instead: A value that a slice reads instead of its own.
      of: The dependences of the whole's value, if it can be computed early; else Of.BOTH.
      fed: The slices are handed the value that is computed early.
    """

    relation: Relation
    known: tuple[Any, Any] | None = None
    instead: Any = None
    of: Of = Of.NOTHING
    fed: bool = False

    @property
    def early(self) -> bool:
        return self.of is not Of.BOTH


@dataclass(slots=True)
class Walk:
    """The relations of a graph's values.

    Attributes:
      functions: The graphs that have the functions which loops and conditions run.
      examples: The number of examples of the whole and of a slice.
      every: Slices begin at multiples of this number of examples.
      early: Ops whose values for the whole batch can be computed before the slices, and what they
        depend on.
      from_whole: Values that a slice reads instead of those that its graph has.
      fed: Inputs that a slice takes from what is computed early.
      averages: Ops whose results in a slice are divided by `count`.
    """

    graphs: Graphs
    functions: tuple[Any, Any]
    examples: tuple[int, int]
    every: int
    arguments: dict[Pair, Relation]
    keeping: Keeping
    relations: dict[Pair, Relations] = field(default_factory=dict)
    early: dict[Pair, Of] = field(default_factory=dict)
    late: set[Pair] = field(default_factory=set)
    from_whole: dict[Read, Any] = field(default_factory=dict)
    fed: dict[Read, Relation] = field(default_factory=dict)
    averages: set[Pair] = field(default_factory=set)
    draws: dict[Pair, Draw] = field(default_factory=dict)
    accesses: Accesses = field(default_factory=Accesses)
    binding: Pair | None = None

    @property
    def count(self) -> Fraction:
        return Fraction(*self.examples)

    def run(self) -> None:
        for pair in self.graphs.pairs:
            if is_argument(pair.whole):
                relation = self.arguments.get(pair, SAME)
                self.relations[pair] = [relation]
                self.early[pair] = Of.NOTHING if relation == SAME else Of.EXAMPLES
            elif is_write(pair.whole, self.functions[0]):
                self._write(pair)
            else:
                self._visit(pair)
            if self.binding is not None:
                return

    def _visit(self, pair: Pair) -> None:
        inputs = [self._input(pair, k) for k in range(len(pair.whole.inputs))]
        if not self.accesses.read(pair):
            self._put(pair, [WHOLE] * len(pair.whole.outputs), late=True)
            self._check(pair, inputs)
            return
        if is_random(pair.whole.type):
            found = self._random(pair, inputs)
        elif is_pure(pair.whole, self.functions[0]):
            found = self._ruled(pair, inputs)
        else:
            found = None
        of = self._depends(pair, inputs)
        is_early = of is not Of.BOTH
        if found is None:
            self._put(pair, [WHOLE] * len(pair.whole.outputs), late=not is_early)
            if not is_early:
                self._check(pair, inputs)
            elif not may_run_again(pair.whole):
                self.accesses.once.add(pair)
        else:
            self._put(pair, found.outputs)
        if is_early and (pair not in self.draws or self.draws[pair].is_exact):
            self.early[pair] = of

    def _depends(self, pair: Pair, inputs: Sequence[Input]) -> Of:
        reads = any(handle.outputs[0].dtype == tf.resource for handle in handles(pair.whole))
        floats = any(tensor.dtype.is_floating for tensor in pair.whole.outputs)
        return reduce(or_, (each.of for each in inputs), Of.WEIGHTS if reads and floats else Of(0))

    def _ruled(self, pair: Pair, inputs: list[Input]) -> Found | None:
        """The relations of the outputs, if they follow from those of the slices."""
        if not pair.whole.outputs and all(each.relation != WHOLE for each in inputs):
            return Found([], frozenset())
        found = self._outputs(pair, inputs)
        if found is None and any(_can_be_fed(each) for each in inputs):
            inputs = [self._fed(pair, k) if _can_be_fed(x) else x for k, x in enumerate(inputs)]
            found = self._outputs(pair, inputs)
        if found is None or (found.outputs and all(each == WHOLE for each in found.outputs)):
            return None
        for k in found.read:
            if inputs[k].fed:
                self.fed[pair, k] = inputs[k].relation
            elif inputs[k].instead is not None:
                self.from_whole[pair, k] = inputs[k].instead
        if found.average:
            self.averages.add(pair)
        return found

    def _random(self, pair: Pair, inputs: list[Input]) -> Found | None:
        found = self._outputs(pair, inputs)
        if found is None:
            return None
        if found.outputs == [SAME]:
            if not may_run_again(pair.whole):
                self.accesses.once.add(pair)
            return found
        draw = draw_of(pair, found.outputs[0], self.examples[1], self.every)
        small = self.keeping.is_small(pair.whole.outputs[0])
        if not draw.is_exact and may_run_again(pair.whole) and small:
            return None
        self.draws[pair] = draw
        return found

    def _write(self, pair: Pair) -> None:
        inputs = [self._input(pair, k) for k in range(len(pair.whole.inputs))]
        is_early = all(each.early for each in inputs) and self.accesses.read(pair)
        self.accesses.write(pair, early=is_early, read=is_early and bool(pair.whole.outputs))
        self._put(pair, [WHOLE] * len(pair.whole.outputs), late=not is_early)
        if is_early:
            self.early[pair] = self._depends(pair, inputs)
        else:
            self._check(pair, inputs)

    def _put(self, pair: Pair, outputs: Relations, *, late: bool = False) -> None:
        self.relations[pair] = outputs
        if late:
            self.late.add(pair)

    def _check(self, pair: Pair, inputs: Sequence[Input]) -> None:
        """Finds out whether a late op would need values of single examples that are not kept."""
        ends = all(
            _has_no_examples(*each)
            for each in zip(pair.whole.outputs, pair.part.outputs, strict=True)
        )
        last = ends or self.keeping.has_results_only(pair.whole)
        for k, (tensor, each) in enumerate(zip(pair.whole.inputs, inputs, strict=True)):
            in_parts = each.relation.kind in (Kind.BATCHED, Kind.SUMMED)
            if tensor.dtype == tf.variant and in_parts:
                self.binding = pair  # a list is not handed on
            uncut = each.relation == WHOLE and each.of is Of.EXAMPLES
            examples = each.relation.kind is Kind.BATCHED or uncut
            if each.known is not None or not examples or self.keeping.is_there(tensor):
                continue
            if not self.keeping.may_keep(pair.whole, k, early=each.early, last=last):
                self.binding = pair

    def _input(self, pair: Pair, k: int) -> Input:
        whole, part = self.graphs.inputs(pair)[k]
        known = self.graphs.known(whole, part)
        if known is not None:
            relation, instead = relation_of_known(*known, self.count)
            if relation != WHOLE:
                return Input(relation, known, instead)
            fed = self._fed(pair, k)
            return Input(fed.relation, known, fed=fed.fed)
        source = Pair(whole.op, part.op)
        relation = self.relations[source][whole.value_index]
        if relation == WHOLE and source in self.early:
            return self._fed(pair, k)
        if relation == WHOLE and source not in self.late:
            self.binding = source
        return Input(relation, of=self.early.get(source, Of.BOTH))

    def _fed(self, pair: Pair, k: int) -> Input:
        """An input whose value for the whole is computed early and handed to each slice, in full or
        its part of it."""
        source = Pair(*(tensor.op for tensor in self.graphs.inputs(pair)[k]))
        of = self.early.get(source, Of.NOTHING)
        shapes = [tensor.shape for tensor in self.graphs.inputs(pair)[k]]
        if not all(shape.is_fully_defined() for shape in shapes):
            return Input(WHOLE, of=of)
        whole, part = (tuple(shape.as_list()) for shape in shapes)
        axis = batch_axis(whole, part, self.count)
        if whole != part and axis is None:
            return Input(WHOLE, of=of)
        return Input(SAME if axis is None else batched(axis), of=of, fed=True)

    def _outputs(self, pair: Pair, inputs: Sequence[Input]) -> Found | None:
        relations, known = [each.relation for each in inputs], [each.known for each in inputs]
        return outputs_of(call_of(self.graphs, pair, relations, known, self.count, self.functions))


def _can_be_fed(each: Input) -> bool:
    """True for a sum over examples, or positions in the batch, whose value for the whole can be
    computed early."""
    counts = each.relation.kind is Kind.SUMMED or each.relation.offset != 0
    return each.early and counts and not each.fed


def _has_no_examples(whole: tf.Tensor, part: tf.Tensor) -> bool:
    """True if an output is not longer for the whole batch, as far as the graph tells."""
    return whole.shape.rank is not None and whole.shape.as_list() == part.shape.as_list()
