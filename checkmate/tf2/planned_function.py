"""PlannedFunction: a training step under a memory budget, planned for each kind of call when the
first call of that kind comes."""

from __future__ import annotations

import html
import logging
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, overload

import tensorflow as tf

from checkmate.errors import PlanError, TraceError
from checkmate.plot.picture import show_in_notebook
from checkmate.tf2.call import Call, converted, python_state, tell_changes
from checkmate.tf2.compile import PlannedStep, Result, StepFigures
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning.request import Planned, PlanRequest
from checkmate.tf2.planning.running import RunningStep

log = logging.getLogger("checkmate")

Arguments = ParamSpec("Arguments")
OfMethod = ParamSpec("OfMethod")  # those after the instance

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
