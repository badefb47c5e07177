"""Undo: the variables of a planned step as they were before it, where a step ran out of memory.

A plan runs its ops one after another, so that the op that ran out of memory tells which writes were
done. Memory runs out where most is in use. The variables that are written before the last such
point are therefore copied to the host before the step: counters, seeds and statistics, as a rule,
as weights are updated after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.core.plan import Compute
from checkmate.core.replay import replay
from checkmate.tf2.execution.replay import EVALUATION_MARK, SCOPE, Replayed, Written
from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.graph_writer import captured_tensors, names_of_inputs
from checkmate.tf2.graph.operations import can_be_filled, is_stateful
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.rule import State
from checkmate.tf2.ops.table import rule_of

HIGH_SHARE = 0.9
"""Memory may run out where at least this share of a plan's peak is in use."""


@dataclass(slots=True, eq=False)
class Undo:
    """Copies of the variables that a step writes before its memory is highest.

    Attributes:
      places: Name of each op -> its place in the order in which they run.
      effects: (place, op) for each side effect on something other than variables.
    """

    places: dict[str, int] = field(default_factory=dict)
    writes: list[tuple[int, tf.Variable]] = field(default_factory=list)
    effects: list[tuple[int, str]] = field(default_factory=list)
    copies: list[tuple[tf.Variable, np.ndarray]] = field(default_factory=list)

    @classmethod
    def before(cls, run: Any, traced: TracedStep) -> Undo:
        """Copies the variables that the next step writes before its memory is highest; none for a
        function whose order is not known."""
        if not isinstance(run, Replayed):
            return cls(writes=[(0, variable) for variable in traced.variables])
        found = cls(*_order(run.written))
        highest = _highest(run.written, found.places)
        early = {id(variable): variable for k, variable in found.writes if k <= highest}
        found.copies = [(variable, variable.numpy()) for variable in early.values()]
        return found

    def undo(self, error: tf.errors.ResourceExhaustedError) -> tuple[list[str], list[str]]:
        """Puts back all that is known. Returns the names of variables that may have changed, and of
        ops whose other side effects may have happened."""
        names = self.places.items()
        failed = [place for name, place in names if f"{SCOPE}/{name}}}" in error.message]
        last = max(failed, default=len(self.places))
        for variable, value in self.copies:
            put_back(variable, value)
        kept = {id(variable) for variable, _ in self.copies}
        changed = [v.name for k, v in self.writes if k <= last and id(v) not in kept]
        done = [name for k, name in self.effects if k <= last]
        return list(dict.fromkeys(changed)), done


def _order(
    written: Written,
) -> tuple[dict[str, int], list[tuple[int, tf.Variable]], list[tuple[int, str]]]:
    traced, flat = written.traced, written.traced.flat
    by_handle = {id(variable.handle): variable for variable in traced.variables}
    names = names_of_inputs(flat)
    variables = {
        names[tensor.ref()]: by_handle[id(value)]
        for tensor, value in captured_tensors(flat)
        if id(value) in by_handle
    }
    places: dict[str, int] = {}
    writes: list[tuple[int, tf.Variable]] = []
    effects: list[tuple[int, str]] = []
    for place, node in enumerate(written.writer.nodes):
        places[node.name] = place
        taken = [variables[name] for name in node.input if name in variables]
        like = written.writer.like.get(node.name)
        only_reads = rule_of(node.op).only_reads
        if isinstance(like, tf.Operation) and not only_reads:
            only_reads = bodies.only_reads(traced.function.graph, like)
            state = rule_of(node.op).state
            if is_stateful(like) and not only_reads and not taken and state is not State.DRAWS:
                effects.append((place, node.name.partition(EVALUATION_MARK)[0]))
        if not only_reads:
            writes += ((place, variable) for variable in taken)
    return places, writes, effects


def _highest(written: Written, places: dict[str, int]) -> int:
    """The place of the last op at which nearly as much is in use as at the peak."""
    timeline = replay(written.traced.graph, written.plan)
    high = HIGH_SHARE * timeline.peak_bytes
    last, seen = 0, [0] * len(written.traced.groups)
    for step, size in zip(written.plan.steps, timeline.bytes_after_step, strict=True):
        if not isinstance(step, Compute):
            continue
        name = written.traced.groups[step.op][-1].name
        place = places.get(f"{name}{EVALUATION_MARK}{seen[step.op]}", 0)
        seen[step.op] += 1
        if size + written.traced.graph.ops[step.op].workspace_bytes >= high:
            last = max(last, place)
    return last


@contextmanager
def kept_state(variables: Sequence[tf.Variable]) -> Iterator[list[np.ndarray]]:
    """Puts the variables' values, which are kept on the host meanwhile and yielded, back at the
    end, to the bit; an interrupt waits until all are."""
    saved = [variable.numpy() for variable in variables]
    try:
        yield saved
    finally:
        interrupt: KeyboardInterrupt | None = None
        for variable, value in zip(variables, saved, strict=True):
            while True:
                try:
                    put_back(variable, value)
                    break
                except KeyboardInterrupt as error:
                    interrupt = error
        if interrupt is not None:
            raise interrupt


def put_back(variable: tf.Variable, value: np.ndarray) -> None:
    """Gives a variable this value to the bit, where it can in the memory that it has.

    An assignment gives it other memory, which may split what the allocator has in one piece: a
    step would then measure differently before and after.
    """
    if not can_be_filled(variable) or tf.shape(variable).numpy().tolist() != list(value.shape):
        variable.assign(value, read_value=False)
        return
    zeros, whole = np.zeros(value.ndim, np.int32), (1 << value.ndim) - 1
    begin = {"begin": zeros, "end": zeros, "strides": zeros + 1}
    masks = {"begin_mask": whole, "end_mask": whole}
    tf.raw_ops.ResourceStridedSliceAssign(ref=variable.handle, value=value, **begin, **masks)
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)  # as in `GraphWriter.overwrite`
