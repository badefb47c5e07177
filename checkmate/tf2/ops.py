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

from checkmate.tf2.costs import flops
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


def _row(op_types: str, base: OpRule = DEFAULT, /, **columns: Any) -> None:
    """Adds a row for some op types: `base`, but for these columns."""
    rule = replace(base, **columns)
    for op_type in op_types.split():
        if op_type in TABLE:
            raise ValueError(f"The table has two rows for {op_type!r}.")
        TABLE[op_type] = rule


# Aliases, views and shapes.
_row("Identity PreventGradient StopGradient", role=Role.ALIAS, eager=Eager.VIEW)
_row("EnsureShape IdentityN", role=Role.ALIAS)
_row("Reshape", role=Role.VIEW, eager=Eager.VIEW, gradient_reads=_NOTHING)
_row("ExpandDims Squeeze", role=Role.VIEW, eager=Eager.VIEW)
_row("Bitcast", role=Role.VIEW)
_row("Rank Shape ShapeN Size", role=Role.SHAPE, size=Size.NUMBERS)
_row("BroadcastGradientArgs TensorListElementShape TensorListLength", size=Size.NUMBERS)

# Arguments, constants and variables.
_row("Placeholder", role=Role.SOURCE, source=Source.ARGUMENT)
_row("PlaceholderWithDefault", role=Role.SOURCE)
_row("Const", role=Role.SOURCE, source=Source.CONSTANT, eager=Eager.PASSED_ON)
_row("NoOp", role=Role.SOURCE, source=Source.NOTHING, eager=Eager.PASSED_ON)
_row("VarHandleOp", role=Role.SOURCE, eager=Eager.PASSED_ON)
_row("VariableShape", role=Role.SOURCE, state=State.READS, eager=Eager.PASSED_ON)
_row(
    "ReadVariableOp",
    role=Role.SOURCE,
    source=Source.VARIABLE,
    state=State.READS,
    eager=Eager.PASSED_ON,
)
_row("VarIsInitializedOp", state=State.READS, eager=Eager.PASSED_ON)
_row("ResourceGather ResourceGatherNd", state=State.READS)
_row("DestroyResourceOp _EagerConst", eager=Eager.PASSED_ON)
_row("AssignAddVariableOp AssignSubVariableOp AssignVariableOp", _NO_SCRATCH)

# State other than variables. The two poolings draw without a seed, although they are registered as
# stateless.
_row("CheckNumerics CheckNumericsV2", state=State.CHECKS)
_row("FractionalAvgPool FractionalMaxPool", state=State.DRAWS)
_row("Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoissonV2", state=State.DRAWS)
_row("RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt", state=State.DRAWS)
_row("TruncatedNormal", state=State.DRAWS)
_row("Print PrintV2 PyFunc Save SaveV2 WriteFile", state=State.VISIBLE)
_row("WriteAudioSummary WriteGraphSummary WriteHistogramSummary", state=State.VISIBLE)
_row("WriteImageSummary WriteRawProtoSummary WriteScalarSummary", state=State.VISIBLE)
_row("WriteSummary", state=State.VISIBLE)
_row("EagerPyFunc", state=State.VISIBLE, eager_refusal=_CALLS_PYTHON)
_row("HostConst PyFuncStateless RemoteCall XlaHostCompute", state=State.CALLS_OUT)
_row("InplaceAdd InplaceSub InplaceUpdate", eager_refusal=_WRITES)
# Registered as stateful so that zeros are not folded into a constant.
_row("Empty", stateless_if="init")

# Elementwise.
_row("Abs Ceil Cos Div DivNoNan Elu EluGrad Erf Erfc Expm1 Floor FloorDiv FloorMod", _ELEMENTWISE)
_row("LeakyRelu LeakyReluGrad Log Log1p LogicalAnd LogicalNot LogicalOr MulNoNan Pow", _ELEMENTWISE)
_row("Reciprocal Relu6 Relu6Grad ReluGrad Round RsqrtGrad Selu SeluGrad SigmoidGrad", _ELEMENTWISE)
_row("Sign Sin Softplus SoftplusGrad Softsign SqrtGrad TanhGrad Xdivy Xlogy", _ELEMENTWISE)
_row("Maximum Minimum RealDiv Rsqrt Sqrt Square", _ELEMENTWISE, broadcasts=True)
_row("Exp Relu Sigmoid Tanh", _ELEMENTWISE, gradient_reads=_OUTPUT)
_row("SquaredDifference", _ELEMENTWISE, gradient_reads=_INPUTS)
_row("Mul", _ELEMENTWISE, broadcasts=True, gradient_reads=_INPUTS)
_row("Add Neg Sub", _ELEMENTWISE, broadcasts=True, gradient_reads=_NOTHING)
_row("AddV2", _ELEMENTWISE, broadcasts=True, list_op=ListOp.SUM, gradient_reads=_NOTHING)
_row("BiasAdd", _ELEMENTWISE, fusion=Fusion.BIAS, gradient_reads=_NOTHING)
_row(
    "AddN",
    _ELEMENTWISE,
    shares=Shares.IDLE_SUM,
    list_op=ListOp.SUM,
    gradient_reads=_NOTHING,
)
_row("Equal Greater GreaterEqual Less LessEqual SelectV2", _NO_SCRATCH)
_row("Cast", _NO_SCRATCH, shares=Shares.IDLE, broadcasts=True)
_row("Softmax", gradient_reads=_OUTPUT)

