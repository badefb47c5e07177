"""The profiler's observations of a planned step, compared with the plan."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import tensorflow as tf

from checkmate.core.allocator import rounded_up
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Compute, Plan
from checkmate.core.replay import reused_input
from checkmate.tf2.execution.plan_writer import EVALUATION_MARK, SCOPE
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
            if times > 1 and not _may_repeat(traced, operation):
                again.append(operation.name)
    ran, requested = _times_run(seen), _times_run(dict.fromkeys(((name, "") for name in asked), 1))
    missing = [
        name
        for name, o in expected.items()
        if not (ran[name] or requested[name] or may_vanish(o))
        and (kernels_are_traced or _must_request_memory(o))
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


def _must_request_memory(operation: tf.Operation) -> bool:
    """True for a product or a convolution: its output cannot be written over an input."""
    return rule_of(operation.type).flops is not None


def _may_repeat(traced: TracedStep, operation: tf.Operation) -> bool:
    return not is_stateful(operation) or bodies.only_reads(traced.function.graph, operation)


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
