"""PlannedFunction: a training step under a memory budget, planned for each kind of call when the
first call of that kind comes."""

from __future__ import annotations

import html
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, overload

import keras
import numpy as np
import tensorflow as tf

from checkmate.errors import PlanError, TraceError
from checkmate.plot.picture import show_in_notebook
from checkmate.tf2.compile import PlannedStep, Result, StepFigures
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning.request import Planned, PlanRequest
from checkmate.tf2.planning.running import RunningStep
from checkmate.tf2.training_step import refuse_text

log = logging.getLogger("checkmate")

Arguments = ParamSpec("Arguments")
OfMethod = ParamSpec("OfMethod")  # those after the instance


@tf.autograph.experimental.do_not_convert
def python_state(step: Callable | None) -> dict[str, Any]:
    """Numbers, strings, and lengths of containers that a function refers to but does not own."""
    if step is None:
        return {}
    own = inspect.unwrap(step)
    try:
        seen = inspect.getclosurevars(own)
    except TypeError:  # an object with __call__
        return {}
    names = {**seen.globals, **seen.nonlocals}
    holder = getattr(own, "__self__", None)
    # Names that begin with "_" are Keras's own, and tracing is meant to set `built`.
    if isinstance(holder, keras.Layer):
        names |= {
            f"self.{name}": value
            for name, value in vars(holder).items()
            if not (name.startswith("_") or name == "built")
        }
    elif holder is not None and not isinstance(holder, tf.Module):
        names |= {f"self.{name}": value for name, value in getattr(holder, "__dict__", {}).items()}
    return {
        name: len(value) if isinstance(value, (list, dict, set)) else value
        for name, value in names.items()
        if isinstance(value, (int, float, str, list, dict, set))
    }