# Products, and the gradients of convolutions.
_row(
    "MatMul",
    flops=flops.matrix_product,
    fusion=Fusion.PRODUCT,
    absorbs_transpose=True,
    gradient_reads=_INPUTS,
)
_row(
    "BatchMatMulV2",
    flops=flops.batch_product,
    fusion=Fusion.PRODUCT,
    absorbs_transpose=True,
    gradient_reads=_INPUTS,
)
_row("BatchMatMul BatchMatMulV3", flops=flops.batch_product)
_row("Conv2D", flops=flops.convolution, fusion=Fusion.PRODUCT, gradient_reads=_INPUTS)
_row("Conv3D", flops=flops.convolution, fusion=Fusion.PRODUCT)
_row("DepthwiseConv2dNative", flops=flops.depthwise, fusion=Fusion.PRODUCT)
_row("Conv2DBackpropInput Conv3DBackpropInputV2", flops=flops.input_gradient)
_row("DepthwiseConv2dNativeBackpropInput", flops=flops.depthwise_input_gradient)
_row(
    "Conv2DBackpropFilter Conv3DBackpropFilterV2",
    flops=flops.filter_gradient,
    fusion=Fusion.FILTER_GRADIENT,
)
_row("DepthwiseConv2dNativeBackpropFilter", flops=flops.depthwise_filter_gradient)
_row("BiasAddGrad", fusion=Fusion.BIAS_GRADIENT)

# Reductions, poolings and normalization.
_row(
    "Mean Sum",
    _NO_SCRATCH,
    shares=Shares.IDLE,
    eager=Eager.REDUCTION,
    gradient_reads=_NOTHING,
)
_row("All Any Max Min Prod", shares=Shares.IDLE, eager=Eager.REDUCTION)
_row("MaxPool MaxPool3D", pooling=Pooling.FORWARD)
_row("MaxPool3DGrad MaxPoolGrad", pooling=Pooling.GRADIENT)
_row("FusedBatchNormV3", size=Size.MASK)

# Parts, copies and broadcasts.
_row("Slice SplitV StridedSlice Unpack", shares=Shares.PART)
_row("Split", shares=Shares.PART, gradient_reads=_NOTHING)
_row("BroadcastTo Tile", _NO_SCRATCH, shares=Shares.IDLE)
_row("ConcatV2", shares=Shares.IDLE, gradient_reads=_NOTHING)
_row("Pack", gradient_reads=_NOTHING)
_row("Pad", shares=Shares.IDLE, fusion=Fusion.READER)
_row("PadV2", shares=Shares.IDLE)
_row("Transpose", shares=Shares.IDLE_ORDER, absorbs_transpose=True, gradient_reads=_NOTHING)
_row("TensorStridedSliceUpdate", in_place=InPlace.FIRST_INPUT)
_row("Fill", size=Size.SHAPE_READ)

# Lists of tensors.
_row("EmptyTensorList TensorListReserve", size=Size.EMPTY, list_op=ListOp.EMPTY)
_row("TensorListFromTensor", list_op=ListOp.OF_ROWS)
_row("TensorListResize", list_op=ListOp.SAME)
_row("TensorListPopBack", shares=Shares.PART, list_op=ListOp.SAME)
_row("TensorListGetItem", shares=Shares.PART, list_op=ListOp.ENTRY)
_row("TensorListPushBack", list_entry=1)
_row("TensorListSetItem", list_entry=2)

# Loops, conditions and calls.
_row("StatelessWhile While", shares=Shares.PART, runs=Runs.LOOP, functions=("body", "cond"))
_row(
    "If StatelessIf",
    shares=Shares.PART,
    runs=Runs.CONDITION,
    functions=("then_branch", "else_branch"),
)
_row("Case StatelessCase", shares=Shares.PART, runs=Runs.CONDITION, functions=("branches",))
_row(
    "PartitionedCall StatefulPartitionedCall", shares=Shares.PART, runs=Runs.CALL, functions=("f",)
)

# What TensorFlow's graph optimizer makes of several ops.
_row("_FusedMatMul", from_optimizer=True, flops=flops.matrix_product)
_row("_FusedConv2D _FusedConv3D", from_optimizer=True, flops=flops.convolution)
_row("_FusedDepthwiseConv2dNative", from_optimizer=True, flops=flops.depthwise)
_row("_UnaryOpsComposition", _ELEMENTWISE, from_optimizer=True)
_row("_FusedBatchNormEx", from_optimizer=True, size=Size.MASK)
_row("_FusedBatchNormGradEx _MklFusedBatchMatMulV2 _MklFusedInstanceNorm", from_optimizer=True)
_row("_MklFusedMish _MklLayerNorm _MklSwish", from_optimizer=True)
