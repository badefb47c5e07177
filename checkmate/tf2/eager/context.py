"""`dtr`, the context manager: what it takes, what it refuses, what it reports."""

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
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.interception import Interception
from checkmate.tf2.eager.recorder import Recorder
from checkmate.tf2.eager.runtime import EagerRuntime
from checkmate.units import Bytes, format_bytes, parse_bytes

_open: dtr | Recording | None = None
"""The context that is open in this process."""


@dataclass(frozen=True, slots=True)
class DTRStats:
    """What a context did so far.

    Attributes:
      ops: Ops that the program ran.
      evictions: How often a tensor was dropped, those nobody referred to any more included.
      rematerializations: Ops that ran again.
      overhead: Cost of all ops by that of the first runs; 1.0 means that nothing was recomputed.
        Costs are a roofline's.
      peak_bytes: The most bytes in use by the allocator's count; 0 without a budget.
      budget_bytes: The budget, or None.
      overshoots: How often memory went above the budget: by an op that took more than was foreseen,
        or by what no op was seen to take.
      demand_bytes: The most bytes that would have been in use without eviction.
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
    recomputed when they are asked for.

    No plan and no trace: the code under the context may be any Python, with shapes that change from
    step to step, `tf.GradientTape` (nested and persistent too), Keras models and
    `fit(run_eagerly=True)`. What is evicted is the output of an op without side effects; ops with
    state run once, so that variables, seeds, dropout masks and BatchNormalization's averages are
    those of the plain program. Results of ops are handles, which are `tf.Tensor`s; ask them for a
    value and you get it. They stay good after the context: operators, TensorFlow's functions and
    NumPy take them, though they are no `tf.Tensor`s any more; where that matters, as in an index or
    a list, use `tf.convert_to_tensor(handle)`.

    Counted are the bytes in use by TensorFlow's allocator on the training device, variables and
    data included. On CPUs it counts only with TF_CPU_ALLOCATOR_USE_BFC=true set before TensorFlow
    is imported.

    Args:
      budget: A number of bytes or "6GiB"; None for no limit, which still releases and records as
        DTR does.
      heuristic: What to evict: a name in `checkmate.dtr.heuristic.HEURISTICS` or a `Heuristic`. The
        paper's h_DTR^eq by default. Staleness is counted along the program, which a backward pass
        goes back, and being read for another's recomputation does not count.
      overhead_limit: Recomputation may cost (overhead_limit - 1) times what ran first, before it is
        given up.
      strict: Memory above the budget, by whatever was not foreseen, is an error; otherwise
        `stats.overshoots` counts it.
      smallest_bytes: Tensors below are never evicted.
      search: How much of the candidates each eviction looks at; all by default.

    Raises, on entry or from any op:
      EvictionError: What is locked does not fit, or memory went above the budget: which tensors, how much is missing, what would do
        (`needed_bytes`).
      ThrashingError: The overhead limit is reached. The smallest budget that works is not known before the program is done; it is above the
        one given and at most that within which nothing would have been recomputed so far (`enough_bytes`).
      UnsupportedError: Something that would silently be wrong: ForwardAccumulator, jacobian, gradients from another thread or inside of
        tf.function, distribution strategies, a second context; or a TensorFlow whose insides are not the ones this was made for.
      BudgetError: The budget cannot be understood.

    Example:
      >>> with checkmate.tf2.dtr(budget="2GiB") as context:  # doctest: +SKIP
      ...     with tf.GradientTape() as tape:
      ...         loss = model_of_any_shape(batch)
      ...     optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
      >>> print(context.stats)  # doctest: +SKIP

    Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021). Where the guarantee
    ends: with `strict` there is always room for twice what an op takes, since TensorFlow's
    allocator hands out a hole whole if it is less than twice what was asked for, and counts it
    whole; other allocators may lose more. The first op of its type, attributes and shapes is sized
    by inference and a guess of its scratch memory; memory that comes about otherwise (data,
    variables, inside of functions) is seen afterwards only. That the bytes in use are within the
    budget does not say that they lie in one piece: on entry the allocator is asked for the rest of
    the budget as one piece, so enter the context before the model is built; where a hole is missing
    all the same, more is evicted after the ten seconds that TensorFlow waits. A `tf.function` is
    one opaque op: nothing inside is evicted. Gradients equal the plain tape's bit for bit, except
    that sums of more than four partial gradients are added in another order; in second-order
    gradients with a `smallest_bytes` of 1 sums of three were seen to be, too.

    Every op costs Python time besides its kernel: on a taped matrix product of 1 ms 53 us forward
    and 41 us backward were measured, 5 % in all, on a server of 2.5 GHz; programs of short ops
    become much slower (`checkmate bench dtr-eager --ops`). Until memory first comes above an eighth
    of the budget it is 12 and 25 us, 2 %: ops that have run before with the same shapes are then
    TensorFlow's own, and what they make cannot be evicted. From then on all is managed, as it is
    from the start without a budget.
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
        self._budget_bytes = None if budget is None else parse_bytes(budget)
        self._options: dict[str, Any] = {
            "heuristic": make_heuristic(heuristic),
            "overhead_limit": overhead_limit,
            "strict": strict,
            "smallest_bytes": smallest_bytes,
            "search": search,
        }
        self._runtime: EagerRuntime | None = None

    def __enter__(self) -> dtr:
        device = _checked_device(self._budget_bytes)
        limit = math.inf if self._budget_bytes is None else self._budget_bytes
        if self._budget_bytes is not None:
            _reserve(device, self._budget_bytes)
        self._runtime = EagerRuntime(device, budget_bytes=limit, **self._options)
        _enter(self, self._runtime)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        runtime = self._runtime
        _leave(self)
        if kind is None and runtime is not None and not runtime.overshoots:
            runtime.look_back("before the context was left")

    @property
    def stats(self) -> DTRStats:
        """What it did so far. Raises `CheckmateError` before the context was entered."""
        runtime = self._runtime
        if runtime is None:
            raise CheckmateError(
                "There are no figures before the context is entered: `with checkmate.tf2.dtr(...)"
                " as context:`."
            )
        if not runtime.closed:
            _ = runtime.allocator.in_use
        overhead = 1 + runtime.recomputed_cost / runtime.first_cost if runtime.first_cost else 1.0
        return DTRStats(
            runtime.ops,
            runtime.evictions,
            runtime.rematerializations,
            overhead,
            runtime.allocator.peak_bytes,
            self._budget_bytes,
            runtime.overshoots,
            runtime.demand_bytes,
        )

    @staticmethod
    def record(name: str = "") -> Recording:
        """A context that writes down what an eager program does, for `checkmate.simulate`. Nothing
        is evicted. See `Recording`."""
        return Recording(name)


class Recording:
    """Records the op log of the eager program that runs under it: calls with their seconds and
    bytes, and when the program lets go of what.

    Tensors that were there before, and variables, are constants. Times are wall time, the call's
    own overhead included; on GPUs, where kernels run behind the program's back, they say little.
    Run a step before: what a gradient reads is known from its second time on, and before that the
    log holds on to more.

    Attributes:
      log: The `OpLog`, once the context is left.
    """

    def __init__(self, name: str = ""):
        self._recorder = Recorder()
        self._name = name
        self.log: OpLog | None = None

    def __enter__(self) -> Recording:
        device = _checked_device(None)
        _enter(self, EagerRuntime(device, smallest_bytes=0, observer=self._recorder))
        return self

    def __exit__(self, *exception: Any) -> None:
        self.log = self._recorder.log(self._name)
        _leave(self)


_interception: Interception | None = None


def _enter(context: dtr | Recording, runtime: EagerRuntime) -> None:
    global _open, _interception
    interception = Interception(runtime)
    interception.__enter__()
    _open, _interception = context, interception


def _leave(context: dtr | Recording) -> None:
    global _open, _interception
    if _open is not context or _interception is None:
        raise UnsupportedError("This context is not open.")
    interception, _open, _interception = _interception, None, None
    interception.__exit__()


def _checked_device(budget_bytes: int | None) -> str:
    """The device whose memory counts, or a refusal."""
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
    private_api.check()
    return device


def _reserve(device: str, budget_bytes: int) -> None:
    """Has the allocator take the budget in one piece, where it can: pieces of many sizes waste up
    to half of themselves."""
    room = budget_bytes - devices.bytes_in_use(device)
    if budget_bytes <= devices.free_bytes(device):
        devices.fetch_region(device, room)
    tf.config.experimental.reset_memory_stats(device)
