"""trace(): any training step -> a flat TensorFlow graph, and the DFGraph that stands for it.

function ── inline, optimize, simplify ──► flat function ── FlatGraph ──► kernels that decide about
memory ── arrange ──► groups = ops of the DFGraph
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import tensorflow as tf

from checkmate.core.files import fingerprint
from checkmate.core.graph import DFGraph
from checkmate.core.op import Op
from checkmate.core.plan import Plan
from checkmate.core.replay import replay
from checkmate.errors import TraceError
from checkmate.tf2.error_text import said, spec_meant
from checkmate.tf2.graph import in_place
from checkmate.tf2.graph.flat_graph import FlatGraph, forward_names, in_order_of_trace
from checkmate.tf2.graph.graph_writer import argument_tensors, inputs_first, reachable
from checkmate.tf2.graph.grappler import optimize
from checkmate.tf2.graph.known_functions import with_known_shapes
from checkmate.tf2.graph.operations import is_loop, variable_read
from checkmate.tf2.graph.ordering import Group, arrange, values_of
from checkmate.tf2.graph.passes import inline, simplify
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.variables import variables_of
from checkmate.tf2.ops.table import rule_of


def same_graph(traced: TracedStep, main: TracedStep) -> TracedStep:
    """The trace of a replica, which can run a plan of the first replica's. Raises `TraceError`
    where the graphs differ."""
    if fingerprint(traced.graph) != fingerprint(main.graph):
        raise TraceError(
            f"The replicas of {main.graph.name!r} do not run the same graph ({len(main.graph)} and"
            f" {len(traced.graph)} ops, or other sizes), so one plan cannot serve them. Use"
            " batches that are a multiple of the number of replicas; drop_remainder=True drops"
            " the last."
        )
    return traced


@dataclass(frozen=True, slots=True, eq=False)
class TracedStep:
    """A training step as TensorFlow sees it and as solvers see it.

    Attributes:
      function: The traced step.
      flat: The same step without calls (see `inline`), simplified (see `simplify`): the function
        whose ops are planned and copied by the executor.
      graph: The DFGraph, with unit costs and no workspaces, but those of bodies of loops, until it
        is profiled.
      groups: groups[i] are the TensorFlow ops that graph.ops[i] stands for, in order.
      values: values[i] are those of groups[i] that other ops read: the value of graph.ops[i].
      taken: taken[i] are the TensorFlow ops whose values graph.ops[i] is the last to read and
        writes its own value over.
      early: early[k] is true if the memory of result k is allocated when the planned step begins.
      results: results[i] are the early results that only the value of graph.ops[i] is needed for.
        They are written right after it has been computed.
      small_bytes: Bytes of `graph.fixed_bytes` for small values, which need not all be in memory at
        once.
      estimates: Op name -> bytes of each of its outputs, for ops of which an output has a size that
        the graph does not tell, such as the lists that a loop returns.
      plain_order: The ops of `graph` in the order of the trace, which is the order of the plain
        step.
      order: The ops of `flat` that run, inputs first, the planned ones as in `groups`.
      forward: Names of the ops of `flat` that belong to the forward pass.
      notes: Sentences for the report about ops that could not be treated as usual.

    Examples:
      >>> traced = checkmate.tf2.trace(train_step, images, labels)
      >>> len(traced.graph), [operation.name for operation in traced.groups[0]]
    """

    function: Any
    flat: Any
    graph: DFGraph
    groups: tuple[Group, ...]
    values: tuple[Group, ...]
    taken: tuple[Group, ...]
    early: tuple[bool, ...]
    results: tuple[tuple[int, ...], ...]
    small_bytes: int
    estimates: Mapping[str, tuple[int, ...]]
    plain_order: tuple[int, ...]
    order: Group
    forward: frozenset[str]
    notes: tuple[str, ...] = ()

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        return variables_of(self.function)

    def argument_tensors(self) -> list[tf.Tensor]:
        """The placeholders of the step's own arguments, without those of captured tensors."""
        return argument_tensors(self.flat)

    def numbers(self) -> dict[tf.Operation, int]:
        """The op of `graph` that each TensorFlow op belongs to."""
        return {operation: i for i, group in enumerate(self.groups) for operation in group}

    @property
    def has_loops(self) -> bool:
        return any(map(is_loop, self.flat.graph.get_operations()))

    @property
    def between_bytes(self) -> int:
        """Bytes in memory between two steps: `graph.fixed_bytes` without the next step's early
        results."""
        return self.graph.fixed_bytes - known_bytes(compress(self.flat.outputs, self.early))

    @property
    def before_bytes(self) -> int:
        """Bytes in memory before the first step: `between_bytes` without a step's results."""
        return self.between_bytes - known_bytes(self.flat.outputs)

    def pack(self, outputs: list[tf.Tensor]) -> Any:
        """Returns the step's result in its structure.

        Args:
          outputs: The flat function's outputs. A None in that structure has none.
        """
        structure = self.function.structured_outputs
        left = iter(outputs)
        leaves = [
            None if leaf is None else next(left)
            for leaf in tf.nest.flatten(structure, expand_composites=True)
        ]
        return tf.nest.pack_sequence_as(structure, leaves, expand_composites=True)

    def plain_plan(self) -> Plan:
        return Plan.from_order(self.graph, self.plain_order)

    def plain_peak_bytes(self, graph: DFGraph | None = None) -> int:
        """Returns the peak of the plain step by the judge's count.

        Args:
          graph: This graph with costs and workspaces; by default that of the trace.
        """
        return replay(graph or self.graph, self.plain_plan()).peak_bytes


