"""The errors that this library raises on purpose.

All derive from `CheckmateError`, and each also from the built-in error that a caller would catch. A
message has four parts: what was asked, what was found, by how much, what to do.
"""

from __future__ import annotations

from checkmate.printable import printable


class CheckmateError(Exception):
    """Base class: catch this to catch everything the library raises on purpose.

    Examples:
      >>> try:
      ...     model.fit(images, labels)
      ... except checkmate.CheckmateError as error:
      ...     print(error)
    """

    def __str__(self) -> str:
        return "\n".join(map(printable, super().__str__().split("\n")))


class BudgetError(CheckmateError, ValueError):
    """A budget, or another amount of bytes or of time, that cannot be understood.

    Examples:
      >>> checkmate.units.parse_bytes("6 apples")
      Traceback (most recent call last):
      checkmate.errors.BudgetError: Cannot read '6 apples' as an amount of memory. ...
    """


class GraphError(CheckmateError, ValueError):
    """A dataflow graph that is not one: a dependency that points forward, a negative cost, a name
    used twice.

    Examples:
      >>> checkmate.Op("conv", cost=-1)
      Traceback (most recent call last):
      checkmate.errors.GraphError: Op 'conv' has cost -1. A cost is a finite number, zero or more.
    """


class PlanError(CheckmateError, ValueError):
    """A plan or schedule that breaks the rules of its graph: it uses what is not in memory, or
    recomputes what may not be.

    Examples:
      >>> checkmate.Plan((checkmate.Free(0),))
      Traceback (most recent call last):
      checkmate.errors.PlanError: Step 0 frees op 0, whose value is not in memory.
    """


class PlanFileError(CheckmateError, ValueError):
    """A graph or plan file that cannot be read, is of another version, or belongs to another
    graph.

    Examples:
      >>> checkmate.DFGraph.load("missing.json")
      Traceback (most recent call last):
      checkmate.errors.PlanFileError: Cannot read missing.json: No such file or directory.
    """


class InfeasibleBudgetError(CheckmateError, ValueError):
    """It is proven that no plan fits the budget.

    Attributes:
      budget_bytes: The budget.
      floor_bytes: A proven lower bound on the bytes that any plan needs.
      op: Index of the op that binds, or None if the proof names none.
      op_name: Its name, or "".
      smallest_budget_bytes: The smallest budget for which a plan was found; None if none was
        searched for or found.

    Examples:
      >>> try:
      ...     step = checkmate.tf2.compile(model, "mse", "adam", images, labels, budget="1GiB")
      ... except checkmate.InfeasibleBudgetError as error:
      ...     print(error.op_name, error.shortfall_bytes, error.smallest_budget_bytes)
    """

    def __init__(
        self,
        message: str,
        *,
        budget_bytes: int,
        floor_bytes: int,
        op: int | None = None,
        op_name: str = "",
        smallest_budget_bytes: int | None = None,
    ):
        super().__init__(message)
        self.budget_bytes = budget_bytes
        self.floor_bytes = floor_bytes
        self.op = op
        self.op_name = op_name
        self.smallest_budget_bytes = smallest_budget_bytes

    @property
    def shortfall_bytes(self) -> int:
        """The floor minus the budget, in bytes."""
        return self.floor_bytes - self.budget_bytes


class NoPlanFoundError(CheckmateError, RuntimeError):
    """No plan within the budget was found, and it is not proven that there is none: time ran out,
    or the solver cannot find one.

    Attributes:
      best_peak_bytes: The lowest peak of any plan that was tried, or None.
      bound: Lower bound on the cost of plans within the budget, in the graph's unit, or None.
      smallest_budget_bytes: The smallest budget for which a plan was found; None if none was
        searched for or found.

    Examples:
      >>> try:
      ...     result = checkmate.solve(graph, "40%", time_limit_s=1)
      ... except checkmate.NoPlanFoundError as error:
      ...     result = checkmate.solve(graph, error.best_peak_bytes)
    """

    def __init__(
        self,
        message: str,
        *,
        best_peak_bytes: int | None = None,
        bound: float | None = None,
        smallest_budget_bytes: int | None = None,
    ):
        super().__init__(message)
        self.best_peak_bytes = best_peak_bytes
        self.bound = bound
        self.smallest_budget_bytes = smallest_budget_bytes


