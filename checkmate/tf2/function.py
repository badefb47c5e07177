"""function(): any training step under a memory budget, planned for each kind of call it gets, when
it gets it.

Arguments are nests. Their tensors and arrays are what varies from call to call; all else (numbers,
strings, None, objects) is part of the step, as it is for a `tf.function`: another number is another
step and is planned anew.
"""

from __future__ import annotations

import functools
import html
import inspect
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.errors import PlanError, TraceError
from checkmate.plot.picture import show_in_notebook
from checkmate.solvers.result import SolveResult
from checkmate.solvers.search import Solver
from checkmate.tf2.compile import PlannedStep
from checkmate.tf2.costs.measured import CostModel
from checkmate.tf2.memory.pipeline import BATCHES_MADE
from checkmate.tf2.planning.planner import Planner, check_asked
from checkmate.tf2.report import Report
from checkmate.units import Bytes

log = logging.getLogger("checkmate")

MANY_PLANS = 5
"""How many kinds of calls are planned before we say that there are many."""


def function(
    step: Callable | None = None,
    *specs: Any,
    budget: Bytes = "auto",
    strategy: tf.distribute.Strategy | None = None,
    optimizer: Any = None,
    **options: Any,
) -> Any:
    """Puts any training step under a memory budget: a GradientTape loop's body, a `tf.function`, a
    step of two optimizers.

    Tracing finds the variables that the step uses; they need not be arguments. Planned is at the
    first call, or here for the specs that are given; a call with other shapes beyond the first
    dimension, other dtypes or another structure gets a plan of its own. Everything in the step runs
    once per call but the forward ops that the plan recomputes; those in functions that it calls are
    planned with it.

    Args:
      step: The step. Without it, a decorator for one is returned.
      specs: Positional arguments of a call to plan for now: tensors, arrays, `tf.TensorSpec`s, or
        nests of them, with static shapes.
      budget: The limit for everything resident on the device while the step runs; see
        `PlanOptions`.
      strategy: A `MirroredStrategy` or `MultiWorkerMirroredStrategy`. Then the step is that of one
        replica, calls are as for `strategy.run(step, args)`, in a tf.function, and the budget is
        that of each replica.
      optimizer: With `strategy`, the built optimizer that the step calls once; its update takes
        place outside of the plan.
      options: The other fields of `PlanOptions`.

    Returns:
      A `PlannedFunction`, called like `step`.

    Raises:
      TraceError: The step cannot be traced, or changes Python state while it is.
      BudgetError: A budget or a time limit that cannot be read.

    Example:
      >>> @checkmate.tf2.function(budget="2GiB")  # doctest: +SKIP
      ... def train_step(images, labels): ...
    """
    asked = PlanOptions(budget, **options)

    def decorate(step: Callable) -> PlannedFunction:
        facts = {"name": getattr(step, "__name__", "step"), "autograph": _wants_autograph(step)}
        if strategy is not None:
            from checkmate.tf2.distribute import ReplicatedFunction  # it builds on this module

            return ReplicatedFunction(
                _python_of(step), asked, **facts, strategy=strategy, optimizer=optimizer
            )
        planned = PlannedFunction(_python_of(step), asked, **facts, on_lost=_refuse)
        return functools.update_wrapper(planned, step, updated=())

    if step is None:
        return decorate
    if not callable(step):
        raise TraceError(
            f"A step is a function; got {step!r}. The budget is a keyword: function(step,"
            " budget=...)."
        )
    planned = decorate(step)
    if specs and strategy is not None:
        raise TraceError(
            "With a strategy, a step is planned when it is first called: each replica traces its"
            " own. Call it without specs."
        )
    if specs:
        planned.plan_for(*specs)
    return planned


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What can be asked of any planned step; refused here rather than when the first batch is
    there.

    Attributes:
      budget: The limit for everything resident on the device while a step runs: "6GiB", a number of
        bytes, "60%" of the plain step's measured peak (predicted where it cannot be run, as the
        report says), or "auto": what is free on the device less a tenth, or of an allocator's own
        cap 96 %.
      batch_size: The largest first dimension that will come; by default that of the first call.
        What is smaller runs under the same plan, what is larger is refused.
      solver: See `checkmate.solve`.
      cost_model: "profile" measures each distinct op on the device; "roofline" and "unit" run
        nothing; or a function.
      time_limit_s: The most seconds that the solver takes each time that it is asked for a plan, up
        to eight times. Unless said, two for the first and half for the others, and more for graphs
        of more than a thousand ops.
      verbose: Show progress on a terminal.
      plan: A .json file that `save` wrote, to run its plan; it must be for this very step, and with
        a budget other than "auto" within it. Or a folder: a plan that lies there for this step and
        these options is run, else one is made and left there.

    Raises:
      BudgetError: A budget or a time limit that cannot be read.
      SolverUnavailableError: A solver that is not there.
      TraceError: A batch size that is none.
    """

    budget: Bytes = "auto"
    batch_size: int | None = None
    solver: str | Solver = "auto"
    cost_model: str | CostModel = "profile"
    time_limit_s: float | None = None
    verbose: bool = True
    plan: str | os.PathLike | None = None

    def __post_init__(self) -> None:
        check_asked(self.budget, self.solver, self.time_limit_s)
        size = self.batch_size
        if size is not None and (
            isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1
        ):
            raise TraceError(
                "batch_size is the largest batch that will come, a whole number of at least 1; got"
                f" {size!r}."
            )

    def planner(self, step: Callable, name: str) -> Planner:
        """A `Planner` of a step with these options."""
        return Planner(
            step,
            name,
            self.budget,
            self.solver,
            self.cost_model,
            self.time_limit_s,
            self.verbose,
            self.plan,
        )


class PlannedFunction:
    """A step under a budget, with a plan for each kind of call it has met. Its figures are those of
    the first.

    A call of no more than the first dimension that was planned runs under the same plan; see
    `PlannedStep`.
    """

    def __init__(
        self,
        step: Callable,
        options: PlanOptions,
        *,
        name: str,
        autograph: bool,
        on_lost: Callable[[str], None] | None = None,
        has_pipeline: bool = False,
    ):
        self._step, self._options, self._name, self._autograph = step, options, name, autograph
        self._has_pipeline = has_pipeline  # which may make the next batch while a step runs
        self._on_lost = on_lost  # is told of Python state that the step changed while it was traced
        self._steps: dict[Any, PlannedStep] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one step, planned now where no call of this kind was met before."""
        call = Call.of(args, kwargs)
        return self._planned(call)(*call.tensors)

    def plan_for(self, *args: Any, **kwargs: Any) -> PlannedStep:
        """Plans for a call with arguments like these (specs will do) without running it."""
        return self._planned(Call.of(args, kwargs))

    @property
    def plan(self) -> Plan:
        """The `Plan` for the first kind of call."""
        return self._first.plan

    @property
    def result(self) -> SolveResult | None:
        """The solver's answer for it, or None when that step fits as it is."""
        return self._first.result

    @property
    def graph(self) -> DFGraph:
        """The `DFGraph` of it, with measured costs."""
        return self._first.graph

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes."""
        return self._first.budget_bytes

    @property
    def kinds(self) -> int:
        """How many kinds of calls have a plan."""
        return len(self._steps)

    def report(self) -> Report:
        """Returns what was asked, what was found and what it costs, for the first kind of call;
        print it."""
        return self._first.report()

    def save(self, path: str | os.PathLike) -> None:
        """Writes the plan for the first kind of call as a .json file, for `plan=path` of another
        run."""
        self._first.save(path)

    def _ipython_display_(self) -> None:
        if self._steps:
            self._first._ipython_display_()
        else:
            show_in_notebook(
                f"<p>{html.escape(repr(self._name))} has no plan yet: it is planned when it is"
                " first called.</p>",
                None,
            )

    @property
    def _first(self) -> PlannedStep:
        if not self._steps:
            raise PlanError(
                f"{self._name!r} has no plan yet: it is planned when it is first called, or by"
                " plan_for(specs)."
            )
        return next(iter(self._steps.values()))

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
            planner = self._options.planner(
                tf.function(self._flat(call), autograph=self._autograph), self._name
            )
            planner.next_batches = BATCHES_MADE if self._has_pipeline else 0
            self._steps[key] = PlannedStep(
                planner, call.specs(self._options.batch_size), call.tensors
            )
        return self._steps[key]

    def _flat(self, call: Call) -> Callable:
        """The step as a function of the call's tensors only."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Arguments of a call: leaves of their nest, the tensors among them apart.

    Attributes:
      structure: (args, kwargs) with the number of each leaf in its place.
      leaves: The leaves, None where a tensor is.
      places: Numbers of the leaves that are tensors.
      tensors: Those, in the order of `places`.
    """

    structure: Any
    leaves: list[Any]
    places: tuple[int, ...]
    tensors: list[Any] = field(repr=False)

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Takes the arguments of a call apart."""
        whole = (args, kwargs)
        leaves = tf.nest.flatten(whole)
        for leaf in leaves:
            if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
                raise TraceError(
                    f"A plan is made for exact sizes, which a {type(leaf).__name__} does not have."
                    " Pass a dense tensor, as tf.sparse.to_dense or .to_tensor() gives."
                )
            if _is_array(leaf) and tf.as_dtype(leaf.dtype) == tf.string:
                raise TraceError(
                    "A plan is made for sizes that shapes tell, and those of text they do not. Look"
                    " the text up before the step, as dataset.map(layer) does with a"
                    " TextVectorization or StringLookup layer, and pass its numbers."
                )
        places = tuple(k for k, leaf in enumerate(leaves) if _is_array(leaf))
        structure = tf.nest.pack_sequence_as(whole, list(range(len(leaves))))
        return cls(
            structure,
            [None if _is_array(leaf) else leaf for leaf in leaves],
            places,
            [leaves[k] for k in places],
        )

    @property
    def kind(self) -> tuple:
        """What calls under one plan have in common."""
        arrays = [
            (tf.as_dtype(tensor.dtype), tuple(tensor.shape)[1:], len(tensor.shape))
            for tensor in self.tensors
        ]
        return (
            repr(self.structure),
            tuple(map(_identity, self.leaves)),
            self.places,
            tuple(arrays),
        )

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
        """(args, kwargs) with these tensors in their places."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return tf.nest.pack_sequence_as(self.structure, leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (tf.Tensor, tf.TensorSpec, np.ndarray, np.generic))


def _identity(leaf: Any) -> Any:
    """Something hashable that is equal for leaves that make the same step."""
    return (
        (type(leaf), leaf)
        if isinstance(leaf, (bool, int, float, complex, str, bytes, type(None), tf.DType))
        else id(leaf)
    )


def _python_of(step: Callable) -> Callable:
    """The Python function behind a `tf.function`, so that its ops are traced one by one."""
    return getattr(step, "python_function", step)


def _wants_autograph(step: Callable) -> bool:
    return getattr(step, "_autograph", True)


def _refuse(why: str) -> None:
    raise TraceError(why)


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
    # What it keeps for Keras has names that begin so, or is what tracing is to bring about.
    if isinstance(holder, keras.Layer):
        names |= {
            f"self.{name}": value
            for name, value in vars(holder).items()
            if not (name.startswith("_") or name == "built")
        }
    elif holder is not None and not isinstance(holder, tf.Module):
        names |= {f"self.{name}": value for name, value in getattr(holder, "__dict__", {}).items()}
    return {
        name: _state_of(value)
        for name, value in names.items()
        if isinstance(value, (int, float, str, list, dict, set))
    }


def _state_of(value: Any) -> Any:
    return len(value) if isinstance(value, (list, dict, set)) else value


@tf.autograph.experimental.do_not_convert
def tell_changes(
    before: dict[str, Any], after: dict[str, Any], tell: Callable[[str], None] | None
) -> None:
    """Says what a function changed of what it was seen to refer to."""
    changed = sorted(name for name in before if name in after and before[name] != after[name])
    if changed:
        tell(
            f"While it was traced, the step changed {', '.join(changed)}. Python code runs when a"
            " step is traced and not in every step, so this would be lost. Return the value from"
            " the step, or keep it in a tf.Variable."
        )
