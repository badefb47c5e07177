"""A small call of each op type that has a row in the table, by TensorFlow's registry where that is
enough."""

from __future__ import annotations

import inspect
import itertools

import numpy as np
import tensorflow as tf

_Attribute = tf.compat.v1.AttrValue

DTYPES = (tf.float32, tf.complex64, tf.int32, tf.bool)
SHAPES = ((4, 6, 6, 2), (4, 6, 2), (4, 2, 4, 4, 2), (4, 6))
"""Even numbers, so that each axis can be cut in two."""

IMAGE, FILTER, VOLUME, CUBE = (4, 6, 6, 2), (2, 2, 2, 2), (4, 4, 4, 4, 2), (2, 2, 2, 2, 2)
ON_IMAGES = {"strides": [1] * 4, "padding": "SAME"}
ON_VOLUMES = {"strides": [1] * 5, "padding": "SAME"}


def raw(op_type, *arguments, **attributes):
    """Calls a raw op, its inputs by position."""
    call = getattr(tf.raw_ops, op_type)
    names = list(inspect.signature(call).parameters)
    inputs = [each.name for each in op_def(op_type).input_arg]
    named = [name if name in names else names[k] for k, name in enumerate(inputs)]
    return call(**dict(zip(named, arguments, strict=True)), **attributes)


def op_def(op_type):
    from checkmate.tf2.eager import private_api

    return private_api.op_def(op_type)


def example(shapes, call, *dtypes):
    """(the tensors' shapes, their dtypes, a function of the tensors)."""
    return [*shapes], [*(dtypes or [tf.float32] * len(shapes))], call


def of_type(op_type, shapes, *constants, dtypes=(), **attributes):
    """A call whose first inputs are tensors, and the others numbers."""
    return example(shapes, lambda *x: raw(op_type, *x, *constants, **attributes), *dtypes)


def whole(x, below):
    """Whole numbers from 0 on, made of any."""
    return tf.cast(tf.abs(x) * 1000, tf.int32) % below


def _positive(x):
    """A positive definite matrix for each in the last two axes."""
    return x @ tf.linalg.matrix_transpose(x) + 4 * tf.eye(2)


def _strided_slice_grad(x):
    place = {"begin": [0, 1], "end": [0, 4], "strides": [1, 1], "begin_mask": 1, "end_mask": 1}
    return tf.raw_ops.StridedSliceGrad(shape=[x.shape[0], 6], dy=x, **place)


def _to_batch_and_back(x):
    return tf.batch_to_space(tf.space_to_batch(x, [2], [[0, 0]]), [2], [[0, 0]])


