"""What the rules say of single ops holds for numbers: any op here, on inputs of any relation."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from single_ops import NAMES, ops
from slices_oracle import combined, cut, in_parts

from checkmate.tf2.ops.relation import SAME, SUMMED, Kind, batched

COUNT = 2

pytestmark = pytest.mark.usefixtures("tensorflow")


def relations(shape):
    """The relations that a value of this shape may have."""
    along = [batched(axis) for axis, size in enumerate(shape) if not size % COUNT]
    blocks = [batched(axis, 2) for axis, size in enumerate(shape) if not size % (2 * COUNT)]
    return st.sampled_from([SAME, SUMMED, *along, *blocks])


def parts_of(relation, value, random):
    """The values of the slices."""
    if relation.kind is Kind.SUMMED:
        first = random.normal(size=value.shape)
        return [first, value - first]
    return cut(relation, value, COUNT)


def said(name, given_relations):
    """An op as a function of the whole, and what the rules say of it: the relations of its results
    and the function for a slice; None if it needs the whole."""
    shapes, op = ops()[name]
    specs = [tf.TensorSpec(shape, tf.float64) for shape in shapes]
    whole = tf.function(lambda *x: tf.nest.flatten(op(*x))).get_concrete_function(*specs)
    return whole, in_parts(whole.graph, given_relations)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_a_rule_says_holds_for_numbers(name, data):
    shapes, _ = ops()[name]
    given_relations = [data.draw(relations(shape)) for shape in shapes]
    whole, found = said(name, given_relations)
    assume(found is not None)
    body, part = found
    random = np.random.default_rng(0)
    values = [random.normal(size=shape) for shape in shapes]
    slices = zip(
        *(parts_of(r, v, random) for r, v in zip(body.arguments, values, strict=True)), strict=True
    )
    parts = [[y.numpy() for y in part(k, *map(tf.constant, each))] for k, each in enumerate(slices)]
    for relation, result, *each in zip(body.results, whole(*values), *parts, strict=True):
        np.testing.assert_allclose(combined(relation, each), result, rtol=1e-6, atol=1e-6)


WORKS = {
    "add": ["b1", "b0"],
    "multiply": ["b1", "b1"],
    "where": ["b1", "b1", "b1"],
    "add_n": ["+", "+", "s"],
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
    "split_axis_first": ["b0"],
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
    "add": ["+", "b0"],
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
    "where": ["b0", "+", "s"],
}
"""The same for relations with which the whole batch is needed."""


def relation_of(text):
    if text[0] != "b":
        return {"s": SAME, "+": SUMMED}[text]
    axis, _, blocks = text[1:].partition(":")
    return batched(int(axis), int(blocks or 1))


@pytest.mark.parametrize("name", WORKS)
def test_slices_suffice(name):
    assert said(name, [relation_of(text) for text in WORKS[name]])[1] is not None


@pytest.mark.parametrize("name", FAILS)
def test_the_whole_batch_is_needed(name):
    assert said(name, [relation_of(text) for text in FAILS[name]])[1] is None
