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

from checkmate.tf2.ops.call import Answer, Call
from checkmate.tf2.ops.relation import SAME, SUMMED, ZERO, Kind, batched

Label = int | str | None
Labels = tuple[Label, ...]

OWN: Labels = ("own",)
"""In the place of an input's labels: a shape, an axis or the like, which has one value for all
slices, unless it is a shape; in that of an output's: it depends on no element of the inputs."""


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
      constant: Labels of which the outputs without that label do not depend on any entry.
      averages: Those sums are divided by the number of entries.
      linear: Whether and how the outputs are linear in the inputs `linear_in` (None for all).
      shapes: Indices of `OWN` inputs that are the shape of the first output.
    """

    inputs: tuple[Labels, ...]
    outputs: tuple[Labels, ...]
    summed: frozenset[Label] = frozenset()
    constant: frozenset[Label] = frozenset()
    averages: bool = False
    linear: Linear | None = None
    linear_in: frozenset[int] | None = None
    shapes: frozenset[int] = frozenset()


def relate(signature: Signature, call: Call) -> Answer | None:
    """An op's copy in a slice, or None if it needs the whole batch."""
    kinds = [relation.kind for relation in call.inputs]
    read = [k for k, labels in enumerate(signature.inputs) if labels is not OWN]
    for k, kind in enumerate(kinds):
        shape = kind is Kind.SIZE and k in signature.shapes
        if k not in read and not shape and kind not in (Kind.SAME, Kind.ZERO):
            return None
    if any(kinds[k] in (Kind.WHOLE, Kind.SIZE) for k in read):
        return None
    count = len(signature.outputs)
    if any(kinds[k] is Kind.SUMMED for k in read):
        fits = _of_sums(signature, kinds, read)
        summed = [SAME if axes is OWN else SUMMED for axes in signature.outputs]
        return Answer(summed, list(call.inputs)) if fits else None
    pairs = [(signature.inputs[k], call.inputs[k]) for k in read if kinds[k] is Kind.BATCHED]
    pairs += [(signature.outputs[k], relation) for k, relation in call.asked.items()]
    along = {(labels[relation.axis], relation.blocks) for labels, relation in pairs}
    if not along:
        zero = _stays_zero(signature, kinds, read)
        return Answer([ZERO if zero else SAME] * count, list(call.inputs))
    label, blocks = along.pop()
    if along or label is None:
        return None
    outputs = []
    for axes in signature.outputs:
        if label in axes:
            outputs.append(batched(axes.index(label), blocks))
        elif axes is OWN or label in signature.constant:
            outputs.append(SAME)
        elif label in signature.summed:
            outputs.append(SUMMED)
        else:
            return None
    inputs = list(call.inputs)
    for k in read:
        if label in signature.inputs[k] and kinds[k] is not Kind.BATCHED:
            inputs[k] = batched(signature.inputs[k].index(label), blocks)
    scaled: dict[int, int] = {}
    if outputs[0].kind is Kind.BATCHED:
        for k in signature.shapes:
            scaled |= call.scaled(k, outputs[0].axis)
    average = signature.averages and outputs[0] == SUMMED
    return Answer(outputs, inputs, scaled, average=average)


def _of_sums(signature: Signature, kinds: list[Kind], read: list[int]) -> bool:
    linear_in = set(read) if signature.linear_in is None else signature.linear_in
    sums = {k for k in read if kinds[k] is Kind.SUMMED}
    others = set(read) - sums
    if any(kinds[k] not in (Kind.SAME, Kind.ZERO) for k in others):
        return False
    if signature.linear is TOGETHER:
        added = others & linear_in
        return sums <= linear_in and all(kinds[k] is Kind.ZERO for k in added)
    return signature.linear is EACH and len(sums) == 1 and sums <= linear_in


def _stays_zero(signature: Signature, kinds: list[Kind], read: list[int]) -> bool:
    """True if an op that is linear in its inputs reads zeros only."""
    linear_in = set(read) if signature.linear_in is None else signature.linear_in
    zero = [kinds[k] is Kind.ZERO for k in linear_in]
    return signature.linear is not None and bool(zero) and all(zero)
