"""Runs a step on trial: its real peak, by the allocator's count, with everything put back as it was."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2 import op_rules
from checkmate.tf2.execute import Replayed, rooms_bytes
from checkmate.tf2.memory.pipeline import argument_bytes
from checkmate.tf2.profile import some_value
from checkmate.tf2.trace import TracedStep

log = logging.getLogger("checkmate")

CHECK_RUNS = 5
"""How often a plan is run at most to be measured on a batch that stays where it is: until two runs in a row take the same, which they do unless
something else is at work.

The first run is none of them: only from the second on the results of the one before are in memory, in one of two places by turns.
"""

MOVING_RUNS = 12
"""How often it is run at most on a batch that lies elsewhere each time, as those of a training loop do: until it takes the same by turns. What the
allocator loses depends on where batch and results lie, and it may take some steps until those are two places by turns."""

LEAST_MOVING_RUNS = 8
"""How often at least: a few that take the same can be chance."""

LOOP_RUNS = 6
"""Instead of `CHECK_RUNS`, without an early end, for a step with loops: TensorFlow gives their small values back at any time."""

SAME = 0.002
"""By which share of themselves two peaks may differ and count as the same."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a step took in runs like those of a training loop, in the terms of a budget.

    Attributes:
      most_bytes: The highest of their peaks; more than was allowed where memory ran out.
      usual_bytes: The peak that about half of them stay below, the first ones, which begin without results, left out.
      held_bytes: How much of either the step's function holds as long as it lives: constants of its graph, and what TensorFlow folds.
      seconds: The shortest of their times; None where no run but the first one came to its end.
    """

    most_bytes: int
    usual_bytes: int
    held_bytes: int
    seconds: float | None = None

    def beside(self, more: int, held: int) -> Trial:
        """The same where `more` bytes are in use anyway and the function holds `held` besides."""
        return replace(
            self, most_bytes=self.most_bytes + more + held, usual_bytes=self.usual_bytes + more + held, held_bytes=self.held_bytes + held
        )


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


def on_trial(
    run: Callable[..., Any], traced: TracedStep, device: str, *, enough: int, batch: Sequence[tf.Tensor] | None = None
) -> Trial | None:
    """Runs a step as a training loop would, and returns what it takes by the allocator's count.

    What is counted is what the step adds to what was in use before, and `between_bytes`, which is what was. The variables it
    writes to are saved on the host and put back. A step that is within `enough` is measured twice: on a batch that stays where it is, in the
    memory that planning left behind, and once more as training begins, without results of a run before, and goes on, with each batch made
    while the one before is in memory. The allocator cuts its memory in another way for each, and gives a value up to twice what it asks for.

    Of a step that draws from TensorFlow's random state, which goes on from call to call of a function, a copy is run, and gone afterwards.

    Args:
      enough: Bytes above which it need not be known exactly.
      batch: The step's flattened arguments, which somebody else holds; without them, data is made up.

    Returns:
      What it took, or None when the step cannot run on such data, or prints, writes files or calls Python, which a trial must not.
    """
    if op_rules.is_seen_outside(traced.function):
        return None
    if op_rules.draws(traced.function):
        found = _trial(of_its_own(run, traced), traced, device, enough, batch)
        gc.collect()  # functions are in cycles
        return found and replace(found, held_bytes=0)
    return _trial(run, traced, device, enough, batch)


def of_its_own(run: Callable[..., Any], traced: TracedStep) -> Callable[..., Any]:
    """Returns what runs a step without moving TensorFlow's random state on: of a step that draws from it a copy, else the same."""
    if not op_rules.draws(traced.function):
        return run
    return run.copy() if isinstance(run, Replayed) else tf.function(run, autograph=False)


