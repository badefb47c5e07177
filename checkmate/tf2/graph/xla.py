"""XLA, TensorFlow's compiler: the types of ops that it can compile for a device.

TensorFlow has no public way to ask. This file alone uses
`tensorflow.python.framework.kernels.get_registered_kernels_for_op` and the attribute
`_XlaMustCompile`, by which TensorFlow marks the call of a function that is compiled. If a
TensorFlow version lacks them, nothing is compiled. `test_xla` asserts that the installed TensorFlow
has them, and that what is marked runs compiled.
"""

from __future__ import annotations

from functools import cache

import tensorflow as tf

from checkmate.tf2 import device as devices

MUST_COMPILE = "_XlaMustCompile"
"""The attribute of a call whose function XLA compiles, on any device that has it."""

REFUSALS = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, tf.errors.NotFoundError)
"""What TensorFlow raises where XLA cannot compile a function, before any of it has run."""


def is_there() -> bool:
    """Whether TensorFlow has XLA for the device that trains."""
    return _compiles(devices.training_device()) and has_kernel("AddV2")


def has_kernel(op_type: str) -> bool:
    """Whether XLA has a kernel for ops of this type on the device that trains, for some types of
    numbers and some shapes."""
    device = "GPU" if devices.training_device().startswith("GPU") else "CPU"
    return f"XLA_{device}_JIT" in _devices_of(op_type)


@cache
def _compiles(device: str) -> bool:
    """Whether a small function is compiled; TensorFlow knows XLA's kernels only after the first."""
    try:
        with tf.init_scope(), tf.device(device):
            tf.function(lambda x: x + x, jit_compile=True, autograph=False)(tf.ones(1))
    except (tf.errors.OpError, ValueError, TypeError, RuntimeError):
        return False
    return True


@cache
def _devices_of(op_type: str) -> frozenset[str]:
    try:
        from tensorflow.python.framework import kernels

        found = kernels.get_registered_kernels_for_op(op_type)
    except (ImportError, AttributeError, tf.errors.OpError):
        return frozenset()
    return frozenset(each.device_type for each in found.kernel)
