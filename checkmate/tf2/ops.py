"""What kind of thing each TensorFlow op type is, for planning: the table behind `trace`.

An op that is not in the table is a kernel. A kernel may be recomputed when TensorFlow itself
declares it stateless (`OpDef.is_stateful`) and ships it (`tf.raw_ops`, and what its optimizer
makes); an op of a custom library, or with state, runs exactly once.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import tensorflow as tf

from checkmate.tf2.device import training_device


class Role(Enum):
    """What the executor does with an op.

    ALIAS: its k-th output is its k-th input: no op is made, readers take the input itself. VIEW:
    shares its input's buffer: made afresh for every reader, since a view that lingers keeps the
    buffer alive. SHAPE: depends on its input's shape only: a constant where the shape is static.
    SOURCE: an argument, a constant, or the read of a variable: resident anyway. KERNEL: allocates
    or computes.
    """

    ALIAS = "alias"
    VIEW = "view"
    SHAPE = "shape"
    SOURCE = "source"
    KERNEL = "kernel"


_ROLES: dict[str, Role] = {
    **dict.fromkeys(
        ("Identity", "IdentityN", "StopGradient", "PreventGradient", "EnsureShape"), Role.ALIAS
    ),
    **dict.fromkeys(("Reshape", "Squeeze", "ExpandDims", "Bitcast"), Role.VIEW),
    **dict.fromkeys(("Shape", "ShapeN", "Size", "Rank"), Role.SHAPE),
    **dict.fromkeys(
        (
            "Placeholder",
            "PlaceholderWithDefault",
            "Const",
            "ReadVariableOp",
            "VariableShape",
            "VarHandleOp",
            "NoOp",
        ),
        Role.SOURCE,
    ),
}

# A few whole numbers, however large what they are told of.
SHAPES_OF_ANY = frozenset(
    {
        "BroadcastGradientArgs",
        "Rank",
        "Shape",
        "ShapeN",
        "Size",
        "TensorListElementShape",
        "TensorListLength",
    }
)

# Their output of a size that shapes do not tell is a mask: no more than half a byte for each number
# of the first input.
MASKS = frozenset({"FusedBatchNormV3", "_FusedBatchNormEx"})

# Make lists of tensors, which are values as tensors are.
LISTS = frozenset({"EmptyTensorList", "TensorListFromTensor", "TensorListReserve"})

# These only read their resource, although they are registered as stateful (as every op is that
# takes a handle).
PURE_READS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
)

# These hand on what they are given, or fail. That is all their state, and failing may be repeated.
CHECKS = frozenset({"CheckNumerics", "CheckNumericsV2"})

# Elementwise on CPUs and GPUs: they write over an input of their size that nobody reads any more,
# and use no scratch memory.
IN_PLACE = frozenset(
    {
        "Abs",
        "Add",
        "AddN",
        "AddV2",
        "BiasAdd",
        "Ceil",
        "Cos",
        "Div",
        "DivNoNan",
        "Elu",
        "EluGrad",
        "Erf",
        "Erfc",
        "Exp",
        "Expm1",
        "Floor",
        "FloorDiv",
        "FloorMod",
        "LeakyRelu",
        "LeakyReluGrad",
        "Log",
        "Log1p",
        "LogicalAnd",
        "LogicalNot",
        "LogicalOr",
        "Maximum",
        "Minimum",
        "Mul",
        "MulNoNan",
        "Neg",
        "Pow",
        "RealDiv",
        "Reciprocal",
        "Relu",
        "Relu6",
        "Relu6Grad",
        "ReluGrad",
        "Round",
        "Rsqrt",
        "RsqrtGrad",
        "Selu",
        "SeluGrad",
        "Sigmoid",
        "SigmoidGrad",
        "Sign",
        "Sin",
        "Softplus",
        "SoftplusGrad",
        "Softsign",
        "Sqrt",
        "SqrtGrad",
        "Square",
        "SquaredDifference",
        "Sub",
        "Tanh",
        "TanhGrad",
        "Xdivy",
        "Xlogy",
        "_UnaryOpsComposition",
    }
)
NO_SCRATCH = IN_PLACE | {
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "AssignVariableOp",
    "BroadcastTo",
    "Cast",
    "Equal",
    "Greater",
    "GreaterEqual",
    "Less",
    "LessEqual",
    "Mean",
    "SelectV2",
    "Sum",
    "Tile",
}

# Their output can be a part of their input's memory, or a list's, or that of another output.
_PARTS = frozenset(
    {
        "Case",
        "If",
        "PartitionedCall",
        "Slice",
        "Split",
        "SplitV",
        "StatefulPartitionedCall",
        "StatelessCase",
        "StatelessIf",
        "StatelessWhile",
        "StridedSlice",
        "TensorListGetItem",
        "TensorListPopBack",
        "Unpack",
        "While",
    }
)

# So it is where these have nothing to do.
_IDLE = frozenset(
    {
        "AddN",
        "All",
        "Any",
        "BroadcastTo",
        "Cast",
        "ConcatV2",
        "Max",
        "Mean",
        "Min",
        "Pad",
        "PadV2",
        "Prod",
        "Sum",
        "Tile",
        "Transpose",
    }
)

# Products that TensorFlow may run together with the bias and the activation that follow, within one
# kernel.
PRODUCTS = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul", "BatchMatMulV2"})

# What TensorFlow's graph optimizer makes of several ops: shipped and stateless, yet without a
# public function that calls them.
FUSED = frozenset(
    {
        "_FusedBatchNormEx",
        "_FusedBatchNormGradEx",
        "_FusedConv2D",
        "_FusedConv3D",
        "_FusedDepthwiseConv2dNative",
        "_FusedMatMul",
        "_MklFusedBatchMatMulV2",
        "_MklFusedInstanceNorm",
        "_MklFusedMish",
        "_MklLayerNorm",
        "_MklSwish",
        "_UnaryOpsComposition",
    }
)

# With oneDNN the gradient of one of these reads what the pooling left as its workspace.
POOLS = frozenset({"MaxPool", "MaxPool3D"})
POOL_GRADIENTS = frozenset({"MaxPoolGrad", "MaxPool3DGrad"})

FILTER_GRADIENTS = frozenset({"Conv2DBackpropFilter", "Conv3DBackpropFilterV2"})

# TensorFlow may run them within the kernel of the op that reads them, where nobody else does.
FUSED_WITH_READER = PRODUCTS | {"Pad"}

# Or within that of the filter's gradient beside them.
FUSED_BY_TENSORFLOW = FUSED_WITH_READER | {"BiasAddGrad"}

# Their random state is TensorFlow's own, in the kernel, and goes on from call to call.
_RANDOM = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)

# What they do is seen outside of TensorFlow and cannot be undone: a step with one of them is not
# run on trial.
_SEEN_OUTSIDE = frozenset(
    {"EagerPyFunc", "Print", "PrintV2", "PyFunc", "Save", "SaveV2", "WriteFile"}
)

# Declared stateless, yet not to be repeated: they call back into Python or into another process.
_NEVER_AGAIN = frozenset({"PyFuncStateless", "RemoteCall", "HostConst", "XlaHostCompute"})


def role(operation: tf.Operation) -> Role:
    """Returns the role of an op."""
    return _ROLES.get(operation.type, Role.KERNEL)


def role_of_type(kind: str) -> Role:
    """Returns the role of ops of a type."""
    return _ROLES.get(kind, Role.KERNEL)


def source(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor that aliases lead back to."""
    while role(tensor.op) is Role.ALIAS:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def can_be_copied(dtype: tf.DType) -> bool:
    """True for numbers, which lie in the allocator's memory as they are."""
    return dtype.is_numpy_compatible and dtype not in (tf.string, tf.resource, tf.variant)


