"""Rules of products, convolutions, poolings and normalizations, and of their gradients."""

from __future__ import annotations

from checkmate.tf2.ops.call import Call, Rule
from checkmate.tf2.ops.elementwise import aligned
from checkmate.tf2.ops.signature import EACH, OWN, Labels, Linear, Signature

_ROW, _INNER, _COLUMN = "row", "inner", "column"


def matrix_product(call: Call) -> Signature:
    """A fused one adds a bias and applies a function."""
    first, second = (_ROW, _INNER), (_INNER, _COLUMN)
    first = first[::-1] if call.attr("transpose_a") else first
    second = second[::-1] if call.attr("transpose_b") else second
    fused = len(call.inputs) > 2
    more = tuple((_ROW, _COLUMN)[2 - rank :] for rank in call.ranks()[2:])
    if fused:
        return Signature((first, second, *more), ((_ROW, _COLUMN),))
    return Signature((first, second), ((_ROW, _COLUMN),), summed=frozenset({_INNER}), linear=EACH)


def batch_product(call: Call) -> Signature:
    """Products of the matrices in the last two axes; the other axes are broadcast."""
    ranks = call.ranks()[:2]
    rank = max(ranks)
    first, second = (_ROW, _INNER), (_INNER, _COLUMN)
    first = first[::-1] if call.attr("adj_x") else first
    second = second[::-1] if call.attr("adj_y") else second

    def leading(k: int) -> Labels:
        return aligned(call.shape(k)[:-2], rank - 2)

    return Signature(
        ((*leading(0), *first), (*leading(1), *second)),
        ((*range(rank - 2), _ROW, _COLUMN),),
        summed=frozenset({_INNER}),
        linear=EACH,
    )


def of_matrices(call: Call) -> Signature:
    """An op on the matrices in the last two axes; the other axes are broadcast."""
    rank = max(call.ranks())
    inputs = tuple(
        (*aligned(call.shape(k)[:-2], rank - 2), None, None) for k in range(len(call.inputs))
    )
    return Signature(inputs, ((*range(rank - 2), None, None),))


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


def per_example(
    *inputs: int, linear: Linear | None = None, linear_in: tuple[int, ...] = ()
) -> Rule:
    """The rule of an op that computes for each entry of the first axis of the inputs with these
    indices, such as a convolution; the other inputs are shared by all."""

    def rule(call: Call) -> Signature:
        tensors = call.operation.inputs
        labels = tuple(
            _first_axis(tensor.shape.rank) if k in inputs else _shared(tensor)
            for k, tensor in enumerate(tensors)
        )
        outputs = tuple(_first_axis(tensor.shape.rank) for tensor in call.operation.outputs)
        of_result = "Backprop" in call.type or call.type.startswith("AvgPool")
        sizes = frozenset({0} if of_result and labels[0] is OWN else ())
        return Signature(
            labels, outputs, linear=linear, linear_in=frozenset(linear_in) or None, shapes=sizes
        )

    return rule


def fused_convolution(call: Call) -> Signature:
    """A convolution with a bias, a sum and a function in one kernel. The sum's other term has an
    axis for the examples."""
    ranks = call.ranks()
    labels = tuple(
        _first_axis(rank) if k != 1 and rank == ranks[0] else (None,) * rank
        for k, rank in enumerate(ranks)
    )
    return Signature(labels, (_first_axis(ranks[0]),))


def filter_gradient(call: Call) -> Signature:
    """A sum over the examples of input and gradient."""
    ranks = call.ranks()
    return Signature(
        (_first_axis(ranks[0]), OWN, _first_axis(ranks[2])),
        ((None,) * len(call.result()),),
        summed=frozenset({0}),
        linear=EACH,
        linear_in=frozenset({0, 2}),
    )


def batch_normalization_gradient(call: Call) -> Signature | None:
    """Of (gradient, input, scale, ...) with statistics that are given: gradients of input, scale
    and offset, and two that are not used."""
    if call.attr("is_training"):
        return None
    images, channels = _first_axis(len(call.shape(0))), (None,)
    return Signature(
        (images, images, *[channels] * 3, OWN),
        (images, channels, channels, OWN, OWN),
        summed=frozenset({0}),
        linear=EACH,
        linear_in=frozenset({0}),
    )


def pooling_with_places(call: Call) -> Signature | None:
    """With the places of the largest entries, which are the example's own unless the batch's axis
    counts."""
    if call.attr("include_batch_in_index"):
        return None
    return per_example(*range(len(call.inputs)))(call)


def batch_normalization(call: Call) -> Signature | None:
    """With statistics that are given, each example alone; otherwise the statistics are those of the
    batch."""
    if call.attr("is_training"):
        return None
    ranks = call.ranks()
    images = {0, 5} if call.type == "_FusedBatchNormEx" else {0}
    axes = enumerate(ranks)
    inputs = tuple(_first_axis(n) if k in images else (None,) * n for k, n in axes)
    others = [OWN] * (len(call.operation.outputs) - 1)
    return Signature(inputs, (_first_axis(ranks[0]), *others))


def _first_axis(rank: int) -> Labels:
    return (0, *(None,) * (rank - 1))


def _shared(tensor: object) -> Labels:
    dtype, rank = tensor.dtype, tensor.shape.rank  # type: ignore[attr-defined]
    return OWN if dtype.is_integer and rank <= 1 else (None,) * rank
