"""GraphWriter: copies of TensorFlow ops, written as a GraphDef, which is then imported into the
graph that is being traced."""

from __future__ import annotations

import copy
import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import Self

from checkmate.tf2.device import training_device
from checkmate.tf2.graph.operations import ON_GPUS, is_call, is_loop
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.xla import MUST_COMPILE
from checkmate.tf2.ops.table import rule_of

# Few of TensorFlow's ops copy whatever happens: most take over an input's memory where they can,
# and `DeepCopy` has no kernel of GPUs for every type of numbers. A value of another type is copied
# as the bytes that it consists of, which are its own memory under another type. Truth values have
# no such view and are converted to bytes and back.

Names = Sequence[str]  # of ops, or of tensors as "op:k"

ADD, MULTIPLY, RESHAPE = "AddV2", "Mul", "Reshape"
"""Types of ops that callers of `GraphWriter.add` write."""

LARGE = 2**16
"""Bytes from which on what depends on constants alone is computed in each step."""

CopyStep = tuple[str, dict[str, tf.DType]]
"""An op of one input and its type attributes."""


def copy_steps(dtype: tf.DType) -> tuple[CopyStep, ...]:
    """The ops that, one after another, copy a value of a type that `can_be_copied`."""
    if dtype in (*ON_GPUS, tf.int32):
        return (("DeepCopy", {"T": dtype}),)
    if dtype == tf.bool:
        to, back = {"SrcT": dtype, "DstT": tf.uint8}, {"SrcT": tf.uint8, "DstT": dtype}
        return (("Cast", to), ("Cast", back))
    return (
        ("Bitcast", {"T": dtype, "type": tf.uint8}),
        ("DeepCopy", {"T": tf.uint8}),
        ("Bitcast", {"T": tf.uint8, "type": dtype}),
    )


def copy_of(value: tf.Tensor) -> tf.Tensor:
    for kind, types in copy_steps(value.dtype):
        if kind == "DeepCopy":
            value = tf.raw_ops.DeepCopy(x=value)
        elif kind == "Cast":
            value = tf.raw_ops.Cast(x=value, DstT=types["DstT"])
        else:
            value = tf.raw_ops.Bitcast(input=value, type=types["type"])
    return value


def place(nodes: Sequence[Any], added: Collection[str]) -> None:
    """Writes the devices of the nodes of these names that name none. `nodes` has inputs first."""
    device = {node.name: node.device for node in nodes}
    moved = {node.name: node for node in nodes if node.name in added and not _is_at_variable(node)}
    for node in moved.values():
        makers = (name.partition(":")[0] for name in node.input if name[0] != "^")
        found = (device[each] for each in makers if device.get(each))
        device[node.name] = device[node.name] or next(found, "")
    of_reader: dict[str, str] = {}
    for node in reversed(nodes):
        if node.name in moved:
            node.device = device[node.name] or of_reader.get(node.name, "")
        for name in node.input:
            if node.device and name[0] != "^":
                of_reader[name.partition(":")[0]] = node.device


def _is_at_variable(node: Any) -> bool:
    return rule_of(node.op).only_reads or rule_of(node.op).has_reads_copied


def _is_array(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating and tensor.shape.rank)