def can_be_filled(tensor: tf.Tensor) -> bool:
    """True where memory for a value can be had before the value, and TensorFlow has a kernel that
    writes it there."""
    kernel = tensor.dtype.is_floating or not training_device().startswith("GPU")
    return kernel and can_be_copied(tensor.dtype) and tensor.shape.is_fully_defined()


def may_share_memory(tensor: tf.Tensor) -> bool:
    """True where a tensor's memory may be that of another one which its op reads or makes, so that
    nothing is written over it."""
    operation = tensor.op
    if (
        operation.type == "Transpose"
        and (order := tf.get_static_value(operation.inputs[1])) is not None
        and tensor.shape.rank is not None
    ):
        moved = [axis for axis in order if operation.inputs[0].shape[axis] != 1]
        return moved == sorted(moved)
    alike = (each for each in operation.inputs if each.dtype == tensor.dtype)
    idle = operation.type in _IDLE and any(
        each.shape.num_elements() == tensor.shape.num_elements() for each in alike
    )
    return operation.type in _PARTS or (
        idle and (operation.type != "AddN" or len(operation.inputs) == 1)
    )


# Zeros count as stateful to keep them from being folded.
def is_stateful(operation: tf.Operation) -> bool:
    """True when it may change or depend on something beyond its inputs; reading a variable does not
    count, nor does a check of numbers."""
    harmless = (
        operation.type in PURE_READS
        or operation.type in CHECKS
        or (operation.type == "Empty" and operation.get_attr("init"))
    )
    return operation.op_def.is_stateful and not harmless


