"""RunningStep: a planned step in training, whose memory is read off the allocator at each call.

The first steps confirm what was predicted. To read the allocator's counts costs a microsecond. More
may come to be in use than when the step was planned: the buffers of a pipeline fill, and the
program makes another model. So bytes in use are read before each step, too.
"""

from __future__ import annotations

import gc
import logging
import time
from typing import Any

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.execution.undo import Undo
from checkmate.tf2.graph.operations import draws, is_constant
from checkmate.tf2.graph.sizes import exact_bytes
from checkmate.tf2.ops.table import rule_of
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.request import Planned, Reason
from checkmate.units import format_bytes

log = logging.getLogger("checkmate")


FEW_STEPS, UNUSED_SHARE = 3, 0.03
"""After how many steps a cheaper plan is looked for, once, and for which share of the predicted
activations that were not in use."""

LEAST_CORRECTION = 1.01
"""By which factor activations are at least taken to be more than predicted, where a step took more
than the budget."""

HAS_DRAWN = (
    "Its plan stays: it has drawn random numbers from the state of its kernels, which another plan"
    " would draw again from the first. `keras.random` and `tf.random.Generator` keep theirs in"
    " variables."
)


class OutOfMemory(Exception):
    """Memory ran out in a step that was undone."""


class RunningStep:
    """A planned step in training.

    Attributes:
      peak_bytes: Of a step, by the allocator's count; 0 where that is not known.
      rise_bytes: Its largest difference from the bytes in use when a step began.
      seconds: The shortest time of a step but the first; None before the second.
      is_final: No other plan is looked for.
    """

    def __init__(self, planned: Planned, budget_bytes: int, name: str):
        self.planned, self.budget_bytes, self._name = planned, budget_bytes, name
        self.steps = self.peak_bytes = self.rise_bytes = 0
        self.seconds: float | None = None
        self.is_final = False
        self._above: Reason | None = None
        self._device = devices.training_device()
        # In memory from the first step on.
        self._constant_bytes = sum(
            exact_bytes(operation.outputs[0])
            for operation in planned.innermost.traced.flat.graph.get_operations()
            if is_constant(operation)
        )
        self._reports = devices.allocator_reports(self._device)
        # Where a first run tries algorithms, it takes what later ones do not.
        self._tries = self._device.startswith("GPU") and any(
            rule_of(operation.type).tries_algorithms
            for group in planned.innermost.traced.groups
            for operation in group
        )

    def __call__(self, *flat: tf.Tensor) -> Any:
        """Runs a step. After `OutOfMemory` all is as before it."""
        # While a function is traced there are no values to copy.
        known = self.steps or tf.inside_function()
        run = self.planned.run if known else self._undone_if_out_of_memory
        if not self._reports:
            return self._timed(run, flat)
        before, highest = self._counts()
        constants = 0 if self.steps else self._constant_bytes
        if highest > self.budget_bytes:  # by something else: a step's peak would not be seen
            devices.forget_peak(self._device)
            highest = before
        result = self._timed(run, flat)
        peak = self._counts()[1]
        if peak > highest or not self.peak_bytes:
            self.peak_bytes = max(self.peak_bytes, peak)
            self.rise_bytes = max(self.rise_bytes, peak - before - constants)
        if peak > self.budget_bytes and not self.is_final and (self.steps > 1 or not self._tries):
            more, budget = format_bytes(peak - self.budget_bytes), format_bytes(self.budget_bytes)
            why = f"Step {self.steps} of {self._name!r} took {format_bytes(peak)},"
            why += f" {more} more than the budget of {budget}."
            correction = max(self.correction, LEAST_CORRECTION)
            self._above = Reason(why, f"a step took {more} more", correction)
            log.warning("%s The next step runs under a lower plan, if there is one.", why)
        return result

    def reason_to_plan_anew(self) -> Reason | None:
        """Where the last step was above the budget, the next one would be, or a cheaper plan may
        pay; else None."""
        if self.is_final:
            return None
        if self._above:
            reason, self._above = self._above, None
            return reason
        if excess := self._excess_bytes():
            more, budget = format_bytes(excess), format_bytes(self.budget_bytes)
            why = f"{self._name!r} may take {more} more than the budget of {budget}"
            words = f"{more} too much with what is in use now"
            return Reason(f"{why} with what is in use now.", words, max(self.correction, 1.0))
        if self.steps == FEW_STEPS and self._may_be_cheaper():
            words = "takes less than predicted"
            return Reason(f"{self._name!r} {words}.", words, self.correction)
        return None

    def _may_be_cheaper(self) -> bool:
        """Whether activations were fewer than predicted, and recomputation lasts longer in many
        steps than planning did."""
        planned = self.planned
        if planned.result is None or planned.in_slices or self.correction > 1 - UNUSED_SHARE:
            return False
        seconds = TUNING.steps * (planned.cost - planned.graph.total_cost)
        return self._reports and seconds > sum(planned.report.seconds.values())

    def _excess_bytes(self) -> int:
        """The next step's expected peak above the budget, by the bytes in use now; 0 for none, or
        where the allocator does not report."""
        rise = self.rise_bytes or self.planned.rise_bytes
        if not self._reports or not rise:
            return 0
        if self._counts()[0] + rise <= self.budget_bytes:
            return 0
        gc.collect()  # what is in reference cycles is in use only until it is collected
        devices.synchronize()
        return max(0, self._counts()[0] + rise - self.budget_bytes)

    @property
    def correction(self) -> float:
        """Measured bytes above those in use at the start of a step, as a multiple of the predicted
        ones."""
        return self.rise_bytes / self.planned.rise_bytes if self.planned.rise_bytes else 1.0

    @property
    def has_drawn(self) -> bool:
        """Whether steps drew random numbers whose state the kernels of this plan keep."""
        return self.steps > 0 and draws(self.planned.traced.function)

    def _counts(self) -> tuple[int, int]:
        """Bytes in use now, and the peak, with those that the allocator does not count."""
        found = tf.config.experimental.get_memory_info(self._device)
        uncounted = self.planned.report.memory.uncounted_bytes
        return found["current"] + uncounted, found["peak"] + uncounted

    def _timed(self, run: Any, flat: tuple[tf.Tensor, ...]) -> Any:
        started = time.perf_counter()
        result = run(*flat)
        seconds = time.perf_counter() - started
        if self.steps and self._device.startswith("CPU"):  # a GPU's kernels run on
            self.seconds = min(self.seconds or seconds, seconds)
        self.steps += 1
        return result

    def _undone_if_out_of_memory(self, *flat: tf.Tensor) -> Any:
        undo = Undo.before(self.planned.run, self.planned.traced)
        try:
            return self.planned.run(*flat)
        except tf.errors.ResourceExhaustedError as error:
            changed, effects = undo.undo(error)
            if not changed and not effects:
                why = f"{self._name!r} ran out of memory in its first step, which was undone."
                log.warning("%s It is done again under a lower plan, if there is one.", why)
                raise OutOfMemory(why) from error
            listed = ", ".join(changed[:5]) + (", ..." if len(changed) > 5 else "")
            said = f" These variables may have changed: {listed}." if changed else ""
            if effects:
                said += f" These side effects may have happened: {', '.join(effects[:5])}."
            cure = "give a smaller budget"
            if self.planned.result is None:  # no plan was found, or none was needed
                cure = 'use a smaller batch, or slices of it: micro_batches="auto"'
            raise tf.errors.ResourceExhaustedError(
                error.node_def,
                error.op,
                f"{error.message}\n{self._name!r} ran out of memory within the budget of"
                f" {format_bytes(self.budget_bytes)}, in a step that cannot be undone.{said}"
                f" Restore a checkpoint, and {cure}.",
            ) from error
