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

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import tensorflow as tf

from checkmate.core.plan import Compute, Plan
from checkmate.tf2 import device as devices
from checkmate.tf2.execution.sequential import InOrder, edge_from
from checkmate.tf2.execution.values import Values
from checkmate.tf2.graph import grappler
from checkmate.tf2.graph.graph_writer import RESHAPE
from checkmate.tf2.graph.operations import can_be_copied, source_of, variable_read
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.rule import Fusion
from checkmate.tf2.ops.table import rule_of


class OutputBuffers:
    """Two buffers for each early result of a step, which successive steps fill in turn.

    Attributes:
      batch_area: The tensor that keeps memory apart for batches (see `memory.probe`), if any;
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


SCOPE, EVALUATION_MARK = "planned", "/evaluation_"
"""Evaluation k of op X is named planned/X/evaluation_k in the executed graph, so that it can be
counted there."""


class PlanWriter:
    """Writes the evaluations of a plan, in its order. The caller gives as many output `buffers` as
    there are early results, or none.

    oneDNN fuses two kernels without regard to the ops that the chain of control edges has between
    them, which can close a cycle. It does so only if both kernels wait for the same control edges.
    Hence no control edge goes parallel to a data edge (Conv2D and its BiasAdd are then neighbours,
    or wait for different ops). oneDNN also pairs any gradient of a bias with any gradient of a
    filter that reads the same tensor, as those of two convolutions do whose results are added.
    Hence a bias gradient reads a view of that tensor, unless it is to be paired. A pair that runs
    again on the same tensor waits for the op before it in any case: so each of its runs waits for
    another op.
    """

    def __init__(self, traced: TracedStep, buffers: int):
        self.traced = traced
        self.values = Values(traced)
        self.results = Results(self.values, buffers)
        self._evaluations: Counter[tf.Operation] = Counter()
        self._filter_gradients = Counter(
            source_of(o.inputs[2]).ref()
            for o in self.values.planned
            if rule_of(o.type).fusion is Fusion.FILTER_GRADIENT
        )

    def evaluate(self, i: int) -> None:
        values, group = self.values, self.traced.groups[i]
        # First what the group needs: its ops may run within one kernel, which no op can divide.
        for k, operation in enumerate(group):
            for tensor in (*operation.inputs, *self._small_biases(operation)):
                if not values.depends_on(tensor, group[:k]):
                    values.prepare(tensor)
            for reader in values.pending_readers(operation):
                values.made(reader)
        inputs: list[str] = []  # of the next op, if it is paired with the one before
        pair: list[str] = []
        for k, operation in enumerate(group):
            paired = self._paired_filter_gradient(operation, group[k + 1 :])
            inputs = self._write(operation, inputs, paired)
            pair.append(values.current[operation])
            if paired is None:
                values.last, pair = pair, []
        for k in self.traced.results[i]:
            self.results.write(k)

    def _write(
        self, operation: tf.Operation, inputs: list[str], paired: tf.Operation | None
    ) -> list[str]:
        """Writes an evaluation of a TensorFlow op, on `inputs` if it is paired with the op before.

        Returns the inputs of `paired`, the filter gradient that comes next and is paired with this
        op. Both wait for the same ops and read the same tensor, or oneDNN does not fuse them.
        """
        values, writer, rule = self.values, self.values.writer, rule_of(operation.type)
        repeated = operation in values.current
        pair_again = repeated and bool(inputs or paired)
        if not inputs:
            read = [values.tensor(tensor) for tensor in operation.inputs]
            inputs = writer.apart(operation, read, values.last)
        # The control predecessors of a first evaluation precede the later ones, too.
        after = [] if repeated else values.control_predecessors(operation)
        next_inputs = [*map(values.tensor, paired.inputs[:2]), inputs[0]] if paired else []
        reads = [] if pair_again else [*inputs, *next_inputs]  # it waits in any case
        edges = [
            values.done(edge) for last in values.last for edge in edge_from(last, operation, reads)
        ]
        if edges and rule.fusion is Fusion.PRODUCT:
            # An edge to the product itself would keep TensorFlow from fusing it with the next
            # kernel, which rounds once less.
            inputs[0], edges = writer.wait(edges, inputs[0], operation.inputs[0]), []
        if rule.fusion is Fusion.BIAS_GRADIENT and not paired:
            inputs = [self._as_rows(operation, inputs[0])]
        name = f"{operation.name}{EVALUATION_MARK}{self._evaluations[operation]}"
        copy = values.copy(operation, inputs, [*after, *edges], name)
        values.current[operation] = copy
        values.gone.discard(operation)
        self._evaluations[operation] += 1
        if rule.is_elementwise and any(
            rule_of(source_of(tensor).op.type).fusion is Fusion.PRODUCT
            for tensor in operation.inputs
        ):
            values.fusible[copy] = operation.outputs[0]
        return next_inputs

    def _small_biases(self, product: tf.Operation) -> list[tf.Tensor]:
        """The weights that an op too small to be planned adds to a product: it may run within the
        product's kernel."""
        if rule_of(product.type).fusion is not Fusion.PRODUCT:
            return []
        planned = self.values.planned
        biases = [
            reader.inputs[1]
            for reader in product.outputs[0].consumers()
            if rule_of(reader.type).fusion is Fusion.BIAS and reader not in planned
        ]
        return [bias for bias in biases if variable_read(bias, planned)]

    def _paired_filter_gradient(
        self, gradient: tf.Operation, following: Sequence[tf.Operation]
    ) -> tf.Operation | None:
        """The filter gradient that comes next and within which oneDNN may compute a bias gradient,
        as it does in the plain step, where this rounds differently.

        oneDNN takes any filter gradient that reads the same tensor, so there must be only one.
        """
        if rule_of(gradient.type).fusion is not Fusion.BIAS_GRADIENT or not following:
            return None
        found = following[0]
        if rule_of(found.type).fusion is not Fusion.FILTER_GRADIENT:
            return None
        read = source_of(gradient.inputs[0])
        alone = self._filter_gradients[read.ref()] == 1
        return found if source_of(found.inputs[2]) is read and alone else None

    def _as_rows(self, gradient: tf.Operation, name: str) -> str:
        """The name of a view, as a matrix, of the tensor whose rows a bias gradient adds up; of the
        tensor itself if its shape does not allow that."""
        tensor = gradient.inputs[0]
        if (
            not tensor.shape.is_fully_defined()
            or tensor.shape.rank < 3
            or gradient.get_attr("data_format") != b"NHWC"
        ):
            return name
        writer = self.values.writer
        shape = writer.constant((-1, tensor.shape[-1]), tf.int32)
        return writer.add(RESHAPE, [name, shape], tensor.dtype, name="reshaped")


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
