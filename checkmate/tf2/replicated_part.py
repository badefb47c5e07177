"""ReplicatedPart: the part of a step before the optimizer's update, traced by each replica of this
process on its own variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2.call import Call
from checkmate.tf2.deferred_update import deferred_update
from checkmate.tf2.replicas import local_number


class ReplicatedPart:
    """The part of a step that is planned: (gradients, result) of its tensors.

    Args:
      step: The Python function of one replica.
      optimizer: What updates the weights, once in a step.
      calls: What the step of each local replica is called with.

    Attributes:
      variables: What the optimizer updates.
      concretes: The part as each local replica traced it for its call.
      replicas: The part on each local replica, to be traced for other specs.
      others: Those on all devices but the first.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        optimizer: Any,
        strategy: tf.distribute.Strategy,
        calls: Sequence[Call],
    ):
        self._step, self._optimizer, self._strategy = step, optimizer, strategy
        self._templates = [call.without_tensors() for call in calls]
        self.variables: list[Any] = []
        specs = {number: call.specs(None) for number, call in enumerate(calls)}
        self.concretes = [concrete for _, concrete in sorted(self.trace(specs).items())]
        self.replicas = [
            OnReplica(self, number, specs[number], concrete)
            for number, concrete in enumerate(self.concretes)
        ]
        self.others = dict(
            zip(strategy.extended.worker_devices[1:], self.replicas[1:], strict=True)
        )

    def trace(self, specs: Mapping[int, Sequence[tf.TensorSpec]]) -> dict[int, Any]:
        """Returns a `ConcreteFunction` of each local replica whose number has specs."""
        found: dict[int, Any] = {}

        @tf.autograph.experimental.do_not_convert
        def on_replica() -> None:
            number = local_number(self._strategy)
            if number in specs:
                part = tf.function(self._part(self._templates[number]), autograph=False)
                found[number] = part.get_concrete_function(*specs[number])

        self._strategy.run(on_replica)
        return found

    def _part(self, template: Call) -> Callable[..., Any]:
        def part(*tensors: tf.Tensor) -> Any:
            own, _ = template.with_tensors(tensors)
            with deferred_update(self._optimizer, "With several replicas") as asked:
                result = self._step(*own)
            update = asked.only()
            self.variables[:] = update.variables
            return update.gradients, result

        return part


class OnReplica:
    """The part on one replica, which is traced once for any specs.

    Args:
      number: That of the local replica.
      specs: What it was traced for.
      concrete: The traced function.
    """

    def __init__(
        self, part: ReplicatedPart, number: int, specs: Sequence[tf.TensorSpec], concrete: Any
    ):
        self._part, self._number = part, number
        self._traced = {str(tuple(specs)): concrete}

    def __call__(self, *tensors: tf.Tensor) -> Any:
        """Refuses to be part of another trace, as slices are that are batches of their own."""
        raise TraceError(
            "on the replicas of a strategy, a batch is split exactly or not at all. Train with"
            ' micro_batches=1 or "auto".'
        )

    def get_concrete_function(self, *specs: tf.TensorSpec) -> Any:
        """Returns the traced function for some specs."""
        key = str(specs)
        if key not in self._traced:
            self._traced[key] = self._part.trace({self._number: specs})[self._number]
        return self._traced[key]
