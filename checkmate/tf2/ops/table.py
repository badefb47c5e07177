"""The table of TensorFlow op types: all that tracing, planning, execution, eager mode and the
propagation of batch axes assume of them.

Each op type has at most one row; `OpRule` describes the columns. An op type without a row has the
default of every column: a kernel that allocates its outputs and scratch memory, that runs again
only if TensorFlow registers it as stateless and ships it in `tf.raw_ops`, and that needs the whole
batch. To add a rule, add a row; the laws in `tests/laws` then apply to it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from checkmate.tf2.ops import elementwise as elements
from checkmate.tf2.ops import flops, indices, loops, places, products, shapes
from checkmate.tf2.ops.rule import (
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
from checkmate.tf2.ops.signature import EACH, TOGETHER

Columns = dict[str, Any]

DEFAULT = OpRule()

TABLE: dict[str, OpRule] = {}

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
_element = elements.elementwise
_example = products.per_example
_channel = partial(products.per_example, by_channel=True)

# Columns that several rows have in common.
_ELEMENTWISE: Columns = {"in_place": InPlace.ANY_INPUT, "scratch": False}
_COMBINES: Columns = _ELEMENTWISE | {"broadcasts": True}
_ADD: Columns = _COMBINES | {
    "axes": _element(TOGETHER),
    "list_axes": loops.added,
    "places": places.added,
    "gradient_reads": _NOTHING,
}
_RESHAPE: Columns = {
    "role": Role.VIEW,
    "repeats": 0,
    "axes": shapes.reshape,
    "places": places.moved,
    "leading": places.leading_moved,
    "eager": Eager.VIEW,
}
_PRODUCT: Columns = {"fusion": Fusion.PRODUCT, "absorbs_transpose": True, "gradient_reads": _INPUTS}
_CONVOLUTION: Columns = {
    "fusion": Fusion.PRODUCT,
    "tries_algorithms": True,
    "axes": products.convolution,
}
_INPUT_GRADIENT: Columns = {"tries_algorithms": True, "axes": products.input_gradient}
_FILTER_GRADIENT: Columns = {"tries_algorithms": True, "axes": products.filter_gradient}
_FUSED_CONVOLUTION: Columns = {
    "from_optimizer": True,
    "tries_algorithms": True,
    "axes": products.fused_convolution,
}
_REDUCTION: Columns = {"shares": Shares.IDLE, "eager": Eager.REDUCTION}
_MOVES: Columns = {"scratch": False, "shares": Shares.IDLE, "places": places.moved}


def rule_of(op_type: str) -> OpRule:
    return TABLE.get(op_type, DEFAULT)


def row(op_types: str, /, **columns: Any) -> None:
    rule = OpRule(**columns)
    for op_type in op_types.split():
        if op_type in TABLE:
            raise ValueError(f"The table has two rows for {op_type!r}.")
        TABLE[op_type] = rule


def _lengths(shape: tf.TensorShape) -> list[int] | None:
    return shape.as_list() if shape.is_fully_defined() else None


# Aliases, views and shapes.
row(
    "Identity StopGradient",
    role=Role.ALIAS,
    repeats=0,
    axes=_element(TOGETHER),
    list_axes=loops.entry,
    places=places.moved,
    leading=places.leading_moved,
    eager=Eager.VIEW,
)
row("PreventGradient", role=Role.ALIAS, axes=_element(TOGETHER), eager=Eager.VIEW)
row("EnsureShape", role=Role.ALIAS, axes=_element(TOGETHER))
row("IdentityN", role=Role.ALIAS, axes=elements.same_as_input)
row("Reshape", **_RESHAPE, gradient_reads=_NOTHING)
row("ExpandDims Squeeze", **_RESHAPE)
row("Bitcast", role=Role.VIEW, axes=elements.bitcast)
row("Rank", role=Role.SHAPE, size=Size.NUMBERS, of_shape=lambda shape: shape.rank)
row("Shape ShapeN", role=Role.SHAPE, size=Size.NUMBERS, of_shape=_lengths)
row("Size", role=Role.SHAPE, size=Size.NUMBERS, of_shape=tf.TensorShape.num_elements)
row("BroadcastGradientArgs", size=Size.NUMBERS)
row("TensorListElementShape", size=Size.NUMBERS, axes=loops.shape_of_entry)
row("TensorListLength", size=Size.NUMBERS, axes=loops.length)

# Arguments, constants and variables.
row("Placeholder", role=Role.SOURCE, source=Source.ARGUMENT)
row("PlaceholderWithDefault", role=Role.SOURCE)
row("Const", role=Role.SOURCE, source=Source.CONSTANT, eager=Eager.PASSED_ON)
row("NoOp", role=Role.SOURCE, source=Source.NOTHING, eager=Eager.PASSED_ON)
row("VarHandleOp", role=Role.SOURCE, eager=Eager.PASSED_ON)
row("VariableShape", role=Role.SOURCE, state=State.READS, per_slice=True, eager=Eager.PASSED_ON)
row(
    "ReadVariableOp",
    role=Role.SOURCE,
    source=Source.VARIABLE,
    state=State.READS,
    eager=Eager.PASSED_ON,
)
row("VarIsInitializedOp", state=State.READS, eager=Eager.PASSED_ON)
row("ResourceGather", state=State.READS, axes=indices.resource_gather)
row("ResourceGatherNd DisableCopyOnRead", state=State.READS)
row("DestroyResourceOp _EagerConst", eager=Eager.PASSED_ON)
row("AssignAddVariableOp AssignSubVariableOp", scratch=False)
row("AssignVariableOp", scratch=False, assigns=True)

# Writes to parts of variables.
row(
    "ResourceScatterAdd ResourceScatterDiv ResourceScatterMax ResourceScatterMin "
    "ResourceScatterMul ResourceScatterSub ResourceScatterNdAdd ResourceScatterNdMax "
    "ResourceScatterNdMin ResourceScatterNdSub ResourceScatterNdUpdate ResourceScatterUpdate "
    "ResourceStridedSliceAssign ResourceSparseApplyAdadelta ResourceSparseApplyAdagrad "
    "ResourceSparseApplyAdagradDA ResourceSparseApplyAdagradV2 "
    "ResourceSparseApplyCenteredRMSProp ResourceSparseApplyFtrl ResourceSparseApplyFtrlV2 "
    "ResourceSparseApplyKerasMomentum ResourceSparseApplyMomentum "
    "ResourceSparseApplyProximalAdagrad ResourceSparseApplyProximalGradientDescent "
    "ResourceSparseApplyRMSProp",
    has_reads_copied=True,
)

# State other than variables. The two poolings draw without a seed, although they are registered as
# stateless.
row("CheckNumerics CheckNumericsV2", state=State.CHECKS, axes=_element(TOGETHER))
row(
    "FractionalAvgPool FractionalMaxPool Multinomial ParameterizedTruncatedNormal RandomGamma "
    "RandomPoissonV2 RandomShuffle RandomCrop RandomPoisson AllCandidateSampler "
    "FixedUnigramCandidateSampler LearnedUnigramCandidateSampler LogUniformCandidateSampler "
    "ThreadUnsafeUnigramCandidateSampler UniformCandidateSampler SampleDistortedBoundingBox "
    "SampleDistortedBoundingBoxV2",
    state=State.DRAWS,
)
row(
    "RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal",
    state=State.DRAWS,
    axes=indices.random,
)
row(
    "Print PrintV2 PyFunc Save SaveV2 WriteFile WriteAudioSummary WriteGraphSummary "
    "WriteHistogramSummary WriteImageSummary WriteRawProtoSummary WriteScalarSummary "
    "WriteSummary",
    state=State.VISIBLE,
)
row("EagerPyFunc", state=State.VISIBLE, eager_refusal=_CALLS_PYTHON)
row("HostConst PyFuncStateless RemoteCall XlaHostCompute", state=State.CALLS_OUT)
row("InplaceAdd InplaceSub InplaceUpdate", eager_refusal=_WRITES)
# Registered as stateful so that zeros are not folded into a constant.
row("Empty", stateless_if="init", fills_with=0)

# Iterators.
row("IteratorGetNext IteratorGetNextAsOptional IteratorGetNextSync", gives_batches=True)

# Elementwise.
row(
    "Abs Ceil Cos Elu Erf Erfc Expm1 Floor FloorDiv FloorMod LeakyRelu Log Log1p LogicalNot "
    "Pow Reciprocal Relu6 Round Selu Sign Sin Softplus Softsign Xdivy Xlogy",
    **_ELEMENTWISE,
    axes=_element(),
)
row(
    "Div DivNoNan EluGrad LeakyReluGrad MulNoNan Relu6Grad ReluGrad SeluGrad SoftplusGrad",
    **_ELEMENTWISE,
    axes=_element(EACH, 0),
)
row("LogicalAnd LogicalOr", **_ELEMENTWISE, axes=_element())
row("RsqrtGrad SigmoidGrad SqrtGrad TanhGrad", **_ELEMENTWISE, axes=_element(EACH, 1))
row("Maximum", **_COMBINES, axes=_element(), places=places.at_least_zero)
row("Minimum", **_COMBINES, axes=_element())
row("RealDiv", **_ELEMENTWISE, broadcasts=True, axes=_element(EACH, 0))
row("Rsqrt Sqrt Square", **_ELEMENTWISE, broadcasts=True, axes=_element())
row("Exp Relu Sigmoid Tanh", **_ELEMENTWISE, axes=_element(), gradient_reads=_OUTPUT)
row("SquaredDifference", **_ELEMENTWISE, axes=_element(), gradient_reads=_INPUTS)
row("Mul", **_COMBINES, axes=_element(EACH), places=places.multiplied, gradient_reads=_INPUTS)
row("Add", **_ADD)
row("AddV2", **_ADD, list_op=ListOp.SUM)
row("Neg", **_ELEMENTWISE, broadcasts=True, axes=_element(TOGETHER), gradient_reads=_NOTHING)
row(
    "Sub",
    **_ELEMENTWISE,
    broadcasts=True,
    axes=_element(TOGETHER),
    gradient_reads=_NOTHING,
)
row("BiasAdd", **_ELEMENTWISE, fusion=Fusion.BIAS, axes=elements.bias_add, gradient_reads=_NOTHING)
row(
    "AddN",
    **_ELEMENTWISE,
    shares=Shares.IDLE_SUM,
    list_op=ListOp.SUM,
    axes=shapes.add_up,
    list_axes=loops.added,
    gradient_reads=_NOTHING,
)
row("Equal", scratch=False, axes=_element())
row("Greater GreaterEqual Less LessEqual", scratch=False, axes=_element())
row("SelectV2", scratch=False, axes=elements.select)
row("Cast", **_MOVES, broadcasts=True, casts=True, axes=elements.cast)
row("Softmax", axes=elements.last_axes(1), gradient_reads=_OUTPUT)
row(
    "Acos Acosh Asin Asinh Atan Atan2 Atanh Cosh Digamma Erfinv Inv IsFinite IsInf IsNan "
    "Lgamma Mod Rint Sinh Tan TruncateDiv TruncateMod ApproximateEqual NotEqual BitwiseAnd "
    "BitwiseOr BitwiseXor Invert LeftShift RightShift Bucketize ComplexAbs Angle ClipByValue "
    "Igamma Igammac IgammaGradA Betainc Xlog1py BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 "
    "BesselJ1 BesselK0 BesselK0e BesselK1 BesselY0 BesselY1 Dawsn Expint FresnelCos FresnelSin "
    "Ndtri NextAfter Polygamma PopulationCount Spence Zeta",
    axes=_element(),
)
row("Conj Real Imag Complex Snapshot", axes=_element(TOGETHER))
row("SoftsignGrad", axes=_element(EACH, 0))
row("ReciprocalGrad InvGrad", axes=_element(EACH, 1))
row("Select", axes=elements.select)

# Products, and the gradients of convolutions.
row("MatMul", **_PRODUCT, flops=flops.matrix_product, axes=products.matrix_product)
row("BatchMatMulV2", **_PRODUCT, flops=flops.batch_product, axes=products.batch_product)
row("BatchMatMul BatchMatMulV3", flops=flops.batch_product, axes=products.batch_product)
row("Conv2D", **_CONVOLUTION, flops=flops.convolution, gradient_reads=_INPUTS)
row("Conv3D", **_CONVOLUTION, flops=flops.convolution)
row("DepthwiseConv2dNative", **_CONVOLUTION, flops=partial(flops.convolution, outer=2))
row("Conv2DBackpropInput Conv3DBackpropInputV2", **_INPUT_GRADIENT, flops=flops.input_gradient)
row(
    "DepthwiseConv2dNativeBackpropInput",
    **_INPUT_GRADIENT,
    flops=partial(flops.input_gradient, outer=2),
)
row(
    "Conv2DBackpropFilter Conv3DBackpropFilterV2",
    **_FILTER_GRADIENT,
    flops=flops.filter_gradient,
    fusion=Fusion.FILTER_GRADIENT,
)
row(
    "DepthwiseConv2dNativeBackpropFilter",
    **_FILTER_GRADIENT,
    flops=partial(flops.filter_gradient, outer=2),
)
row("BiasAddGrad", fusion=Fusion.BIAS_GRADIENT, axes=elements.bias_add_grad)
row("Einsum", flops=flops.einsum, axes=products.einsum)

# Reductions, poolings and normalization.
row(
    "Mean",
    **_REDUCTION,
    scratch=False,
    axes=elements.reduction(averages=True),
    gradient_reads=_NOTHING,
)
row("Sum", **_REDUCTION, scratch=False, axes=elements.reduction(sums=True), gradient_reads=_NOTHING)
row("All Any Max Min Prod", **_REDUCTION, axes=elements.reduction())
row("MaxPool MaxPool3D", pooling=Pooling.FORWARD, axes=_channel(0))
row("MaxPool3DGrad MaxPoolGrad", pooling=Pooling.GRADIENT, axes=_channel(0, 1, 2))
row("AvgPool AvgPool3D", axes=_channel(0))
row("AvgPoolGrad AvgPool3DGrad", axes=_channel(1))
row("MaxPoolGradGrad MaxPool3DGradGrad", axes=_channel(0, 1, 2))
row("MaxPoolV2", axes=_example(0))
row("MaxPoolGradV2", axes=_example(0, 1, 2))
row("LRN", axes=elements.last_axes(1))
row("LRNGrad", axes=elements.last_axes(1, inputs=3))
row("MaxPoolWithArgmax MaxPoolGradWithArgmax", axes=products.pooling_with_places)
row("Dilation2D", axes=_example(0))
row("Dilation2DBackpropInput", axes=_example(0, 2))
row("FusedBatchNormGradV3", axes=products.batch_normalization)
row(
    "FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel",
    axes=_element(),
)
row("QuantizeAndDequantizeV2 QuantizeAndDequantizeV4", axes=elements.quantized)
row("FakeQuantWithMinMaxArgsGradient", axes=_element(EACH, 0))
row(
    "FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannelGradient",
    axes=elements.quantized_gradient,
)
row("FusedBatchNormV3", size=Size.MASK, axes=products.batch_normalization)
row("EuclideanNorm", axes=elements.reduction())
row("L2Loss", axes=elements.square_sum)
row("ArgMax ArgMin", axes=elements.arg_reduction)
row("Cumsum ReverseV2", axes=elements.along_axis(TOGETHER))
row("Cumprod CumulativeLogsumexp", axes=elements.along_axis())
row("Roll", axes=elements.along_axis(TOGETHER, at=2))
row("LogSoftmax TopKV2 NthElement", axes=elements.last_axes(1))
row("InTopKV2", axes=elements.last_axes(1, inputs=2))
row("FFT IFFT RFFT IRFFT", axes=elements.last_axes(1, TOGETHER))
row("FFT2D IFFT2D RFFT2D IRFFT2D", axes=elements.last_axes(2, TOGETHER))
row("FFT3D IFFT3D RFFT3D IRFFT3D", axes=elements.last_axes(3, TOGETHER))
row("MatrixDiagPartV3 MatrixDiagPart MatrixBandPart", axes=elements.last_axes(2, EACH))
row("MatrixDiag", axes=elements.last_axes(1, EACH))
row("MatrixDiagV3", axes=elements.diagonals)
row(
    "Cholesky MatrixInverse LogMatrixDeterminant MatrixDeterminant Qr SelfAdjointEigV2 Svd Lu "
    "MatrixSquareRoot MatrixLogarithm",
    axes=elements.last_axes(2),
)
row("CholeskyGrad MatrixSetDiagV3 TridiagonalSolve", axes=elements.last_axes(2, inputs=2))
row("TridiagonalMatMul", axes=elements.last_axes(2, inputs=4))
row("MatrixTriangularSolve MatrixSolve BandedTriangularSolve", axes=products.of_matrices)

# LSTM and GRU on GPUs. Registered as stateful, so that they run once and what they make is kept.
row("CudnnRNN CudnnRNNV2 CudnnRNNV3", size=Size.RESERVE)

# Parts, copies and broadcasts.
row("Slice", shares=Shares.PART, axes=shapes.cut)
row("SplitV", shares=Shares.PART, axes=shapes.split)
row("StridedSlice", shares=Shares.PART, axes=shapes.strided_slice)
row("Unpack", shares=Shares.PART, axes=shapes.unpack)
row("Split", shares=Shares.PART, axes=shapes.split, gradient_reads=_NOTHING)
row("BroadcastTo", **_MOVES, repeats=0, axes=shapes.broadcast)
row("Tile", **_MOVES, axes=shapes.tile)
row(
    "ConcatV2",
    shares=Shares.IDLE,
    axes=shapes.concat,
    places=places.joined,
    leading=places.leading,
    moves_rows=True,
    gradient_reads=_NOTHING,
)
row(
    "Pack",
    axes=shapes.pack,
    places=places.joined,
    leading=places.leading,
    gradient_reads=_NOTHING,
)
row("Pad", shares=Shares.IDLE, fusion=Fusion.READER, axes=shapes.pad)
row("PadV2", shares=Shares.IDLE, axes=shapes.pad)
row("MirrorPad MirrorPadGrad", axes=shapes.pad)
row(
    "Transpose",
    shares=Shares.IDLE_ORDER,
    absorbs_transpose=True,
    repeats=0,
    axes=shapes.transpose,
    places=places.moved,
    gradient_reads=_NOTHING,
)
row("TensorStridedSliceUpdate", in_place=InPlace.FIRST_INPUT)
row("Fill", size=Size.SHAPE_READ, repeats=1, axes=shapes.fill)
row("ZerosLike", fills_with=0, axes=shapes.like, list_axes=loops.empty)
row("OnesLike", fills_with=1, axes=shapes.like)
row("StridedSliceGrad", axes=shapes.strided_slice_grad)
row("SpaceToBatchND", axes=shapes.space_to_batch)
row("BatchToSpaceND", axes=shapes.batch_to_space)

# Images.
row(
    "DepthToSpace ExtractImagePatches ExtractVolumePatches SpaceToDepth",
    axes=_example(0),
)
row(
    "ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor ResizeNearestNeighborGrad",
    axes=_channel(0),
)
row(
    "ResizeBilinearGrad ResizeBicubicGrad ImageProjectiveTransformV2 ImageProjectiveTransformV3",
    axes=_channel(0, 1),
)
row("DrawBoundingBoxesV2", axes=_example(0, 1))
row("AdjustContrastv2", axes=elements.last_axes(3))
row("AdjustHue AdjustSaturation RGBToHSV HSVToRGB", axes=elements.last_axes(1))

# Indices and losses.
row("GatherV2", axes=indices.gather, moves_rows=True)
row("GatherNd", axes=indices.gather_nd)
row("ScatterNd", axes=indices.scatter_nd, adds_rows=True)
row(
    "TensorScatterUpdate TensorScatterAdd TensorScatterSub TensorScatterMax TensorScatterMin",
    axes=indices.tensor_scatter,
)
row("CropAndResize CropAndResizeGradImage CropAndResizeGradBoxes", axes=indices.boxes)
row("LowerBound UpperBound", axes=indices.search)
row("DenseBincount", axes=indices.bincount)
row(
    "UnsortedSegmentSum",
    axes=indices.segment_sum,
    adds_rows=True,
    moves_rows=True,
)
row("OneHot", axes=indices.one_hot)
row("ReverseSequence", axes=indices.reverse_sequence)
row("SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits", axes=indices.cross_entropy)
row(
    "StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessRandomUniformIntV2",
    axes=indices.random,
    counter=2,
)
row("StatelessTruncatedNormalV2", axes=indices.random)
row("Unique UniqueV2", moves_rows=True)
row("LookupTableFindV2", per_slice=True, hides_shape=True, axes=indices.lookup)
row("LookupTableSizeV2 Assert", per_slice=True)

# Lists of tensors.
_LISTS = "EmptyTensorList TensorListReserve"
row(_LISTS, size=Size.EMPTY, list_op=ListOp.EMPTY, list_axes=loops.empty)
row("TensorListFromTensor", list_op=ListOp.OF_ROWS, list_axes=loops.of_rows)
row("TensorListResize", list_op=ListOp.SAME, list_axes=loops.entry)
row("TensorListPopBack", shares=Shares.PART, list_op=ListOp.SAME, list_axes=loops.popped)
row("TensorListGetItem", shares=Shares.PART, list_op=ListOp.ENTRY, axes=loops.entry)
row("TensorListPushBack", list_entry=1, list_axes=loops.with_entry(1))
row("TensorListSetItem", list_entry=2, list_axes=loops.with_entry(2))
row("TensorListStack", axes=loops.stacked)
# A value that a condition returns for its gradient, or none of a branch that did not run.
row("OptionalNone", size=Size.EMPTY, list_op=ListOp.EMPTY, list_axes=loops.empty)
row("OptionalFromValue", list_entry=0, list_axes=loops.of_one)
row("OptionalGetValue", shares=Shares.PART, list_op=ListOp.ENTRY, axes=loops.entry)
row("OptionalHasValue", size=Size.NUMBERS, axes=loops.length)

# Loops, conditions and calls.
_LOOP: Columns = {"shares": Shares.PART, "runs": Runs.LOOP, "functions": ("body", "cond")}
row("StatelessWhile While", **_LOOP, axes=loops.loop)
_CONDITION: Columns = {
    "shares": Shares.PART,
    "runs": Runs.CONDITION,
    "axes": loops.condition,
}
row("If StatelessIf", **_CONDITION, functions=("then_branch", "else_branch"))
row("Case StatelessCase", **_CONDITION, functions=("branches",))
row(
    "PartitionedCall StatefulPartitionedCall",
    shares=Shares.PART,
    runs=Runs.CALL,
    functions=("f",),
    axes=loops.function_call,
)

# What TensorFlow's graph optimizer makes of several ops.
row("_FusedMatMul", from_optimizer=True, flops=flops.matrix_product, axes=products.matrix_product)
row("_FusedConv2D _FusedConv3D", **_FUSED_CONVOLUTION, flops=flops.convolution)
row("_FusedDepthwiseConv2dNative", **_FUSED_CONVOLUTION, flops=partial(flops.convolution, outer=2))
row("_UnaryOpsComposition", **_ELEMENTWISE, from_optimizer=True, axes=_element())
row("_FusedBatchNormEx", from_optimizer=True, size=Size.MASK, axes=products.batch_normalization)
row("_FusedBatchNormGradEx", from_optimizer=True)  # reads the bits that the whole left
row("_MklFusedBatchMatMulV2", from_optimizer=True, axes=products.batch_product)
row("_MklFusedInstanceNorm", from_optimizer=True, axes=_example(0))
row("_MklFusedMish _MklSwish", from_optimizer=True, axes=_element())
row("_MklLayerNorm", from_optimizer=True, axes=elements.last_axes(1))
