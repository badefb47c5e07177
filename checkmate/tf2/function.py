"""function(): any training step under a memory budget."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

import tensorflow as tf
from typing_extensions import Unpack

from checkmate.errors import TraceError
from checkmate.tf2.distribute import ReplicatedFunction
from checkmate.tf2.error_text import spec_meant
from checkmate.tf2.graph.trace import python_of
from checkmate.tf2.options import PlanKeywords, PlanOptions
from checkmate.tf2.planned_function import Arguments, Call, PlannedFunction, Result
from checkmate.units import Bytes

_OF_THE_STEP = {
    "input_signature": "it is an option of the step. Put tf.function(input_signature=...) under it."
}


@overload
def function(
    step: Callable[Arguments, Result],
    *specs: Any,
    strategy: tf.distribute.Strategy | None = None,
    optimizer: Any = None,
    budget: Bytes = "auto",
    **options: Unpack[PlanKeywords],
) -> PlannedFunction[Arguments, Result]: ...


@overload
def function(
    *,
    strategy: tf.distribute.Strategy | None = None,
    optimizer: Any = None,
    budget: Bytes = "auto",
    **options: Unpack[PlanKeywords],
) -> Callable[[Callable[Arguments, Result]], PlannedFunction[Arguments, Result]]: ...


def function(
    step: Callable | None = None,
    *specs: Any,
    strategy: tf.distribute.Strategy | None = None,
    optimizer: Any = None,
    budget: Bytes = "auto",
    **options: Unpack[PlanKeywords],
) -> PlannedFunction | Callable[[Callable], PlannedFunction]:
    """Puts any training step under a memory budget, such as a `tf.function`.

    The step is planned at the first call, or here for the specs that are given. A call with other
    shapes beyond the first dimension, dtypes or structure gets a plan of its own.

    Args:
      step: The step. Without it, a decorator for one is returned.
      specs: Positional arguments of a call to plan for now: tensors, arrays, `tf.TensorSpec`s, or
        nests of them, with static shapes.
      strategy: A `MirroredStrategy` or `MultiWorkerMirroredStrategy`. Then the step is that of one
        replica, calls are as for `strategy.run(step, args)`, in a tf.function, and the budget is
        that of each replica.
      optimizer: With `strategy`, the built optimizer that the step calls once; its update is not
        part of the plan.
      budget: As in `PlanOptions`.
      options: Its other fields.

    Returns:
      A `PlannedFunction`, called like `step`.

    Raises:
      TraceError: The step cannot be traced, or changes Python state while it is.
      BudgetError: A budget or a time limit that cannot be read.

    Examples:
      >>> @checkmate.tf2.function(budget="2GiB")
      ... def train_step(images, labels):
      ...     with tf.GradientTape() as tape:
      ...         loss = tf.reduce_mean((model(images) - labels) ** 2)
      ...     gradients = tape.gradient(loss, model.trainable_variables)
      ...     optimizer.apply_gradients(zip(gradients, model.trainable_variables))
      ...     return loss
      >>> loss = train_step(images, labels)
    """
    asked = PlanOptions.of("function", budget, options, _OF_THE_STEP)
    if step is None:
        return lambda step: _planned(step, asked, strategy, optimizer)
    _check_specs(specs, strategy)
    planned = _planned(step, asked, strategy, optimizer)
    if specs:
        planned.plan_for(*specs)
    return planned


def _check_specs(specs: tuple[Any, ...], strategy: tf.distribute.Strategy | None) -> None:
    if specs and strategy is not None:
        raise TraceError(
            "With a strategy, a step is planned when it is first called: each replica traces its"
            " own. Call it without specs."
        )
    if specs and not Call.of(specs, {}).tensors and (meant := spec_meant(specs)):
        raise TraceError(f"{specs[0]!r} is a shape and no spec. Did you mean {meant}?")


def _planned(
    step: Callable, asked: PlanOptions, strategy: tf.distribute.Strategy | None, optimizer: Any
) -> PlannedFunction:
    if not callable(step):
        raise TraceError(
            f"A step is a function; got {step!r}. The budget is a keyword: function(step,"
            " budget=...)."
        )
    name = getattr(step, "__name__", "step")
    python, autograph = python_of(step)
    if strategy is not None:
        return ReplicatedFunction(
            python, asked, strategy, optimizer, name=name, autograph=autograph
        )
    planned = PlannedFunction(
        python,
        asked,
        name=name,
        autograph=autograph,
        on_lost=_refuse,
        signature=getattr(step, "input_signature", None),
    )
    functools.update_wrapper(planned, step, updated=())
    return planned


def _refuse(why: str) -> None:
    raise TraceError(why)
