"""What a tape holds in place of tensors: a function that has its op's gradient computed when the tape asks for it.

TensorFlow's own backward functions hold the tensors, and what is held cannot be evicted. These hold cells. The gradient's ops run through
the same door as all others, so that gradients can be evicted, and recorded by an outer tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from checkmate.errors import UnsupportedError
from checkmate.tf2.eager import fence
from checkmate.tf2.eager.op_kinds import Recipe
from checkmate.tf2.eager.tensors import Cell, LazyTensor


class Backward:
    """The backward function of one call.

    It refers to the cells that gradients of this op type have been seen to read, and to all of them before the first was. The others stay
    known (`EagerRuntime.anchor`), so that a gradient that reads one after all gets it, recomputed.
    """

    __slots__ = ("_anchored", "_arguments", "_held", "_outputs", "_recipe", "_runtime", "_skip")

    def __init__(self, runtime: Any, recipe: Recipe, arguments: Sequence[Any], outputs: Sequence[Any], skip: tuple[int, ...]):
        self._runtime, self._recipe, self._arguments, self._outputs, self._skip = runtime, recipe, arguments, outputs, skip
        reads = recipe.kind.reads
        self._held: list[Cell] = []
        self._anchored: list[Cell] = []
        for cells, indices in ((arguments, reads and reads[0]), (outputs, reads and reads[1])):
            for k, cell in enumerate(cells):
                if type(cell) is not Cell:
                    continue
                if reads is None or k in indices:
                    self._held.append(cell)
                    runtime.retain(cell)
                else:
                    self._anchored.append(cell)
                    cell.storage.anchors += 1

    def __del__(self) -> None:
        self._runtime.soon(_release, self._runtime, self._held, self._anchored)

    def __call__(self, *gradients: Any) -> list[Any]:
        """Returns the gradients of the inputs, None where there is none, from those of the outputs."""
        runtime, recipe = self._runtime, self._recipe
        if runtime.error is not None:
            raise runtime.error
        if not tf.executing_eagerly():
            raise UnsupportedError(
                "Under dtr() a gradient was asked for while a graph is traced, as tf.function, GradientTape.jacobian and tf.vectorized_map do. "
                "The tape recorded eager ops that may be evicted, and a graph cannot recompute them. Ask for the gradient eagerly."
            )
        if runtime.closed and not fence.tape_is_empty() and not fence.tape_is_stopped():
            raise UnsupportedError(
                "A gradient of what was recorded under dtr() was asked for after the context was left, while another tape records: that tape "
                "would not see it. Ask for the gradient inside of the context."
            )
        function = fence.gradient_function(recipe.kind.name)
        if function is None:
            return [None] * len(self._arguments)
        inputs, outputs = _Seen(runtime, self._arguments), _Seen(runtime, self._outputs)
        operation = fence.MockOp(recipe.all_attrs(self._arguments), inputs, outputs, recipe.kind.name, self._skip)
        before, runtime.reading = runtime.reading, set()
        runtime.gradients += 1
        try:
            result = function(operation, *gradients)
            self._learn(runtime.reading)
        finally:
            runtime.reading = before
            runtime.gradients -= 1
        return list(result) if isinstance(result, (list, tuple)) else [result]

    def _learn(self, read: set[int]) -> None:
        if self._runtime.closed:
            return
        inputs = {k for k, each in enumerate(self._arguments) if id(each) in read}
        outputs = {k for k, each in enumerate(self._outputs) if id(each) in read}
        known = self._recipe.kind.reads or (set(), set())
        self._recipe.kind.reads = (known[0] | inputs, known[1] | outputs)


class _Seen(Sequence):
    """Inputs or outputs of an op as its gradient function sees them: handles, made when they are looked at."""

    def __init__(self, runtime: Any, cells: Sequence[Any]):
        self._runtime, self._cells = runtime, cells

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._one(each) for each in self._cells[index]]
        return self._one(self._cells[index])

    def _one(self, each: Any) -> Any:
        if type(each) is not Cell:
            return each
        return self._runtime.value(each) if self._runtime.closed else LazyTensor(self._runtime, each)


def _release(runtime: Any, held: Sequence[Cell], anchored: Sequence[Cell]) -> None:
    for cell in held:
        runtime.release(cell)
    runtime.weigh(anchored)


def vector_space(runtime: Any) -> Any:
    """How tapes add gradients up under the runtime.

    A tape adds the partial gradients of a tensor at the end, or five at a time once they are large; here always five at a time, since
    holding all of them is most of the memory of a recurrent net. Sums of more than four terms may differ in rounding from the plain tape's.
    """

    def add(gradients: list[Any]) -> Any:
        # The tape cannot hear an error from here: it is kept, and raised at the next chance.
        if runtime.error is None:
            try:
                return fence.default_vspace.aggregate_fn(gradients)
            except BaseException as error:
                runtime.error = error
        return gradients[0]

    return fence.default_vspace._replace(num_elements_fn=lambda gradient: 1 << 34, aggregate_fn=add)


def raising_kept_errors(runtime: Any) -> Callable[..., Any]:
    """Stands for the function that asks a tape for gradients; raises what went wrong while gradients were added up."""

    def gradients(*args: Any, **kwargs: Any) -> Any:
        try:
            result = fence.real_imperative_grad(*args, **kwargs)
        finally:
            error, runtime.error = runtime.error, None
        if error is not None:
            raise error
        return result

    return gradients