def by_hand():
    """Op type -> an example of the ops that need attributes, numbers or shapes of their own."""
    examples = {
        "Reshape": example([(4, 6)], lambda x: tf.reshape(x, [-1, 2, 3])),
        "ExpandDims": of_type("ExpandDims", [(4, 6)], 1),
        "Squeeze": example([(4, 1, 6)], lambda x: tf.squeeze(x, 1)),
        "EnsureShape": example([(4, 6)], lambda x: raw("EnsureShape", x, shape=x.shape)),
        "IdentityN": example([(4, 6), (4, 2)], lambda *x: raw("IdentityN", list(x))),
        "Cast": example([(4, 6)], lambda x: tf.cast(x, tf.float64)),
        "Bucketize": of_type("Bucketize", [(4, 6)], boundaries=[0.2, 0.6]),
        "BiasAdd": example([(4, 6), (6,)], tf.nn.bias_add),
        "BiasAddGrad": of_type("BiasAddGrad", [(4, 6)]),
        "AddN": example([(4, 6), (4, 6)], lambda *x: tf.add_n(x)),
        "Select": example([(4,), (4, 6), (4, 6)], lambda c, x, y: raw("Select", c > 0.5, x, y)),
        "SelectV2": example([(4, 6)] * 3, lambda c, x, y: tf.where(c > 0.5, x, y)),
        "ClipByValue": of_type("ClipByValue", [(4, 6)], 0.2, 0.6),
        "Complex": example([(4, 6), (4, 6)], tf.complex),
        "Betainc": of_type("Betainc", [(4, 6)] * 3),
        "CheckNumerics": of_type("CheckNumerics", [(4, 6)], message=""),
        "CheckNumericsV2": of_type("CheckNumericsV2", [(4, 6)], message=""),
        "MatMul": example([(4, 6), (6, 2)], tf.matmul),
        "BatchMatMul": of_type("BatchMatMul", [(4, 2, 6), (4, 6, 2)]),
        "BatchMatMulV2": of_type("BatchMatMulV2", [(4, 2, 6), (6, 2)]),
        "BatchMatMulV3": of_type("BatchMatMulV3", [(4, 2, 6), (4, 6, 2)], Tout=tf.float32),
        "MatrixDeterminant": of_type("MatrixDeterminant", [(4, 2, 2)]),
        "LogMatrixDeterminant": of_type("LogMatrixDeterminant", [(4, 2, 2)]),
        "Einsum": example([(2, 4, 6), (6, 2)], lambda x, y: tf.einsum("...c,cd->...d", x, y)),
        "Transpose": of_type("Transpose", [(4, 6, 2)], [2, 0, 1]),
        "BroadcastTo": example([(4, 1)], lambda x: tf.broadcast_to(x, [2, x.shape[0], 6])),
        "Tile": of_type("Tile", [(4, 6)], [2, 1]),
        "Fill": example([(), (4, 6)], lambda x, y: tf.fill([y.shape[0], 6], x)),
        "ConcatV2": example([(4, 6), (4, 2)], lambda *x: tf.concat(x, 1)),
        "Split": example([(4, 6)], lambda x: tf.split(x, 2, 1)),
        "SplitV": example([(4, 6)], lambda x: tf.split(x, [2, 4], 1)),
        "Pack": example([(4, 6), (4, 6)], lambda *x: tf.stack(x, 1)),
        "Unpack": example([(4, 6)], lambda x: tf.unstack(x, axis=1)),
        "Pad": of_type("Pad", [(4, 6)], [[0, 0], [1, 2]]),
        "PadV2": of_type("PadV2", [(4, 6)], [[0, 0], [1, 2]], 0.5),
        "Slice": of_type("Slice", [(4, 6)], [0, 1], [-1, 3]),
        "StridedSlice": example([(4, 6)], lambda x: x[:, 1:5:2]),
        "StridedSliceGrad": example([(4, 3)], _strided_slice_grad),
        "SpaceToBatchND": example([IMAGE], lambda x: tf.space_to_batch(x, [2, 2], [[0, 0]] * 2)),
        "BatchToSpaceND": example([IMAGE], _to_batch_and_back),
        "GatherV2": example([(6, 2), (4, 2)], lambda x, y: tf.gather(x, whole(y, 6))),
        "GatherNd": example([(6, 2), (4, 2, 1)], lambda x, y: tf.gather_nd(x, whole(y, 6))),
        "ScatterNd": example([(4, 1), (4, 6)], lambda x, y: tf.scatter_nd(whole(x, 3), y, [3, 6])),
        "UnsortedSegmentSum": example(
            [(4, 6), (4,)], lambda x, y: tf.math.unsorted_segment_sum(x, whole(y, 3), 3)
        ),
        "OneHot": example([(4, 2)], lambda x: tf.one_hot(whole(x, 3), 3)),
        "SparseSoftmaxCrossEntropyWithLogits": example(
            [(4, 3), (4,)],
            lambda x, y: raw("SparseSoftmaxCrossEntropyWithLogits", x, whole(y, 3)),
        ),
        "SoftmaxCrossEntropyWithLogits": of_type("SoftmaxCrossEntropyWithLogits", [(4, 3)] * 2),
        "ArgMax": of_type("ArgMax", [(4, 6)], 1),
        "ArgMin": of_type("ArgMin", [(4, 6)], 1),
        "TopKV2": of_type("TopKV2", [(4, 6)], 2),
        "InTopKV2": example([(4, 6), (4,)], lambda x, y: raw("InTopKV2", x, whole(y, 6), 2)),
        "NthElement": of_type("NthElement", [(4, 6)], 1),
        "RFFT": of_type("RFFT", [(4, 2, 6)], [6]),
        "IRFFT": example([(4, 2, 4)], lambda x: tf.signal.irfft(tf.cast(x, tf.complex64), [6])),
        "Bitcast": example([(4, 6)], lambda x: tf.bitcast(x, tf.int32)),
        "L2Loss": of_type("L2Loss", [(4, 6)]),
        "MatrixBandPart": of_type("MatrixBandPart", [(4, 2, 2)], 0, -1),
        "MatrixDiagV3": of_type("MatrixDiagV3", [(4, 6)], 0, -1, -1, 0.0),
        "MatrixSetDiagV3": of_type("MatrixSetDiagV3", [(4, 6, 6), (4, 6)], 0),
        "Roll": of_type("Roll", [(4, 6, 2)], [1, 2], [1, 2]),
        "MirrorPad": of_type("MirrorPad", [(4, 6)], [[0, 0], [1, 2]], mode="REFLECT"),
        "MirrorPadGrad": of_type("MirrorPadGrad", [(4, 6)], [[0, 0], [1, 2]], mode="REFLECT"),
        "ReverseSequence": example(
            [(4, 6, 2), (4,)],
            lambda x, y: tf.reverse_sequence(x, whole(y, 6), seq_axis=1, batch_axis=0),
        ),
        "MatrixDiagPartV3": of_type("MatrixDiagPartV3", [(4, 6, 6)], 0, 0.0),
        "Cholesky": example([(4, 2, 2)], lambda x: tf.linalg.cholesky(_positive(x))),
        "CholeskyGrad": of_type("CholeskyGrad", [(4, 2, 2)] * 2),
        "MatrixInverse": example([(4, 2, 2)], lambda x: tf.linalg.inv(_positive(x))),
        "MatrixSolve": example(
            [(4, 2, 2), (4, 2, 6)], lambda x, y: tf.linalg.solve(_positive(x), y)
        ),
        "MatrixTriangularSolve": example(
            [(4, 2, 2), (4, 2, 6)], lambda x, y: tf.linalg.triangular_solve(_positive(x), y)
        ),
        "SelfAdjointEigV2": example([(4, 2, 2)], lambda x: tf.linalg.eigh(_positive(x))),
        "Svd": example([(4, 2, 2)], lambda x: tf.linalg.svd(x)),
        "Qr": example([(4, 6, 2)], lambda x: tf.linalg.qr(x)),
        "AdjustContrastv2": of_type("AdjustContrastv2", [(4, 6, 6, 3)], 0.5),
        "AdjustHue": of_type("AdjustHue", [(4, 6, 6, 3)], 0.2),
        "AdjustSaturation": of_type("AdjustSaturation", [(4, 6, 6, 3)], 0.5),
        "RGBToHSV": of_type("RGBToHSV", [(4, 6, 6, 3)]),
        "HSVToRGB": of_type("HSVToRGB", [(4, 6, 6, 3)]),
        "Conv2D": of_type("Conv2D", [IMAGE, FILTER], **ON_IMAGES),
        "Conv3D": of_type("Conv3D", [VOLUME, CUBE], **ON_VOLUMES),
        "DepthwiseConv2dNative": of_type("DepthwiseConv2dNative", [IMAGE, FILTER], **ON_IMAGES),
        "LRN": of_type("LRN", [IMAGE]),
        "DepthToSpace": of_type("DepthToSpace", [(4, 6, 6, 8)], block_size=2),
        "SpaceToDepth": of_type("SpaceToDepth", [IMAGE], block_size=2),
        "ExtractImagePatches": of_type(
            "ExtractImagePatches",
            [IMAGE],
            **{"ksizes": [1, 2, 2, 1], "rates": [1] * 4, **ON_IMAGES},
        ),
        "FusedBatchNormV3": example(
            [IMAGE, (2,), (2,), (2,), (2,)],
            lambda *read: raw("FusedBatchNormV3", *read, is_training=False)[0],
        ),
        "ImageProjectiveTransformV2": example(
            [IMAGE, (4, 8)],
            lambda x, y: raw("ImageProjectiveTransformV2", x, y, [6, 6], interpolation="NEAREST"),
        ),
        "ImageProjectiveTransformV3": example(
            [IMAGE, (4, 8)],
            lambda x, y: raw(
                "ImageProjectiveTransformV3", x, y, [6, 6], 0.0, interpolation="NEAREST"
            ),
        ),
    }
    examples |= quantized() | by_places() | of_more_matrices()
    for kind, axes in itertools.product(("Sum", "Mean", "Max", "Min", "Prod"), [1]):
        examples[kind] = of_type(kind, [(4, 6, 2)], [axes])
    examples["EuclideanNorm"] = of_type("EuclideanNorm", [(4, 6, 2)], [1])
    for kind in ("All", "Any"):
        examples[kind] = example([(4, 6)], lambda x, k=kind: raw(k, x > 0.5, [1]))
    for kind in ("Cumsum", "Cumprod", "CumulativeLogsumexp"):
        examples[kind] = of_type(kind, [(4, 6)], 1)
    examples["ReverseV2"] = of_type("ReverseV2", [(4, 6)], [1])
    for kind in ("Area", "Bicubic", "Bilinear", "NearestNeighbor"):
        examples[f"Resize{kind}"] = of_type(f"Resize{kind}", [IMAGE], [12, 12])
    for kind in ("Bicubic", "Bilinear"):
        examples[f"Resize{kind}Grad"] = of_type(f"Resize{kind}Grad", [(4, 12, 12, 2), IMAGE])
    examples["ResizeNearestNeighborGrad"] = of_type(
        "ResizeNearestNeighborGrad", [(4, 12, 12, 2)], [6, 6]
    )
    for dims, data, kernel, more in (
        ("2D", IMAGE, FILTER, ON_IMAGES),
        ("3D", VOLUME, CUBE, ON_VOLUMES),
    ):
        window = {"ksize": [1, *[2] * (len(data) - 2), 1], **more}
        version = "V2" if dims == "3D" else ""
        tail = "3D" if dims == "3D" else ""
        for kind in ("AvgPool", "MaxPool"):
            examples[f"{kind}{tail}"] = of_type(f"{kind}{tail}", [data], **window)
        examples[f"MaxPool{tail}Grad"] = of_type(f"MaxPool{tail}Grad", [data] * 3, **window)
        examples[f"MaxPool{tail}GradGrad"] = of_type(f"MaxPool{tail}GradGrad", [data] * 3, **window)
        examples[f"AvgPool{tail}Grad"] = example(
            [data],
            lambda x, t=tail, w=window: raw(f"AvgPool{t}Grad", x.shape.as_list(), x, **w),
        )
        examples[f"Conv{dims}BackpropInput{version}"] = example(
            [kernel, data],
            lambda f, y, d=dims, v=version, m=more: raw(
                f"Conv{d}BackpropInput{v}", y.shape.as_list(), f, y, **m
            ),
        )
        examples[f"Conv{dims}BackpropFilter{version}"] = example(
            [data, data],
            lambda x, y, d=dims, v=version, m=more, k=kernel: raw(
                f"Conv{d}BackpropFilter{v}", x, [*k], y, **m
            ),
        )
    examples["MaxPoolV2"] = of_type("MaxPoolV2", [IMAGE], [1, 2, 2, 1], [1] * 4, padding="SAME")
    examples["DepthwiseConv2dNativeBackpropInput"] = example(
        [FILTER, (4, 6, 6, 4)],
        lambda f, y: raw(
            "DepthwiseConv2dNativeBackpropInput", [y.shape[0], 6, 6, 2], f, y, **ON_IMAGES
        ),
    )
    examples["DepthwiseConv2dNativeBackpropFilter"] = example(
        [IMAGE, (4, 6, 6, 4)],
        lambda x, y: raw("DepthwiseConv2dNativeBackpropFilter", x, [*FILTER], y, **ON_IMAGES),
    )
    return examples