def trace(
    step: Callable,
    *specs: Any,
    name: str = "",
    like: TracedStep | None = None,
    as_written: bool = False,
) -> TracedStep:
    """Traces a training step for the given argument specs.

    Args:
      step: A callable or `tf.function`: forward pass, gradients and, optionally, the optimizer's
        update.
      specs: The step's arguments: tensors, arrays, `tf.TensorSpec`s, or nests of them, with static
        shapes.
      name: The graph's name, for reports.
      like: The same step traced with other shapes. The same ops are planned, so that its plans can
        fit this graph.
      as_written: Leave out TensorFlow's graph optimizer, whose result depends on shapes: to compare
        graphs of several sizes.

    Raises:
      TraceError: The step cannot be traced with these specs, or computes nothing.

    Examples:
      >>> traced = trace(lambda x: tf.reduce_sum(x @ x), tf.TensorSpec((64, 64)), name="square")
      >>> traced.graph.name, traced.argument_tensors()[0].shape.as_list()
      ('square', [64, 64])
    """
    function = step if hasattr(step, "get_concrete_function") else tf.function(step)
    try:
        concrete = function.get_concrete_function(*specs)
    # The step's own code may raise anything.
    except Exception as error:
        shown = tf.nest.map_structure(
            lambda spec: (
                f"{spec.dtype.name}{list(spec.shape)}"
                if isinstance(spec, tf.TensorSpec)
                else repr(spec)
            ),
            specs,
        )
        reason, meant = said(error), spec_meant(specs)
        if reason.kind == TraceError.__name__:
            raise TraceError(reason.text) from error
        hint = f" Did you mean {meant}?" if meant else ""
        raise TraceError(f"The step cannot be traced with {shown}: {reason.text}{hint}") from error
    return analyse(
        concrete, name=name or getattr(step, "__name__", "step"), like=like, as_written=as_written
    )


def analyse(
    concrete: Any, *, name: str, like: TracedStep | None = None, as_written: bool = False
) -> TracedStep:
    inlined = inline(concrete)
    simplified = simplify(inlined if as_written else optimize(inlined, variables_of(concrete)))
    simplified = with_known_shapes(simplified, concrete.graph)
    planned_names = {o.name for group in like.groups for o in group} if like else None
    order = [operation.name for operation in reachable(inlined.graph)]
    flat = FlatGraph(simplified, concrete, order, forward_names(inlined), planned_names)
    if not flat.planned:
        raise TraceError(f"{name!r} computes nothing that takes memory: there is nothing to plan.")
    return _traced(flat, concrete, name, _same_groups(flat, like) or arrange(flat))


def rewritten(traced: TracedStep, flat: Any, origins: Mapping[str, str]) -> TracedStep:
    """The trace of a step whose ops are written otherwise.

    Args:
      flat: The function that takes the place of `traced.flat`, its ops in the order in which they
        shall run.
      origins: Name of an op of `flat` -> the op of `traced.flat` of whose work it does a part.
    """
    order = [operation.name for operation in flat.graph.get_operations()]
    forward = {name for name in order if origins.get(name, name) in traced.forward}
    found = FlatGraph(flat, traced.function, order, forward)
    return _traced(found, traced.function, traced.graph.name, arrange(found, is_arranged=True))