def _trial(run: Callable[..., Any], traced: TracedStep, device: str, enough: int, given: Sequence[tf.Tensor] | None) -> Trial | None:
    loops = traced.has_loops
    at_first, held, rooms = devices.bytes_in_use(device), 0, rooms_bytes(run)
    stays: list[int] = []
    moves: list[int] = []
    seconds: list[float] = []

    def peaks(*, moving: bool) -> Generator[int]:
        result: Any = None
        # What is in use beside what the step counts. Of batches that are made here their own bytes only: what the allocator adds is the step's.
        resting = devices.bytes_in_use(device) + (argument_bytes(traced) if moving or not given else 0)
        resting -= traced.between_bytes + (held if moving else 0)
        batch = given or made_up(traced)
        with kept_state(traced.function.variables):
            while True:
                batch = _elsewhere(batch) if moving else batch
                results = devices.all_held_bytes(result)
                started = time.perf_counter()
                result, _, peak = devices.peak_above(device, partial(run, *batch))
                seconds.append(time.perf_counter() - started)
                # `between_bytes` has the results of a run before, and here they were in use beside it; after the first run, which found
                # none, as many are taken off, so that all the runs compare. Results in rooms were there all the time.
                yield peak - resting - (results or devices.all_held_bytes(result)) + rooms

    def same(peaks: list[int]) -> bool:
        return not loops and _alike(peaks[-2:])

    def by_turns(peaks: list[int]) -> bool:
        return len(peaks) >= LEAST_MOVING_RUNS - 1 and _alike(peaks[-4::2]) and _alike(peaks[-3::2])

    try:
        with closing(peaks(moving=False)) as found:
            stays = _until(same, found, enough, LOOP_RUNS if loops else CHECK_RUNS)
        # What it is from its first run on is no longer found to be more than what was in use before.
        held = max(0, devices.bytes_in_use(device) - at_first)
        if max(stays[1:]) <= enough:
            # Training begins in what this leaves behind: where the results and our batch were are holes, and the variables were put back.
            with closing(peaks(moving=True)) as found:
                moves = _until(by_turns, found, enough, MOVING_RUNS)
    except tf.errors.ResourceExhaustedError:
        if not stays or not given:  # else there only is no room for another one beside the user's
            most = max(enough + 1, tf.config.experimental.get_memory_info(device)["peak"] - at_first + traced.between_bytes + rooms)
            return Trial(most, most, held)
    except tf.errors.OpError as error:
        log.info("The step cannot be run on trial: %s", error)
        return None
    log.debug("peaks on trial: %s, on batches that move %s; its function holds %s", stays, moves, held)
    usual = sorted([*stays[1:], *moves[1:]])
    fastest = min(seconds[1:], default=None)  # the first run builds what TensorFlow keeps of a function
    return Trial(max([*stays[1:], *moves]), usual[len(usual) // 2], held, fastest)


def _until(steady: Callable[[list[int]], bool], peaks: Iterator[int], enough: int, most: int) -> list[int]:
    """The peaks until they are steady or one is too much; `most` are looked at.

    The first run, which finds memory as whatever ran before left it, decides neither.
    """
    found: list[int] = []
    for peak in islice(peaks, most):
        found.append(peak)
        if len(found) > 1 and (peak > enough or steady(found[1:])):
            break
    return found


def _alike(peaks: list[int]) -> bool:
    return len(peaks) > 1 and max(peaks) - min(peaks) <= SAME * max(peaks)


def made_up(traced: TracedStep) -> list[tf.Tensor]:
    """Returns data for the step's arguments, of their shapes and dtypes."""
    return [some_value(tf.TensorSpec(tensor.shape, tensor.dtype)) for tensor in traced.argument_tensors()]


def _elsewhere(batch: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The same values in other memory, as the next batch of a training loop is made while it holds the one before."""
    return [tf.raw_ops.DeepCopy(x=each) if op_rules.can_be_copied(each.dtype) else each for each in batch]


def _put_back(variable: tf.Variable, value: np.ndarray) -> None:
    """Gives a variable this value to the bit, where it can in the memory that it has.

    An assignment gives it other memory, which may split what the allocator holds in one piece: a step would then measure
    differently before and after.
    """
    if not op_rules.can_be_filled(variable) or tf.shape(variable).numpy().tolist() != list(value.shape):
        variable.assign(value, read_value=False)
        return
    first, stride, whole = np.zeros(value.ndim, np.int32), np.ones(value.ndim, np.int32), (1 << value.ndim) - 1
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=variable.handle, begin=first, end=first, strides=stride, value=value, begin_mask=whole, end_mask=whole
    )
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)  # as in `GraphWriter.overwrite`
