"""Results: where the results of a planned step are written."""

from __future__ import annotations

from itertools import cycle

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.execution.values import Values
from checkmate.tf2.graph.operations import can_be_copied, source_of
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep


class OutputBuffers:
    """Two buffers for each early result of a step, which successive steps fill in turn.

    Attributes:
      batch_area: The tensor that keeps memory apart for batches (see `memory.batch_area`), if any;
        it lives as long as the buffers.
    """

    def __init__(self, traced: TracedStep):
        self.batch_area: tf.Tensor | None = None
        outputs = zip(traced.flat.outputs, traced.early, strict=True)
        results = [tensor for tensor, early in outputs if early]
        with tf.init_scope(), tf.device(devices.training_device()):
            both = [
                [tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False) for each in results]
                for _ in range(2)
            ]
        self.bytes = 2 * known_bytes(results)
        self._turns = cycle(both)

    def handles(self) -> list[tf.Tensor]:
        return [variable.handle for variable in next(self._turns)]


class Results:
    """Writes the results of a step into output buffers, into memory of their own that is there from
    the beginning of the step, or into a copy at its end. There are `buffers` for all early results,
    or none."""

    def __init__(self, values: Values, buffers: int):
        self._values = values
        self.handles = [f"buffer_{k}:0" for k in range(buffers)]
        self._written: dict[int, str] = {}
        names = iter(self.handles)
        traced = values.traced
        self._memory = [
            (next(names, "") or self._allocate(tensor)) if early else ""
            for tensor, early in zip(traced.flat.outputs, traced.early, strict=True)
        ]

    def write(self, k: int) -> None:
        if k not in self._written:
            self._written[k] = self._result(k)
            self._values.last = [self._written[k].partition(":")[0]]

    def finish(self) -> list[str]:
        """Runs the small side effects that nothing has needed yet, writes the other results, and
        returns the names of all results."""
        values, flat = self._values, self._values.traced.flat
        effects = [each for each in flat.graph.control_outputs if values.runs_once(each)]
        for operation in effects:  # what reads a variable, before that is overwritten
            for tensor in operation.inputs:
                values.prepare(tensor)
        for operation in effects:
            values.made(operation)
        return [self._written.get(k) or self._result(k) for k in range(len(flat.outputs))]

    def _allocate(self, tensor: tf.Tensor) -> str:
        memory = self._values.writer.allocate(tensor, after=self._values.last)
        self._values.last = [memory.partition(":")[0]]
        return memory

    def _result(self, k: int) -> str:
        """A value for the caller to keep: in its output buffer, or a copy that is made after all
        other values have been freed."""
        values, writer, memory = self._values, self._values.writer, self._memory[k]
        tensor = values.traced.flat.outputs[k]
        is_given = source_of(tensor).ref() in values.given
        if not memory and (not can_be_copied(tensor.dtype) or is_given):
            return values.tensor(tensor)
        value = values.tensor(tensor)
        after = [values.done(last) for last in values.last if not value.startswith(f"{last}:")]
        if memory in self.handles:
            written = writer.overwrite(memory, value, tensor, after=after, name="result")
            return writer.read(memory, tensor, after=[written])
        if memory:
            return writer.fill(memory, value, tensor, after=after)
        return writer.deep_copy(value, tensor, after=after, name="result")
