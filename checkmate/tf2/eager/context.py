"""`dtr`, the context manager: its options, its report, and the checks before it opens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.dtr.heuristic import Heuristic, make_heuristic
from checkmate.dtr.log import OpLog
from checkmate.dtr.pool import Search
from checkmate.errors import CheckmateError, EvictionError, UnsupportedError
from checkmate.tf2 import device as devices
from checkmate.tf2.eager import private_api, selftest
from checkmate.tf2.eager.budget import EagerOptions
from checkmate.tf2.eager.interception import Interception
from checkmate.tf2.eager.runtime import EagerRuntime
from checkmate.tf2.eager.storage import Recorder
from checkmate.tf2.memory.budget import auto_budget, free_bytes
from checkmate.units import Bytes, check_budget, format_bytes, parse_bytes

_open: tuple[object, Interception] | None = None
"""The context that is open in this process."""


@dataclass(frozen=True, slots=True)
class DTRStats:
    """The figures of a context so far.

    Attributes:
      ops: Ops that the program ran.
      evictions: How often a tensor was dropped, those that nothing referred to any more included.
      rematerializations: Ops that ran again.
      overhead: Cost of all ops by that of the first runs; 1.0 means that nothing was recomputed.
        Costs are a roofline's.
      peak_bytes: The most bytes in use by the allocator's count; 0 without a budget. Runs that
        try the algorithms of a convolution are not counted.
      budget_bytes: The budget, or None.
      overshoots: How often memory went above the budget: by an op that took more than predicted, or
        by memory that was not an op's.
      demand_bytes: The most bytes that would have been in use without eviction.

    Examples:
      >>> with checkmate.tf2.dtr("2GiB") as context:
      ...     train_step(images, labels)
      >>> context.stats.evictions, context.stats.overhead
    """

    ops: int
    evictions: int
    rematerializations: int
    overhead: float
    peak_bytes: int
    budget_bytes: int | None
    overshoots: int
    demand_bytes: int

    def __str__(self) -> str:
        memory = (
            f"peak {format_bytes(self.peak_bytes)} of {format_bytes(self.budget_bytes)}; "
            if self.budget_bytes
            else ""
        )
        return (
            f"{memory}{self.ops} ops, {self.evictions} evictions, {self.rematerializations} run"
            f" again, cost {self.overhead - 1:+.1%}"
        )


class dtr:
    """Runs eager TensorFlow within a memory budget: tensors are evicted when memory runs short and
    recomputed when they are read again.

    There is no plan and no trace: the code under the context may be any Python, with shapes that
    change from step to step, `tf.GradientTape` (nested and persistent too), Keras models and
    `fit(run_eagerly=True)`. Only outputs of ops without side effects are evicted. Ops with state
    run once, so that variables, seeds, dropout masks and BatchNormalization's averages are those of
    the plain program.

    Results of ops are handles, which are `tf.Tensor`s and return their value when asked for it.
    After the context they are no `tf.Tensor`s any more, but operators, TensorFlow's functions and
    NumPy still take them. Where a `tf.Tensor` is needed, as in an index or a list, use
    `tf.convert_to_tensor(handle)`.

    The budget counts the bytes in use by TensorFlow's allocator on the training device, variables
    and data included. On CPUs the allocator counts only with TF_CPU_ALLOCATOR_USE_BFC=true set
    before TensorFlow is imported.

    Args:
      budget: A number of bytes, "6GiB", or "auto": what is free, as for `compile`. None for no
        limit.
      heuristic: The score: a name in `checkmate.dtr.heuristic.HEURISTICS` or a `Heuristic`. The
        paper's h_DTR^eq by default. Staleness is counted along the program, back in a backward
        pass, and reads for the recomputation of other tensors do not count.
      overhead_limit: Recomputation may cost (overhead_limit - 1) times what ran first, before it is
        given up.
      strict: Memory above the budget is an error; otherwise `stats.overshoots` counts it.
      smallest_bytes: Tensors below are never evicted.
      search: Which candidates an eviction compares; all by default.

    Raises:
      EvictionError: On entry or, as all below, from any op: what is locked does not fit, or memory
        went above the budget. The message says which tensors are locked, how much is missing and
        which budget would do (`needed_bytes`).
      ThrashingError: The overhead limit is reached. The smallest budget that works is not known
        before the program is done; it is above the one given and at most that within which nothing
        would have been recomputed so far (`enough_bytes`).
      UnsupportedError: Something that would silently be wrong: ForwardAccumulator, jacobian,
        gradients from another thread, distribution strategies, a second
        context; or a TensorFlow whose private parts are not those this was written against.
      BudgetError: The budget cannot be understood.

    Examples:
      >>> with checkmate.tf2.dtr(budget="2GiB") as context:
      ...     with tf.GradientTape() as tape:
      ...         loss = tf.reduce_mean((model(images) - labels) ** 2)
      ...     gradients = tape.gradient(loss, model.trainable_variables)
      ...     optimizer.apply_gradients(zip(gradients, model.trainable_variables))
      >>> print(context.stats)

    Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021).

    Where the guarantee ends:

    * With `strict`, memory for twice an op's needs is free before the op runs: TensorFlow's
      allocator gives out a hole whole if it is less than twice what was asked for, and counts it
      whole. Other allocators may lose more.
    * The first op of its type, attributes and shapes is sized by shape inference and a guess of its
      scratch memory. Other memory (data, variables, inside of functions) is seen afterwards only.
    * A convolution, and a gradient of one, runs twice when it first meets its attributes and
      shapes: on a GPU the first of these runs tries algorithms, with scratch memory of up to
      gigabytes (TF_CUDNN_WORKSPACE_LIMIT_IN_MB sets a limit), and is not counted.
    * Bytes that are free need not lie in one piece. On entry the allocator is asked for the rest of
      the budget in one piece, so enter the context before the model is built. Where no hole is
      large enough, more is evicted, after the ten seconds that TensorFlow waits.
    * A `tf.function` is one op: nothing inside of it is evicted.
    * Gradients equal the plain tape's bit for bit, except that sums of more than four partial
      gradients are added in another order; in second-order gradients with a `smallest_bytes` of 1
      sums of three were seen to be, too.

    Every op costs Python time in addition to its kernel, however far away the budget is. On one
    core of a 2.5 GHz server, a matrix product of 1.2 ms on a tape took 85 us more forward and 50 us
    more backward, 5 % in all; programs of short ops become much slower.
    """

    def __init__(
        self,
        budget: Bytes | None = None,
        *,
        heuristic: str | Heuristic = "dtr_eq",
        overhead_limit: float = 10.0,
        strict: bool = True,
        smallest_bytes: int = 4096,
        search: Search | None = None,
    ):
        if not overhead_limit > 1:
            raise CheckmateError(
                f"An overhead limit of {overhead_limit!r} leaves nothing to recompute; it must be"
                " more than 1."
            )
        if budget == "auto":
            budget = auto_budget(devices.training_device())
        if budget is not None:
            check_budget(budget)
        self._budget_bytes = None if budget is None else parse_bytes(budget)
        self._options = EagerOptions(
            budget_bytes=math.inf if self._budget_bytes is None else self._budget_bytes,
            heuristic=make_heuristic(heuristic),
            overhead_limit=overhead_limit,
            strict=strict,
            smallest_bytes=smallest_bytes,
            search=search or Search(),
        )
        self._runtime: EagerRuntime | None = None

    def __enter__(self) -> dtr:
        device = _checked_device(self._budget_bytes)
        if self._budget_bytes is not None:
            reserve(device, self._budget_bytes)
        self._runtime = EagerRuntime(device, self._options)
        _enter(self, self._runtime)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        runtime = self._runtime
        _leave(self)
        if kind is None and runtime is not None and not runtime.policy.budget.overshoots:
            runtime.policy.budget.check_peak("before the context was left")

    @property
    def stats(self) -> DTRStats:
        """The figures so far. Raises `CheckmateError` before the context was entered."""
        runtime = self._runtime
        if runtime is None:
            raise CheckmateError(
                "There are no figures before the context is entered: `with checkmate.tf2.dtr(...)"
                " as context:`."
            )
        policy = runtime.policy
        if not runtime.closed:
            _ = policy.allocator.in_use
        first_cost = policy.first_cost
        return DTRStats(
            runtime.ops,
            policy.evictions,
            policy.rematerializations,
            1 + policy.recomputed_cost / first_cost if first_cost else 1.0,
            policy.allocator.peak_bytes,
            self._budget_bytes,
            policy.budget.overshoots,
            policy.demand_bytes,
        )

    @staticmethod
    def record(name: str = "") -> Recording:
        """A context that writes down what an eager program does, for `checkmate.simulate`. Nothing
        is evicted. See `Recording`.

        Args:
          name: The log's name, for people.
        """
        return Recording(name)


class Recording:
    """Records the op log of the eager program that runs under it: calls with their seconds and
    bytes, and when the program lets go of what.

    Tensors that existed before, and variables, are constants. Times are wall time, the overhead of
    the call included; on GPUs, where kernels run asynchronously, they say little. Run a step
    before: what a gradient reads is known from its second run on, and before that the log releases
    tensors later.

    Attributes:
      log: The `OpLog`, once the context is left.
    """

    def __init__(self, name: str = ""):
        self._recorder = Recorder()
        self._name = name
        self.log: OpLog | None = None

    def __enter__(self) -> Recording:
        device = _checked_device(None)
        _enter(self, EagerRuntime(device, EagerOptions(smallest_bytes=0), self._recorder))
        return self

    def __exit__(self, *exception: Any) -> None:
        self.log = self._recorder.log(self._name)
        _leave(self)


def _enter(context: object, runtime: EagerRuntime) -> None:
    global _open
    interception = Interception(runtime)
    interception.__enter__()
    _open = context, interception


def _leave(context: object) -> None:
    global _open
    if _open is None or _open[0] is not context:
        raise UnsupportedError("This context is not open.")
    (_, interception), _open = _open, None
    interception.__exit__()


def _checked_device(budget_bytes: int | None) -> str:
    """The device whose memory counts. Refuses to open a context that cannot work."""
    if not tf.executing_eagerly():
        raise UnsupportedError(
            "dtr() was entered while a graph is traced (inside of tf.function, or of fit() without"
            " run_eagerly=True). It works on eager ops: enter it outside and run eagerly, or plan"
            " the traced step with checkmate.tf2.compile."
        )
    if _open is not None:
        raise UnsupportedError(
            "dtr() was entered while another dtr() or record() is open. There is one budget at a"
            " time: leave the other first."
        )
    if tf.distribute.has_strategy():
        strategy = type(tf.distribute.get_strategy()).__name__
        raise UnsupportedError(
            f"dtr() was entered under {strategy}, which trains in several threads. Use one device,"
            " without a strategy."
        )
    if not private_api.tape_is_empty() and private_api.is_accumulating():
        raise UnsupportedError(
            "dtr() was entered under a tf.autodiff.ForwardAccumulator, which would miss all ops."
            " Use GradientTape.gradient."
        )
    device = devices.training_device()
    if budget_bytes is not None:
        _check_budget(device, budget_bytes)
    selftest.check(device)
    return device


def _check_budget(device: str, budget_bytes: int) -> None:
    if not devices.allocator_reports(device):
        raise UnsupportedError(
            f"A budget needs an allocator that counts, and that of {device} does not. Set"
            " TF_CPU_ALLOCATOR_USE_BFC=true in the environment before TensorFlow is imported."
        )
    in_use = devices.bytes_in_use(device)
    if in_use > budget_bytes:
        raise EvictionError(
            f"The budget of {format_bytes(budget_bytes)} is used up before dtr() begins:"
            f" variables, data and other tensors take {format_bytes(in_use)},"
            f" {format_bytes(in_use - budget_bytes)} more. Raise the budget, or delete what is"
            " not needed.",
            budget_bytes=budget_bytes,
            needed_bytes=in_use,
        )


def reserve(device: str, budget_bytes: int) -> None:
    """Has the allocator take the rest of the budget in one piece, where it can: pieces of many
    sizes waste up to half of themselves."""
    if devices.may_fetch(device) and budget_bytes <= free_bytes(device):
        devices.fetch_region(device, budget_bytes - devices.bytes_in_use(device))
    tf.config.experimental.reset_memory_stats(device)
