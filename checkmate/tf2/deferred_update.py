"""DeferredUpdate: the optimizer's update of a step, noted and not carried out while the step is
traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2.graph.operations import reads_variable

KINDS = (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)
"""The classes that have a method `apply` of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A call of an optimizer's method `apply`."""

    gradients: list[Any]
    variables: list[Any]
    apply: Callable[[list[Any], list[Any]], Any]


class DeferredUpdate:
    """The updates that a step asks for; `where` says in messages for which steps an update is
    deferred."""

    def __init__(self, where: str):
        self._where = where
        self._asked: list[Update] = []
        self._graph: Any = None
        self._ops = 0

    def note(self, apply: Callable[..., Any], grads: Any, trainable_variables: Any = None) -> None:
        if trainable_variables is None:
            raise TraceError(
                f"{self._where}, give optimizer.apply the variables with the gradients."
            )
        self._asked.append(Update(list(grads), list(trainable_variables), apply))
        self._graph = tf.compat.v1.get_default_graph()
        self._ops = len(self._graph.get_operations())

    def only(self) -> Update:
        """The one update. Raises `TraceError` where there are several or none, or where the step
        reads its weights after the update."""
        if len(self._asked) != 1:
            raise TraceError(
                f"{self._where}, a step is planned that updates once; this one calls its optimizer"
                f" {len(self._asked)} times."
            )
        update = self._asked[0]
        updated = {
            id(component.handle)
            for variable in update.variables
            for component in components(variable)
        }
        handles = {id(inside) for outside, inside in self._graph.captures if id(outside) in updated}
        if any(
            reads_variable(o) and id(o.inputs[0]) in handles
            for o in self._graph.get_operations()[self._ops :]
        ):
            raise TraceError(
                f"{self._where}, a step is planned that does not read its weights after it updated"
                " them; this one does."
            )
        return update


@contextmanager
def deferred_update(where: str, *owners: Any) -> Iterator[DeferredUpdate]:
    """Defers the calls of `apply` of an optimizer, or of all of a class, within the block; by
    default of all Keras 3 optimizers in all threads of the process."""
    asked, owners = DeferredUpdate(where), owners or KINDS
    own = [vars(owner).get("apply") for owner in owners]
    for owner in owners:
        owner.apply = _noting(asked, owner, owner.apply)
    try:
        yield asked
    finally:
        for owner, method in zip(owners, own, strict=True):
            if method is None:
                del owner.apply
            else:
                owner.apply = method


def _noting(asked: DeferredUpdate, owner: Any, apply: Callable[..., Any]) -> Callable[..., Any]:
    def of_class(optimizer: Any, *arguments: Any, **named: Any) -> None:
        asked.note(apply.__get__(optimizer), *arguments, **named)

    return of_class if isinstance(owner, type) else partial(asked.note, apply)


def components(variable: Any) -> tuple[tf.Variable, ...]:
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return tf.distribute.get_strategy().experimental_local_results(value)
