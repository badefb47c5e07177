"""Phases: which ops run before the slices, in each slice and after them; from what is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import tensorflow as tf

from checkmate.tf2.axes.walk import Read, Walk
from checkmate.tf2.graph.operations import is_argument, is_stateful
from checkmate.tf2.ops.call import Pair
from checkmate.tf2.ops.relation import Kind, Relation


class Handed(NamedTuple):
    """A value, for the whole batch and in a slice, that is computed in one phase and read in
    another."""

    whole: tf.Tensor
    part: tf.Tensor
    relation: Relation


class Phase(Enum):
    """Once before the slices on the whole batch's arguments, in each slice, or once after them."""

    EARLY = "early"
    SLICE = "slice"
    LATE = "late"


@dataclass(slots=True)
class Phases:
    """The ops of each phase (an op may be in several), and the values that pass between phases."""

    walk: Walk
    ops: dict[Phase, set[Pair]] = field(default_factory=lambda: {phase: set() for phase in Phase})
    fed: dict[Read, Handed] = field(default_factory=dict)
    handed_on: dict[tuple[Pair, int], Handed] = field(default_factory=dict)

    def find(self) -> None:
        walk = self.walk
        pending: list[tuple[Pair, Phase]] = []
        for whole, part in zip(walk.graphs.whole.outputs, walk.graphs.part.outputs, strict=True):
            if walk.graphs.known(whole, part) is None:
                pending += self._after(Pair(whole.op, part.op), whole.value_index)
        for pair in walk.graphs.pairs:
            if is_stateful(pair.whole):
                phase = self._of_effect(pair)
                pending += [(pair, phase)] if phase else []
        while pending:
            pair, phase = pending.pop()
            if pair not in self.ops[phase]:
                self.ops[phase].add(pair)
                pending += self._needs(pair, phase)

    def _of_effect(self, pair: Pair) -> Phase | None:
        """The phase of an op with a side effect; None for one that only counts for its value."""
        accesses = self.walk.accesses
        if accesses.runs_before(pair):
            return Phase.EARLY
        if pair in self.walk.late or accesses.writes_variable(pair):
            return Phase.LATE
        return None if pair.whole.outputs else Phase.SLICE

    def _needs(self, pair: Pair, phase: Phase) -> list[tuple[Pair, Phase]]:
        found: list[tuple[Pair, Phase]] = []
        for k, (whole, part) in enumerate(self.walk.graphs.inputs(pair)):
            source = Pair(whole.op, part.op)
            fed = (pair, k) in self.walk.fed and phase is Phase.SLICE
            if self.walk.graphs.known(whole, part) is not None and not fed:
                continue
            if phase is Phase.LATE:
                found += self._after(source, whole.value_index)
            elif phase is Phase.SLICE and (fed or self.walk.accesses.runs_before(source)):
                relation = self.walk.fed.get((pair, k)) if fed else None
                relation = relation or self.walk.relations[source][whole.value_index]
                self.fed[pair, k] = Handed(whole, part, relation)
                if self.walk.graphs.known(whole, part) is None:
                    found.append((source, Phase.EARLY))
            else:
                found.append((source, phase))
        return found

    def _after(self, pair: Pair, output: int) -> list[tuple[Pair, Phase]]:
        """The ops that must run to have the whole's value of an output after the slices."""
        walk = self.walk
        relation = walk.relations[pair][output]
        if walk.accesses.runs_before(pair):
            return [(pair, Phase.EARLY)]
        in_slices = relation.kind in (Kind.BATCHED, Kind.SUMMED) or self._reads_list(pair)
        if pair in walk.late or not in_slices or is_argument(pair.whole):
            return [(pair, Phase.LATE)]
        if relation.kind is Kind.SUMMED and self._passes_on(pair):
            return [(pair, Phase.LATE)]
        tensors = (pair.whole.outputs[output], pair.part.outputs[output])
        self.handed_on[pair, output] = Handed(*tensors, relation)
        return [(pair, Phase.SLICE)]

    def _reads_list(self, pair: Pair) -> bool:
        """True for a value that is the same for all slices, but read from a list that each has for
        itself, such as the list's length."""
        return self.walk.relations[pair][0].kind is Kind.SAME and any(
            whole.dtype == tf.variant
            and self.walk.relations[Pair(whole.op, part.op)][whole.value_index].kind
            in (Kind.BATCHED, Kind.SUMMED)
            for whole, part in self.walk.graphs.inputs(pair)
        )

    def _passes_on(self, pair: Pair) -> bool:
        """True for an op that makes a sum of one sum, which may as well be added up before: an
        optimizer begins with many of a gradient. Fewer bytes are handed on, and no narrower type is
        added up than otherwise."""
        graphs, relations = self.walk.graphs, self.walk.relations
        sums = []
        for whole, part in graphs.inputs(pair):
            if graphs.known(whole, part) is None:
                kind = relations[Pair(whole.op, part.op)][whole.value_index].kind
                if kind is Kind.BATCHED:
                    return False
                sums += [whole] if kind is Kind.SUMMED else []
        (result, *others) = pair.whole.outputs
        alike = len(sums) == 1 and not others and result.dtype == sums[0].dtype
        return alike and result.shape.num_elements() == sums[0].shape.num_elements()