def quantized():
    gradients = "FakeQuantWithMinMaxVarsGradient", "FakeQuantWithMinMaxVarsPerChannelGradient"
    by_channel = [0.3] * 6, [0.7] * 6
    examples = {
        "FakeQuantWithMinMaxVars": of_type("FakeQuantWithMinMaxVars", [(4, 6)], 0.3, 0.7),
        "FakeQuantWithMinMaxVarsPerChannel": of_type(
            "FakeQuantWithMinMaxVarsPerChannel", [(4, 6)], *by_channel
        ),
        gradients[0]: of_type(gradients[0], [(4, 6)] * 2, 0.3, 0.7),
        gradients[1]: of_type(gradients[1], [(4, 6)] * 2, *by_channel),
    }
    for kind in ("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV4"):
        examples[kind] = of_type(kind, [(4, 6)], 0.3, 0.7, range_given=True)
    return examples


def by_places():
    """Ops by places along the batch's axis, and others by indices."""
    window = {"ksize": [1, 2, 2, 1], **ON_IMAGES}

    def rows(kind):
        return example([(4, 6), (4, 6)], lambda x, y: raw(kind, x, tf.range(4)[:, None], y))

    def pooled(x, y):
        places = tf.raw_ops.MaxPoolWithArgmax(input=x, **window)[1]
        return tf.raw_ops.MaxPoolGradWithArgmax(input=x, grad=y, argmax=places, **window)

    kinds = ("Update", "Add", "Sub", "Max", "Min")
    return {f"TensorScatter{kind}": rows(f"TensorScatter{kind}") for kind in kinds} | {
        "CropAndResize": example(
            [IMAGE, (4, 4)], lambda x, y: raw("CropAndResize", x, y, tf.range(4), [2, 2])
        ),
        "CropAndResizeGradImage": example(
            [(4, 2, 2, 2), (4, 4)],
            lambda x, y: raw("CropAndResizeGradImage", x, y, tf.range(4), IMAGE, T=tf.float32),
        ),
        "CropAndResizeGradBoxes": example(
            [(4, 2, 2, 2), IMAGE, (4, 4)],
            lambda *x: raw("CropAndResizeGradBoxes", *x, tf.range(4)),
        ),
        "MaxPoolWithArgmax": of_type("MaxPoolWithArgmax", [IMAGE], **window),
        "MaxPoolGradWithArgmax": example([IMAGE, IMAGE], pooled),
        "LowerBound": of_type("LowerBound", [(4, 6), (4, 2)]),
        "UpperBound": of_type("UpperBound", [(4, 6), (4, 2)]),
        "DenseBincount": example(
            [(4, 6), (4, 6)], lambda x, y: raw("DenseBincount", whole(x, 5), 5, y)
        ),
    }


