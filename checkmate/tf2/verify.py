"""verify(): runs the plain and the planned step from the same state and says in what they
differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.core.plan import Compute, Plan
from checkmate.core.replay import taken_over
from checkmate.tf2 import device as devices
from checkmate.tf2 import ops as op_rules
from checkmate.tf2.execution.replay import EVALUATION_MARK, Replayed, rooms_bytes
from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.flat_graph import rounded_up
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.confirm import kept_state
from checkmate.tf2.memory.profiler import Observation, observe
from checkmate.tf2.planning.planned import Planned
from checkmate.units import format_bytes

TOLERATED = 10.0
"""Differences up to this many times the model's own sensitivity count as rounding."""

LAST_BITS = 4
"""So do differences of this many units in the last place of the largest number."""

MORE_STEPS = 4
"""How many further pairs of plain steps tell the model's own sensitivity where two do not explain a
difference."""

MORE_LOOKS = 2
"""How often a step is watched again at most where evaluations seem not to have run."""

_REPLACEMENT = re.compile(
    rf"/[A-Za-z]+Optimizer/[^/]+_{re.escape(EVALUATION_MARK.removeprefix('/'))}([0-9]+)$"
)
"""How TensorFlow's optimizer names what it puts in the place of X/evaluation_k:
X/ArithmeticOptimizer/RULE_evaluation_k."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a tensor of the planned step is from that of the plain one.

    Attributes:
      what: Which tensor.
      planned: The largest difference, relative to the largest plain value (of a variable: to its
        largest change in the step).
      sensitivity: The same between plain steps, one of which began with every trainable weight
        moved to the next number.
      tolerated: What counts as rounding: ten times the sensitivity, and the last bits of a number;
        for integers nothing.
    """

    what: str
    planned: float
    sensitivity: float
    tolerated: float

    @property
    def is_rounding(self) -> bool:
        """True for equal values, and for differences that rounding in the plain step makes, too."""
        return self.planned <= self.tolerated


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found; `print` it.

    Attributes:
      differences: Of every output (prediction, loss) and every variable (weights, optimizer slots,
        BatchNorm's averages, seeds). Where they are more than rounding, and vanish when
        TensorFlow's graph optimizer is off in both steps, they are those without it.
      planned_evaluations: TensorFlow ops that the plan evaluates, repetitions counted.
      not_run: Evaluations of the plan that did not run, but for elementwise and constant ones,
        which TensorFlow's own optimizer may take out, kernels that it ran within others, and loops
        and functions compiled by XLA, of which nothing need be seen.
      run_again: Evaluations that ran more than once, and ops with side effects that the plan
        repeats: both must be empty.
      plain_peak_bytes: Measured peak of the plain step in the terms of a budget; None where the
        allocator does not report or it does not fit.
      measured_peak_bytes: The same of the planned step.
      predicted_peak_bytes: What the step's report says to expect.
      budget_bytes: The budget.
      lost_bytes: What of the measured peak the allocator gave out beyond what was asked for.
      notes: Cautions.
      not_in_place: Evaluations that asked for memory although the plan counts their value as
        written over an input.
    """

    differences: tuple[Difference, ...]
    planned_evaluations: int
    not_run: tuple[str, ...]
    run_again: tuple[str, ...]
    plain_peak_bytes: int | None
    measured_peak_bytes: int | None
    predicted_peak_bytes: int
    budget_bytes: int
    lost_bytes: int | None
    notes: tuple[str, ...] = field(default=())
    not_in_place: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Same values up to rounding, everything ran as planned, and the measured peak is within
        the budget."""
        fits = self.measured_peak_bytes is None or self.measured_peak_bytes <= self.budget_bytes
        return (
            fits
            and not self.not_run
            and not self.run_again
            and all(each.is_rounding for each in self.differences)
        )

    def __str__(self) -> str:
        lines = [
            f"verified: {'the planned step is the plain one' if self.ok else 'NOT AS PLANNED'}"
        ]
        unequal = [each for each in self.differences if each.planned]
        lines.append(
            f"  {len(self.differences) - len(unequal)} of {len(self.differences)} outputs and"
            " variables equal to the bit"
        )
        for each in sorted(
            unequal, key=lambda each: each.planned / max(each.tolerated, 1e-300), reverse=True
        )[:5]:
            how = "rounding" if each.is_rounding else "NOT ROUNDING"
            lines.append(
                f"    {each.what}: differs by {each.planned:.1e}, two plain steps by"
                f" {each.sensitivity:.1e}: {how}"
            )
        lines.append(
            f"  {self.planned_evaluations} evaluations planned, {len(self.not_run)} not run,"
            f" {len(self.run_again)} run again"
        )
        lines += [f"    not run: {name}" for name in self.not_run[:5]] + [
            f"    run again: {name}" for name in self.run_again[:5]
        ]
        lines += [f"    not in place: {name}" for name in self.not_in_place[:5]]
        if self.measured_peak_bytes is not None:
            plain = format_bytes(self.plain_peak_bytes) if self.plain_peak_bytes else "not measured"
            lines.append(
                f"  peak {format_bytes(self.measured_peak_bytes)} measured,"
                f" {format_bytes(self.predicted_peak_bytes)} expected,"
                f" {format_bytes(self.budget_bytes)} budget, {plain} for the plain step"
            )
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def verify(step: Any, batch: Sequence[Any]) -> Verification:
    """Compares a planned step with the step it was made from, on one batch, and puts all variables
    back as they were.

    Each step runs a few times from the same state; the profiler watches the planned one. Nothing is
    compared but outputs and variables: a gradient shows in what it did to the variables and to the
    optimizer's slots.

    Args:
      step: What `compile` returned.
      batch: The arguments of one call, (inputs, labels).

    Returns:
      What was found. `ok` is the answer in one word.

    Raises:
      TraceError: The batch does not fit the step.
      CheckmateError: TensorFlow's profiler cannot be used.
    """
    planned, flat = step.planned_for(*batch)
    return _Verifier(planned, flat, step.budget_bytes).run()


class _Verifier:
    def __init__(self, planned: Planned, flat: list[tf.Tensor], budget_bytes: int):
        self.planned, self.traced, self.flat, self.budget_bytes = (
            planned,
            planned.traced,
            flat,
            budget_bytes,
        )
        self.device = devices.training_device()
        self.variables = list(self.traced.function.variables)
        self.notes: list[str] = []

    def run(self) -> Verification:
        """All of it."""
        with kept_state(self.variables) as before:
            ours, peak, seen = self._planned_step()
        plain = again = moved = plain_peak = None
        try:
            with kept_state(self.variables):
                plain, plain_peak = self._values(self._plain)
            with kept_state(self.variables):
                again, _ = self._values(self._plain)
            with kept_state(self.variables):
                move_weights(self.variables)
                moved, _ = self._values(self._plain)
        except tf.errors.ResourceExhaustedError:
            self.notes.append(
                "The plain step does not fit on this device, so there is nothing to compare values"
                " with."
            )
        if op_rules.draws(self.traced.function):
            self.notes.append(
                "The step draws from TensorFlow's global random state, which goes on from run to"
                " run: values differ by that."
            )
        differences = (
            () if moved is None else self._differences(ours, plain, (again, moved), before)
        )
        if not all(each.is_rounding for each in differences):
            differences = self._differences(
                ours, plain, (again, moved, *self._more_plain_steps()), before
            )
        if not all(each.is_rounding for each in differences):
            differences = self._as_written(before, differences)
        counted, not_run, run_again = (
            self._evaluations(seen) if self.planned.result else (0, (), ())
        )
        reports = devices.allocator_reports(self.device)
        if not reports:
            self.notes.append(
                "This device's allocator does not report what is in use: nothing is said about"
                " memory."
            )
        return Verification(
            differences,
            counted,
            not_run,
            run_again,
            plain_peak if reports else None,
            peak if reports else None,
            self.planned.report.expected_peak_bytes,
            self.budget_bytes,
            seen.lost_bytes if reports else None,
            tuple(self.notes),
            not_in_place(self.planned, seen.asked) if self.planned.result else (),
        )

    def _more_plain_steps(self) -> Iterator[list[np.ndarray]]:
        """Values of further plain steps, for where few tell too little: which of several threads is
        first decides how sums are rounded."""
        for _ in range(MORE_STEPS):
            with kept_state(self.variables):
                yield self._values(self._plain)[0]
            with kept_state(self.variables):
                move_weights(self.variables)
                yield self._values(self._plain)[0]

    def _as_written(
        self, before: list[np.ndarray], fused: tuple[Difference, ...]
    ) -> tuple[Difference, ...]:
        """The differences between the steps when no kernels are fused; `fused` where they are as
        large."""
        found = []
        with as_written():
            for call in (self._plain, lambda: self.planned.run(*self.flat), self._plain):
                with kept_state(self.variables):
                    found.append(self._values(call)[0])
            plain, ours, again = found
            differences = self._differences(ours, plain, (again,), before)
            if not all(each.is_rounding for each in differences):
                differences = self._differences(
                    ours, plain, (again, *self._more_plain_steps()), before
                )
        if not all(each.is_rounding for each in differences):
            return fused
        worst = max(fused, key=lambda each: each.planned - each.tolerated)
        self.notes.append(
            "Compared without TensorFlow's graph optimizer: it fuses kernels of the two steps"
            f" differently, which rounds differently ({worst.what}: by {worst.planned:.1e}), as it"
            " does in the plain step with the optimizer and without."
        )
        return differences

    def _planned_step(self) -> tuple[list[np.ndarray], int, Observation]:
        # The peak first: what is compared here lies in memory, too.
        run, peak = (
            self.planned.run,
            self._planned_peak(),
        )
        with kept_state(self.variables):
            run(*self.flat)  # as in a loop: the first run finds memory as something else left it
        with kept_state(self.variables):
            seen = observe(lambda: run(*self.flat))
        values, _ = self._values(lambda: run(*self.flat))
        return values, peak, seen

    def _planned_peak(self) -> int:
        """Of the step as it trains: where it has been running, with the results of a run before in
        memory, and what its function holds."""
        if not devices.allocator_reports(self.device):
            return 0
        # Not put back in between, which would leave other holes than training does.
        with kept_state(self.variables):
            self.planned.run(*self.flat)
            before = devices.bytes_in_use(self.device)
            held = self.planned.run(*self.flat)
            held, _, peak = devices.peak_above(self.device, lambda: self.planned.run(*self.flat))
        del held
        held = self._held_by_function() + rooms_bytes(self.planned.run)
        return peak - before + self.traced.before_bytes + self.planned.report.outside_bytes + held

    def _held_by_function(self) -> int:
        """Constants of the planned step's graph, and those that TensorFlow folds in it, lie in
        memory as long as it lives: see a copy."""
        if not isinstance(self.planned.run, Replayed):
            return 0
        before = devices.bytes_in_use(self.device)
        run = self.planned.run.copy()
        with kept_state(self.variables):
            run(*self.flat)
        return max(0, devices.bytes_in_use(self.device) - before)

    def _evaluations(self, seen: Observation) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """What ran and what did not, after more looks where something seems not to have.

        TensorFlow's profiler now and then loses the last ops of a thread.
        """
        ran = seen.ran
        found = evaluations(self.traced, self.planned.plan, ran)
        for _ in range(MORE_LOOKS):
            if not found[1]:
                break
            with kept_state(self.variables):
                ran = ran | observe(lambda: self.planned.run(*self.flat)).ran
            found = evaluations(self.traced, self.planned.plan, ran)
        return found

    def _plain(self) -> Any:
        arguments, _ = self.traced.function.structured_input_signature
        return self.traced.function(*tf.nest.pack_sequence_as(arguments, self.flat))

    def _values(self, call: Callable[[], Any]) -> tuple[list[np.ndarray], int]:
        """Outputs, then variables, as they are after a call; and the peak in the budget's terms, as
        if the results of one before were held."""
        result, now, peak = (
            devices.peak_above(self.device, call)
            if devices.allocator_reports(self.device)
            else (call(), 0, 0)
        )
        outputs = [
            each for each in tf.nest.flatten(result, expand_composites=True) if tf.is_tensor(each)
        ]
        values = [np.asarray(each) for each in (*outputs, *self.variables)]
        return values, peak - now + self.traced.between_bytes + self.planned.report.outside_bytes

    def _differences(
        self,
        ours: list[np.ndarray],
        plain: list[np.ndarray],
        others: Sequence[list[np.ndarray]],
        before: list[np.ndarray],
    ) -> tuple[Difference, ...]:
        outputs = len(plain) - len(self.variables)
        names = [f"output {k}" for k in range(outputs)] + [
            variable.name for variable in self.variables
        ]
        start = [0] * outputs + list(before)
        return tuple(
            compare(names[k], plain[k], ours[k], [other[k] for other in others], start[k])
            for k in range(len(plain))
        )


def move_weights(variables: Iterable[Any]) -> None:
    """Moves every trainable number to the next one: what a step makes of that is its own
    sensitivity to rounding."""
    for variable in variables:
        if variable.dtype.is_floating and variable.trainable:
            variable.assign(
                np.nextafter(value := variable.numpy(), np.full_like(value, np.inf)),
                read_value=False,
            )


@contextmanager
def as_written() -> Iterator[None]:
    """Functions run their ops as they are written: TensorFlow's graph optimizer, which fuses and
    replaces some, is off."""
    name = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options().get(name, False)
    tf.config.optimizer.set_experimental_options({name: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({name: before})


def compare(
    what: str, plain: np.ndarray, ours: np.ndarray, others: Sequence[np.ndarray], start: Any
) -> Difference:
    """Compares one tensor of the planned step with the plain one, and that with the plain ones of
    other runs.

    Args:
      start: What it was before the step, 0 for what did not exist.
    """
    if plain.dtype.kind in "OSUiub" and plain.dtype.name != "bfloat16":
        return Difference(what, 0.0 if np.array_equal(plain, ours) else np.inf, 0.0, 0.0)
    kind = plain.dtype if plain.dtype.kind == "f" else np.float32
    bits = np.finfo(kind).eps if plain.dtype.name != "bfloat16" else 2.0**-7
    reference = plain.astype(np.float64)
    change = float(np.max(np.abs(reference - start), initial=0.0)) or 1.0
    sensitivity = max((_largest(reference, other) for other in others), default=0.0)
    last_bits = LAST_BITS * bits * float(np.max(np.abs(reference), initial=0.0))
    return Difference(
        what,
        _largest(reference, ours) / change,
        sensitivity / change,
        max(TOLERATED * sensitivity, last_bits) / change,
    )


def _largest(plain: np.ndarray, other: np.ndarray) -> float:
    other = other.astype(np.float64)
    if np.array_equal(plain, other, equal_nan=True):
        return 0.0
    difference = float(np.max(np.abs(plain - other)))
    return np.inf if np.isnan(difference) else difference


def evaluations(
    traced: TracedStep, plan: Plan, seen: Counter[tuple[str, str]]
) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Compares what was `seen` to run, (op name, kernel) -> times, with a plan.

    Returns: (evaluations of TensorFlow ops that the plan asks for, those of them that did not run,
      those that ran again or must not be repeated). What TensorFlow's own optimizer took out, and a
      kernel that it runs as part of another, is not missed.
    """
    expected: dict[str, tf.Operation] = {}
    again = []
    for i, times in Counter(plan.computed).items():
        for operation in traced.groups[i]:
            expected.update(
                {f"{operation.name}{EVALUATION_MARK}{k}": operation for k in range(times)}
            )
            if (
                times > 1
                and op_rules.is_stateful(operation)
                and not bodies.only_reads(traced.function.graph, operation)
            ):
                again.append(operation.name)
    ran: Counter[str] = Counter()
    fused_kernels = 0
    # Also in the name of an op too small to be one of the plan.
    for (name, kernel), times in seen.items():
        name = _REPLACEMENT.sub(rf"{EVALUATION_MARK}\1", name)
        found = re.search(rf"(?:^|/)planned/(.*?{re.escape(EVALUATION_MARK)}[0-9]+)(.*)$", name)
        if found:
            # A call of a function is replaced by the ops inside of it: X/evaluation_k/op, which a
            # loop may run often.
            ran[found[1]] = max(ran[found[1]], 1 if found[2] else times)
        fused_kernels += "Fused" in kernel or "WithBias" in kernel
    missing = [
        name for name, operation in expected.items() if not ran[name] and not _may_vanish(operation)
    ]
    inside = {name for name in missing if expected[name].type in op_rules.FUSED_BY_TENSORFLOW}
    if len(inside) <= fused_kernels:
        missing = [name for name in missing if name not in inside]
    again += [name for name, times in ran.items() if times > 1]
    return len(expected), tuple(missing), tuple(again)


def not_in_place(planned: Planned, asked: Mapping[str, int]) -> tuple[str, ...]:
    """Compares what ops `asked` the allocator for, op name -> bytes, with the evaluations that a
    plan counts as in place.

    Returns: The names of the evaluations of which an op asked for as much as the value takes and
      more than the op's workspace.
    """
    named = {name.partition("planned/")[2]: size for name, size in asked.items()}
    graph, steps, seen, found = planned.graph, planned.plan.steps, Counter[int](), []
    for k, step in enumerate(steps):
        if not isinstance(step, Compute):
            continue
        op, number = graph.ops[step.op], seen[step.op]
        seen[step.op] += 1
        if op.workspace_bytes >= op.output_bytes or taken_over(graph, steps, k) is None:
            continue
        names = [
            f"{operation.name}{EVALUATION_MARK}{number}"
            for operation in planned.traced.groups[step.op]
        ]
        found += [name for name in names if rounded_up(named.get(name, 0)) >= op.output_bytes]
    return tuple(found)


def _may_vanish(operation: tf.Operation) -> bool:
    """True for what TensorFlow's own optimizer takes out: constants and sizes are folded; what is
    listed here can do nothing.

    A product with one, a sum with zero, a sum over no axis, two transpositions, one that moves
    nothing, one beside a product of matrices that can do it. True for a loop, too, which is seen by
    the kernels within: the profiler leaves out those that proved cheap in about a hundred runs. And
    for a function that XLA compiled, which runs under names of XLA's.
    """
    if operation.type == "Sum" and _adds_nothing(operation):
        return True
    if operation.type == "Transpose":
        around = [op_rules.source(operation.inputs[0]).op, *_readers(operation)]
        if _moves_nothing(operation) or any(
            other.type in ("Transpose", "MatMul", "BatchMatMulV2") for other in around
        ):
            return True
    if (
        operation.type in op_rules.IN_PLACE | bodies.LOOPS
        or operation.node_def.attr["_XlaMustCompile"].b
        or op_rules.role(operation) is op_rules.Role.SHAPE
    ):
        return True
    return bool(operation.inputs) and all(
        tensor.op.type == "Const" or _may_vanish(tensor.op) for tensor in operation.inputs
    )


def _moves_nothing(transposition: tf.Operation) -> bool:
    """True where the axes of more than one element stay in order, or the order is computed, of
    which only TensorFlow's optimizer knows."""
    shape, order = transposition.inputs[0].shape, tf.get_static_value(transposition.inputs[1])
    if order is None or shape.rank is None:
        return order is None
    moved = [axis for axis in order if shape[axis] != 1]
    return moved == sorted(moved)


def _adds_nothing(total: tf.Operation) -> bool:
    """True where a sum has as many elements as what it is of; the gradient of a broadcast tells it
    only by the shape that it is given."""
    seen = [
        total.outputs[0],
        *(reader.outputs[0] for reader in total.outputs[0].consumers() if reader.type == "Reshape"),
    ]
    sizes = {tensor.shape.num_elements() for tensor in seen} - {None}
    return sizes == {total.inputs[0].shape.num_elements()}


def _readers(operation: tf.Operation) -> list[tf.Operation]:
    """The ops that read the first output, through aliases."""
    found = []
    for reader in operation.outputs[0].consumers():
        found += _readers(reader) if op_rules.role(reader) is op_rules.Role.ALIAS else [reader]
    return found
