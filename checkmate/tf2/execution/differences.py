"""How far the values of two steps differ, and whether rounding explains it; the evaluations that
the profiler saw of a planned step, compared with the plan."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.core.allocator import rounded_up
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Compute, Plan
from checkmate.core.replay import reused_input
from checkmate.tf2.execution.replay import EVALUATION_MARK, SCOPE
from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.operations import (
    is_constant,
    is_loop,
    is_stateful,
    keeps_order,
    role_of,
    source_of,
)
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.rule import Eager, Fusion, Role, Shares
from checkmate.tf2.ops.table import rule_of
from checkmate.units import format_bytes


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings of `verify`; `print` them.

    Attributes:
      differences: Of every output (prediction, loss) and every variable (weights, optimizer slots,
        BatchNorm's averages, seeds). If they are more than rounding, and vanish when TensorFlow's
        graph optimizer is off in both steps, they are those without it.
      planned_evaluations: TensorFlow ops that the plan evaluates, repetitions counted.
      not_run: Evaluations of the plan that did not run. They do not include elementwise and
        constant ones, which TensorFlow's optimizer may remove, kernels that ran within others, and
        loops and functions compiled by XLA, of which the profiler need not see anything. On a GPU
        they are products and convolutions that requested no memory.
      run_again: Evaluations that ran more than once, which is not seen on a GPU, and ops with side
        effects that the plan repeats.
      plain_peak_bytes: Measured peak of the plain step in the terms of a budget; None if the
        allocator does not report or the step does not fit.
      measured_peak_bytes: The same of the planned step.
      predicted_peak_bytes: The peak that the step's report predicts.
      budget_bytes: The budget.
      lost_bytes: Bytes of the measured peak that the allocator handed out beyond what was
        requested.
      notes: Cautions.
      not_in_place: Evaluations that requested memory although the plan counts their value as
        written over an input.

    Examples:
      >>> found = checkmate.tf2.verify(step, (images, labels))
      >>> print(found)
      >>> found.ok, found.measured_peak_bytes, found.budget_bytes
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
    notes: tuple[str, ...] = ()
    not_in_place: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if values are equal up to rounding, everything ran as planned, and the measured peak
        is within the budget."""
        fits = self.measured_peak_bytes is None or self.measured_peak_bytes <= self.budget_bytes
        ran = not self.not_run and not self.run_again
        return fits and ran and all(each.is_rounding for each in self.differences)

    def __str__(self) -> str:
        found = "the planned step is the plain one" if self.ok else "NOT AS PLANNED"
        lines = [f"verified: {found}"]
        unequal = [each for each in self.differences if each.planned]
        lines.append(
            f"  {len(self.differences) - len(unequal)} of {len(self.differences)} outputs and"
            " variables equal to the bit"
        )
        unequal.sort(key=lambda each: each.planned / max(each.tolerated, 1e-300), reverse=True)
        for each in unequal[:5]:
            how = "rounding" if each.is_rounding else "NOT ROUNDING"
            lines.append(
                f"    {each.what}: differs by {each.planned:.1e}, two plain steps by"
                f" {each.sensitivity:.1e}: {how}"
            )
        lines.append(
            f"  {self.planned_evaluations} evaluations planned, {len(self.not_run)} not run,"
            f" {len(self.run_again)} beyond the plan"
        )
        lines += [f"    not run: {name}" for name in self.not_run[:5]]
        lines += [f"    beyond the plan: {name}" for name in self.run_again[:5]]
        lines += [f"    not in place, against the plan: {name}" for name in self.not_in_place[:5]]
        if self.measured_peak_bytes is not None:
            plain = "not measured"
            if self.plain_peak_bytes:
                plain = f"{format_bytes(self.plain_peak_bytes)} measured"
            lines.append(
                f"  planned peak {format_bytes(self.measured_peak_bytes)} measured,"
                f" {format_bytes(self.predicted_peak_bytes)} predicted; budget"
                f" {format_bytes(self.budget_bytes)}; plain peak {plain}"
            )
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


TOLERATED = 10.0
"""Differences up to this many times the model's own sensitivity count as rounding."""

LAST_BITS = 4
"""So do differences of this many units in the last place of the largest number."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a tensor of the planned step is from that of the plain step.

    Attributes:
      planned: The largest difference, relative to the largest plain value (of a variable: to its
        largest change in the step).
      sensitivity: The same between plain steps, one of which began with every trainable weight
        moved to the next number.
      tolerated: The largest that counts as rounding: ten times the sensitivity, and the last bits
        of a number; for integers nothing.
    """

    what: str
    planned: float
    sensitivity: float
    tolerated: float

    @property
    def is_rounding(self) -> bool:
        return self.planned <= self.tolerated