def of_more_matrices():
    def complex_(op_type, shape, *more):
        return example([shape], lambda x: raw(op_type, tf.cast(x, tf.complex64), *more), tf.float32)

    dilated = {"strides": [1] * 4, "rates": [1] * 4, "padding": "SAME"}
    window = {"ksize": [1, 2, 2, 1], "strides": [1] * 4, "padding": "SAME"}
    return {
        "RFFT2D": of_type("RFFT2D", [(4, 4, 6)], [4, 6]),
        "RFFT3D": of_type("RFFT3D", [(4, 4, 4, 6)], [4, 4, 6]),
        "IRFFT2D": complex_("IRFFT2D", (4, 4, 4), [4, 6]),
        "IRFFT3D": complex_("IRFFT3D", (4, 4, 4, 4), [4, 4, 6]),
        "Lu": example([(4, 2, 2)], lambda x: tf.linalg.lu(_positive(x))),
        "MatrixSquareRoot": example([(4, 2, 2)], lambda x: tf.linalg.sqrtm(_positive(x))),
        "MatrixLogarithm": example(
            [(4, 2, 2)], lambda x: tf.linalg.logm(tf.cast(_positive(x), tf.complex64))
        ),
        "TridiagonalSolve": of_type("TridiagonalSolve", [(4, 3, 6), (4, 6, 2)]),
        "TridiagonalMatMul": of_type("TridiagonalMatMul", [*[(4, 1, 6)] * 3, (4, 6, 2)]),
        "BandedTriangularSolve": of_type("BandedTriangularSolve", [(4, 2, 6), (4, 6, 2)]),
        "LRNGrad": of_type("LRNGrad", [IMAGE] * 3),
        "Dilation2D": of_type("Dilation2D", [IMAGE, (2, 2, 2)], **dilated),
        "Dilation2DBackpropInput": of_type(
            "Dilation2DBackpropInput", [IMAGE, (2, 2, 2), IMAGE], **dilated
        ),
        "MaxPoolGradV2": of_type(
            "MaxPoolGradV2", [IMAGE] * 3, window["ksize"], window["strides"], padding="SAME"
        ),
        "ExtractVolumePatches": of_type(
            "ExtractVolumePatches",
            [VOLUME],
            ksizes=[1, 2, 2, 2, 1],
            strides=[1] * 5,
            padding="SAME",
        ),
        "FusedBatchNormGradV3": example(
            [IMAGE, IMAGE, (2,), (2,), (2,), (2,)],
            lambda *read: raw("FusedBatchNormGradV3", *read, is_training=False)[:3],
        ),
        "DrawBoundingBoxesV2": of_type(
            "DrawBoundingBoxesV2", [(4, 6, 6, 3), (4, 2, 4)], [[1.0] * 3]
        ),
    }