class SolverUnavailableError(CheckmateError, ImportError):
    """The solver is not known, or its package cannot be imported.

    Examples:
      >>> checkmate.solve(graph, "60%", solver="gurobi")
      Traceback (most recent call last):
      checkmate.errors.SolverUnavailableError: There is no solver 'gurobi'. ...
    """


class DriverUnavailableError(CheckmateError, RuntimeError):
    """How much memory of a GPU is free is not known: NVIDIA's driver cannot be asked (the package
    nvidia-ml-py is missing), or it does not answer. A budget in bytes needs no answer.

    Examples:
      >>> try:
      ...     checkmate.tf2.rematerialize(model, budget="auto")
      ... except checkmate.errors.DriverUnavailableError:
      ...     checkmate.tf2.rematerialize(model, budget="6GiB")
    """


class SolverFailedError(CheckmateError, RuntimeError):
    """The package of a solver failed; its own error is chained.

    Examples:
      >>> try:
      ...     checkmate.solve(graph, "60%", solver="milp:scip")
      ... except checkmate.SolverFailedError as error:
      ...     print(error.__cause__)
    """


class TraceError(CheckmateError, ValueError):
    """A training step that cannot be traced into a graph, or is called with what it was not traced
    for.

    Examples:
      >>> checkmate.tf2.rematerialize("my model")
      Traceback (most recent call last):
      checkmate.errors.TraceError: A Keras 3 model is put under a budget; got str. ...
    """


class EvictionError(CheckmateError, MemoryError):
    """Dynamic rematerialization cannot stay within its budget: what is locked does not fit.

    Attributes:
      budget_bytes: The budget, or None when that is not known.
      needed_bytes: What the budget must be at least for what ran so far, or None when that is not
        known.

    Examples:
      >>> try:
      ...     with checkmate.tf2.dtr("100MiB"):
      ...         train_step(images, labels)
      ... except checkmate.EvictionError as error:
      ...     print(error.needed_bytes)
    """

    def __init__(
        self, message: str, *, budget_bytes: float | None = None, needed_bytes: int | None = None
    ):
        super().__init__(message)
        self.budget_bytes = budget_bytes
        self.needed_bytes = needed_bytes


class ThrashingError(EvictionError):
    """Dynamic rematerialization was given up: recomputing has cost more than the limit that was
    set.

    The smallest budget that works is above `budget_bytes` and at most `enough_bytes`, for what ran
    so far; more is not known.

    Attributes:
      enough_bytes: A budget within which nothing would have been recomputed so far, or None when
        that is not known.

    Examples:
      >>> try:
      ...     with checkmate.tf2.dtr("1GiB", overhead_limit=2):
      ...         train_step(images, labels)
      ... except checkmate.errors.ThrashingError as error:
      ...     print(error.budget_bytes, error.enough_bytes)
    """

    def __init__(
        self, message: str, *, budget_bytes: float | None = None, enough_bytes: int | None = None
    ):
        super().__init__(message, budget_bytes=budget_bytes)
        self.enough_bytes = enough_bytes


# TensorFlow lets errors with just this one through tf.function as they are.
class UnsupportedError(CheckmateError, NotImplementedError):
    """Something that dynamic rematerialization cannot do, or a TensorFlow that it was not made
    for.

    Examples:
      >>> with checkmate.tf2.dtr("2GiB"), tf.autodiff.ForwardAccumulator(images, images):
      ...     prediction = model(images)
      Traceback (most recent call last):
      checkmate.errors.UnsupportedError: ...
    """

    __init__ = Exception.__init__


class LogError(CheckmateError, ValueError):
    """An op log that is cut, out of order, or names a tensor that it never made.

    Attributes:
      line: The line of the file, or the position of the instruction, counted from 1.

    Examples:
      >>> checkmate.simulate("cut.log", "50%")
      Traceback (most recent call last):
      checkmate.errors.LogError: Line 7: ...
    """

    def __init__(self, message: str, *, line: int):
        super().__init__(message)
        self.line = line