class GraphWriter:
    """Writes ops as a GraphDef, which imports much faster than ops are made one by one in Python.

    A tensor is named "op:k"; the caller names the tensors that no written op makes. A method that
    writes returns the name of its tensor, or of its op where that has none to read; the ops named
    in `after` run before; a tensor `like` has the value's shape and dtype.

    Attributes:
      like: Node name -> the op that it is a copy of, or tensors that its outputs are like, if
        known.
      functions: The functions of the calls written.
    """

    def __init__(self, nodes: Iterable[Any] = ()) -> None:
        self._graph_def = tf.compat.v1.GraphDef()
        self._graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
        self._graph_def.node.extend(nodes)
        self._node_defs: dict[tf.Operation, Any] = {}
        self._used: set[str] = {node.name for node in self._graph_def.node}
        self._added: set[str] = set()
        self._repeats: Counter[str] = Counter()
        self._shapes: dict[tuple[int, ...], str] = {}  # the constants that `made` reads
        self.like: dict[str, tf.Operation | tuple[tf.Tensor, ...]] = {}
        self.functions: list[Any] = []

    @property
    def nodes(self) -> Sequence[Any]:
        return self._graph_def.node

    def copy(
        self,
        operation: tf.Operation,
        inputs: Names,
        *,
        after: Names = (),
        name: str = "",
        device: str = "",
    ) -> str:
        """Writes an op like `operation` on other inputs, on `device` unless it says where."""
        if operation not in self._node_defs:
            self._node_defs[operation] = self.definition(operation)
        node = self._graph_def.node.add()
        node.CopyFrom(self._node_defs[operation])
        node.name = self._unique(name or operation.name)
        del node.input[:]
        node.input.extend([*inputs, *(f"^{before}" for before in dict.fromkeys(after))])
        node.attr.pop("_class", None)  # colocation goes by the old names
        # What a function returns is not known to be of any shape, nor is what is made of it.
        if is_call(operation) or rule_of(operation.type).hides_shape:
            tell_shapes(node, operation)
        node.device = node.device or device
        self.like[node.name] = operation
        return node.name

    def emptied(self) -> Self:
        """A writer of no ops, which imports the same functions with those that it will write."""
        other = copy.copy(self)
        GraphWriter.__init__(other)
        other.functions = [*self.functions]
        return other

    def put(self, node: Any, like: tf.Operation | tuple[tf.Tensor, ...] | None) -> None:
        """Writes a node as it is, under its own name."""
        self._graph_def.node.append(node)
        self._used.add(node.name)
        if like is not None:
            self.like[node.name] = like

    def call(
        self,
        function: Any,
        inputs: Names,
        like: tuple[tf.Tensor, ...],
        *,
        after: Names = (),
        name: str,
        compiled: bool = True,
    ) -> str:
        """Writes a call of a `ConcreteFunction` that only computes, which XLA compiles unless told
        otherwise; returns the name of the call."""
        node = self._node(name, "PartitionedCall", inputs, after)
        node.attr["f"].func.name = function.name
        read = function.structured_input_signature[0]
        node.attr["Tin"].list.type.extend(each.dtype.as_datatype_enum for each in read)
        node.attr["Tout"].list.type.extend(each.dtype.as_datatype_enum for each in like)
        node.attr[MUST_COMPILE].b = compiled
        node.attr["_output_shapes"].list.shape.extend(each.shape.as_proto() for each in like)
        self.like[node.name] = like
        self.functions.append(function)
        return node.name

    def definition(self, operation: tf.Operation) -> Any:
        node = operation.node_def
        tell_loop_shapes(node, operation)
        return node

    def overwrite(
        self, handle: str, value: str, like: tf.Tensor, *, after: Names, name: str
    ) -> str:
        """Writes an assignment to a variable that does not change the variable's buffer; returns
        the name of its last op.

        After TensorFlow's op for that, every read copies the variable, so that parts of it can be
        written. A second op switches that off.
        """
        kind = "ResourceStridedSliceAssign"
        node = self._assign_all(kind, handle, value, like, after=after, name=name)
        return self.share(handle, after=node.name)

    def share(self, handle: str, *, after: str) -> str:
        """Has reads of a variable share its memory again instead of copying it."""
        return self._node(f"{after}/shared", "DisableCopyOnRead", [handle], [after]).name

    def read(self, handle: str, like: tf.Tensor, *, after: Names) -> str:
        """A variable's memory, without a copy."""
        return f"{self._node('read', 'ReadVariableOp', [handle], after, dtype=like.dtype).name}:0"

    def allocate(
        self, like: tf.Tensor, *, after: Names = (), name: str = "buffer", zeros: bool = False
    ) -> str:
        shape = self.constant(like.shape.as_list(), tf.int32)
        node = self._node(name, "Empty", [shape], after, dtype=like.dtype)
        node.attr["init"].b = zeros
        self.like[node.name] = (like,)
        return f"{node.name}:0"

    def fill(self, memory: str, value: str, like: tf.Tensor, *, after: Names) -> str:
        """Copies a value into memory that `allocate` returned and that no other op reads."""
        kind = "TensorStridedSliceUpdate"
        node = self._assign_all(kind, memory, value, like, after=after, name="result")
        self.like[node.name] = (like,)
        return f"{node.name}:0"

    def deep_copy(self, value: str, like: tf.Tensor, *, after: Names, name: str) -> str:
        for kind, types in copy_steps(like.dtype):
            node = self._node(name, kind, [value], after, **types)
            self.like[node.name] = (like,)
            value, after = f"{node.name}:0", ()
        return value

    def cut(
        self, value: str, like: tf.Tensor, axis: int, begin: int, width: int, *, name: str
    ) -> str:
        """Writes the entries of a value from `begin` on along an axis."""
        first, size = [0] * like.shape.rank, like.shape.as_list()
        first[axis], size[axis] = begin, width
        bounds = [self.constant(each, tf.int32) for each in (first, size)]
        node = self._node(name, "Slice", [value, *bounds], T=like.dtype, Index=tf.int32)
        return f"{node.name}:0"

    def concat(self, parts: Names, axis: int, dtype: tf.DType, *, name: str) -> str:
        """Writes parts, one after another along an axis, as one tensor."""
        if len(parts) == 1:
            return parts[0]
        read = [*parts, self.constant(axis, tf.int32)]
        node = self._node(name, "ConcatV2", read, T=dtype, Tidx=tf.int32)
        node.attr["N"].i = len(parts)
        return f"{node.name}:0"

    def update(
        self, whole: str, part: str, like: tf.Tensor, axis: int, begin: int, width: int, name: str
    ) -> str:
        """Writes a part of a value into its memory, from `begin` on along an axis."""
        rank, mask = like.shape.rank, (1 << like.shape.rank) - 1 & ~(1 << axis)
        places = [[place * (k == axis) for k in range(rank)] for place in (begin, begin + width)]
        bounds = [self.constant(each, tf.int32) for each in (*places, [1] * rank)]
        read = [whole, *bounds, part]
        node = self._node(name, "TensorStridedSliceUpdate", read, T=like.dtype, Index=tf.int32)
        node.attr["begin_mask"].i = node.attr["end_mask"].i = mask
        return f"{node.name}:0"

    def _assign_all(
        self, kind: str, to: str, value: str, like: tf.Tensor, *, after: Names, name: str
    ) -> Any:
        whole = [self.constant([number] * like.shape.rank, tf.int32) for number in (0, 0, 1)]
        node = self._node(name, kind, [to, *whole, value], after, T=like.dtype, Index=tf.int32)
        node.attr["begin_mask"].i = node.attr["end_mask"].i = (1 << like.shape.rank) - 1
        return node

    def add(
        self, kind: str, inputs: Names, dtype: tf.DType, *, after: Names = (), name: str
    ) -> str:
        return f"{self._node(name, kind, inputs, after, T=dtype).name}:0"

    def entries(self, of: str, numbers: Sequence[int], like: tf.Tensor, *, name: str) -> str:
        """Writes the entries of these numbers of a list, each `like` one, as one tensor."""
        read = [self.constant(each, tf.int32) for each in (list(numbers), like.shape.as_list())]
        node = self._node(name, "TensorListGather", [of, *read], element_dtype=like.dtype)
        return f"{node.name}:0"

    def list_of(self, rows: str, like: tf.Tensor, *, name: str) -> str:
        """Writes a list of the rows of a tensor, each `like` one."""
        read = [rows, self.constant(like.shape.as_list(), tf.int32)]
        types = {"element_dtype": like.dtype, "shape_type": tf.int32}
        return f"{self._node(name, 'TensorListFromTensor', read, **types).name}:0"

    def wait(self, before: Names, value: str, like: tf.Tensor) -> str:
        """Returns a value after the ops `before` have run. TensorFlow's optimizer would remove an
        identity and add control edges between its neighbours instead."""
        if like.shape.rank is None:  # EnsureShape refuses that
            return self.add("Identity", [value], like.dtype, after=before, name="in_turn")
        name = self.add("EnsureShape", [value], like.dtype, after=before, name="in_turn")
        self._graph_def.node[-1].attr["shape"].shape.CopyFrom(like.shape.as_proto())
        return name

    def made(self, number: str, like: tf.Tensor, *, after: Names) -> str:
        """Fills memory of its own with a number, which is the name of a scalar."""
        shape = tuple(like.shape.as_list())
        if shape not in self._shapes:
            self._shapes[shape] = self.constant(shape, tf.int32)
        read = [self._shapes[shape], number]
        name = self.add("Fill", read, like.dtype, after=after, name="made")
        self.like[name.removesuffix(":0")] = (like,)
        return name

    def after(self, before: Names) -> Names:
        """The ops to wait for in order to wait for these ops, on a GPU for their kernels, too."""
        if not training_device().startswith("GPU"):
            return before
        return [self._node("synchronized", "SyncDevice", [], before).name]

    def constant(self, value: Any, dtype: tf.DType) -> str:
        node = self._node("shape", "Const", [], dtype=dtype)
        if dtype == tf.bool and np.size(value) > 1:  # TensorFlow writes them one by one
            proto = tf.compat.v1.AttrValue().tensor
            proto.dtype, proto.tensor_content = dtype.as_datatype_enum, np.asarray(value).tobytes()
            proto.tensor_shape.CopyFrom(tf.TensorShape(np.shape(value)).as_proto())
        else:
            proto = tf.make_tensor_proto(value, dtype)
        node.attr["value"].tensor.CopyFrom(proto)
        return f"{node.name}:0"

    def require_below(self, value: str, limit: int, like: tf.Tensor, message: str) -> str:
        """Writes an op that fails with a message unless whole numbers are from 0 on and below a
        limit; returns its name."""
        bounds = (("GreaterEqual", 0), ("Less", limit))
        tests = [
            self.add(kind, [value, self.constant(bound, like.dtype)], like.dtype, name="within")
            for kind, bound in bounds
        ]
        both = self._node("within", "LogicalAnd", tests)
        axes = self.constant(np.arange(like.shape.rank), tf.int32)
        test = self._node("within", "All", [f"{both.name}:0", axes], Tidx=tf.int32)
        checked = self._node(
            "checked", "Assert", [f"{test.name}:0", self.constant(message, tf.string)]
        )
        checked.attr["T"].list.type.append(tf.string.as_datatype_enum)
        return checked.name

    def held_back(self, operation: tf.Operation, inputs: Names) -> list[str]:
        """The inputs of a copy of an op on constants. If it makes much, TensorFlow does not
        recognize one of them: folded, its value would be in memory all the time, beside what a plan
        computes."""
        names, read = list(inputs), operation.inputs
        # Shapes and axes must be known.
        is_any = rule_of(operation.type).broadcasts
        may_wait = [k for k, tensor in enumerate(read) if is_any or _is_array(tensor)]
        if may_wait and known_bytes(operation.outputs) >= LARGE:
            k = min(may_wait, key=lambda k: known_bytes([read[k]]))
            names[k] = self.not_folded(names[k], read[k].dtype, name=f"{operation.name}/number")
        return names

    def not_folded(self, number: str, dtype: tf.DType, *, name: str) -> str:
        """Writes a number that TensorFlow does not recognize as a constant, so that it does not
        fold what is computed from the number."""
        # GPUs have no kernel that makes a bool this way.
        zero = self._node(f"{name}/zero", "Empty", [self.constant([], tf.int32)], dtype=tf.float32)
        zero.attr["init"].b = True
        no = self._node(f"{name}/no", "Cast", [f"{zero.name}:0"], SrcT=tf.float32, DstT=tf.bool)
        return self.add("SelectV2", [f"{no.name}:0", number, number], dtype, name=name)

    def import_here(
        self, given: dict[str, tf.Tensor], outputs: Names, *, scope: str = ""
    ) -> list[tf.Tensor]:
        """Imports all ops into the graph being traced and returns the tensors of these names.
        `given` are the tensors that no written op makes."""
        graph = tf.compat.v1.get_default_graph()
        for function in self.functions:
            function.add_to_graph(graph)
        place(self._graph_def.node, self._added)
        read = {name for node in self._graph_def.node for name in node.input}
        # What is captured must become an input of the graph first; an input map takes no eager
        # tensors.
        inside = {name: graph.capture(given[name]) for name in given if name in read}
        made = [name for name in outputs if name not in given]
        found = tf.graph_util.import_graph_def(
            self._graph_def, input_map=inside, return_elements=made, name=scope
        )
        by_name = given | dict(zip(made, found, strict=True))
        return [by_name[name] for name in outputs]

    def function_like(self, concrete: Any, outputs: Names, *, as_written: bool = False) -> Any:
        """Returns a `ConcreteFunction` of the written ops with the flattened arguments of
        `concrete`, which have the names that `names_of_inputs` gives. With `as_written` it lacks
        the control edges by which `tf.function` keeps side effects in order: only a function that
        runs needs them."""
        specs = [tf.TensorSpec(each.shape, each.dtype) for each in argument_tensors(concrete)]
        names = names_of_inputs(concrete).values()

        def body(*flat: tf.Tensor) -> list[tf.Tensor]:
            found = self.import_here(
                dict(zip(names, [*flat, *concrete.captured_inputs], strict=True)), outputs
            )
            if as_written:
                graph = tf.compat.v1.get_default_graph()
                effects = (o for o in graph.get_operations() if o.op_def.is_stateful)
                graph.control_outputs.extend(effects)
            return found

        if as_written:
            return tf.compat.v1.wrap_function(body, specs)
        return tf.function(body, autograph=False).get_concrete_function(*specs)

    def _node(self, name: str, op: str, read: Names, after: Names = (), **types: tf.DType) -> Any:
        inputs = [*read, *(f"^{before}" for before in after)]
        node = self._graph_def.node.add(name=self._unique(name), op=op, input=inputs)
        self._added.add(node.name)
        for attribute, dtype in types.items():
            node.attr[attribute].type = dtype.as_datatype_enum
        return node

    def _unique(self, name: str) -> str:
        unique = name
        while unique in self._used:
            self._repeats[name] += 1
            unique = f"{name}_{self._repeats[name]}"
        self._used.add(unique)
        return unique


