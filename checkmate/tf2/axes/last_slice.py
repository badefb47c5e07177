"""check_last_slice(): whether a shorter last slice goes together with the others."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from checkmate.errors import TraceError
from checkmate.tf2.axes.batch_axes import BatchAxes
from checkmate.tf2.graph.operations import is_argument
from checkmate.tf2.ops.relation import Relation

Ways = dict[str, str]
"""Names of values of the whole batch -> how they follow from those of slices, in words."""


def check_last_slice(axes: BatchAxes, last: BatchAxes, *, examples: tuple[int, int]) -> None:
    """Makes sure that a step can run in slices of which the last one has fewer examples.

    What runs once must be the same with both, and both must make the same values of the whole
    batch, in the same way; then one set of totals and rows takes what all slices hand on. A last
    slice of one example is taken only if, besides, each value follows from the slices in the same
    way: along an axis of length one an op may broadcast, and sums may be left out.

    Raises:
      TraceError: They do not go together, and why.
    """
    for each, found in zip(examples, (axes, last), strict=True):
        if found.binding is not None:
            raise _differ(examples, f"with {each} examples, {found.binding.reason}")
    for phase, ops, others in (
        ("before", set(axes.early_ops), set(last.early_ops)),
        ("after", set(axes.whole_ops), set(last.whole_ops)),
    ):
        computed = sorted(each.name for each in ops ^ others if not is_argument(each))
        if computed:
            text = f"{computed[0]!r} runs once {phase} the slices with one of them only."
            raise _differ(examples, text)
    _compare(examples, _handed(axes, examples[0]), _handed(last, examples[1]))
    fed = {handed.whole.ref() for handed in axes.fed.values()}
    for read in last.fed.values():
        if read.whole.ref() not in fed:
            raise _differ(examples, f"only the last reads {read.whole.op.name!r} of the whole.")
    if examples[1] == 1:
        _compare(examples, _values(axes, examples[0]), _values(last, examples[1]))


def _compare(examples: tuple[int, int], values: Ways, last: Ways) -> None:
    for name in [*values, *last]:
        ways = [found.get(name, "not made") for found in (values, last)]
        if ways[0] != ways[1]:
            raise _differ(examples, f"{name!r} of the whole is {ways[0]}, and {ways[1]}.")


def _handed(axes: BatchAxes, size: int) -> Ways:
    return {each.whole.name: _way(each.relation, size) for each in axes.handed_on}


def _values(axes: BatchAxes, size: int) -> Ways:
    return {
        tensor.name: _way(relation, size)
        for pair, relations in axes.relations.items()
        for tensor, relation in zip(pair.whole.outputs, relations, strict=True)
    }


def _way(relation: Relation, size: int) -> str:
    grows = Fraction(relation.offset, size)
    offset = f", by {grows} more with each example" if grows else ""
    blocks = max(relation.blocks, 1)
    return f"{replace(relation, offset=0, blocks=blocks)}{offset}"


def _differ(examples: tuple[int, int], found: str) -> TraceError:
    return TraceError(
        f"The last slice has {examples[1]} of the examples and the others have {examples[0]}, and"
        f" the step does not run in both alike: {found} Use a number of micro-batches that divides"
        " the number of examples."
    )
