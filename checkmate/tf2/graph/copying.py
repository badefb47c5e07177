"""How a value is copied to memory of its own, for values of any numbers.

Few of TensorFlow's ops copy whatever happens: most take over an input's memory where they can, and
`DeepCopy` has no kernel of GPUs for every type of numbers. A value of another type is copied as the
bytes that it consists of, which are its own memory under another type. Truth values have no such
view and are converted to bytes and back.
"""

from __future__ import annotations

import tensorflow as tf

ON_GPUS = (
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
    tf.int8,
    tf.uint8,
    tf.int64,
    tf.uint64,
)
"""What GPUs have kernels for that allocate memory, write a part of it, and copy it, all on the
device. (Kernels of GPUs keep 32-bit integers in the host's memory, where `DeepCopy` copies them.)
"""

Step = tuple[str, dict[str, tf.DType]]
"""An op of one input and its type attributes."""


def steps(dtype: tf.DType) -> tuple[Step, ...]:
    """Returns the ops that, one after another, copy a value of a type which
    `operations.can_be_copied`."""
    if dtype in (*ON_GPUS, tf.int32):
        return (("DeepCopy", {"T": dtype}),)
    if dtype == tf.bool:
        return (
            ("Cast", {"SrcT": dtype, "DstT": tf.uint8}),
            ("Cast", {"SrcT": tf.uint8, "DstT": dtype}),
        )
    return (
        ("Bitcast", {"T": dtype, "type": tf.uint8}),
        ("DeepCopy", {"T": tf.uint8}),
        ("Bitcast", {"T": tf.uint8, "type": dtype}),
    )


def copy_of(value: tf.Tensor) -> tf.Tensor:
    """Returns a copy of a tensor of numbers, or makes its ops in the graph that is being traced."""
    for kind, types in steps(value.dtype):
        if kind == "DeepCopy":
            value = tf.raw_ops.DeepCopy(x=value)
        elif kind == "Cast":
            value = tf.raw_ops.Cast(x=value, DstT=types["DstT"])
        else:
            value = tf.raw_ops.Bitcast(input=value, type=types["type"])
    return value
