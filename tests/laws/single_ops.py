"""Single ops, with the shapes of their inputs for the whole batch."""

from __future__ import annotations

import tensorflow as tf


def merged(x, k):
    """Two neighbouring axes as one."""
    shape = x.shape.as_list()
    return [*shape[:k], shape[k] * shape[k + 1], *shape[k + 2 :]]


def ops():
    image = (2, 4, 4, 2)
    kernel = (3, 3, 2, 2)
    return {
        "add": ([(2, 4, 3), (4, 3)], lambda x, y: x + y),
        "subtract": ([(2, 4, 3), (2, 1, 3)], lambda x, y: x - y),
        "multiply": ([(2, 4, 3), (2, 4, 1)], lambda x, y: x * y),
        "divide": ([(2, 4), (2, 4)], lambda x, y: x / y),
        "add_n": ([(2, 4), (2, 4), (2, 4)], lambda x, y, z: tf.add_n([x, y, z])),
        "maximum": ([(2, 4, 3), (4, 3)], tf.maximum),
        "where": ([(2, 4), (2, 4), (2, 4)], lambda x, y, z: tf.where(x > 0, y, z)),
        "select": (
            [(4,), (4, 3), (4, 3)],
            lambda x, y, z: tf.raw_ops.Select(condition=x > 0, x=y, y=z),
        ),
        "negative": ([(2, 4, 3)], tf.negative),
        "relu": ([(2, 4, 3)], tf.nn.relu),
        "to_float": ([(2, 4, 3)], lambda x: tf.cast(x, tf.float32)),
        "to_int": ([(2, 4, 3)], lambda x: tf.cast(x, tf.int32)),
        "bias": ([(2, 4, 2), (2,)], tf.nn.bias_add),
        **{
            f"{f.__name__}{axes}{keeps}": (
                [(2, 4, 6)],
                lambda x, f=f, axes=axes, keeps=keeps: f(x, axes, keeps),
            )
            for f in (tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_prod)
            for axes in ((0,), (1,), (0, 2), (-1,), None)
            for keeps in (True, False)
        },
        "matmul": ([(4, 2), (2, 6)], tf.matmul),
        "matmul_transposed": ([(2, 4), (6, 2)], lambda x, y: tf.matmul(x, y, True, True)),
        "batch_matmul": ([(2, 1, 4, 6), (4, 6, 2)], tf.matmul),
        "batch_matmul_adjoint": (
            [(2, 4, 6), (2, 2, 6)],
            lambda x, y: tf.matmul(x, y, transpose_b=True),
        ),
        "einsum_heads": ([(2, 4, 6), (6, 2, 4)], lambda x, y: tf.einsum("abc,cde->abde", x, y)),
        "einsum_gradient": ([(2, 4, 6), (2, 4, 2)], lambda x, y: tf.einsum("abc,abd->cd", x, y)),
        "einsum_dots": ([(2, 4, 6), (6, 2)], lambda x, y: tf.einsum("...c,cd->...d", x, y)),
        "merge": ([(2, 4, 6)], lambda x: tf.reshape(x, merged(x, 0))),
        "merge_last": ([(2, 4, 6)], lambda x: tf.reshape(x, merged(x, 1))),
        "flatten": ([(2, 4, 6)], lambda x: tf.reshape(x, [-1])),
        "split_axis": ([(8, 4)], lambda x: tf.reshape(x, [-1, 2, 4])),
        "split_axis_first": ([(8, 4)], lambda x: tf.reshape(x, [2, -1, 4])),
        "expand": ([(2, 4)], lambda x: tf.expand_dims(x, 1)),
        "transpose": ([(2, 4, 6)], lambda x: tf.transpose(x, [1, 2, 0])),
        "broadcast": ([(4,)], lambda x: tf.broadcast_to(x, [3, *x.shape])),
        "tile": ([(2, 4)], lambda x: tf.tile(x, [2, 1])),
        "concat_first": ([(2, 4), (2, 4)], lambda x, y: tf.concat([x, y], 0)),
        "concat_last": ([(2, 4), (2, 4)], lambda x, y: tf.concat([x, y], -1)),
        "split": ([(8, 4)], lambda x: tf.split(x, 2, 0)),
        "stack": ([(2, 4), (2, 4)], lambda x, y: tf.stack([x, y], 1)),
        "unstack": ([(2, 4)], lambda x: tf.unstack(x, axis=1)),
        "pad": ([(2, 4)], lambda x: tf.pad(x, [[0, 0], [1, 2]])),
        "cut": ([(4, 6)], lambda x: tf.slice(x, [0, 0], [-1, 3])),
        "half": ([(8, 4)], lambda x: x[: x.shape[0] // 2]),
        "first": ([(4, 6)], lambda x: x[:, 0]),
        "steps": ([(4, 6)], lambda x: x[..., ::2, tf.newaxis]),
        "reverse": ([(4, 6)], lambda x: tf.reverse(x, [1])),
        "cumsum": ([(4, 6)], lambda x: tf.cumsum(x, 1)),
        "softmax": ([(4, 6)], tf.nn.softmax),
        "top_k": ([(4, 6)], lambda x: tf.math.top_k(x, 2)),
        "argmax": ([(4, 6)], lambda x: tf.argmax(x, 1)),
        "gather": ([(4, 6), (2, 4)], lambda x, y: tf.gather(x, whole(y, 2), axis=0)),
        "gather_last": ([(4, 6), (2, 4)], lambda x, y: tf.gather(x, whole(y, 2), axis=1)),
        "gather_batch": ([(2, 4, 6), (2, 4)], lambda x, y: tf.gather(x, whole(y, 2), batch_dims=1)),
        "gather_nd": ([(4, 6), (4, 2, 1)], lambda x, y: tf.gather_nd(x, whole(y, 2))),
        "one_hot": ([(4, 2)], lambda x: tf.one_hot(whole(x, 3), 3, axis=1)),
        "segments": ([(4, 6), (4,)], lambda x, y: tf.math.unsorted_segment_sum(x, whole(y, 3), 3)),
        "scatter": ([(4, 1), (4, 6)], lambda x, y: tf.scatter_nd(whole(x, 3), y, [3, 6])),
        "convolution": ([image, kernel], lambda x, y: tf.nn.conv2d(x, y, 1, "SAME")),
        "pooling": ([image], lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME")),
        "filter_gradient": (
            [image, image],
            lambda x, y: tf.raw_ops.Conv2DBackpropFilter(
                input=x, filter_sizes=kernel, out_backprop=y, strides=[1] * 4, padding="SAME"
            ),
        ),
        "to_blocks": ([image], lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]])),
        "from_blocks": ([(8, 2, 2, 2)], lambda x: tf.batch_to_space(x, [2, 2], [[0, 0], [0, 0]])),
        "subpixels": ([(2, 4, 4, 4)], lambda x: tf.nn.depth_to_space(x, 2)),
        "resize": ([image], lambda x: tf.image.resize(x, (8, 8))),
        "fourier": ([(2, 4, 4)], lambda x: tf.signal.rfft(tf.cast(x, tf.float32))),
        "cholesky": (
            [(2, 2, 2)],
            lambda x: tf.linalg.cholesky(
                x @ tf.transpose(x, [0, 2, 1]) + 2 * tf.eye(2, dtype=x.dtype)
            ),
        ),
        "loss": (
            [(4,), (4, 3)],
            lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(whole(x, 3), y),
        ),
        "loop": (
            [(4, 3), (3, 3)],
            lambda x, y: tf.while_loop(
                lambda k, *_: k < 3,
                lambda k, z, s: (k + 1, tf.tanh(z @ y), s + tf.reduce_sum(z, 0)),
                (0, x, tf.zeros(3, x.dtype)),
            )[1:],
        ),
    }