def further():
    """What an op does -> (op type, an example): those whose axes hang on their attributes and
    shapes."""
    image, kernel, each = (4, 6, 6, 6), (2, 2, 6, 12), ON_IMAGES
    wide = (4, 6, 6, 12)
    layout = {"data_format": "NCHW"}
    pooled = {"ksize": [1, 1, 1, 2], "strides": [1, 1, 1, 2], "padding": "VALID"}
    return {
        "bias of channels in front": ("BiasAdd", of_type("BiasAdd", [image, (6,)], **layout)),
        "its gradient": ("BiasAddGrad", of_type("BiasAddGrad", [image], **layout)),
        "convolution": ("Conv2D", of_type("Conv2D", [image, kernel], **each)),
        "gradient of its input": (
            "Conv2DBackpropInput",
            example(
                [kernel, wide], lambda *x: raw("Conv2DBackpropInput", [4, 6, 6, 6], *x, **each)
            ),
        ),
        "by height and width only": (
            "Conv2DBackpropInput",
            example([kernel, wide], lambda *x: raw("Conv2DBackpropInput", [6, 6], *x, **each)),
        ),
        "gradient of its filter": (
            "Conv2DBackpropFilter",
            example(
                [image, wide],
                lambda x, y: raw("Conv2DBackpropFilter", x, [*kernel], y, **each),
            ),
        ),
        "points": ("Conv2D", of_type("Conv2D", [image, (1, 1, 6, 12)], **each)),
        "gradient of points": (
            "Conv2DBackpropFilter",
            example(
                [image, wide],
                lambda x, y: raw("Conv2DBackpropFilter", x, [1, 1, 6, 12], y, **each),
            ),
        ),
        "groups": ("Conv2D", of_type("Conv2D", [image, (2, 2, 3, 12)], **each)),
        "filters of each channel": (
            "DepthwiseConv2dNative",
            of_type("DepthwiseConv2dNative", [image, (2, 2, 6, 2)], **each),
        ),
        "filters of one channel": (
            "DepthwiseConv2dNative",
            of_type("DepthwiseConv2dNative", [(4, 6, 6, 1), (2, 2, 1, 6)], **each),
        ),
        "their gradients": (
            "DepthwiseConv2dNativeBackpropFilter",
            example(
                [(4, 6, 6, 1), image],
                lambda x, y: raw("DepthwiseConv2dNativeBackpropFilter", x, [2, 2, 1, 6], y, **each),
            ),
        ),
        "joined axes": ("Reshape", example([(2, 12, 6)], lambda x: tf.reshape(x, [24, 6]))),
        "parts by index": ("GatherV2", example([image, (6,)], _taken)),
        "pooled channels": ("MaxPool", of_type("MaxPool", [image], **pooled)),
    } | of_batches(image)


