"""Runs a step on trial: its real peak, by the allocator's count, with everything put back as it was."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2 import op_rules
from checkmate.tf2.bodies import LOOPS
from checkmate.tf2.profile import some_value
from checkmate.tf2.trace import TracedStep

log = logging.getLogger("checkmate")

CHECK_RUNS = 5
"""How often a plan is run at most to be measured on a batch that stays where it is: until two runs in a row take the same, which they do unless
something else is at work.

The first run is none of them: only from the second on the results of the one before are in memory, in one of two places by turns.
"""

MOVING_RUNS = 5
"""How often it is run on a batch that lies elsewhere each time, as those of a training loop do: what the allocator loses depends on it."""

LOOP_RUNS = 6
"""Either for a step with loops, without an early end: TensorFlow gives the small values of a loop back at any time, and two equal runs are chance."""

SAME = 0.002
"""By which share of themselves two peaks may differ and count as the same."""


@contextmanager
def kept_state(variables: Sequence[tf.Variable]) -> Iterator[list[np.ndarray]]:
    """Puts the variables' values, which are kept on the host meanwhile and yielded, back at the end, to the bit."""
    saved = [variable.numpy() for variable in variables]
    try:
        yield saved
    finally:
        for variable, value in zip(variables, saved, strict=True):
            _put_back(variable, value)


def in_memory(values: Sequence[Any], specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor] | None:
    """Returns the values where they are tensors of these specs in the memory that steps train in: a batch for the check; else None."""
    device = devices.training_device()
    eager = all(isinstance(value, tf.Tensor) and hasattr(value, "numpy") for value in values)
    if not values or not eager or len(values) != len(specs):
        return None
    there = all(
        value.shape == spec.shape and value.dtype == spec.dtype and value.device.endswith(device)
        for value, spec in zip(values, specs, strict=True)
    )
    return list(values) if there else None


def measured_peak(
    run: Callable[..., Any], traced: TracedStep, device: str, *, enough: int, batch: Sequence[tf.Tensor] | None = None
) -> tuple[int, int] | None:
    """Runs a step as a training loop would, and returns the allocator's peak in the terms of a budget.

    What is counted is what the step adds to what was in use before, and `between_bytes`, which is what was. The variables it
    writes to are saved on the host and put back. A step that is within `enough` is measured twice: on a batch that stays where it is, in the
    memory that planning left behind, and once more as training begins, without results of a run before, and goes on, with each batch made
    while the one before is in memory. The allocator cuts its memory in another way for each, and gives a value up to twice what it asks for.

    Args:
      enough: Bytes above which it need not be known exactly.
      batch: The step's flattened arguments, which somebody else holds; without them, data is made up.

    Returns:
      (the peak in bytes, more than `enough` where memory ran out; how much of it the function came to hold by running: constants that
      TensorFlow folds are in memory from its first run on), or None when the step cannot run on such data, or prints, writes files or calls
      Python, which a trial must not.
    """
    if op_rules.is_seen_outside(traced.function):
        return None
    loops = any(operation.type in LOOPS for operation in traced.flat.graph.get_operations())
    most, held, at_first = 0, 0, devices.bytes_in_use(device)

    def peaks(batch: list[tf.Tensor], *, moving: bool) -> Generator[int]:
        result: Any = None
        resting: int | None = None  # what is in use beside what the step counts
        with kept_state(traced.function.variables):
            for _ in range(LOOP_RUNS if loops else MOVING_RUNS if moving else CHECK_RUNS):
                batch = _elsewhere(batch) if moving else batch
                results = _held_bytes(result)
                result, before, peak = devices.peak_above(device, partial(run, *batch))
                resting = before - traced.between_bytes if resting is None else resting
                # `between_bytes` has the results of a run before, and here they were in use beside it; after the first run, which found
                # none, as many are taken off, so that all the runs compare.
                yield peak - resting - (results or _held_bytes(result))

    try:
        with closing(peaks(batch or _made_up(traced), moving=False)) as found:
            settled = _until_steady(found, enough, early=not loops)
        by_chance = max(settled[1:]) - min(settled[1:]) if loops else 0  # others differ by turns
        most = max(settled[1:]) + by_chance // 2
        held = max(0, devices.bytes_in_use(device) - at_first)
        if most > enough:
            return most, held
        # Training begins in what this leaves behind: where the results and our batch were are holes, and the variables were put back.
        with closing(peaks(batch or _made_up(traced), moving=True)) as found:
            return max(most, *(peak + held for peak in _until_steady(found, enough - held, early=False))), held
    except tf.errors.ResourceExhaustedError:
        if most and batch:  # there is no room for another one beside the user's
            return most, held
        return max(enough + 1, tf.config.experimental.get_memory_info(device)["peak"] - at_first + traced.between_bytes), held
    except tf.errors.OpError as error:
        log.info("The step cannot be run on trial: %s", error)
        return None


def _until_steady(peaks: Iterator[int], enough: int, *, early: bool) -> list[int]:
    """The peaks until it is known what a step takes, or that it is too much."""
    found: list[int] = []
    for peak in peaks:
        found.append(peak)
        # The first run finds memory as whatever ran before left it, the others as the step itself does.
        same = early and len(found) > 2 and abs(found[-1] - found[-2]) <= SAME * found[-1]
        if same or (len(found) > 1 and found[-1] > enough):
            break
    return found


def _made_up(traced: TracedStep) -> list[tf.Tensor]:
    return [some_value(tf.TensorSpec(tensor.shape, tensor.dtype)) for tensor in traced.argument_tensors()]


def _elsewhere(batch: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The same values in other memory, as the next batch of a training loop is made while it holds the one before."""
    return [tf.raw_ops.DeepCopy(x=each) if op_rules.can_be_copied(each.dtype) else each for each in batch]


def _held_bytes(result: Any) -> int:
    return sum(devices.held_bytes(each) for each in tf.nest.flatten(result, expand_composites=True) if each is not None)


def _put_back(variable: tf.Variable, value: np.ndarray) -> None:
    """Gives a variable this value to the bit, where it can in the memory that it has.

    An assignment gives it other memory, which may split what the allocator holds in one piece: a step would then measure
    differently before and after.
    """
    found = variable.numpy()
    exact = variable.dtype.is_floating and np.isfinite(found).all() and np.isfinite(value).all()
    if exact and not np.any(np.signbit(value) & (value == 0)):  # 0 + -0 is 0
        variable.assign_sub(found, read_value=False)
        variable.assign_add(value, read_value=False)
    else:
        variable.assign(value, read_value=False)