def _traced(flat: FlatGraph, concrete: Any, name: str, groups: tuple[Group, ...]) -> TracedStep:
    simplified = flat.concrete
    values = tuple(values_of(flat, group) for group in groups)
    number = {operation: i for i, group in enumerate(groups) for operation in group}
    ops = [_op(flat, number, *each) for each in zip(groups, values, strict=True)]
    place = [flat.position[group[-1]] for group in groups]
    before = [{*op.deps, *op.control_deps, *op.overwrites} for op in ops]
    planned_place = {o.name: k for k, o in enumerate(chain.from_iterable(groups))}
    plain_order = tuple(inputs_first(before, lambda k, at: place[k]))
    made_of = [{number[o] for o in flat.planned_sources(each)} for each in simplified.outputs]
    outputs = set[int]().union(
        *(made for k, made in enumerate(made_of) if not flat.early[k] or len(made) > 1)
    )
    last_readers = in_place.last_readers(ops, outputs, plain_order)
    taken = in_place.take_over(flat, ops, groups, values, last_readers)
    return TracedStep(
        function=concrete,
        flat=simplified,
        graph=DFGraph(tuple(ops), tuple(outputs), flat.fixed_bytes(), name),
        groups=groups,
        values=values,
        taken=taken,
        early=flat.early,
        results=tuple(
            tuple(k for k, early in enumerate(flat.early) if early and made_of[k] == {i})
            for i in range(len(groups))
        ),
        small_bytes=flat.small_values_bytes(),
        estimates=flat.estimates(),
        plain_order=plain_order,
        order=tuple(in_order_of_trace(flat.operations, planned_place)),
        forward=frozenset(operation.name for operation in flat.forward),
        notes=flat.notes(),
    )


def _op(flat: FlatGraph, number: Mapping[tf.Operation, int], group: Group, values: Group) -> Op:
    def others(operations: Iterable[tf.Operation]) -> tuple[int, ...]:
        return tuple(sorted({number[o] for o in operations} - {number[group[-1]]}))

    size = sum(map(flat.bytes_of, values))
    # The table names inputs that may be written over. They must be ops of the plan and no smaller.
    makers = {tensor.op for tensor in in_place.by_table(group, values)} | in_place.continued(group)
    makers = {o for o in makers if o in number and flat.bytes_of(o) >= size}
    return Op(
        name=group[-1].name,
        deps=others(chain.from_iterable(flat.data_deps[o] for o in group)),
        output_bytes=size,
        workspace_bytes=max(in_place.body_bytes(flat.traced_graph, o) for o in group),
        is_backward=any(o in flat.backward for o in group),
        recomputable=all(o in flat.recomputable for o in group),
        control_deps=others(chain.from_iterable(flat.order_deps[o] for o in group)),
        overwrites=others(chain.from_iterable(flat.overwritten.get(o, ()) for o in group)),
        kind="+".join(o.type for o in group),
        in_place=tuple(sorted({number[o] for o in makers})),
        fused=_of_other_layers(group),
    )


def _of_other_layers(group: Group) -> tuple[str, ...]:
    """Names of what runs within the last op of a group under another scope. TensorFlow's graph
    optimizer fuses products under the name of what comes last; the product's scope is that of its
    weight."""
    fused = (o for o in group if rule_of(o.type).from_optimizer)
    reads = (variable_read(tensor) for o in fused for tensor in o.inputs)
    names = [o.name for o in (*group, *reads) if o is not None]
    own = group[-1].name
    scopes = {name: name.rpartition("/")[0] for name in names}
    return tuple(n for n, scope in scopes.items() if scope and not own.startswith(f"{scope}/"))


def _same_groups(flat: FlatGraph, like: TracedStep | None) -> tuple[Group, ...] | None:
    """The groups of `like` in its order, or None if this trace has other ops."""
    if like is None:
        return None
    by_name = {operation.name: operation for operation in flat.planned}
    names = [operation.name for group in like.groups for operation in group]
    if len(names) != len(by_name) or not by_name.keys() >= set(names):
        return None
    return tuple(tuple(by_name[operation.name] for operation in group) for group in like.groups)


# Whether a `tf.function` converts Python control flow is not public: this file alone reads its
# attribute `_autograph`. Without it, control flow is converted, as it is by default;
# `test_python_step` asserts that the installed TensorFlow has it.


def python_of(step: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """The Python function of a step, and whether its control flow on tensors becomes
    TensorFlow's."""
    return getattr(step, "python_function", step), getattr(step, "_autograph", True)