def _taken(x, y):
    return tf.gather(x, whole(y, 6), axis=1)


def of_batches(image):
    """Normalization by the statistics of the batch."""
    numbers = [(image[-1],)] * 2

    def forward(x, scale, offset, layout="NHWC"):
        given = {"mean": [], "variance": [], "data_format": layout}
        return tf.raw_ops.FusedBatchNormV3(x=x, scale=scale, offset=offset, **given)

    def backward(dy, x, scale):
        *_, mean, inverse, more = forward(x, scale, scale)
        return raw("FusedBatchNormGradV3", dy, x, scale, mean, inverse, more)[:3]

    return {
        "statistics of the batch": (
            "FusedBatchNormV3",
            example([image, *numbers], lambda *x: forward(*x)[:5]),
        ),
        "their gradient": (
            "FusedBatchNormGradV3",
            example([image, image, numbers[0]], backward),
        ),
    }


def fused():
    """Op type -> an example of those that TensorFlow's graph optimizer makes."""
    image, bias = [IMAGE, FILTER, (2,)], {"num_args": 1, "fused_ops": ["BiasAdd", "Relu"]}
    product = {"transpose_a": False, "transpose_b": True}
    scaled = {"num_args": 2, "fused_ops": ["Mul", "Add"], "adj_x": False, "adj_y": True}
    batches = {"U": tf.float32, "is_training": True, "num_side_inputs": 0}
    sums = {"num_args": 2, "fused_ops": ["BiasAdd", "Add"], "num_host_args": 0}

    def call(op_type, shapes, outputs=1, **attributes):
        return example(shapes, lambda *x: made(op_type, x, outputs, **attributes))

    return {
        "_FusedMatMul": call("_FusedMatMul", [(4, 6), (2, 6), (2,)], **bias, **product),
        "_FusedConv2D": call(
            "_FusedConv2D", [*image, IMAGE], **sums, **ON_IMAGES, TArgs=[tf.float32] * 2
        ),
        "_FusedConv3D": call("_FusedConv3D", [VOLUME, CUBE, (2,)], **bias, **ON_VOLUMES),
        "_FusedDepthwiseConv2dNative": call(
            "_FusedDepthwiseConv2dNative", [IMAGE, (2, 2, 2, 1), (2,)], **bias, **ON_IMAGES
        ),
        "_MklFusedBatchMatMulV2": call(
            "_MklFusedBatchMatMulV2", [(4, 2, 6, 2), (4, 2, 6, 2), (), (4, 1, 6, 6)], **scaled
        ),
        "_FusedBatchNormEx": example(
            [(4, 6, 6, 8), (8,), (8,)],
            lambda *x: made(
                "_FusedBatchNormEx", [*x, [], []], 6, activation_mode="Relu", **batches
            )[:3],
        ),
    }


