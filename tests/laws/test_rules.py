"""What the rules say of single ops holds for numbers: any op here, on inputs of any relation."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from single_ops import NAMES, ops
from slices_oracle import combined

from checkmate.tf2.axes.inside import inside
from checkmate.tf2.ops.relation import SAME, SUMMED, WHOLE, Kind, batched

COUNT = 2

pytestmark = pytest.mark.usefixtures("tensorflow")


def relations(shape):
    """The relations that a value of this shape may have."""
    along = [batched(axis) for axis, size in enumerate(shape) if not size % COUNT]
    blocks = [batched(axis, 2) for axis, size in enumerate(shape) if not size % (2 * COUNT)]
    return st.sampled_from([SAME, SUMMED, *along, *blocks])


def parts_of(relation, value, random):
    """The values of the slices."""
    if relation.kind is Kind.SAME:
        return [value] * COUNT
    if relation.kind is Kind.SUMMED:
        first = random.normal(size=value.shape)
        return [first, value - first]
    pieces = np.split(value, COUNT * relation.blocks, relation.axis)
    return [np.concatenate(pieces[s::COUNT], relation.axis) for s in range(COUNT)]


def said(name, given_relations):
    """What the rules say of an op's outputs, and the op for the whole and for a slice."""
    shapes, op = ops()[name]
    graphs = []
    for side in (1, COUNT):
        specs = []
        for shape, relation in zip(shapes, given_relations, strict=True):
            size = list(shape)
            if relation.kind is Kind.BATCHED:
                size[relation.axis] //= side
            specs.append(tf.TensorSpec(size, tf.float64))
        try:
            graphs.append(
                tf.function(lambda *x: tf.nest.flatten(op(*x))).get_concrete_function(*specs)
            )
        except (ValueError, tf.errors.InvalidArgumentError):
            return None, graphs
    return inside(COUNT, *(each.graph for each in graphs), given_relations), graphs


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_a_rule_says_holds_for_numbers(name, data):
    shapes, _ = ops()[name]
    given_relations = [data.draw(relations(shape)) for shape in shapes]
    found, graphs = said(name, given_relations)
    assume(found is not None)
    random = np.random.default_rng(0)
    values = [random.normal(size=shape) for shape in shapes]
    slices = zip(
        *(parts_of(r, v, random) for r, v in zip(given_relations, values, strict=True)), strict=True
    )
    try:
        results = [[y.numpy() for y in graphs[1](*map(np.asarray, each))] for each in slices]
    except tf.errors.InvalidArgumentError:
        assume(False)  # an op that no slice can run
    for k, result in enumerate(graphs[0](*values)):
        parts = [each[k] for each in results]
        if found[k].kind is Kind.WHOLE:
            continue
        together = combined(found[k], parts)
        np.testing.assert_allclose(together, result.numpy(), rtol=1e-6, atol=1e-6)


WORKS = {
    "add": ["b1", "b0"],
    "multiply": ["b1", "b1"],
    "where": ["b1", "b1", "b1"],
    "add_n": ["+", "+", "+"],
    "negative": ["+"],
    "reduce_sum(0,)False": ["b0"],
    "reduce_sum(0, 2)True": ["b1"],
    "reduce_max(1,)False": ["b0"],
    "matmul": ["b0", "s"],
    "matmul_transposed": ["b0", "b1"],
    "batch_matmul_adjoint": ["b0", "b0"],
    "einsum_heads": ["b0", "s"],
    "einsum_gradient": ["b0", "b0"],
    "merge": ["b0"],
    "merge_last": ["b1"],
    "split_axis": ["b0"],
    "transpose": ["b0"],
    "concat_first": ["b0", "b0"],
    "concat_last": ["b0", "b0"],
    "split": ["b0:2"],
    "half": ["b0:2"],
    "first": ["b0"],
    "steps": ["b0"],
    "softmax": ["b0"],
    "top_k": ["b0"],
    "gather": ["s", "b0"],
    "gather_batch": ["b0", "b0"],
    "gather_nd": ["s", "b0"],
    "segments": ["b0", "b0"],
    "scatter": ["b0", "b0"],
    "convolution": ["b0", "s"],
    "filter_gradient": ["b0", "b0"],
    "to_blocks": ["b0"],
    "from_blocks": ["b0:4"],
    "loop": ["b0", "s"],
}
"""Op -> relations of inputs for which the slices suffice: "s"ame, "+" summed, "b" and an axis, and
the number of blocks."""

FAILS = {
    "divide": ["b0", "+"],
    "add": ["+", "s"],
    "relu": ["+"],
    "to_int": ["+"],
    "reduce_max(0,)False": ["b0"],
    "reduce_prod(0,)False": ["b0"],
    "matmul": ["b0", "b1"],
    "softmax": ["b1"],
    "cumsum": ["b1"],
    "reverse": ["b1"],
    "split": ["b0"],
    "half": ["b0"],
    "gather": ["b0", "s"],
    "split_axis_first": ["b0"],
    "where": ["s", "+", "s"],
}
"""The same for relations with which the whole batch is needed."""


def relation_of(text):
    if text[0] != "b":
        return {"s": SAME, "+": SUMMED}[text]
    axis, _, blocks = text[1:].partition(":")
    return batched(int(axis), int(blocks or 1))


@pytest.mark.parametrize("name", WORKS)
def test_slices_suffice(name):
    found, _ = said(name, [relation_of(text) for text in WORKS[name]])
    assert found is not None and WHOLE not in found


@pytest.mark.parametrize("name", FAILS)
def test_the_whole_batch_is_needed(name):
    found, _ = said(name, [relation_of(text) for text in FAILS[name]])
    assert found is None or WHOLE in found
