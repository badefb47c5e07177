"""Rules of products, convolutions, poolings and normalizations, and of their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from checkmate.tf2.ops.call import Call, Rule
from checkmate.tf2.ops.elementwise import aligned
from checkmate.tf2.ops.signature import EACH, OWN, Label, Labels, Signature

_ROW, _INNER, _COLUMN = "row", "inner", "column"
_IN, _OUT = "in", "out"


def matrix_product(call: Call) -> Signature:
    """A fused one adds a bias and applies a function."""
    first, second = (_ROW, _INNER), (_INNER, _COLUMN)
    first = first[::-1] if call.attr("transpose_a") else first
    second = second[::-1] if call.attr("transpose_b") else second
    return _product(call, first, second, (_ROW, _COLUMN))


def _product(call: Call, first: Labels, second: Labels, output: Labels) -> Signature:
    """A fused product broadcasts to its output what it adds or multiplies."""
    more = tuple(_within(output, call.shape(k)) for k in range(2, len(call.inputs)))
    if more:
        return Signature((first, second, *more), (output,))
    return Signature((first, second), (output,), summed=frozenset({_INNER}), linear=EACH)


def _within(labels: Labels, shape: Sequence[int]) -> Labels:
    """The labels of a value that is broadcast to these."""
    last = labels[len(labels) - len(shape) :]
    return tuple(None if size == 1 else x for x, size in zip(last, shape, strict=True))


def batch_product(call: Call) -> Signature:
    """Products of the matrices in the last two axes; the other axes are broadcast. A fused one
    multiplies and adds."""
    ranks = call.ranks()[:2]
    rank = max(ranks)
    first, second = (_ROW, _INNER), (_INNER, _COLUMN)
    first = first[::-1] if call.attr("adj_x") else first
    second = second[::-1] if call.attr("adj_y") else second

    def leading(k: int) -> Labels:
        return aligned(call.shape(k)[:-2], rank - 2)

    output = (*range(rank - 2), _ROW, _COLUMN)
    return _product(call, (*leading(0), *first), (*leading(1), *second), output)


def of_matrices(call: Call) -> Signature:
    """An op of a matrix and the columns of another, in the last two axes; the other axes are
    broadcast."""
    rank = max(call.ranks())
    matrix, columns = (aligned(call.shape(k)[:-2], rank - 2) for k in range(2))
    inputs = ((*matrix, None, None), (*columns, None, _COLUMN))
    return Signature(inputs, ((*range(rank - 2), None, _COLUMN),))


def einsum(call: Call) -> Signature | None:
    """The equation of an `Einsum` is its signature."""
    left, _, right = call.attr("equation").replace(" ", "").partition("->")
    ranks = call.ranks()
    texts = left.split(",")
    named = [len(text.replace("...", "")) for text in texts]
    ellipses = zip(ranks, named, texts, strict=True)
    most = max([0, *(rank - name for rank, name, text in ellipses if "..." in text)])

    def labels(text: str, shape: tuple[int, ...]) -> Labels:
        before, dots, after = text.partition("...")
        count = len(shape) - len(before) - len(after)
        middle = [None if shape[len(before) + k] == 1 else most - count + k for k in range(count)]
        return (*before, *(middle if dots else ()), *after)

    inputs = tuple(labels(text, call.shape(k)) for k, text in enumerate(texts))
    before, dots, after = right.partition("...")
    output: Labels = (*before, *(range(most) if dots else ()), *after)
    # Two axes of one label are a diagonal, of which each entry needs one of both.
    twice = {label for axes in inputs for label in axes if axes.count(label) > 1}
    inputs = tuple(tuple(None if x in twice else x for x in axes) for axes in inputs)
    output = tuple(None if label in twice else label for label in output)
    summed = frozenset(label for axes in inputs for label in axes) - set(output) - {None}
    return Signature(inputs, (output,), summed=summed, linear=EACH)


def per_example(*inputs: int, by_channel: bool = False) -> Rule:
    """The rule of an op that computes for each entry of the first axis of the inputs with these
    indices, such as a resized image; the other inputs are shared by all. With `by_channel` for each
    channel, too, unless its window has several."""

    def rule(call: Call) -> Signature:
        tensors = call.operation.inputs
        given = call.operation.node_def.attr
        at = _channel_axis(call) if "data_format" in given else call.ranks()[inputs[0]] - 1
        alone = by_channel and ("ksize" not in given or call.attr("ksize")[at] == 1)

        def images(rank: int) -> Labels:
            # A table of one row for each example has no channels.
            return tuple(
                k if k == 0 or (k == at and alone and rank > 2) else None for k in range(rank)
            )

        labels = tuple(
            images(tensor.shape.rank) if k in inputs else _shared(tensor)
            for k, tensor in enumerate(tensors)
        )
        outputs = tuple(images(tensor.shape.rank) for tensor in call.operation.outputs)
        return Signature(labels, outputs, shapes=frozenset({0} if labels[0] is OWN else ()))

    return rule


def _channel_axis(call: Call) -> int:
    return str(call.attr("data_format")).index("C")


def _convolved(
    call: Call, image: Sequence[int], kernel: Sequence[int]
) -> tuple[Labels, Labels, Labels]:
    """The labels of images, filter and result of a convolution, by the shapes of the first two. A
    filter of one point computes each point alone."""
    rank, at = len(image), _channel_axis(call)
    first: Label = _IN
    last: Label = _OUT
    given = call.operation.node_def.attr
    named = call.attr("filter_format") if "filter_format" in given else "HWIO"
    # Each group of channels has filters of its own, whose number need not be that of the parts.
    grouped = image[at] < 1 or image[at] != kernel[-2]
    if grouped or len(call.attr("data_format")) != rank or named != "HWIO":
        first = last = None
    result = last
    if "Depthwise" in call.type and image[at] != 1:
        last, result = None, first  # of each channel several, one after the other
    moves = call.attr("padding") == "EXPLICIT" or {*call.attr("strides")} != {1}
    points = not moves and {*kernel[:-2]} == {1}

    def images(channel: Label) -> Labels:
        places = [k if k == 0 or points else None for k in range(rank)]
        return (*places[:at], channel, *places[at + 1 :])

    return images(first), (*(None,) * (rank - 2), first, last), images(result)


def convolution(call: Call) -> Signature:
    image, kernel, result = _convolved(call, call.shape(0), call.shape(1))
    summed = frozenset({_IN})
    return Signature((image, kernel), (result,), summed=summed, linear=EACH)


def fused_convolution(call: Call) -> Signature:
    """A convolution with a bias, a sum and a function in one kernel. The sum's other term has an
    axis for the examples."""
    image, kernel, result = _convolved(call, call.shape(0), call.shape(1))
    channel, rank = (result[_channel_axis(call)],), len(result)

    def labels(shape: Sequence[int]) -> Labels:
        named = {rank: result, 1: channel}.get(len(shape), (None,) * len(shape))
        return _within(named, shape)

    more = (labels(call.shape(k)) for k in range(2, len(call.inputs)))
    return Signature((image, kernel, *more), (result,))


def input_gradient(call: Call) -> Signature:
    """A sum over the channels of the gradient."""
    image, kernel, result = _convolved(call, call.result(), call.shape(1))
    # A shape of two numbers has neither examples nor channels.
    shapes = frozenset({0} if call.shape(0) == (len(image),) else ())
    return Signature(
        (OWN, kernel, result),
        (image,),
        summed=frozenset({_OUT}),
        linear=EACH,
        linear_in=frozenset({1, 2}),
        shapes=shapes,
    )


def filter_gradient(call: Call) -> Signature:
    """A sum over the examples of input and gradient."""
    image, kernel, result = _convolved(call, call.shape(0), call.result())
    return Signature(
        (image, OWN, result),
        (kernel,),
        summed=frozenset(image) - {_IN, None},
        linear=EACH,
        linear_in=frozenset({0, 2}),
        shapes=frozenset({1}),
    )


def batch_normalization(call: Call) -> Signature:
    """Each channel alone; with statistics that are given each element. Of the gradients those of
    scale and offset are sums."""
    shape, at = call.shape(0), _channel_axis(call)
    rank, fused = len(shape), call.type == "_FusedBatchNormEx"
    given, backward = not call.attr("is_training"), "Grad" in call.type
    alone = {*range(rank)} if given else {at}
    if fused and shape[at] % (4 * call.examples):
        alone -= {at}  # its kernels take channels by four
    images = tuple(k if k in alone else None for k in range(rank))

    def labels(tensor: tf.Tensor) -> Labels:
        if tensor.shape.rank == rank:
            return images
        return (images[at],) if tensor.shape.rank == 1 and tensor.shape[0] != 0 else OWN

    others = frozenset(images) - {at, None}
    # The last output of a fused one has a bit for each element, in an order of the kernel's own.
    outputs = call.operation.outputs[: 5 if fused else None]
    return Signature(
        tuple(map(labels, call.operation.inputs)),
        tuple(map(labels, outputs)),
        summed=others if backward else frozenset(),
        constant=frozenset() if backward else others,
        linear=EACH if backward else None,
        linear_in=frozenset({0}),
    )


def pooling_with_places(call: Call) -> Signature | None:
    """With the places of the largest entries, which are the example's own unless the batch's axis
    counts."""
    if call.attr("include_batch_in_index"):
        return None
    return per_example(*range(len(call.inputs)))(call)


def _shared(tensor: tf.Tensor) -> Labels:
    dtype, rank = tensor.dtype, tensor.shape.rank
    return OWN if dtype.is_integer and rank <= 1 else (None,) * rank
