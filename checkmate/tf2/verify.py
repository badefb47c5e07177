"""verify(): runs the plain and the planned step from the same state and says how they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2 import device as devices
from checkmate.tf2.compile import PlannedStep
from checkmate.tf2.distribute import ReplicatedFunction
from checkmate.tf2.execution.differences import (
    Difference,
    Verification,
    as_written,
    compare,
    evaluations,
    move_weights,
    not_in_place,
)
from checkmate.tf2.execution.replay import output_buffers_bytes
from checkmate.tf2.execution.undo import kept_state
from checkmate.tf2.graph import xla
from checkmate.tf2.graph.operations import draws
from checkmate.tf2.memory.profiler import Observation, observe
from checkmate.tf2.ops.table import rule_of
from checkmate.tf2.planned_function import PlannedFunction
from checkmate.tf2.planning.request import Planned
from checkmate.tf2.planning.sliced_steps import SlicedRun

MORE_STEPS = 4
"""How many further pairs of plain steps measure the model's own sensitivity, if two steps do not
explain a difference."""

MORE_OBSERVATIONS = 2
"""How often, at most, the profiler observes a step again if evaluations seem not to have run."""

SUMS = 0.1
"""A batch in slices adds its sums up in another order. A difference in a sum counts as rounding up
to this share of what one slice more or less would make: a sum of float32 over many positions of one
sign, such as the gradient of a convolution's bias, loses more digits in the plain step than moved
weights show."""

Values = list[np.ndarray]
"""The outputs of a step, then the variables after it."""


def verify(step: Any, batch: Sequence[Any]) -> Verification:
    """Compares a planned step with the step it was made from, on one batch, and puts all variables
    back to their values before. A step that XLA compiles as a whole is compared with one that XLA
    compiles, one of which it compiles parts with the step without XLA, up to rounding; which ops
    ran is not known then.

    Each step runs a few times from the same state; the profiler observes the planned one. Only
    outputs and variables are compared: a gradient shows in what it did to the variables and to the
    optimizer's slots.

    Args:
      step: What `compile` or `function` returned; for `fit` and under a strategy, one of
        `checkmate.tf2.planned(model).steps`.
      batch: The arguments of one call: (inputs, labels) for `compile`.

    Returns:
      What was found; its attribute `ok` sums it up.

    Raises:
      TraceError: The batch does not fit the step, or it is no planned step.
      CheckmateError: TensorFlow's profiler cannot be used.

    Examples:
      >>> step = checkmate.tf2.compile(model, "mse", "adam", images, labels, budget="60%")
      >>> assert checkmate.tf2.verify(step, (images, labels)).ok
    """
    known = isinstance(step, (PlannedStep, PlannedFunction))
    if not known or isinstance(step, ReplicatedFunction):
        raise TraceError(
            f"verify takes a planned step; got {type(step).__name__}. One is what"
            " checkmate.tf2.compile and checkmate.tf2.function return; for `fit`, and under a"
            " strategy, there is checkmate.tf2.planned(model).steps."
        )
    planned, flat = step.planned_for(*batch)
    return _Verifier(planned, flat, step.budget_bytes).run()


class _Verifier:
    def __init__(self, planned: Planned, flat: list[tf.Tensor], budget_bytes: int):
        self.planned, self.traced, self.flat = planned, planned.traced, flat
        self.part = planned.innermost  # what the plan is of
        run = planned.run.one_slice if isinstance(planned.run, SlicedRun) else planned.run
        self.run_part = partial(run, *flat)
        self.budget_bytes = budget_bytes
        self.device = devices.training_device()
        self.reports = devices.allocator_reports(self.device)
        self.variables = list(self.traced.variables)
        self.notes: list[str] = []
        self._step: Any = self.traced.function

    def run(self) -> Verification:
        planned, part, clusters = self.planned, self.part, self.planned.report.clusters
        with kept_state(self.variables) as before:
            ours, peak, seen = self._planned_step()
        self.calls_xla = clusters is not None and clusters.calls != 0
        if clusters is not None and clusters.calls is None:
            self._step = tf.function(self._step, autograph=False, jit_compile=True)
        differences, plain_peak = self._compared(ours, before)
        is_plan = bool(planned.result) and not self.calls_xla  # whose kernels have other names
        counted, not_run, run_again = self._evaluations(seen) if is_plan else (0, (), ())
        if not self.reports:
            self.notes.append(
                "This device's allocator does not report what is in use: nothing is said about"
                " memory."
            )
        return Verification(
            differences=differences,
            planned_evaluations=counted,
            not_run=not_run,
            run_again=run_again,
            plain_peak_bytes=plain_peak if self.reports else None,
            measured_peak_bytes=peak if self.reports else None,
            predicted_peak_bytes=planned.report.expected_peak_bytes,
            budget_bytes=self.budget_bytes,
            lost_bytes=seen.lost_bytes if self.reports else None,
            notes=tuple(self.notes),
            not_in_place=(
                not_in_place(part.traced, part.graph, part.plan, seen.asked) if is_plan else ()
            ),
        )

    def _compared(
        self, ours: Values, before: list[np.ndarray]
    ) -> tuple[tuple[Difference, ...], int | None]:
        """The differences between the steps, none if the plain step does not fit, and the plain
        peak."""
        plain_peak = None
        try:
            with kept_state(self.variables):
                plain, plain_peak = self._values(self._plain)
            others = [self._plain_values(), self._plain_values(moved=True), *self._by_xla()]
        except tf.errors.ResourceExhaustedError:
            self.notes.append(
                "The plain step does not fit on this device, so there is nothing to compare values"
                " with."
            )
            return (), plain_peak
        finally:
            if draws(self.traced.function):
                self.notes.append(
                    "The step draws from TensorFlow's global random state, which goes on from run"
                    " to run: values differ by that."
                )
        differences = self._differences(ours, plain, others, before)
        if not _are_rounding(differences):
            differences = self._without_optimizer(before, differences)
        return differences, plain_peak

    def _by_xla(self) -> list[Values]:
        """Values of the plain step compiled as a whole, which rounds as parts of a plan do that are
        compiled. None where the step draws, which XLA does otherwise, or where XLA refuses it."""
        operations = self.traced.flat.graph.get_operations()
        if not self.calls_xla or any(rule_of(each.type).counter is not None for each in operations):
            return []
        step = tf.function(self._plain, autograph=False, jit_compile=True)
        try:
            with kept_state(self.variables):
                return [self._values(step)[0]]
        except xla.REFUSALS:
            return []

    def _plain_values(self, *, moved: bool = False) -> Values:
        """Values of another plain step, optionally with every weight moved to the next number."""
        with kept_state(self.variables):
            if moved:
                move_weights(self.variables)
            return self._values(self._plain)[0]

    def _without_optimizer(
        self, before: list[np.ndarray], fused: tuple[Difference, ...]
    ) -> tuple[Difference, ...]:
        """The differences without fused kernels, or `fused` if these are no rounding, either."""
        with as_written():
            plain = self._plain_values()
            with kept_state(self.variables):
                ours, _ = self._values(lambda: self.planned.run(*self.flat))
            differences = self._differences(ours, plain, [self._plain_values()], before)
        if not _are_rounding(differences):
            return fused
        worst = max(fused, key=lambda each: each.planned - each.tolerated)
        self.notes.append(
            "Compared without TensorFlow's graph optimizer: it fuses kernels of the two steps"
            f" differently, which rounds differently ({worst.what}: by {worst.planned:.1e}), as it"
            " does in the plain step with the optimizer and without."
        )
        return differences

    def _planned_step(self) -> tuple[Values, int, Observation]:
        run = self.planned.run
        peak = self._planned_peak()  # first: the values that are compared take memory, too
        with kept_state(self.variables):
            run(*self.flat)  # the first run finds other free memory than those of a loop
        with kept_state(self.variables):
            seen = observe(self.run_part)
        values, _ = self._values(lambda: run(*self.flat))
        return values, peak, seen

    def _planned_peak(self) -> int:
        """The peak in a training loop: the results of the step before and the function's constants
        are in memory."""
        if not self.reports:
            return 0
        run = self.planned.run
        # The state is not put back between runs, which would leave other free chunks than training.
        with kept_state(self.variables):
            run(*self.flat)
            results = run(*self.flat)
            results, _, peak = devices.peak_above(self.device, lambda: run(*self.flat))
        del results
        return peak + self.planned.report.memory.uncounted_bytes

    def _evaluations(self, seen: Observation) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """`evaluations`, observed again if an op seems not to have run: the profiler may lose the
        last ops of a thread."""
        kernels_are_traced = devices.kernels_are_traced(self.device)
        against_plan = partial(evaluations, self.part.traced, self.part.plan)
        if not kernels_are_traced:
            self.notes.append(self._what_tells_that_ops_ran())
            if not devices.requests_are_seen(self.device):
                counted, _, run_again = against_plan(seen.ran)
                return counted, (), run_again
        ran, asked = seen.ran, set(seen.asked)
        found = against_plan(ran, asked, kernels_are_traced=kernels_are_traced)
        for _ in range(MORE_OBSERVATIONS):
            if not found[1]:
                break
            with kept_state(self.variables):
                more = observe(self.run_part)
            ran, asked = ran | more.ran, asked | set(more.asked)
            found = against_plan(ran, asked, kernels_are_traced=kernels_are_traced)
        return found

    def _what_tells_that_ops_ran(self) -> str:
        """A note for devices whose kernels the profiler does not trace."""
        said = "TensorFlow's profiler does not trace the kernels of a GPU"
        if not devices.requests_are_seen(self.device):
            return f"{said}, nor CUDA's own allocator: which evaluations ran is not known."
        return (
            f"{said}. Products and convolutions count as run if they requested memory; nothing is"
            " said about other evaluations, nor about how often each ran."
        )

    def _plain(self) -> Any:
        arguments, _ = self.traced.function.structured_input_signature
        return self._step(*tf.nest.pack_sequence_as(arguments, self.flat))

    def _values(self, call: Callable[[], Any]) -> tuple[Values, int]:
        """The values after a call, and the call's peak in the budget's terms: as if the results of
        a call before were in memory, and the planned step's buffers were not."""
        result, _, peak = devices.peak_above(self.device, call) if self.reports else (call(), 0, 0)
        outputs = filter(tf.is_tensor, tf.nest.flatten(result, expand_composites=True))
        values = [np.asarray(each) for each in (*outputs, *self.variables)]
        before = devices.all_value_bytes(result) - output_buffers_bytes(self.planned.run)
        return values, peak + before + self.planned.report.memory.uncounted_bytes

    def _differences(
        self, ours: Values, plain: Values, others: list[Values], before: list[np.ndarray]
    ) -> tuple[Difference, ...]:
        """The differences, by more plain steps where they seem to be no rounding: sums are rounded
        in the order in which threads finish, so that a few steps may not tell."""
        found = self._compared_with(others, ours, plain, before)
        if not _are_rounding(found):
            for _ in range(MORE_STEPS):
                others += [self._plain_values(), self._plain_values(moved=True)]
            found = self._compared_with(others, ours, plain, before)
        return found

    def _compared_with(
        self, others: Sequence[Values], ours: Values, plain: Values, before: list[np.ndarray]
    ) -> tuple[Difference, ...]:
        micro = self.planned.report.micro_batches
        sums = SUMS / micro.count if micro else 0.0
        outputs = len(plain) - len(self.variables)
        names = [f"output {k}" for k in range(outputs)] + [each.name for each in self.variables]
        start = [0] * outputs + list(before)

        def summed(k: int) -> float:
            """0 for an output with a part for each example, which is no sum."""
            is_part = k < outputs and micro and plain[k].shape[:1] == (micro.examples,)
            return 0.0 if is_part else sums

        return tuple(
            compare(names[k], plain[k], ours[k], [o[k] for o in others], start[k], summed(k))
            for k in range(len(plain))
        )


def _are_rounding(differences: tuple[Difference, ...]) -> bool:
    return all(each.is_rounding for each in differences)