def types_run(concrete: Any) -> set[str]:
    """Returns the types of all ops of a `ConcreteFunction`, in loops, conditions and the functions
    that it calls, too."""
    graph_def = concrete.graph.as_graph_def()
    return {
        node.op
        for nodes in (graph_def.node, *(f.node_def for f in graph_def.library.function))
        for node in nodes
    }


def draws(concrete: Any) -> bool:
    """True for a function with ops that draw from random state which TensorFlow keeps beside the
    variables."""
    return not _RANDOM.isdisjoint(types_run(concrete))


def is_seen_outside(concrete: Any) -> bool:
    """True for a function with ops that print, write to a file or a summary, or call Python."""
    return any(
        kind in _SEEN_OUTSIDE or (kind.startswith("Write") and kind.endswith("Summary"))
        for kind in types_run(concrete)
    )


def ties_recomputation(operation: tf.Operation) -> bool:
    """True for the op by which `tf.recompute_grad` ties what it computes again to the arriving
    gradient: 0 or else not a number."""
    if operation.type != "SelectV2" or operation.outputs[0].shape.rank != 0:
        return False
    choices = [tf.get_static_value(tensor) for tensor in operation.inputs[1:]]
    return None not in choices and choices[0] == 0 and bool(choices[1] != choices[1])


def is_known(operation: tf.Operation) -> bool:
    """True for the ops that TensorFlow ships."""
    return hasattr(tf.raw_ops, operation.type) or operation.type in FUSED


def may_run_again(operation: tf.Operation) -> bool:
    """True when running it again on the same inputs gives the same outputs and nothing else
    happens."""
    return is_known(operation) and not is_stateful(operation) and operation.type not in _NEVER_AGAIN


def may_repeat(operation: tf.Operation) -> bool:
    """True when a plan may have it run again: nothing else happens, and what it makes are tensors
    or lists of tensors."""
    opaque = any(tensor.dtype in (tf.variant, tf.resource) for tensor in operation.outputs)
    return may_run_again(operation) and (not opaque or operation.type in LISTS)


def static_shape(operation: tf.Operation, output: int):
    """Returns the value of output `output` of a SHAPE op as a list or int, or None where a
    dimension is unknown."""
    shape = operation.inputs[output if operation.type == "ShapeN" else 0].shape
    if operation.type == "Rank":
        return shape.rank
    if not shape.is_fully_defined():
        return None
    return shape.num_elements() if operation.type == "Size" else shape.as_list()
