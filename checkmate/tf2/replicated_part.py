"""ReplicatedPart: the part of a step before the optimizer's update, traced by each replica of this
process on its own variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from checkmate.tf2.call import Call
from checkmate.tf2.replicas import deferred_update, local_number


class ReplicatedPart:
    """The part of a step that is planned: (gradients, result) of its tensors.

    Args:
      step: The Python function of one replica.
      optimizer: What updates the weights, once in a step.
      calls: What the step of each local replica is called with.

    Attributes:
      variables: What the optimizer updates, once the part is traced.
      replicas: The part on each local replica, to be traced.
      others: That on all but the first, by device.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        optimizer: Any,
        strategy: tf.distribute.Strategy,
        calls: Sequence[Call],
    ):
        self._step, self._optimizer, self._strategy = step, optimizer, strategy
        self.variables: list[Any] = []
        self.replicas = [
            OnReplica(self, number, call.without_tensors()) for number, call in enumerate(calls)
        ]
        self.others = dict(
            zip(strategy.extended.worker_devices[1:], self.replicas[1:], strict=True)
        )

    def trace(self, number: int, template: Call, specs: Sequence[tf.TensorSpec]) -> Any:
        """Returns the `ConcreteFunction` of a local replica for some specs."""
        found: list[Any] = []

        def part(*tensors: tf.Tensor) -> Any:
            own, _ = template.with_tensors(tensors)
            with deferred_update(self._optimizer) as asked:
                result = self._step(*own)
            gradients, self.variables[:] = asked.only()
            return gradients, result

        @tf.autograph.experimental.do_not_convert
        def on_replica() -> None:
            if local_number(self._strategy) == number:
                found.append(tf.function(part, autograph=False).get_concrete_function(*specs))

        self._strategy.run(on_replica)
        return found[0]


class OnReplica:
    """The part on one replica, to be traced for any specs, each once."""

    def __init__(self, part: ReplicatedPart, number: int, template: Call):
        self._part, self._number, self._template = part, number, template
        self._traced: dict[str, Any] = {}

    def __call__(self, *tensors: tf.Tensor) -> Any:
        """Runs the part."""
        specs = [tf.TensorSpec(each.shape, each.dtype) for each in tensors]
        return self.get_concrete_function(*specs)(*tensors)

    def get_concrete_function(self, *specs: tf.TensorSpec) -> Any:
        """Returns the traced function for some specs."""
        key = str(specs)
        if key not in self._traced:
            self._traced[key] = self._part.trace(self._number, self._template, specs)
        return self._traced[key]