def compare(
    what: str,
    plain: np.ndarray,
    ours: np.ndarray,
    others: Sequence[np.ndarray],
    start: Any,
    sums: float = 0.0,
) -> Difference:
    """Compares a tensor of the planned step with that of the plain step.

    Args:
      others: Its values after other plain steps.
      start: Its value before the step; 0 for what did not exist.
      sums: A relative difference that counts as rounding, too, where sums are added up in another
        order.
    """
    if plain.dtype.kind in "OSUiub" and plain.dtype.name != "bfloat16":
        return Difference(what, 0.0 if np.array_equal(plain, ours) else np.inf, 0.0, 0.0)
    if plain.dtype.kind == "c":
        plain, ours, start, *others = map(_parts, (plain, ours, start, *others))
    kind = plain.dtype if plain.dtype.kind == "f" else np.float32
    bits = np.finfo(kind).eps if plain.dtype.name != "bfloat16" else 2.0**-7
    reference = plain.astype(np.float64)
    change = _most(np.abs(reference - start)) or 1.0
    sensitivity = max((_largest(reference, other) for other in others), default=0.0)
    last_bits = LAST_BITS * bits * _most(np.abs(reference))
    return Difference(
        what,
        _largest(reference, ours) / change,
        sensitivity / change,
        max(max(TOLERATED * sensitivity, last_bits) / change, sums),
    )


def move_weights(variables: Iterable[Any]) -> None:
    """Moves every trainable number to the next one. How that changes a step's results is the step's
    sensitivity to rounding."""
    for variable in variables:
        if variable.dtype.is_floating and variable.trainable:
            value = variable.numpy()
            moved = np.nextafter(value, np.full_like(value, np.inf))
            variable.assign(moved, read_value=False)