NAMES = (
    *("add", "subtract", "multiply", "divide", "add_n", "maximum", "where", "select", "negative"),
    *("relu", "to_float", "to_int", "bias", "matmul", "matmul_transposed", "batch_matmul"),
    *("batch_matmul_adjoint", "einsum_heads", "einsum_gradient", "einsum_dots", "merge"),
    *("merge_last", "flatten", "split_axis", "split_axis_first", "expand", "transpose"),
    *("broadcast", "tile", "concat_first", "concat_last", "split", "stack", "unstack", "pad"),
    *("cut", "half", "first", "steps", "reverse", "cumsum", "softmax", "top_k", "argmax"),
    *("gather", "gather_last", "gather_batch", "gather_nd", "one_hot", "segments", "scatter"),
    *("convolution", "pooling", "filter_gradient", "to_blocks", "from_blocks", "subpixels"),
    *("resize", "fourier", "cholesky", "loss", "loop"),
    *(
        f"reduce_{kind}{axes}{keeps}"
        for kind in ("sum", "mean", "max", "prod")
        for axes in ((0,), (1,), (0, 2), (-1,), None)
        for keeps in (True, False)
    ),
)


def whole(x, below):
    """Whole numbers from 0 on, made of any."""
    return tf.cast(tf.abs(x) * 1000, tf.int32) % below
