"""The table of TensorFlow op types: what tracing, planning, execution and eager mode assume.

Each op type has at most one row; `OpRule` describes the columns. An op type without a row has the
default of every column: a kernel that allocates its outputs and scratch memory and that runs again
only if TensorFlow registers it as stateless and ships it in `tf.raw_ops`. To add a rule, add a row.

Code that computes with one op's inputs by position, such as the order of a `Transpose`, names that
op type where it does so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from checkmate.tf2 import flops
from checkmate.tf2.op_rule import (
    Eager,
    Fusion,
    InPlace,
    ListOp,
    OpRule,
    Pooling,
    Role,
    Runs,
    Shares,
    Size,
    Source,
    State,
)

DEFAULT = OpRule()
"""The rule of an op type without a row."""

TABLE: dict[str, OpRule] = {}
"""The rule of each op type that has a row."""

_NO_SCRATCH = OpRule(scratch=False)
_ELEMENTWISE = OpRule(in_place=InPlace.ANY_INPUT, scratch=False)
_CONVOLUTION = OpRule(tries_algorithms=True)
_NOTHING = (frozenset[int](), frozenset[int]())  # what a gradient reads: (inputs, outputs)
_OUTPUT = (frozenset[int](), frozenset({0}))
_INPUTS = (frozenset({0, 1}), frozenset[int]())
_WRITES = (
    "it writes into a tensor, and one that is evicted comes back as it was made first. Use"
    " tf.tensor_scatter_nd_update and its like."
)
_CALLS_PYTHON = (
    "its function runs inside of a kernel, which takes TensorFlow's own tensors only. Call the"
    " function directly: ops run at once here."
)


def rule_of(op_type: str) -> OpRule:
    """Returns the rule of an op type."""
    return TABLE.get(op_type, DEFAULT)


def add_row(op_types: str, base: OpRule = DEFAULT, /, **columns: Any) -> None:
    """Adds a row for some op types: `base`, but for these columns."""
    rule = replace(base, **columns)
    for op_type in op_types.split():
        if op_type in TABLE:
            raise ValueError(f"The table has two rows for {op_type!r}.")
        TABLE[op_type] = rule


def _lengths(shape: tf.TensorShape) -> list[int] | None:
    return shape.as_list() if shape.is_fully_defined() else None


# Aliases, views and shapes.
add_row("Identity PreventGradient StopGradient", role=Role.ALIAS, eager=Eager.VIEW)
add_row("EnsureShape IdentityN", role=Role.ALIAS)
add_row("Reshape", role=Role.VIEW, eager=Eager.VIEW, gradient_reads=_NOTHING)
add_row("ExpandDims Squeeze", role=Role.VIEW, eager=Eager.VIEW)
add_row("Bitcast", role=Role.VIEW)
add_row("Rank", role=Role.SHAPE, size=Size.NUMBERS, of_shape=lambda shape: shape.rank)
add_row("Shape ShapeN", role=Role.SHAPE, size=Size.NUMBERS, of_shape=_lengths)
add_row("Size", role=Role.SHAPE, size=Size.NUMBERS, of_shape=tf.TensorShape.num_elements)
add_row("BroadcastGradientArgs TensorListElementShape TensorListLength", size=Size.NUMBERS)

# Arguments, constants and variables.
add_row("Placeholder", role=Role.SOURCE, source=Source.ARGUMENT)
add_row("PlaceholderWithDefault", role=Role.SOURCE)
add_row("Const", role=Role.SOURCE, source=Source.CONSTANT, eager=Eager.PASSED_ON)
add_row("NoOp", role=Role.SOURCE, source=Source.NOTHING, eager=Eager.PASSED_ON)
add_row("VarHandleOp", role=Role.SOURCE, eager=Eager.PASSED_ON)
add_row("VariableShape", role=Role.SOURCE, state=State.READS, eager=Eager.PASSED_ON)
add_row(
    "ReadVariableOp",
    role=Role.SOURCE,
    source=Source.VARIABLE,
    state=State.READS,
    eager=Eager.PASSED_ON,
)
add_row("VarIsInitializedOp", state=State.READS, eager=Eager.PASSED_ON)
add_row("ResourceGather ResourceGatherNd", state=State.READS)
add_row("DestroyResourceOp _EagerConst", eager=Eager.PASSED_ON)
add_row("AssignAddVariableOp AssignSubVariableOp AssignVariableOp", _NO_SCRATCH)

# Writes to parts of variables.
add_row("ResourceScatterAdd ResourceScatterDiv ResourceScatterMax", has_reads_copied=True)
add_row("ResourceScatterMin ResourceScatterMul ResourceScatterSub", has_reads_copied=True)
add_row("ResourceScatterNdAdd ResourceScatterNdMax ResourceScatterNdMin", has_reads_copied=True)
add_row("ResourceScatterNdSub ResourceScatterNdUpdate", has_reads_copied=True)
add_row("ResourceScatterUpdate ResourceStridedSliceAssign", has_reads_copied=True)
add_row("ResourceSparseApplyAdadelta ResourceSparseApplyAdagrad", has_reads_copied=True)
add_row("ResourceSparseApplyAdagradDA ResourceSparseApplyAdagradV2", has_reads_copied=True)
add_row("ResourceSparseApplyCenteredRMSProp ResourceSparseApplyFtrl", has_reads_copied=True)
add_row("ResourceSparseApplyFtrlV2 ResourceSparseApplyKerasMomentum", has_reads_copied=True)
add_row("ResourceSparseApplyMomentum ResourceSparseApplyProximalAdagrad", has_reads_copied=True)
add_row("ResourceSparseApplyProximalGradientDescent", has_reads_copied=True)
add_row("ResourceSparseApplyRMSProp", has_reads_copied=True)

# State other than variables. The two poolings draw without a seed, although they are registered as
# stateless.
add_row("CheckNumerics CheckNumericsV2", state=State.CHECKS)
add_row("FractionalAvgPool FractionalMaxPool", state=State.DRAWS)
add_row("Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoissonV2", state=State.DRAWS)
add_row("RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt", state=State.DRAWS)
add_row("RandomCrop RandomPoisson TruncatedNormal", state=State.DRAWS)
add_row("AllCandidateSampler FixedUnigramCandidateSampler", state=State.DRAWS)
add_row("LearnedUnigramCandidateSampler LogUniformCandidateSampler", state=State.DRAWS)
add_row("ThreadUnsafeUnigramCandidateSampler UniformCandidateSampler", state=State.DRAWS)
add_row("SampleDistortedBoundingBox SampleDistortedBoundingBoxV2", state=State.DRAWS)
add_row("Print PrintV2 PyFunc Save SaveV2 WriteFile", state=State.VISIBLE)
add_row("WriteAudioSummary WriteGraphSummary WriteHistogramSummary", state=State.VISIBLE)
add_row("WriteImageSummary WriteRawProtoSummary WriteScalarSummary", state=State.VISIBLE)
add_row("WriteSummary", state=State.VISIBLE)
add_row("EagerPyFunc", state=State.VISIBLE, eager_refusal=_CALLS_PYTHON)
add_row("HostConst PyFuncStateless RemoteCall XlaHostCompute", state=State.CALLS_OUT)
add_row("InplaceAdd InplaceSub InplaceUpdate", eager_refusal=_WRITES)
# Registered as stateful so that zeros are not folded into a constant.
add_row("Empty", stateless_if="init")

# Iterators.
add_row("IteratorGetNext IteratorGetNextAsOptional IteratorGetNextSync", gives_batches=True)

# Elementwise.
add_row(
    "Abs Ceil Cos Div DivNoNan Elu EluGrad Erf Erfc Expm1 Floor FloorDiv FloorMod", _ELEMENTWISE
)
add_row(
    "LeakyRelu LeakyReluGrad Log Log1p LogicalAnd LogicalNot LogicalOr MulNoNan Pow", _ELEMENTWISE
)
add_row(
    "Reciprocal Relu6 Relu6Grad ReluGrad Round RsqrtGrad Selu SeluGrad SigmoidGrad", _ELEMENTWISE
)
add_row("Sign Sin Softplus SoftplusGrad Softsign SqrtGrad TanhGrad Xdivy Xlogy", _ELEMENTWISE)
add_row("Maximum Minimum RealDiv Rsqrt Sqrt Square", _ELEMENTWISE, broadcasts=True)
add_row("Exp Relu Sigmoid Tanh", _ELEMENTWISE, gradient_reads=_OUTPUT)
add_row("SquaredDifference", _ELEMENTWISE, gradient_reads=_INPUTS)
add_row("Mul", _ELEMENTWISE, broadcasts=True, gradient_reads=_INPUTS)
add_row("Add Neg Sub", _ELEMENTWISE, broadcasts=True, gradient_reads=_NOTHING)
add_row("AddV2", _ELEMENTWISE, broadcasts=True, list_op=ListOp.SUM, gradient_reads=_NOTHING)
add_row("BiasAdd", _ELEMENTWISE, fusion=Fusion.BIAS, gradient_reads=_NOTHING)
add_row(
    "AddN",
    _ELEMENTWISE,
    shares=Shares.IDLE_SUM,
    list_op=ListOp.SUM,
    gradient_reads=_NOTHING,
)
add_row("Equal Greater GreaterEqual Less LessEqual SelectV2", _NO_SCRATCH)
add_row("Cast", _NO_SCRATCH, shares=Shares.IDLE, broadcasts=True)
add_row("Softmax", gradient_reads=_OUTPUT)

# Products, and the gradients of convolutions.
add_row(
    "MatMul",
    flops=flops.matrix_product,
    fusion=Fusion.PRODUCT,
    absorbs_transpose=True,
    gradient_reads=_INPUTS,
)
add_row(
    "BatchMatMulV2",
    flops=flops.batch_product,
    fusion=Fusion.PRODUCT,
    absorbs_transpose=True,
    gradient_reads=_INPUTS,
)
add_row("BatchMatMul BatchMatMulV3", flops=flops.batch_product)
add_row(
    "Conv2D",
    _CONVOLUTION,
    flops=flops.convolution,
    fusion=Fusion.PRODUCT,
    gradient_reads=_INPUTS,
)
add_row("Conv3D", _CONVOLUTION, flops=flops.convolution, fusion=Fusion.PRODUCT)
add_row("DepthwiseConv2dNative", _CONVOLUTION, flops=flops.depthwise, fusion=Fusion.PRODUCT)
add_row("Conv2DBackpropInput Conv3DBackpropInputV2", _CONVOLUTION, flops=flops.input_gradient)
add_row("DepthwiseConv2dNativeBackpropInput", _CONVOLUTION, flops=flops.depthwise_input_gradient)
add_row(
    "Conv2DBackpropFilter Conv3DBackpropFilterV2",
    _CONVOLUTION,
    flops=flops.filter_gradient,
    fusion=Fusion.FILTER_GRADIENT,
)
add_row("DepthwiseConv2dNativeBackpropFilter", _CONVOLUTION, flops=flops.depthwise_filter_gradient)
add_row("BiasAddGrad", fusion=Fusion.BIAS_GRADIENT)

# Reductions, poolings and normalization.
add_row(
    "Mean Sum",
    _NO_SCRATCH,
    shares=Shares.IDLE,
    eager=Eager.REDUCTION,
    gradient_reads=_NOTHING,
)
add_row("All Any Max Min Prod", shares=Shares.IDLE, eager=Eager.REDUCTION)
add_row("MaxPool MaxPool3D", pooling=Pooling.FORWARD)
add_row("MaxPool3DGrad MaxPoolGrad", pooling=Pooling.GRADIENT)
add_row("FusedBatchNormV3", size=Size.MASK)

# LSTM and GRU on GPUs. Registered as stateful, so that they run once and what they make is kept.
add_row("CudnnRNN CudnnRNNV2 CudnnRNNV3", size=Size.RESERVE)

# Parts, copies and broadcasts.
add_row("Slice SplitV StridedSlice Unpack", shares=Shares.PART)
add_row("Split", shares=Shares.PART, gradient_reads=_NOTHING)
add_row("BroadcastTo Tile", _NO_SCRATCH, shares=Shares.IDLE)
add_row("ConcatV2", shares=Shares.IDLE, gradient_reads=_NOTHING)
add_row("Pack", gradient_reads=_NOTHING)
add_row("Pad", shares=Shares.IDLE, fusion=Fusion.READER)
add_row("PadV2", shares=Shares.IDLE)
add_row("Transpose", shares=Shares.IDLE_ORDER, absorbs_transpose=True, gradient_reads=_NOTHING)
add_row("TensorStridedSliceUpdate", in_place=InPlace.FIRST_INPUT)
add_row("Fill", size=Size.SHAPE_READ)

# Lists of tensors.
add_row("EmptyTensorList TensorListReserve", size=Size.EMPTY, list_op=ListOp.EMPTY)
add_row("TensorListFromTensor", list_op=ListOp.OF_ROWS)
add_row("TensorListResize", list_op=ListOp.SAME)
add_row("TensorListPopBack", shares=Shares.PART, list_op=ListOp.SAME)
add_row("TensorListGetItem", shares=Shares.PART, list_op=ListOp.ENTRY)
add_row("TensorListPushBack", list_entry=1)
add_row("TensorListSetItem", list_entry=2)

# Loops, conditions and calls.
add_row("StatelessWhile While", shares=Shares.PART, runs=Runs.LOOP, functions=("body", "cond"))
add_row(
    "If StatelessIf",
    shares=Shares.PART,
    runs=Runs.CONDITION,
    functions=("then_branch", "else_branch"),
)
add_row("Case StatelessCase", shares=Shares.PART, runs=Runs.CONDITION, functions=("branches",))
add_row(
    "PartitionedCall StatefulPartitionedCall", shares=Shares.PART, runs=Runs.CALL, functions=("f",)
)

# What TensorFlow's graph optimizer makes of several ops.
add_row("_FusedMatMul", from_optimizer=True, flops=flops.matrix_product)
add_row("_FusedConv2D _FusedConv3D", _CONVOLUTION, from_optimizer=True, flops=flops.convolution)
add_row("_FusedDepthwiseConv2dNative", _CONVOLUTION, from_optimizer=True, flops=flops.depthwise)
add_row("_UnaryOpsComposition", _ELEMENTWISE, from_optimizer=True)
add_row("_FusedBatchNormEx", from_optimizer=True, size=Size.MASK)
add_row("_FusedBatchNormGradEx _MklFusedBatchMatMulV2 _MklFusedInstanceNorm", from_optimizer=True)
add_row("_MklFusedMish _MklLayerNorm _MklSwish", from_optimizer=True)
