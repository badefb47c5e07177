"""max_length(): the answer trains within the budget, and a longer one does not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate
from checkmate.errors import BudgetError, InfeasibleBudgetError, TraceError
from checkmate.tf2.max_length import open_size

MIB = 2**20
WIDTH, HEADS, WORDS = 32, 4, 64
pytestmark = pytest.mark.usefixtures("tensorflow")


def attention(length=None):
    tokens = keras.Input((length,), dtype="int32")
    x = keras.layers.Embedding(WORDS, WIDTH)(tokens)
    x = x + keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x)
    return keras.Model(tokens, keras.layers.Dense(WORDS)(x))


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def search(model, spec=None, **options):
    spec = tf.TensorSpec([1, None], tf.int32) if spec is None else spec
    return checkmate.tf2.max_length(model, LOSS, "adam", spec, spec, **options)


@pytest.mark.slow
@pytest.mark.own_process
def test_the_longest_sequence_trains_within_the_budget_and_a_longer_one_does_not():
    model = attention()
    found = search(model, budget=24 * MIB, cost_model="roofline")
    whole = search(model, budget=24 * MIB, cost_model="roofline", rewrites=())
    assert 0 < found.plain_length <= whole.length < found.length
    tokens = np.random.default_rng(0).integers(0, WORDS, (1, found.length)).astype("int32")
    result = checkmate.tf2.verify(found.step, (tokens, tokens))
    assert result.ok and result.measured_peak_bytes <= 24 * MIB == found.budget_bytes
    assert str(found.length) in str(found) and found.binding_op in str(found)
    spec = tf.TensorSpec([1, 2 * found.length], tf.int32)
    with pytest.raises(InfeasibleBudgetError):
        checkmate.tf2.compile(
            model, LOSS, "adam", spec, spec, budget=24 * MIB, cost_model="roofline"
        )


def test_no_longer_one_is_tried_than_was_asked_for():
    found = search(attention(), budget="1GiB", largest=64, cost_model="unit")
    assert (found.length, found.plain_length, found.binding_op) == (64, 64, "")
    assert [length for length, _ in found.tried] == [32, 64]


def test_what_is_open():
    spec, model = tf.TensorSpec([2, 24], tf.int32), attention()
    size, at = open_size(model, (spec, spec))
    assert size == 24 and [each.shape.as_list() for each in at(48)] == [[2, 48], [2, 48]]
    named = {"a": tf.TensorSpec([2, None, 3])}
    size, at = open_size(model, (named, tf.TensorSpec([2])))
    assert at(7)[0]["a"].shape.as_list() == [2, 7, 3] and at(7)[1].shape.as_list() == [2]


def test_a_model_of_one_length_is_refused():
    spec = tf.TensorSpec([1, 32], tf.int32)
    with pytest.raises(TraceError, match="needs a dimension whose size is open"):
        search(attention(32), spec, budget="1GiB")
    with pytest.raises(BudgetError, match="is no budget for a size that is not known yet"):
        search(attention(), budget="60%")
    with pytest.raises(InfeasibleBudgetError):
        search(attention(), tf.TensorSpec([1, 2], tf.int32), budget="64KiB", cost_model="unit")