class GraphCopy:
    """Copies the ops of a function, inputs first.

    Attributes:
      copies: For each op the names of the ops that others wait for in its place.
    """

    def __init__(self, concrete: Any, writer: GraphWriter | None = None):
        self.writer = writer or GraphWriter()
        self.names = names_of_inputs(concrete)
        self.copies: dict[tf.Operation, tuple[str, ...]] = {}

    def inputs(self, operation: tf.Operation) -> list[str]:
        return [self.names[tensor.ref()] for tensor in operation.inputs]

    def before(self, operation: tf.Operation) -> list[str]:
        """The names of the ops that an op's copy waits for, because the op does."""
        waits_for = operation.control_inputs
        return [name for each in waits_for for name in self.copies.get(each, ())]

    def copy(
        self, operation: tf.Operation, inputs: Names, after: Names = (), device: str = ""
    ) -> str:
        after = [*self.before(operation), *after]
        copy = self.writer.copy(operation, inputs, after=after, device=device)
        self.copies[operation] = (copy,)
        self.names |= {t.ref(): f"{copy}:{k}" for k, t in enumerate(operation.outputs)}
        return copy


def tell_shapes(node: Any, operation: tf.Operation) -> None:
    """Writes the shapes of an op's outputs into its copy, where TensorFlow does not infer them."""
    shapes = node.attr["_output_shapes"].list.shape
    del shapes[:]
    shapes.extend(tensor.shape.as_proto() for tensor in operation.outputs)