@contextmanager
def as_written() -> Iterator[None]:
    """Switches TensorFlow's graph optimizer, which fuses and replaces ops, off in this process."""
    name = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options().get(name, False)
    tf.config.optimizer.set_experimental_options({name: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({name: before})


def _largest(plain: np.ndarray, other: np.ndarray) -> float:
    other = other.astype(np.float64)
    is_same = (plain == other) | (np.isnan(plain) & np.isnan(other))
    differences = np.abs(np.subtract(plain, other, where=~is_same, out=np.zeros_like(other)))
    return float(np.max(np.where(np.isnan(differences), np.inf, differences), initial=0.0))


def _parts(values: Any) -> np.ndarray:
    """Real and imaginary parts."""
    return np.stack([np.real(values), np.imag(values)])


def _most(values: np.ndarray) -> float:
    """The largest of the finite numbers; 0 without any."""
    return float(np.max(values, initial=0.0, where=np.isfinite(values)))


_REPLACEMENT = re.compile(
    rf"/[A-Za-z]+Optimizer/[^/]+_{re.escape(EVALUATION_MARK.removeprefix('/'))}([0-9]+)$"
)
"""How TensorFlow's optimizer names the op that replaces X/evaluation_k:
X/ArithmeticOptimizer/RULE_evaluation_k."""

_EVALUATION = re.compile(rf"(?:^|/){SCOPE}/(.*?{re.escape(EVALUATION_MARK)}[0-9]+)(.*)$")

_FUSED = (Fusion.PRODUCT, Fusion.READER, Fusion.BIAS_GRADIENT)
"""Ops that TensorFlow may run within the kernel of another op."""


def evaluations(
    traced: TracedStep,
    plan: Plan,
    seen: Counter[tuple[str, str]],
    asked: Iterable[str] = (),
    *,
    kernels_are_traced: bool = True,
) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Compares the kernels that ran with a plan: `seen` has how often each (op name, kernel) ran,
    `asked` the ops that requested memory of the device, so that they ran.

    Returns the number of evaluations of TensorFlow ops in the plan; those that did not run; and
    those that ran again or must not be repeated. An op that TensorFlow's optimizer removes, or runs
    within another kernel, is not among those that did not run; where kernels are not traced, these
    are products and convolutions alone.
    """
    expected: dict[str, tf.Operation] = {}
    again = []
    for i, times in Counter(plan.computed).items():
        for operation in traced.groups[i]:
            expected |= {f"{operation.name}{EVALUATION_MARK}{k}": operation for k in range(times)}
            changes = times > 1 and is_stateful(operation)
            if changes and not bodies.only_reads(traced.function.graph, operation):
                again.append(operation.name)
    ran, requested = _times_run(seen), _times_run(dict.fromkeys(((name, "") for name in asked), 1))
    missing = [
        name
        for name, o in expected.items()
        if not (ran[name] or requested[name] or may_vanish(o))
        # The output of a product or a convolution cannot be written over an input.
        and (kernels_are_traced or rule_of(o.type).flops is not None)
    ]
    # The fused kernel may also have the name of an op that is too small to be planned.
    fused_kernels = sum("Fused" in kernel or "WithBias" in kernel for _, kernel in seen)
    inside = {name for name in missing if rule_of(expected[name].type).fusion in _FUSED}
    if len(inside) <= fused_kernels:
        missing = [name for name in missing if name not in inside]
    again += [name for name, times in ran.items() if times > 1]
    return len(expected), tuple(missing), tuple(again)


def not_in_place(
    traced: TracedStep, graph: DFGraph, plan: Plan, asked: Mapping[str, int]
) -> tuple[str, ...]:
    """The evaluations that a plan counts as in place and of which an op requested (`asked`) as many
    bytes as the value takes and more than the op's workspace. `graph` has costs."""
    named = {name.partition(f"{SCOPE}/")[2]: size for name, size in asked.items()}
    seen: Counter[int] = Counter()
    found: list[str] = []
    for k, step in enumerate(plan.steps):
        if not isinstance(step, Compute):
            continue
        op, number = graph.ops[step.op], seen[step.op]
        seen[step.op] += 1
        if op.workspace_bytes >= op.output_bytes or reused_input(graph, plan.steps, k) is None:
            continue
        names = (f"{o.name}{EVALUATION_MARK}{number}" for o in traced.groups[step.op])
        found += [name for name in names if rounded_up(named.get(name, 0)) >= op.output_bytes]
    return tuple(found)


def may_vanish(operation: tf.Operation) -> bool:
    """True for an op of which no kernel need be seen.

    TensorFlow's optimizer folds constants and sizes. It removes a product with one, a sum with
    zero, a sum over no axis, two transpositions, one that moves nothing, and one next to a product
    of matrices that can transpose. A loop is seen by the kernels within; the profiler leaves out
    those that were cheap in about a hundred runs. A function that XLA compiled runs under XLA's
    names.
    """
    rule = rule_of(operation.type)
    if rule.eager is Eager.REDUCTION and _adds_nothing(operation):
        return True
    if rule.shares is Shares.IDLE_ORDER and _transposes_nothing(operation):
        return True
    if (
        rule.is_elementwise
        or is_loop(operation)
        or operation.node_def.attr["_XlaMustCompile"].b
        or role_of(operation) is Role.SHAPE
    ):
        return True
    return bool(operation.inputs) and all(
        is_constant(tensor.op) or may_vanish(tensor.op) for tensor in operation.inputs
    )


def _times_run(seen: Mapping[tuple[str, str], int]) -> Counter[str]:
    ran: Counter[str] = Counter()
    for (name, _), times in seen.items():
        found = _EVALUATION.search(_REPLACEMENT.sub(rf"{EVALUATION_MARK}\1", name))
        if found:
            # TensorFlow replaces a call by the ops of the function, X/evaluation_k/op, which a loop
            # may run often.
            ran[found[1]] = max(ran[found[1]], 1 if found[2] else times)
    return ran


def _transposes_nothing(transposition: tf.Operation) -> bool:
    """True if a transposition moves nothing, or if a neighbour can absorb it. An order of axes that
    is computed counts as one that moves nothing: only TensorFlow's optimizer finds it out."""
    if tf.get_static_value(transposition.inputs[1]) is None or keeps_order(transposition):
        return True
    neighbours = (source_of(transposition.inputs[0]).op, *_readers(transposition))
    return any(rule_of(each.type).absorbs_transpose for each in neighbours)


def _adds_nothing(total: tf.Operation) -> bool:
    """True if a sum has as many elements as its input. For the gradient of a broadcast only the
    shape that its readers give it tells the number."""
    readers = total.outputs[0].consumers()
    reshaped = (reader.outputs[0] for reader in readers if role_of(reader) is Role.VIEW)
    sizes = {tensor.shape.num_elements() for tensor in (total.outputs[0], *reshaped)} - {None}
    return sizes == {total.inputs[0].shape.num_elements()}


def _readers(operation: tf.Operation) -> Iterable[tf.Operation]:
    for reader in operation.outputs[0].consumers():
        if role_of(reader) is Role.ALIAS:
            yield from _readers(reader)
        else:
            yield reader
