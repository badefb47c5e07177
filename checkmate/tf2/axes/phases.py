"""Phases: which ops run before the slices, in each slice and after them; from what is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from checkmate.tf2.axes.labels import Labels, Node, Use
from checkmate.tf2.graph.operations import is_argument, is_stateful
from checkmate.tf2.ops.indices import is_random
from checkmate.tf2.ops.relation import Kind, Relation


class Handed(NamedTuple):
    """A value of the whole batch that is made of what slices make, and read after them: those that
    are SUMMED by addition, those that are BATCHED by concatenation; of those that are the SAME any
    will do."""

    whole: tf.Tensor
    relation: Relation
    node: Node | None

    @property
    def has_shape(self) -> bool:
        """Its shape is known before the step runs."""
        return self.whole.shape.is_fully_defined()


@dataclass(slots=True)
class Phases:
    """The ops that run once before the slices on the whole batch's arguments (`early`), in each
    slice (`nodes`), and once after them (`late`); an op may be in several.

    Attributes:
      fed: The tensors that are computed early and read in slices.
    """

    labels: Labels
    early: set[tf.Operation] = field(default_factory=set)
    nodes: set[Node] = field(default_factory=set)
    late: set[tf.Operation] = field(default_factory=set)
    fed: dict[Any, tf.Tensor] = field(default_factory=dict)
    handed_on: dict[Any, Handed] = field(default_factory=dict)

    def find(self) -> None:
        for tensor in self.labels.graph.outputs:
            self._after(tensor)
        for operation in self.labels.order:
            if is_stateful(operation):
                self._run_effect(operation)

    def in_slice(self, use: Use) -> bool:
        """True for a value that a slice makes; otherwise it reads the whole's."""
        node = use.node
        if node is None or node.draw is not None:
            return node is not None
        return not self.labels.accesses.runs_before(node.operation)

    def _run_effect(self, operation: tf.Operation) -> None:
        """Runs an op with a side effect, unless it only counts for its value."""
        labels = self.labels
        if labels.accesses.runs_before(operation):
            if not is_random(operation.type):
                self._run_early(operation)
        elif operation in labels.late or labels.accesses.writes_variable(operation):
            self._run_late(operation)
        elif operation in labels.effects:
            self._run_in_slices(labels.effects[operation])

    def _run_early(self, operation: tf.Operation) -> None:
        pending = [operation]
        while pending:
            operation = pending.pop()
            if operation not in self.early:
                self.early.add(operation)
                unknown = (t for t in operation.inputs if self.labels.value(t) is None)
                pending += [tensor.op for tensor in unknown]

    def _run_in_slices(self, node: Node) -> None:
        pending = [node]
        while pending:
            node = pending.pop()
            if node in self.nodes:
                continue
            self.nodes.add(node)
            for use in node.inputs:
                if self.in_slice(use):
                    assert use.node is not None
                    pending.append(use.node)
                elif self.labels.value(use.tensor) is None and not is_argument(use.tensor.op):
                    self.fed[use.tensor.ref()] = use.tensor
                    self._run_early(use.tensor.op)

    def _run_late(self, operation: tf.Operation) -> None:
        pending = [operation]
        while pending:
            operation = pending.pop()
            if operation not in self.late:
                self.late.add(operation)
                for tensor in operation.inputs:
                    pending += self._after(tensor, now=False)

    def _after(self, tensor: tf.Tensor, *, now: bool = True) -> list[tf.Operation]:
        """Runs what is needed to have the whole's value of a tensor after the slices; without
        `now`, returns the op to run late."""
        labels, operation = self.labels, tensor.op
        if labels.value(tensor) is not None:
            return []
        if labels.accesses.runs_before(operation):
            self._run_early(operation)
            return []
        relation = labels.relations[operation][tensor.value_index]
        node = labels.nodes.get((tensor.ref(), relation))
        in_slices = node is not None and (
            relation.kind in (Kind.BATCHED, Kind.SUMMED) or _reads_list(node)
        )
        passes_on = relation.kind is Kind.SUMMED and self._passes_on(operation)
        if operation in labels.late or not in_slices or passes_on:
            if now:
                self._run_late(operation)
            return [operation]
        assert node is not None
        self.handed_on[tensor.ref()] = Handed(tensor, relation, node)
        self._run_in_slices(node)
        return []

    def _passes_on(self, operation: tf.Operation) -> bool:
        """True for an op that makes a sum of one sum, which may as well be added up before: an
        optimizer begins with many of a gradient. Fewer bytes are handed on, and no narrower type is
        added up than otherwise."""
        sums = []
        for tensor in operation.inputs:
            kind = self.labels.natural(tensor).kind
            if kind is Kind.BATCHED:
                return False
            sums += [tensor] if kind is Kind.SUMMED else []
        (result, *others) = operation.outputs
        alike = len(sums) == 1 and not others and result.dtype == sums[0].dtype
        return alike and result.shape.num_elements() == sums[0].shape.num_elements()


def _reads_list(node: Node) -> bool:
    """True for a value that is the same for all slices, but read from a list that each has for
    itself, such as the list's length."""
    return node.answer.outputs[0].kind is Kind.SAME and any(
        use.tensor.dtype == tf.variant and use.relation.kind in (Kind.BATCHED, Kind.SUMMED)
        for use in node.inputs
    )
