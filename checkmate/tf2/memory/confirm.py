"""Runs a planned step a few times before training: its peak by the allocator's count, with
the state put back as it was."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.core.events import Log
from checkmate.errors import CheckmateError
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.isolated import some_value
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph.operations import can_be_filled, draws, is_seen_outside
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.profiler import observe
from checkmate.tf2.memory.program import log_of

log = logging.getLogger("checkmate")

TIMED_FOR_S, MAX_TIMED_RUNS = 0.1, 5
"""Steps are run again for their time until their runs took so many seconds, at most so often."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What a step took in the runs that confirm it.

    Attributes:
      allocated_bytes: The highest bytes in use, by the allocator's count, in a run that began with
        the results of the run before; None where memory ran out.
      function_bytes: What the step's function has in memory for as long as it lives: constants of
        its graph, and those that TensorFlow folds.
      seconds: The shortest of the runs' times; None after a single run.
      requests: What the allocator was asked for in one of the runs; None where that was not
        watched.
      runs: How often the step was run at least.
    """

    allocated_bytes: int | None
    function_bytes: int = 0
    seconds: float | None = None
    requests: Log | None = None
    runs: int = 1


def confirm(
    run: Callable[..., Any],
    traced: TracedStep,
    *,
    steps: int,
    watch: bool,
    batch: Sequence[tf.Tensor] | None = None,
) -> Confirmed | None:
    """Runs a step and returns what it takes by the allocator's count; the variables that it writes
    to are saved on the host and put back.

    The first run builds what TensorFlow keeps of a function, and finds no results of a run before:
    where there are several, it does not count. A step that draws from TensorFlow's random state,
    which goes on from call to call of a function, is run as a copy, which is then deleted.

    Args:
      steps: How many runs, one at least. A short step that is timed is run more often.
      watch: Whether the allocator's requests in the last run are logged. TensorFlow's profiler is
        in use meanwhile.
      batch: The step's flattened arguments, which the caller keeps; without them, data is made up.

    Returns: What it took, or None where the step cannot run on such data, or prints, writes files
      or calls Python, which must not happen twice.
    """
    if is_seen_outside(traced.function):
        return None
    own = of_its_own(run, traced)
    try:
        return _confirm(own, traced, steps, watch, batch)
    except tf.errors.ResourceExhaustedError:
        return Confirmed(None)
    except tf.errors.OpError as error:
        log.info("The step cannot be run before training: %s", error)
        return None
    finally:
        if own is not run:
            del own
            gc.collect()  # functions are in cycles


def _confirm(
    run: Callable[..., Any],
    traced: TracedStep,
    steps: int,
    watch: bool,
    given: Sequence[tf.Tensor] | None,
) -> Confirmed:
    device = devices.training_device()
    batch = given or made_up(traced)
    requests: Log | None = None
    peaks: list[int] = []
    seconds: list[float] = []
    call = partial(run, *batch)
    with kept_state(traced.variables):
        before = devices.bytes_in_use(device)
        result: Any = None
        alone = steps - watch  # runs without the profiler
        while len(seconds) < alone or (alone > 1 and needs_more_runs(seconds[1:])):
            started = time.perf_counter()
            result, _, peak = devices.peak_above(device, call)
            seconds.append(time.perf_counter() - started)
            peaks.append(peak)
        if watch:
            (result, requests), _, peak = devices.peak_above(device, partial(_watched, call))
            peaks.append(peak)
        constants = devices.bytes_in_use(device) - before - devices.all_value_bytes(result)
    return Confirmed(
        max(peaks[1:] or peaks),
        max(0, constants),
        min(seconds[1:], default=None),
        requests,
        runs=len(peaks),
    )


def needs_more_runs(seconds: Sequence[float]) -> bool:
    """Returns whether a step is run again for its time: the first runs of a short step are its
    slowest.

    Args:
      seconds: What its runs took so far, after a warm-up run.
    """
    return sum(seconds) <= TIMED_FOR_S and len(seconds) < MAX_TIMED_RUNS


def _watched(call: Callable[[], Any]) -> tuple[Any, Log | None]:
    try:
        seen = observe(call)
    except CheckmateError as error:  # another profile is being taken
        log.info("What the step asks the allocator for was not seen: %s", error)
        return call(), None
    # CUDA's own allocator tells the profiler nothing.
    return seen.result, log_of(seen) if seen.events else None


def of_its_own(run: Callable[..., Any], traced: TracedStep) -> Callable[..., Any]:
    """Returns a function that runs a step without moving TensorFlow's random state on: a copy where
    the step draws from it, else the same."""
    if not draws(traced.function):
        return run
    return run.copy() if isinstance(run, Replayed) else tf.function(run, autograph=False)


@contextmanager
def kept_state(variables: Sequence[tf.Variable]) -> Iterator[list[np.ndarray]]:
    """Puts the variables' values, which are kept on the host meanwhile and yielded, back at the
    end, to the bit."""
    saved = [variable.numpy() for variable in variables]
    try:
        yield saved
    finally:
        for variable, value in zip(variables, saved, strict=True):
            _put_back(variable, value)


def in_memory(values: Sequence[Any], specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor] | None:
    """Returns the values where they are tensors of these specs in the memory that steps train in: a
    batch for the check; else None."""
    device = devices.training_device()
    eager = all(isinstance(value, tf.Tensor) and hasattr(value, "numpy") for value in values)
    if not values or not eager or len(values) != len(specs):
        return None
    there = all(
        value.shape == spec.shape and value.dtype == spec.dtype and value.device.endswith(device)
        for value, spec in zip(values, specs, strict=True)
    )
    return list(values) if there else None


def made_up(traced: TracedStep) -> list[tf.Tensor]:
    """Returns data for the step's arguments, of their shapes and dtypes."""
    return [
        some_value(tf.TensorSpec(tensor.shape, tensor.dtype))
        for tensor in traced.argument_tensors()
    ]


def _put_back(variable: tf.Variable, value: np.ndarray) -> None:
    """Gives a variable this value to the bit, where it can in the memory that it has.

    An assignment gives it other memory, which may split what the allocator has in one piece: a
    step would then measure differently before and after.
    """
    if not can_be_filled(variable) or tf.shape(variable).numpy().tolist() != list(value.shape):
        variable.assign(value, read_value=False)
        return
    first, stride, whole = (
        np.zeros(value.ndim, np.int32),
        np.ones(value.ndim, np.int32),
        (1 << value.ndim) - 1,
    )
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=variable.handle,
        begin=first,
        end=first,
        strides=stride,
        value=value,
        begin_mask=whole,
        end_mask=whole,
    )
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)  # as in `GraphWriter.overwrite`
