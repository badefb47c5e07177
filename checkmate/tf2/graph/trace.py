"""trace(): any training step -> a flat TensorFlow graph, and the DFGraph that stands for it.

function ── inline, optimize, simplify ──► flat function ── FlatGraph ──► kernels that decide about
memory ── arrange ──► groups = ops of the DFGraph
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import networkx as nx
import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.op import Op
from checkmate.core.plan import Plan
from checkmate.errors import TraceError
from checkmate.tf2 import ops as op_rules
from checkmate.tf2.graph import in_place
from checkmate.tf2.graph.bodies import LOOPS
from checkmate.tf2.graph.flat_graph import FlatGraph, forward_names, tensor_bytes
from checkmate.tf2.graph.grappler import optimize
from checkmate.tf2.graph.inline import inline
from checkmate.tf2.graph.ordering import arrange, values_of
from checkmate.tf2.graph.simplify import simplify


@dataclass(frozen=True, slots=True, eq=False)
class TracedStep:
    """A training step as TensorFlow sees it and as solvers see it.

    Attributes:
      function: The traced step.
      flat: The same step without calls (see `inline`), simplified (see `simplify`): the function
        whose ops are planned and copied by the executor.
      graph: The DFGraph, with unit costs and no workspaces until it is profiled.
      groups: groups[i] are the TensorFlow ops that graph.ops[i] stands for, in order.
      values: values[i] are those of them whose outputs others read: the value of graph.ops[i].
      taken: taken[i] are the TensorFlow ops whose values graph.ops[i] reads as the last of all and
        writes its own over.
      early: early[k] is true where the k-th result has its memory from the beginning of the planned
        step.
      results: results[i] are those of them that are made of the value of graph.ops[i] alone: they
        are written once it has run, and need it no more.
      small_bytes: What of `graph.fixed_bytes` is for small values, which need not all be in memory
        at once.
      plain_order: The ops of `graph` in the order of the trace, which is the order of the plain
        step.
      notes: What was treated with caution, and why, as sentences for the report.
    """

    function: Any
    flat: Any
    graph: DFGraph
    groups: tuple[tuple[tf.Operation, ...], ...]
    values: tuple[tuple[tf.Operation, ...], ...]
    taken: tuple[tuple[tf.Operation, ...], ...]
    early: tuple[bool, ...]
    results: tuple[tuple[int, ...], ...]
    small_bytes: int
    plain_order: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def argument_tensors(self) -> list[tf.Tensor]:
        """The placeholders of the step's own arguments, without those of what it captures."""
        inputs = self.flat.inputs
        return list(inputs[: len(inputs) - len(self.flat.captured_inputs)])

    def numbers(self) -> dict[tf.Operation, int]:
        """The op of `graph` that each TensorFlow op belongs to."""
        return {operation: i for i, group in enumerate(self.groups) for operation in group}

    @property
    def has_loops(self) -> bool:
        """True where a loop is among the ops."""
        return any(operation.type in LOOPS for operation in self.flat.graph.get_operations())

    @property
    def between_bytes(self) -> int:
        """What is in memory between two steps: `graph.fixed_bytes` without the results that the
        next one begins with."""
        return self.graph.fixed_bytes - sum(
            tensor_bytes(t) or 0
            for t, early in zip(self.flat.outputs, self.early, strict=True)
            if early
        )

    @property
    def before_bytes(self) -> int:
        """What is in memory before the first step: `between_bytes` without the results of one
        before."""
        return self.between_bytes - sum(tensor_bytes(tensor) or 0 for tensor in self.flat.outputs)

    def pack(self, outputs: list[tf.Tensor]) -> Any:
        """Returns the flat function's outputs in the structure that the step returns; what is None
        there has no output."""
        structure = self.function.structured_outputs
        left = iter(outputs)
        leaves = [
            None if leaf is None else next(left)
            for leaf in tf.nest.flatten(structure, expand_composites=True)
        ]
        return tf.nest.pack_sequence_as(structure, leaves, expand_composites=True)

    def plain_plan(self) -> Plan:
        """Returns the plan of the step as it was written: every op once, in the order of the
        trace."""
        return Plan.from_order(self.graph, self.plain_order)


def trace(
    step: Callable,
    *specs: Any,
    name: str = "",
    like: TracedStep | None = None,
    as_written: bool = False,
) -> TracedStep:
    """Traces a training step for the given argument specs.

    Args:
      step: A callable or `tf.function`: forward pass, gradients, and, if it likes, the optimizer's
        update.
      specs: What it is called with: tensors, arrays, `tf.TensorSpec`s, or nests of them, with
        static shapes.
      name: For people.
      like: The same step traced with other shapes; then the same ops are planned, so that its plans
        can fit this graph.
      as_written: Leave out TensorFlow's graph optimizer, whose result hangs on shapes: for
        estimates only.

    Raises:
      TraceError: The step cannot be traced with these specs, or computes nothing.
    """
    function = step if hasattr(step, "get_concrete_function") else tf.function(step)
    try:
        concrete = function.get_concrete_function(*specs)
    # Whatever the step's own code raises: it is theirs, chained, and told as what we were doing.
    except Exception as error:
        shown = tf.nest.map_structure(
            lambda spec: (
                f"{spec.dtype.name}{list(spec.shape)}"
                if isinstance(spec, tf.TensorSpec)
                else repr(spec)
            ),
            specs,
        )
        raise TraceError(f"The step cannot be traced with {shown}: {error}") from error
    return analyse(
        concrete, name=name or getattr(step, "__name__", "step"), like=like, as_written=as_written
    )


