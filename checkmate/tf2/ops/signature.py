"""Signature: which axes of an op's inputs and outputs are the same axis, as in an einsum.

"bi,ij->bj" says of a matrix product that it treats each b alone, and that it sums over i. So if the
examples of the batch lie along b, the product of a slice is a part of the product of the whole; if
they lie along i, in both factors, the products of the slices add up. Each axis of a tensor has a
label, which is a number, a text, or None for an axis along which the entries depend on each other
in some other way.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from checkmate.tf2.ops.call import Call, Relations
from checkmate.tf2.ops.relation import (
    SAME,
    SUMMED,
    ZERO,
    Kind,
    Relation,
    batch_axis,
    batched,
    same_blocks,
)

Label = int | str | None
Labels = tuple[Label, ...]

OWN: Labels = ("own",)
"""In the place of an input's labels: a shape, an axis or the like, whose value a slice takes from
its own graph."""


class Linear(Enum):
    """In which way an op is linear in inputs.

    EACH: in each of them while the others stay, as a product. TOGETHER: in all at once, as a sum.
    """

    EACH = "each"
    TOGETHER = "together"


EACH, TOGETHER = Linear.EACH, Linear.TOGETHER


@dataclass(frozen=True, slots=True)
class Signature:
    """Which axes of an op's inputs and outputs belong together.

    Attributes:
      summed: Labels over whose entries the outputs without that label are sums.
      averages: Those sums are divided by the number of entries.
      linear: Whether and how the outputs are linear in the inputs `linear_in` (None for all).
      broadcasts: An output may be longer than an input along an axis, and repeats it there.
      shapes: Indices of `OWN` inputs that are shapes of the outputs, and may differ between the
        whole and a slice. All other `OWN` inputs have one value, or the rule does not apply.
    """

    inputs: tuple[Labels, ...]
    outputs: tuple[Labels, ...]
    summed: frozenset[Label] = frozenset()
    averages: bool = False
    linear: Linear | None = None
    linear_in: frozenset[int] | None = None
    broadcasts: bool = False
    shapes: frozenset[int] = frozenset()


def relate(signature: Signature, call: Call) -> Relations | None:
    """The relation of each output, or None if outputs need the whole batch."""
    read = [k for k, labels in enumerate(signature.inputs) if labels is not OWN]
    if any(call.inputs[k].kind in (Kind.WHOLE, Kind.SIZE) for k in read):
        return None
    if any(call.inputs[k].kind is Kind.SUMMED for k in read):
        return _of_sums(signature, call, read)
    zeros = [k for k in read if call.inputs[k].kind is Kind.ZERO]
    if zeros and _stays_zero(signature, call, read):
        return [ZERO] * len(signature.outputs)
    inputs = {k: _without_zero(call, k) for k in read}
    along = {k: relation for k, relation in inputs.items() if relation.kind is Kind.BATCHED}
    if not along:
        return [_of_same(signature, call, k) for k in range(len(signature.outputs))]
    return _of_batched(signature, along)


def _of_sums(signature: Signature, call: Call, read: list[int]) -> Relations | None:
    linear_in = set(read) if signature.linear_in is None else signature.linear_in
    kinds = {k: call.inputs[k].kind for k in read}
    sums = {k for k in read if kinds[k] is Kind.SUMMED}
    others = set(read) - sums
    if signature.linear is TOGETHER:
        others -= {k for k in others & linear_in if kinds[k] is Kind.ZERO}
        fits = sums <= linear_in and not others & linear_in
    else:
        fits = signature.linear is EACH and len(sums) == 1 and sums <= linear_in
    if not fits or any(_without_zero(call, k).kind is not Kind.SAME for k in others):
        return None
    return [SUMMED] * len(signature.outputs)


def _stays_zero(signature: Signature, call: Call, read: list[int]) -> bool:
    """True if an op that is linear in its inputs reads zeros only."""
    linear_in = set(read) if signature.linear_in is None else signature.linear_in
    zero = [call.inputs[k].kind is Kind.ZERO for k in linear_in]
    return signature.linear is not None and bool(zero) and all(zero)


def _without_zero(call: Call, k: int) -> Relation:
    relation = call.inputs[k]
    if relation.kind is not Kind.ZERO:
        return relation
    axis = batch_axis(*call.shapes(k), call.count)
    return SAME if axis is None else batched(axis, 0)


def _of_same(signature: Signature, call: Call, output: int) -> Relation:
    """Without examples in the inputs: an output is the same, or repeats its inputs for each
    example."""
    if not signature.broadcasts:
        return SAME
    axis = batch_axis(*call.results(output), call.count)
    return SAME if axis is None else batched(axis, 0)


def _of_batched(signature: Signature, along: dict[int, Relation]) -> Relations | None:
    labels = {signature.inputs[k][relation.axis] for k, relation in along.items()}
    blocks = same_blocks({relation.blocks for relation in along.values()})
    if len(labels) != 1 or None in labels or blocks is None:
        return None
    (label,) = labels
    found: Relations = []
    for axes in signature.outputs:
        if label in axes:
            found.append(batched(axes.index(label), blocks))
        elif label in signature.summed:
            found.append(SUMMED)
        else:
            return None
    return found
