"""The plain step, measured: its peak and its time where it fits on the device, as plain TensorFlow
runs it."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.graph.operations import is_seen_outside
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.available import free_or_none
from checkmate.tf2.memory.confirm import made_up, needs_more_runs
from checkmate.tf2.memory.own_memory import give_own_memory
from checkmate.units import format_bytes

log = logging.getLogger("checkmate")

SAFE_FACTOR = 1.5
"""Times the predicted activations: the plain step is run where so much is free. Some of
TensorFlow's kernels end the process when memory runs out, and a plain step can take more than is
predicted."""


@dataclass(frozen=True, slots=True)
class PlainStep:
    """What the plain step takes, where it was measured.

    Attributes:
      peak_bytes: Its measured peak without other bytes in use; None where it was not measured.
      seconds: Its measured time, the shortest of a few runs; None where it was not measured.
      why_not: Why the peak was not measured, as a clause.
    """

    peak_bytes: int | None = None
    seconds: float | None = None
    why_not: str = ""

    @property
    def measured(self) -> bool:
        """True where the peak was measured."""
        return self.peak_bytes is not None


def measured(
    run: Callable[..., Any],
    traced: TracedStep,
    *,
    predicted_bytes: int,
    other_bytes: int,
    batch: Sequence[tf.Tensor] | None,
) -> PlainStep:
    """Runs the plain step a few times where that is safe, and returns what it took; variables and
    random state are put back.

    Args:
      run: The step as it was traced, on flattened arguments.
      predicted_bytes: Its predicted peak, with `other_bytes`.
      other_bytes: The fixed bytes that the step's graph does not count.
      batch: The step's flattened arguments; without them, data is made up.
    """
    device = devices.training_device()
    if not devices.allocator_reports(device):
        return PlainStep(why_not="this device's allocator does not report what is in use")
    if is_seen_outside(traced.function):
        return PlainStep(
            why_not="it prints, writes files or calls Python, which a measurement must not"
        )
    needed, free = safe_bytes(traced, predicted_bytes, other_bytes), free_or_none(device)
    if free is None or needed > free:
        found = (
            "how much memory is free is not known"
            if free is None
            else f"{format_bytes(free)} are there"
        )
        return PlainStep(why_not=f"running it safely takes {format_bytes(needed)}, and {found}")
    try:
        peak, seconds = _peak_and_time(_copy(run), traced, device, batch)
    except tf.errors.ResourceExhaustedError:
        return PlainStep(why_not="memory ran out")
    except tf.errors.OpError as error:
        log.info("The plain step cannot be run to be measured: %s", error)
        return PlainStep(
            why_not="it cannot be run on data that is made up" if batch is None else "it failed"
        )
    finally:
        gc.collect()
    return PlainStep(peak, seconds)


def safe_bytes(traced: TracedStep, predicted_bytes: int, other_bytes: int) -> int:
    """Returns how much memory must be free for the plain step to be run: resident bytes, a
    second copy of the variables (see `_kept_in_place`), and a multiple of the predicted
    activations.
    """
    resident = traced.graph.fixed_bytes + other_bytes
    copies = sum(tensor_bytes(variable) or 0 for variable in traced.variables)
    return resident + copies + int(SAFE_FACTOR * max(0, predicted_bytes - resident))


@contextmanager
def _kept_in_place(variables: Sequence[tf.Variable]) -> Iterator[None]:
    """Gives each variable back the buffer that it had, with its value. Within the block the
    variables have other memory.

    A plain step assigns tensors that lie wherever they were made. Left there, variables would cut
    the pool into pieces before any plan is confirmed.
    """
    for variable in variables:
        tf.raw_ops.DisableCopyOnRead(resource=variable.handle)  # each read would copy
    kept = [variable.read_value() for variable in variables]
    try:
        # Before anything is counted: a buffer that is shared is copied when it is written to.
        give_own_memory(variables)
        yield
    finally:
        for variable, value in zip(variables, kept, strict=True):
            # Updates of single rows ask for copies.
            tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
            variable.assign(value, read_value=False)


def _peak_and_time(
    run: Callable[..., Any], traced: TracedStep, device: str, batch: Sequence[tf.Tensor] | None
) -> tuple[int, float]:
    """The highest peak of a few runs during which the results of the run before are in memory, and
    the shortest of their times."""
    data = batch or made_up(traced)
    peaks: list[int] = []
    seconds: list[float] = []
    with _kept_in_place(traced.variables):
        at_first = devices.bytes_in_use(device)
        result = run(*data)
        devices.synchronize()
        # Those that TensorFlow folded.
        constants = devices.bytes_in_use(device) - at_first - devices.all_value_bytes(result)
        while not seconds or needs_more_runs(seconds):
            started = time.perf_counter()
            result, before, peak = devices.peak_above(device, lambda: run(*data))
            seconds.append(time.perf_counter() - started)
            peaks.append(peak - before)
        del result
    return max(peaks) + traced.between_bytes + max(0, constants), min(seconds)


def _copy(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own, gone after it was measured with the constants that TensorFlow folded
    in it and the random state that it drew from."""
    return tf.function(plain, autograph=False)