def tell_loop_shapes(node: Any, operation: tf.Operation) -> None:
    """Writes the shapes of a loop's outputs into its definition, in which TensorFlow writes those
    of the body's results: a loop may take no turn."""
    if is_loop(operation):
        shapes = node.attr["output_shapes"].list.shape
        del shapes[:]
        shapes.extend(tensor.shape.as_proto() for tensor in operation.outputs)


def names_of_inputs(concrete: Any) -> dict[Any, str]:
    return {tensor.ref(): f"given_{k}:0" for k, tensor in enumerate(concrete.inputs)}


def argument_tensors(concrete: Any) -> list[tf.Tensor]:
    """The placeholders of a function's own arguments, without those of captured tensors."""
    return list(concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)])


def captured_tensors(concrete: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
    values = concrete.captured_inputs
    return list(zip(concrete.inputs[len(concrete.inputs) - len(values) :], values, strict=True))


def inputs_first(before: Sequence[Collection[int]], place: Callable[[int, int], int]) -> list[int]:
    """Returns numbers of ops, each after those that are `before` it, otherwise by place. An op's
    place may depend on that of the op by which it becomes possible (-1 if it is from the start). It
    leaves out what a cycle keeps from running."""
    readers: list[list[int]] = [[] for _ in before]
    for k, needed in enumerate(before):
        for each in needed:
            readers[each].append(k)
    missing = list(map(len, before))
    ready = [(place(k, -1), k) for k, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        at, k = heapq.heappop(ready)
        order.append(k)
        for reader in readers[k]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (place(reader, at), reader))
    return order


def reachable(graph: Any) -> list[tf.Operation]:
    """The ops of a function's graph that outputs and side effects need, inputs first, otherwise in
    the order of the trace. TensorFlow never runs the others."""
    pending = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    inputs_of: dict[tf.Operation, list[tf.Operation]] = {}
    while pending:
        operation = pending.pop()
        if operation not in inputs_of:
            inputs_of[operation] = [*(t.op for t in operation.inputs), *operation.control_inputs]
            pending += inputs_of[operation]
    # A loop's inputs are extended when its gradient is taken, by ops that are made later: creation
    # order is not enough.
    created = {o: k for k, o in enumerate(graph.get_operations()) if o in inputs_of}
    order: list[tf.Operation] = []
    placed: set[tf.Operation] = set()
    for operation in created:
        stack = [operation]
        while stack:
            top = stack[-1]
            missing = [] if top in placed else [o for o in inputs_of[top] if o not in placed]
            if missing:
                stack.extend(sorted(missing, key=created.__getitem__, reverse=True))
                continue
            stack.pop()
            if top not in placed:
                placed.add(top)
                order.append(top)
    return order
