"""The table: for each op type the rule by which the relations of its outputs follow from those of
its inputs. An op type without a row needs the whole batch, unless all its inputs are the same for
every slice. To add a rule, add a row.
"""

from __future__ import annotations

from checkmate.tf2.axes import loops
from checkmate.tf2.axes import rules_elementwise as elements
from checkmate.tf2.axes import rules_indices as indices
from checkmate.tf2.axes import rules_products as products
from checkmate.tf2.axes import rules_shapes as shapes
from checkmate.tf2.axes.call import Rule
from checkmate.tf2.axes.signature import Linear

EACH, TOGETHER = Linear.EACH, Linear.TOGETHER

TABLE: dict[str, Rule] = {}

LISTS: dict[str, Rule] = {}
"""The same for ops that return lists of tensors. The relation of a list is that of its entries."""


def add_row(op_types: str, rule: Rule, table: dict[str, Rule] = TABLE) -> None:
    """Adds a row for some op types."""
    for op_type in op_types.split():
        if op_type in table:
            raise ValueError(f"The table has two rows for {op_type!r}.")
        table[op_type] = rule


# Elementwise: by what they are linear in.
_element = elements.elementwise
add_row("Abs Acos Acosh Asin Asinh Atan Atan2 Atanh Ceil Cos Cosh Digamma Elu Erf Erfc", _element())
add_row("Erfinv Exp Expm1 Floor FloorDiv FloorMod Inv IsFinite IsInf IsNan Lgamma", _element())
add_row("LeakyRelu Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Pow", _element())
add_row("Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus", _element())
add_row("Softsign Sqrt Square SquaredDifference Tan Tanh TruncateDiv TruncateMod", _element())
add_row("ApproximateEqual Equal Greater GreaterEqual Less LessEqual NotEqual", _element())
add_row("BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift Bucketize", _element())
add_row("ComplexAbs Angle ClipByValue Igamma Igammac Betainc Xdivy Xlogy Xlog1py", _element())
add_row("_UnaryOpsComposition _MklSwish _MklFusedMish", _element())
add_row("Neg Conj Real Imag Complex Add AddV2 Sub StopGradient PreventGradient", _element(TOGETHER))
add_row("Identity EnsureShape CheckNumerics CheckNumericsV2 Snapshot", _element(TOGETHER))
add_row("Mul", _element(EACH))
add_row("RealDiv Div DivNoNan MulNoNan", _element(EACH, 0))
add_row("ReluGrad Relu6Grad LeakyReluGrad EluGrad SeluGrad SoftplusGrad", _element(EACH, 0))
add_row("SoftsignGrad", _element(EACH, 0))
add_row("SigmoidGrad TanhGrad RsqrtGrad SqrtGrad ReciprocalGrad InvGrad", _element(EACH, 1))
add_row("Cast", elements.cast)
add_row("Select SelectV2", elements.select)
add_row("IdentityN", elements.same_as_input)
add_row("BiasAdd", elements.bias_add)
add_row("AddN", shapes.add_up)

# Reductions, and what computes along some axes.
add_row("Sum", elements.reduction(sums=True))
add_row("Mean", elements.reduction(averages=True))
add_row("All Any EuclideanNorm Max Min Prod", elements.reduction())
add_row("BiasAddGrad", elements.bias_add_grad)
add_row("ArgMax ArgMin", elements.arg_reduction)
add_row("Cumsum", elements.along_axis(TOGETHER))
add_row("Cumprod CumulativeLogsumexp", elements.along_axis())
add_row("ReverseV2", elements.along_axis(TOGETHER))
add_row("Softmax LogSoftmax TopKV2 InTopKV2 NthElement", elements.last_axes(1))
add_row("FFT IFFT RFFT", elements.last_axes(1, TOGETHER, 0))
add_row("FFT2D IFFT2D", elements.last_axes(2, TOGETHER, 0))
add_row("FFT3D IFFT3D", elements.last_axes(3, TOGETHER, 0))
add_row("MatrixDiagPartV3 MatrixDiagPart MatrixBandPart", elements.last_axes(2, EACH, 0))
add_row("MatrixDiag", elements.last_axes(1, EACH, 0))
add_row("Cholesky MatrixInverse LogMatrixDeterminant MatrixDeterminant Qr", elements.last_axes(2))
add_row("CholeskyGrad SelfAdjointEigV2 Svd", elements.last_axes(2))
add_row("MatrixTriangularSolve MatrixSolve", elements.last_axes(2))
add_row("_MklLayerNorm", elements.last_axes(1))