def analyse(
    concrete: Any, *, name: str, like: TracedStep | None = None, as_written: bool = False
) -> TracedStep:
    """Returns the DFGraph of a `ConcreteFunction` that is already traced."""
    inlined = inline(concrete)
    simplified = simplify(inlined if as_written else optimize(inlined, concrete.variables))
    planned_names = {o.name for group in like.groups for o in group} if like else None
    flat = FlatGraph(simplified, concrete, planned_names, forward_names(inlined))
    if not flat.planned:
        raise TraceError(f"{name!r} computes nothing that takes memory: there is nothing to plan.")
    groups = _same_groups(flat, like) or arrange(flat)
    number = {operation: i for i, group in enumerate(groups) for operation in group}

    def numbers(operations: Iterable[tf.Operation], own: int) -> tuple[int, ...]:
        return tuple(sorted({number[operation] for operation in operations} - {own}))

    values = tuple(values_of(flat, group) for group in groups)
    ops = []
    for i, group in enumerate(groups):
        ops.append(
            Op(
                name=group[-1].name,
                deps=numbers(chain.from_iterable(flat.data_deps[o] for o in group), i),
                output_bytes=sum(flat.bytes_of(o) for o in values[i]),
                is_backward=any(o in flat.backward for o in group),
                recomputable=all(o in flat.recomputable for o in group),
                control_deps=numbers(chain.from_iterable(flat.order_deps[o] for o in group), i),
                overwrites=numbers(
                    chain.from_iterable(flat.overwritten.get(o, ()) for o in group), i
                ),
                kind="+".join(o.type for o in group),
                in_place=_in_place(flat, number, group, values[i]),
            )
        )
    behind = [{number[o] for o in flat.planned_behind(tensor)} for tensor in simplified.outputs]
    results = tuple(
        tuple(k for k, early in enumerate(flat.early) if early and behind[k] == {i})
        for i in range(len(groups))
    )
    outputs = set().union(
        *(made_of for k, made_of in enumerate(behind) if not flat.early[k] or len(made_of) > 1)
    )
    taken: list[tuple[tf.Operation, ...]] = [()] * len(groups)
    plain_order = _in_order_of_trace(ops, [flat.position[group[-1]] for group in groups])
    place = dict(zip(plain_order, range(len(ops)), strict=True))
    readers: list[list[int]] = [[] for _ in ops]
    for u, op in enumerate(ops):
        for d in op.deps:
            readers[d].append(u)
    for i, last in _last_readers(ops, readers, outputs, place).items():
        # Written over for sure only where the one value is read by nothing that runs at a time of
        # its own, and by an elementwise op.
        if (
            len(values[i]) == 1
            and values[i][0] not in flat.read_once
            and all(o.type in op_rules.NO_SCRATCH for o in groups[last])
        ):
            others = {*readers[i], *ops[last].control_deps} - {last}
            ops[last] = replace(ops[last], control_deps=tuple(sorted(others)))
            taken[last] += values[i]
    graph = DFGraph(tuple(ops), tuple(outputs), flat.fixed_bytes(), name)
    small = flat.small_values_bytes()
    return TracedStep(
        concrete,
        simplified,
        graph,
        groups,
        values,
        tuple(taken),
        flat.early,
        results,
        small,
        plain_order,
        flat.notes(),
    )


def _in_place(
    flat: FlatGraph,
    number: dict[tf.Operation, int],
    group: tuple[tf.Operation, ...],
    values: tuple[tf.Operation, ...],
) -> tuple[int, ...]:
    """The ops whose values a group may be written over, by the table, of those that are ops of the
    plan and no smaller."""
    makers = {tensor.op for tensor in in_place.by_table(group, values)}
    size = sum(flat.bytes_of(o) for o in values)
    return tuple(sorted({number[o] for o in makers if o in number and flat.bytes_of(o) >= size}))


def _in_order_of_trace(ops: Sequence[Op], place: Sequence[int]) -> tuple[int, ...]:
    """The ops as near to their place in the trace as can be: one that stands for several runs as a
    whole, where all that it waits for is there."""
    network = nx.DiGraph()
    network.add_nodes_from(range(len(ops)))
    network.add_edges_from(
        (d, i) for i, op in enumerate(ops) for d in (*op.deps, *op.control_deps, *op.overwrites)
    )
    return tuple(nx.lexicographical_topological_sort(network, key=place.__getitem__))


def _last_readers(
    ops: list[Op], readers: list[list[int]], outputs: set[int], place: Mapping[int, int]
) -> dict[int, int]:
    """The values that are made once, for readers that run once, each with the last of them: there
    every plan is done with it.

    Only where the same reader is the last in the order of the trace, too, whose places are given.
    """
    once = {i for i, op in enumerate(ops) if not op.recomputable}
    ends = {
        d: max(readers[d])
        for d in sorted(once - outputs)
        if readers[d] and once.issuperset(readers[d])
    }
    return {d: last for d, last in ends.items() if place[last] == max(place[u] for u in readers[d])}


def _same_groups(
    flat: FlatGraph, like: TracedStep | None
) -> tuple[tuple[tf.Operation, ...], ...] | None:
    """The groups of `like` in its order, or None where this trace has other ops."""
    if like is None:
        return None
    by_name = {operation.name: operation for operation in flat.planned}
    names = [operation.name for group in like.groups for operation in group]
    if len(names) != len(by_name) or not by_name.keys() >= set(names):
        return None
    return tuple(tuple(by_name[operation.name] for operation in group) for group in like.groups)