@tf.autograph.experimental.do_not_convert
def tell_changes(
    before: dict[str, Any], after: dict[str, Any], tell: Callable[[str], None] | None
) -> None:
    """Tells which of the values that a function refers to it changed while it was traced."""
    changed = sorted(name for name in before if name in after and before[name] != after[name])
    if changed and tell is not None:
        tell(
            f"While it was traced, the step changed {', '.join(changed)}. Python code runs when a"
            " step is traced and not in every step, so this would be lost. Return the value from"
            " the step, or keep it in a tf.Variable."
        )


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Arguments of a call, its tensors and arrays apart from what is part of the step: all else
    (numbers, strings, None, objects), as for a `tf.function`. Another number is another step, and
    is planned anew. `structure` is (args, kwargs) with the number of each leaf in its place;
    `leaves` has None in the `places` of tensors."""

    structure: Any
    leaves: list[Any]
    places: tuple[int, ...]
    tensors: list[Any] = field(repr=False)

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Raises `TraceError` for tensors that are not dense, and for text."""
        whole = (args, kwargs)
        leaves = tf.nest.flatten(whole)
        for leaf in leaves:
            if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
                raise TraceError(
                    f"A plan is made for exact sizes, which a {type(leaf).__name__} does not have."
                    " Pass a dense tensor, as tf.sparse.to_dense or .to_tensor() gives."
                )
            if _is_array(leaf):
                refuse_text(tf.as_dtype(leaf.dtype))
        places = tuple(k for k, leaf in enumerate(leaves) if _is_array(leaf))
        structure = tf.nest.pack_sequence_as(whole, list(range(len(leaves))))
        others = [None if _is_array(leaf) else leaf for leaf in leaves]
        return cls(structure, others, places, [leaves[k] for k in places])

    @property
    def kind(self) -> tuple:
        """Equal for the calls that run under one plan."""
        arrays = tuple(
            (tf.as_dtype(tensor.dtype), tuple(tensor.shape)[1:], len(tensor.shape))
            for tensor in self.tensors
        )
        return repr(self.structure), tuple(map(_identity, self.leaves)), self.places, arrays

    def specs(self, batch_size: int | None) -> tuple[tf.TensorSpec, ...]:
        """The tensors' specs, with `batch_size` instead of the first dimension of those that have
        that of the batch."""
        shapes = [list(tensor.shape) for tensor in self.tensors]
        batch = next((shape[0] for shape in shapes if shape), None)
        if batch_size is not None:
            shapes = [
                [batch_size, *shape[1:]] if shape and shape[0] == batch else shape
                for shape in shapes
            ]
        return tuple(
            tf.TensorSpec(shape, tf.as_dtype(tensor.dtype))
            for shape, tensor in zip(shapes, self.tensors, strict=True)
        )

    def without_tensors(self) -> Call:
        """The same without values: it may be kept."""
        return Call(self.structure, self.leaves, self.places, [])

    def with_tensors(self, tensors: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The (args, kwargs) of a call with these tensors."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return tf.nest.pack_sequence_as(self.structure, leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (tf.Tensor, tf.TensorSpec, np.ndarray, np.generic))


def _identity(leaf: Any) -> Any:
    """Something hashable that is equal for leaves that make the same step."""
    by_value = (bool, int, float, complex, str, bytes, type(None), tf.DType)
    return (type(leaf), leaf) if isinstance(leaf, by_value) else id(leaf)


def converted(
    step: Callable[..., Any], signature: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments in the order and dtypes of an `input_signature`, as a `tf.function` converts
    them; specs stay as they are."""
    try:
        given = inspect.signature(step).bind(*args, **kwargs).args
        if len(given) != len(signature):
            raise TypeError(f"{len(given)} arguments instead of {len(signature)}")
        for spec, value in zip(signature, given, strict=True):
            if not isinstance(spec, tf.TensorSpec):
                tf.nest.assert_same_structure(spec, value)
    except (TypeError, ValueError) as error:
        raise TraceError(
            f"The step has the input_signature {tuple(signature)}, and was called with other"
            f" arguments: {error}"
        ) from error

    def one(spec: tf.TensorSpec, value: Any) -> Any:
        try:
            if not tf.is_tensor(value) and not isinstance(value, tf.TensorSpec):
                value = tf.convert_to_tensor(value, spec.dtype)
        except (TypeError, ValueError) as error:
            raise TraceError(
                f"An argument cannot be turned into {spec}, as the input_signature asks: {error}"
            ) from error
        if value.dtype != spec.dtype or not spec.shape.is_compatible_with(value.shape):
            raise TraceError(
                f"The input_signature asks for {spec}; got {value.dtype.name}"
                f"{tf.TensorShape(value.shape).as_list()}. Convert the argument before the call."
            )
        return value

    return tuple(
        one(spec, value)
        if isinstance(spec, tf.TensorSpec)
        else tf.nest.map_structure(one, spec, value)
        for spec, value in zip(signature, given, strict=True)
    )


MANY_PLANS = 5
"""How many kinds of calls are planned before a warning says that there are many."""


class PlannedFunction(StepFigures, Generic[Arguments, Result]):
    """A step under a budget, with a plan for each kind of call that came. Its figures are those of
    the first kind.

    A call whose first dimension is at most the planned one runs under the same plan; see
    `PlannedStep`.

    Args:
      step: The Python function to trace.
      options: What is asked for it.
      name: Its name, for reports.
      autograph: Whether Python control flow on tensors becomes TensorFlow's.
      on_lost: Is told of Python state that the step changed while it was traced.
      signature: The `input_signature` of a `tf.function`, to which arguments are converted.

    Examples:
      >>> step = checkmate.tf2.function(train_step, budget="2GiB")
      >>> loss = step(images, labels)  # planned now
      >>> step.kinds, step.plan.recomputed
    """

    def __init__(
        self,
        step: Callable[Arguments, Result],
        options: PlanOptions,
        *,
        name: str,
        autograph: bool,
        on_lost: Callable[[str], None] | None = None,
        signature: Any = None,
    ):
        self._step, self._options, self._name, self._autograph = step, options, name, autograph
        self._on_lost, self._signature = on_lost, signature
        self._steps: dict[Any, PlannedStep] = {}
        self._scratch = Scratch()

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Runs one step, planned now where no call of this kind was met before.

        Raises:
          TraceError: It is called while a `tf.function` is traced.
        """
        if tf.inside_function():
            raise TraceError(
                f"{self._name!r} is called in a tf.function, which would be traced with it. Call it"
                " in Python, or put checkmate.tf2.function around that function instead."
            )
        call = self._call(args, kwargs)
        return self._planned(call)(*call.tensors)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> PlannedFunction[Arguments, Result]: ...

    @overload
    def __get__(
        self: PlannedFunction[Concatenate[Any, OfMethod], Result], instance: Any, owner: Any = None
    ) -> PlannedFunction[OfMethod, Result]: ...

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Returns the step of an instance where the step is a method, as a `tf.function` does. The
        instance keeps it, so that its plans go with it."""
        if instance is None:
            return self
        name = f"_checkmate_{self._name}_{id(self)}"
        bound = vars(instance).get(name)
        if bound is None or bound.__self__ is not instance:  # a copy of another instance
            bound = vars(instance)[name] = BoundFunction(self, instance, owner)
        return bound

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        if self._signature is not None:
            args, kwargs = converted(self._step, self._signature, args, kwargs), {}
        return Call.of(args, kwargs)

    def plan_for(self, *args: Any, **kwargs: Any) -> PlannedStep:
        """Plans for a call without running it.

        Args:
          args: Arguments like those of the call; specs will do.
          kwargs: Its keyword arguments.
        """
        return self._planned(self._call(args, kwargs))

    def planned_for(self, *args: Any, **kwargs: Any) -> tuple[Planned, list[tf.Tensor]]:
        """Returns the plan that this kind of call runs under, made now if it is the first, and the
        tensors of the call.

        Args:
          args: The arguments of a call.
          kwargs: Its keyword arguments.
        """
        call = self._call(args, kwargs)
        return self._planned(call).planned_for(*call.tensors)

    @property
    def kinds(self) -> int:
        """How many kinds of calls have a plan."""
        return len(self._steps)

    @property
    def steps(self) -> tuple[PlannedStep, ...]:
        """The planned step for each kind of call that came, in order."""
        return tuple(self._steps.values())

    def __repr__(self) -> str:
        kinds = ", ".join(map(repr, self.steps)) or "not called yet"
        return f"<PlannedFunction of {self._name!r}: {kinds}>"

    def _ipython_display_(self) -> None:
        if self._steps:
            super()._ipython_display_()
        else:
            show_in_notebook(
                f"<p>{html.escape(repr(self._name))} has no plan yet: it is planned when it is"
                " first called.</p>",
                None,
            )

    @property
    def _main(self) -> RunningStep:  # type: ignore[override]
        if not self._steps:
            raise PlanError(
                f"{self._name!r} has no plan yet: it is planned when it is first called, or by"
                " plan_for(specs)."
            )
        return self.steps[0]._main

    def _planned(self, call: Call) -> PlannedStep:
        key = call.kind
        if key not in self._steps:
            if len(self._steps) == MANY_PLANS:
                log.warning(
                    "%r is planned for the %dth time: its calls differ in more than the size of the"
                    " batch. Shapes beyond the first dimension and Python numbers that change need"
                    " a plan each; pad the former, pass the latter as tensors.",
                    self._name,
                    MANY_PLANS + 1,
                )
            step = tf.function(self._flat(call), autograph=self._autograph)
            request = PlanRequest(step, self._name, self._options, scratch=self._scratch)
            specs = call.specs(self._options.batch_size)
            self._steps[key] = PlannedStep(request, specs, call.tensors)
        return self._steps[key]

    def _flat(self, call: Call) -> Callable:
        step, on_lost = self._step, self._on_lost
        watched = step if on_lost else None
        template = call.without_tensors()

        def flat_step(*tensors: tf.Tensor) -> Any:
            before = python_state(watched)
            args, kwargs = template.with_tensors(tensors)
            result = step(*args, **kwargs)
            tell_changes(before, python_state(watched), on_lost)
            return result

        return flat_step


class BoundFunction(PlannedFunction):
    """A step that is a method of this instance. A copy or a pickle of the instance leaves it out.

    Args:
      function: The step as it stands in the class.
    """

    def __init__(self, function: PlannedFunction, instance: Any, owner: Any):
        self.__self__ = instance
        super().__init__(
            function._step.__get__(instance, owner),
            function._options,
            name=function._name,
            autograph=function._autograph,
            on_lost=function._on_lost,
            signature=function._signature,
        )

    def __reduce__(self) -> Any:
        return type(None), ()