# Products.
add_row("MatMul _FusedMatMul", products.matrix_product)
add_row("BatchMatMul BatchMatMulV2 BatchMatMulV3", products.batch_product)
add_row("Einsum", products.einsum)
_example = products.per_example
add_row("Conv2D Conv3D DepthwiseConv2dNative", _example(0, linear=EACH, linear_in=(0, 1)))
add_row("_FusedConv2D _FusedConv3D _FusedDepthwiseConv2dNative", products.fused_convolution)
add_row("Conv2DBackpropInput Conv3DBackpropInputV2", _example(2, linear=EACH, linear_in=(1, 2)))
add_row("DepthwiseConv2dNativeBackpropInput", _example(2, linear=EACH, linear_in=(1, 2)))
add_row("Conv2DBackpropFilter Conv3DBackpropFilterV2", products.filter_gradient)
add_row("DepthwiseConv2dNativeBackpropFilter", products.filter_gradient)
add_row("AvgPool AvgPool3D MaxPool MaxPool3D MaxPoolV2 LRN", _example(0))
add_row("MaxPoolGrad MaxPool3DGrad MaxPoolGradGrad MaxPool3DGradGrad", _example(0, 1, 2))
add_row("AvgPoolGrad AvgPool3DGrad", _example(1))
add_row("FusedBatchNormV3 _FusedBatchNormEx", products.batch_normalization)
add_row("_MklFusedInstanceNorm", _example(0))

# Images.
add_row("ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea", _example(0))
add_row("ResizeBilinearGrad ResizeBicubicGrad", _example(0, 1))
add_row("ResizeNearestNeighborGrad DepthToSpace SpaceToDepth", _example(0))
add_row("AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV HSVToRGB", elements.last_axes(3))
add_row("ExtractImagePatches", _example(0))
add_row("ImageProjectiveTransformV2 ImageProjectiveTransformV3", _example(0, 1))

# Moving, joining and cutting.
add_row("Reshape ExpandDims Squeeze", shapes.reshape)
add_row("Transpose", shapes.transpose)
add_row("BroadcastTo", shapes.broadcast)
add_row("Fill", shapes.fill)
add_row("ZerosLike OnesLike", shapes.like)
add_row("Tile", shapes.tile)
add_row("ConcatV2", shapes.concat)
add_row("Split SplitV", shapes.split)
add_row("Pack", shapes.pack)
add_row("Unpack", shapes.unpack)
add_row("Pad PadV2", shapes.pad)
add_row("Slice", shapes.cut)
add_row("StridedSlice", shapes.strided_slice)
add_row("StridedSliceGrad", shapes.strided_slice_grad)
add_row("SpaceToBatchND", shapes.space_to_batch)
add_row("BatchToSpaceND", shapes.batch_to_space)

# Indices and losses.
add_row("GatherV2", indices.gather)
add_row("GatherNd", indices.gather_nd)
add_row("ScatterNd", indices.scatter_nd)
add_row("UnsortedSegmentSum", indices.segment_sum)
add_row("OneHot", indices.one_hot)
add_row("SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits", indices.cross_entropy)
add_row("StatelessRandomUniformV2 StatelessRandomNormalV2", indices.random)
add_row("StatelessTruncatedNormalV2 StatelessRandomUniformIntV2", indices.random)
add_row("RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt", indices.random)

# Loops, conditions and lists of tensors.
add_row("StatelessWhile While", loops.loop)
add_row("If StatelessIf", loops.condition)
add_row("PartitionedCall StatefulPartitionedCall", loops.function_call)
add_row("TensorListGetItem", loops.entry)
add_row("TensorListStack", loops.stacked)
add_row("TensorListElementShape", loops.shape_of_entry)
add_row("TensorListLength", loops.length)
add_row("EmptyTensorList TensorListReserve ZerosLike", loops.empty, LISTS)
add_row("TensorListFromTensor", loops.of_rows, LISTS)
add_row("TensorListPopBack", loops.popped, LISTS)
add_row("TensorListPushBack", loops.with_entry(1), LISTS)
add_row("TensorListSetItem", loops.with_entry(2), LISTS)
add_row("TensorListResize Identity StopGradient", loops.entry, LISTS)
add_row("AddN AddV2 Add", loops.added, LISTS)
