"""Rules of ops that compute each element alone, and of those that reduce axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from checkmate.tf2.ops.call import Call, Relations, Rule
from checkmate.tf2.ops.relation import WHOLE
from checkmate.tf2.ops.signature import EACH, OWN, TOGETHER, Label, Labels, Linear, Signature


def aligned(shape: Sequence[int], rank: int) -> Labels:
    """The labels of an input that is broadcast to `rank` axes; None for an axis that is
    repeated."""
    skipped = rank - len(shape)
    return tuple(None if size == 1 else skipped + k for k, size in enumerate(shape))


def elementwise(linear: Linear | None = None, *linear_in: int) -> Rule:
    """The rule of an op that computes each element from the elements in its place, after
    broadcasting."""

    def rule(call: Call) -> Signature:
        shapes = [call.shape(k) for k in range(len(call.inputs))]
        rank = max(map(len, shapes))
        labels = tuple(aligned(shape, rank) for shape in shapes)
        outputs = tuple(tuple(range(rank)) for _ in call.operation.outputs)
        chosen = frozenset(linear_in) or None
        return Signature(labels, outputs, linear=linear, linear_in=chosen)

    return rule


def cast(call: Call) -> Signature:
    """A cast between numbers with a fraction is linear, up to rounding."""
    source, target = call.operation.inputs[0].dtype, call.operation.outputs[0].dtype
    smooth = all(dtype.is_floating or dtype.is_complex for dtype in (source, target))
    return elementwise(TOGETHER if smooth else None)(call)


def bias_add(call: Call) -> Signature:
    labels, channel = _with_channel(call)
    return Signature((labels, (channel,)), (labels,), linear=TOGETHER)


def bias_add_grad(call: Call) -> Signature:
    labels, channel = _with_channel(call)
    summed = frozenset(labels) - {channel}
    return Signature((labels,), ((channel,),), summed=summed, linear=EACH)


def _with_channel(call: Call) -> tuple[Labels, Label]:
    labels = tuple(range(call.ranks()[0]))
    return labels, labels[-1] if call.attr("data_format") == "NHWC" else labels[1]


def same_as_input(call: Call) -> Relations | None:
    return None if WHOLE in call.inputs else list(call.inputs)


def select(call: Call) -> Signature:
    """`Select` takes one condition for each row, `SelectV2` broadcasts."""
    if call.type == "SelectV2":
        return elementwise(TOGETHER, 1, 2)(call)
    labels = tuple(range(call.ranks()[1]))
    inputs = (labels[: call.ranks()[0]], labels, labels)
    return Signature(inputs, (labels,), linear=TOGETHER, linear_in=frozenset({1, 2}))


def reduction(*, sums: bool = False, averages: bool = False) -> Rule:
    """The rule of an op that reduces the axes named by its second input: by sums, by averages (sums
    divided by the number of terms), or otherwise."""

    def rule(call: Call) -> Signature:
        rank = call.ranks()[0]
        axes = {int(axis) % rank for axis in np.ravel(call.value(1))} if rank else set()
        labels = tuple(range(rank))
        keeps = bool(call.attr("keep_dims"))
        left = tuple(None if k in axes else k for k in labels if keeps or k not in axes)
        dtype = call.operation.inputs[0].dtype
        smooth = dtype.is_floating or dtype.is_complex  # a mean of whole numbers is rounded
        linear = EACH if sums or (averages and smooth) else None
        return Signature(
            (labels, OWN),
            (left,),
            summed=frozenset(axes) if linear else frozenset(),
            averages=averages,
            linear=linear,
        )

    return rule


def last_axes(count: int, linear: Linear | None = None, *, inputs: int = 1) -> Rule:
    """The rule of an op that computes from the last `count` axes of its first input, for each entry
    of the others, which are also the first axes of the first `inputs` of its inputs and of its
    outputs; linear in the first."""

    def rule(call: Call) -> Signature:
        rank = call.ranks()[0] - count
        labels = tuple(
            _leading(tensor, rank) if k < inputs else OWN
            for k, tensor in enumerate(call.operation.inputs)
        )
        outputs = tuple(
            OWN if tensor.shape.num_elements() == 0 else _leading(tensor, rank)
            for tensor in call.operation.outputs
        )
        # Entries that are not of the input, such as a padding, are zero in a linear function.
        others = [call.known[k] for k in range(max(2, inputs), len(call.inputs))]
        is_linear = all(known is not None and not known.any() for known in others)
        return Signature(
            labels, outputs, linear=linear if is_linear else None, linear_in=frozenset({0})
        )

    return rule


def diagonals(call: Call) -> Signature:
    """Matrices of the given diagonals: several of them are an axis of the first input."""
    return last_axes(1 + (np.size(call.value(1)) > 1), EACH)(call)


def square_sum(call: Call) -> Signature:
    labels = tuple(range(call.ranks()[0]))
    return Signature((labels,), ((),), summed=frozenset(labels))


def quantized(call: Call) -> Signature | None:
    """Each element alone, between limits that are given for all of them."""
    given = bool(call.attr("range_given")) and call.ranks()[1:3] == [0, 0]
    return elementwise()(call) if given else None


def quantized_gradient(call: Call) -> Signature:
    """Of (gradient, input, lower limits, upper limits), limits for all or for each entry of the
    last axis: gradients of the last three."""
    labels = tuple(range(call.ranks()[0]))
    limits = labels[len(labels) - call.ranks()[2] :]
    summed = frozenset(labels) - frozenset(limits)
    inputs = (labels, labels, limits, limits)
    return Signature(
        inputs, (labels, limits, limits), summed=summed, linear=EACH, linear_in=frozenset({0})
    )


def bitcast(call: Call) -> Signature | None:
    """Each element alone, where the types have the same size."""
    return None if call.ranks()[0] != len(call.result()) else elementwise()(call)


def _leading(tensor: tf.Tensor, count: int) -> Labels:
    rank = tensor.shape.rank
    return tuple(k if k < count else None for k in range(rank))


def along_axis(linear: Linear | None = None, *, at: int = 1) -> Rule:
    """The rule of an op that computes along the axes named by its input `at`, such as a cumulative
    sum or a reversal."""

    def rule(call: Call) -> Signature:
        rank = call.ranks()[0]
        axes = {int(axis) % rank for axis in np.ravel(call.value(at))}
        labels = tuple(None if k in axes else k for k in range(rank))
        return Signature((labels, *[OWN] * at), (labels,), linear=linear)

    return rule


def arg_reduction(call: Call) -> Signature:
    rank = call.ranks()[0]
    axis = int(call.value(1)) % rank
    labels = tuple(None if k == axis else k for k in range(rank))
    return Signature((labels, OWN), (tuple(k for k in labels if k is not None),))
