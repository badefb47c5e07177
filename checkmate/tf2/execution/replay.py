"""Replays a Plan inside the graph that TensorFlow is tracing: the same ops with the same
attributes, in the plan's order.

Control edges order the ops: every evaluation waits for the one before it. Without that chain
TensorFlow's executor would start a recomputation as soon as its inputs are there, and the plan
would save nothing. Small ops are in the chain, too, since the place of their values decides which
free chunks of memory remain; so every step has the same peak. Those that depend on no planned op
come first. Views, constants and reads are not in the chain. The bodies of loops and conditions have
chains of their own.

A value that outlives the step must not lie in the memory that the step allocates and frees: a few
bytes there divide a free chunk, and the peak would differ from step to step. So a write to a
variable waits for all that read the variable's memory, since TensorFlow would write elsewhere
otherwise, and an assigned value is copied into that memory, since the value's memory would become
the variable's otherwise. Results would move through memory from step to step, and batches with
them. So early results are written into output buffers as soon as they are computed. Each has two
buffers, used by successive steps in turn. If the caller still holds what is in a buffer, the caller
keeps that memory and TensorFlow allocates the buffer anew. Results that are too large to be in
memory all the time are copied at the end of the step, when all other values have been freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.core.plan import Compute, Plan
from checkmate.tf2.execution.plan_writer import SCOPE, OutputBuffers, PlanWriter
from checkmate.tf2.execution.sequential import InOrder
from checkmate.tf2.graph import grappler
from checkmate.tf2.graph.trace import TracedStep


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """The ops of a plan, written as a GraphDef that is not imported yet.

    Attributes:
      outputs: The names of the tensors that the step returns, flattened.
      given: The names of the step's inputs: its arguments, then captured tensors.
    """

    traced: TracedStep
    plan: Plan
    writer: InOrder
    outputs: tuple[str, ...]
    given: tuple[str, ...]
    handles: tuple[str, ...]

    def make(self, arguments: Sequence[tf.Tensor], handles: Sequence[tf.Tensor] = ()) -> Any:
        """Makes the ops in the graph being traced, for flattened arguments and handles of output
        buffers; returns the step's result in its structure."""
        flat = self.traced.flat
        given = dict(zip(self.handles, handles, strict=True)) | dict(
            zip(self.given, [*arguments, *flat.captured_inputs], strict=True)
        )
        outputs = self.writer.import_here(given, self.outputs, scope=SCOPE)
        for output, tensor in zip(outputs, flat.outputs, strict=True):
            output.set_shape(tensor.shape)  # a buffer's handle does not tell it
        return self.traced.pack(outputs)


def write(traced: TracedStep, plan: Plan, buffers: OutputBuffers | None = None) -> Written:
    """Writes the ops of a plan that the judge has accepted for `traced.graph`. Without `buffers`
    each step allocates memory for early results."""
    writer = PlanWriter(traced, sum(traced.early) if buffers else 0)
    writer.values.write_first()
    for step in plan.steps:
        if isinstance(step, Compute):
            writer.evaluate(step.op)
        else:
            writer.values.gone.update(traced.groups[step.op])
    outputs = tuple(writer.results.finish())
    values = writer.values
    given, handles = tuple(values.given.values()), tuple(writer.results.handles)
    return Written(traced, plan, values.writer, outputs, given, handles)


class Replayed:
    """The function that runs a plan of a traced step, on flattened arguments: also inside of
    another function, which TensorFlow's graph optimizer may rewrite, but not this one in it.

    Args:
      buffers: Output buffers. Without them each step allocates memory for all results.
    """

    def __init__(
        self,
        traced: TracedStep,
        plan: Plan,
        buffers: OutputBuffers | None = None,
        written: Written | None = None,
    ):
        self.buffers = buffers
        self.written = written or write(traced, plan, buffers)
        self.function = self._build()

    def __call__(self, *flat: tf.Tensor) -> Any:
        return grappler.run(self.function, self.buffers.handles() if self.buffers else [], *flat)

    def _build(self) -> Any:
        written = self.written
        handles = [tf.TensorSpec([], tf.resource)] * len(written.handles)
        tensors = written.traced.argument_tensors()
        arguments = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]

        def replay(handles: Sequence[tf.Tensor], *flat: tf.Tensor) -> Any:
            return written.make(flat, handles)

        return grappler.apart(replay, handles, *arguments)


def output_buffers_bytes(run: Any) -> int:
    buffers: OutputBuffers | None = getattr(run, "buffers", None)
    return buffers.bytes if buffers else 0