def made(op_type, inputs, outputs, **attributes):
    """An op that `tf.raw_ops` does not have."""
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(
        op_type,
        [tf.convert_to_tensor(x, tf.float32) for x in inputs],
        [tf.float32] * outputs,
        name="made",
        attrs={name: _attribute(x) for name, x in (attributes | {"T": tf.float32}).items()},
    ).outputs


def _attribute(value):
    kinds = {bool: "b", int: "i", str: "s", tf.DType: "type"}

    def plain(x):
        return x.encode() if isinstance(x, str) else getattr(x, "as_datatype_enum", x)

    if isinstance(value, list):
        field = next(name for kind, name in kinds.items() if isinstance(value[0], kind))
        return _Attribute(list=_Attribute.ListValue(**{field: [plain(x) for x in value]}))
    field = next(name for kind, name in kinds.items() if isinstance(value, kind))
    return _Attribute(**{field: plain(value)})


def by_registry(op_type):
    """An example of an op all of whose inputs are tensors of one type and shape; None where no type
    and shape will do."""
    definition = op_def(op_type)
    count = len(definition.input_arg)
    lists = any(each.number_attr or each.type_list_attr for each in definition.input_arg)
    if definition.is_stateful or not count or lists or not hasattr(tf.raw_ops, op_type):
        return None
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        try:
            raw(op_type, *[values(shape, dtype)] * count)
        except (TypeError, ValueError, tf.errors.OpError):
            continue
        return example([shape] * count, lambda *x: raw(op_type, *x), *[dtype] * count)
    return None


def values(shape, dtype, seed=0):
    """Numbers between 0 and 1, in which every op of the table is defined."""
    random = np.random.default_rng(seed)
    found = 0.1 + 0.8 * random.random(shape)
    if dtype.is_complex:
        return tf.constant(found + 1j * random.random(shape), dtype)
    if dtype == tf.bool:
        return tf.constant(found > 0.5)
    return tf.constant(1 + (4 * found).astype(int) if dtype.is_integer else found, dtype)
