"""OpCopies: some ops of a function, made again on other values in the graph being traced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2.graph.graph_writer import GraphWriter, names_of_inputs, reachable
from checkmate.tf2.graph.operations import is_argument

Input = tuple[tf.Operation, int]
"""An op and the index of one of its inputs."""


class OpCopies:
    """Copies ops, with what they need of what is known before the step runs, such as constants.

    Args:
      flat: The function that has the ops.
      chosen: The ops.
      given: Tensors of the function whose values the caller has.
      instead: Inputs of ops that read a value of the caller's.
      added: Inputs of ops to which a value of the caller's is added.
    """

    def __init__(
        self,
        flat: Any,
        chosen: Iterable[tf.Operation],
        given: Sequence[tf.Tensor] = (),
        instead: Sequence[Input] = (),
        added: Sequence[Input] = (),
    ):
        self._flat, self._writer = flat, GraphWriter()
        self._given = [f"value_{k}:0" for k in range(len(given))]
        self._instead = {read: f"instead_{k}:0" for k, read in enumerate(instead)}
        self._added = {read: f"added_{k}:0" for k, read in enumerate(added)}
        self._names = dict(names_of_inputs(flat))
        self._inputs = list(self._names.values())
        self._names |= {t.ref(): name for t, name in zip(given, self._given, strict=True)}
        self._chosen = set(chosen)

    def write(
        self,
        outputs: Iterable[tf.Tensor],
        constants: Mapping[Input, np.ndarray] | None = None,
        factors: Mapping[tf.Operation, float] | None = None,
    ) -> OpCopies:
        """Writes the ops that `make` needs to return `outputs`.

        Args:
          constants: Inputs of ops -> the array to read there.
          factors: Ops -> the factor for their first output.
        """
        writer, names = self._writer, self._names
        copies: dict[tf.Operation, str] = {}
        instead = dict(self._instead)
        for (operation, k), value in (constants or {}).items():
            instead[operation, k] = writer.constant(value, operation.inputs[k].dtype)
        self._outputs = list(outputs)
        for operation in self._needed(instead):
            inputs = [
                self._counted(operation, k, instead.get((operation, k)) or names[tensor.ref()])
                for k, tensor in enumerate(operation.inputs)
            ]
            after = [copies[before] for before in operation.control_inputs if before in copies]
            copies[operation] = copy = writer.copy(operation, inputs, after=after)
            made = {tensor.ref(): f"{copy}:{k}" for k, tensor in enumerate(operation.outputs)}
            if factor := (factors or {}).get(operation):
                first = operation.outputs[0]
                by = writer.constant(factor, first.dtype)
                read = [made[first.ref()], by]
                made[first.ref()] = writer.add("Mul", read, first.dtype, name="averaged")
            names.update(made | {ref: names[ref] for ref in made if ref in names})
        return self

    def make(
        self,
        arguments: Sequence[tf.Tensor],
        given: Sequence[tf.Tensor] = (),
        instead: Sequence[tf.Tensor] = (),
        added: Sequence[tf.Tensor] = (),
    ) -> list[tf.Tensor]:
        """Makes the ops and returns the outputs; values are in the order of the constructor's."""
        named = dict(zip(self._inputs, [*arguments, *self._flat.captured_inputs], strict=True))
        named |= dict(zip(self._given, given, strict=True))
        named |= dict(zip(self._instead.values(), instead, strict=True))
        named |= dict(zip(self._added.values(), added, strict=True))
        return self._writer.import_here(named, [self._names[t.ref()] for t in self._outputs])

    def _counted(self, operation: tf.Operation, k: int, name: str) -> str:
        """The name of an op's input, with the value that is added there."""
        more = self._added.get((operation, k))
        if more is None:
            return name
        return self._writer.add("AddV2", [name, more], operation.inputs[k].dtype, name="moved")

    def _needed(self, instead: Mapping[Input, str]) -> list[tf.Operation]:
        """The chosen ops and those that they and the outputs read, inputs first."""
        order = reachable(self._flat.graph)
        needed = {*self._chosen, *(t.op for t in self._outputs if t.ref() not in self._names)}
        for operation in reversed(order):
            if operation in needed:
                needed |= {
                    tensor.op
                    for k, tensor in enumerate(operation.inputs)
                    if (operation, k) not in instead and tensor.ref() not in self._names
                }
        return [each for each in order if each in needed and not is_argument(each)]
