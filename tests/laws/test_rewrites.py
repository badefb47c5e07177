"""Laws of every rewrite in the table: numbers as equal as it promises, sites, pieces, and a record
that gives the same pieces again."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from programs import BATCH, double
from slices_oracle import compared, traced_on

import checkmate
from checkmate.core.files import fingerprint
from checkmate.errors import TraceError
from checkmate.tf2 import device as devices
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.rewrites import table
from checkmate.tf2.rewrites.step import Equal, Step

pytestmark = pytest.mark.usefixtures("tensorflow")

MEANS = ("perceptron", "convolutional", "unet")
"""Programs whose loss is a mean over their examples, each of which is treated alone."""

OTHERS = ("weighted", "gradient_penalty", "two_batches_at_once", "experts", "recurrent")
"""Others that can be split exactly."""


def written(name: str) -> tuple[Step, tuple]:
    import programs

    step, batch = getattr(programs, name)()
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, tf.as_dtype(x.dtype)), batch)
    return Step.of(step, specs, traced_on(step, batch)), batch


def check(rewrite, name: str) -> None:
    """Holds a rewrite to the laws on one of the programs."""
    with double():
        step, batch = written(name)
        sites = list(rewrite.sites(step))
        assert sites == sorted(sites, reverse=True) and all(2 <= site < BATCH for site in sites)
        for site in (sites[0], 3):
            found = rewrite.apply(step, site)
            (applied,) = found.record
            assert (applied.rewrite, applied.site) == (rewrite.name, site)
            assert rewrite.promise <= found.equal < Equal.BITS
            assert not list(rewrite.sites(found)), "a step is not cut twice"
            *slices, after = found.pieces
            assert sum(each.times for each in slices) == found.slices.count and after.times == 1
            # Some kernels compute in float32 whatever the inputs, such as those of resized images.
            tolerance = 1e-9 if found.equal > Equal.STATISTICS else 1e-7
            errors, count = compared(found, batch, tolerance)
            assert count and not errors
        again = type(rewrite)(Scratch()).apply(written(name)[0], site)
        prints = [[fingerprint(p.traced.graph) for p in each.pieces] for each in (found, again)]
        assert prints[0] == prints[1]


@pytest.mark.parametrize("program", MEANS)
@pytest.mark.parametrize("name", table.REWRITES)
def test_a_mean_over_examples_is_the_same_by_every_rewrite(name, program):
    check(table.REWRITES[name](Scratch()), program)


@pytest.mark.parametrize("program", OTHERS)
@pytest.mark.parametrize("name", table.REWRITES)
def test_other_programs_are_as_a_rewrite_promises_or_refused(name, program):
    rewrite = table.REWRITES[name](Scratch())
    try:
        check(rewrite, program)
    except TraceError as refused:
        assert rewrite.promise is Equal.STATISTICS, refused


def norm_net():
    """A net whose loss is a mean of examples, with a batch that is small next to activations."""
    layers = keras.layers
    blocks = [
        (layers.Conv1D(64, 3, padding="same"), layers.LayerNormalization(), layers.ReLU())
        for _ in range(4)
    ]
    first = [layers.Input((128,), dtype="int32"), layers.Embedding(500, 64)]
    last = [layers.GlobalAveragePooling1D(), layers.Dense(10)]
    return keras.Sequential([*first, *(layer for block in blocks for layer in block), *last])


# The default allocator, as in `tests/tf2/memory/test_prediction.py`.
@pytest.mark.own_process(TF_CPU_ALLOCATOR_USE_BFC="false")
@pytest.mark.slow
@pytest.mark.parametrize("name", table.REWRITES)
def test_the_predicted_peak_is_the_allocators(name, monkeypatch):
    for other in table.REWRITES.keys() - {name}:
        monkeypatch.delitem(table.REWRITES, other)
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    tokens, labels = random.integers(0, 500, (512, 128)), random.integers(0, 10, 512)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = checkmate.tf2.compile(
        norm_net(), loss, "adam", tokens, labels, budget="50MiB", micro_batches=4, verbose=False
    )
    assert step.plan.recomputed and step.planned.record[0].rewrite == name
    memory, peaks = step.report().memory, []
    for _ in range(6):
        planned, flat = step.planned_for(tf.constant(tokens), tf.constant(labels))
        call = lambda run=planned.run, flat=flat: run(*flat)  # noqa: E731
        peaks.append(memory.peak(devices.peak_above(devices.training_device(), call)[2]))
    apart = (np.array(peaks) - step.report().predicted_peak_bytes) / memory.activation_budget_bytes
    # Some kernels write into their inputs' buffers where that is not known of them.
    assert apart.max() <= 0.005 and apart.min() >= -0.1, apart
    assert max(peaks) <= memory.limit_bytes


def test_a_rewrite_that_is_wrong_breaks_a_law():
    class Wrong(table.REWRITES["tile"]):
        def apply(self, step, site):
            found = super().apply(step, site)
            object.__setattr__(found.in_slices.slices, "size", site + 1)
            return found

    with pytest.raises((AssertionError, KeyError, tf.errors.InvalidArgumentError)):
        check(Wrong(Scratch()), "perceptron")


def test_the_example_of_a_rewrite_in_contributing(monkeypatch):
    text = (Path(__file__).parents[2] / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = re.search(r"<!-- example: rewrite -->\n```python\n(.*?)```", text, re.DOTALL)[1]
    found: dict = {}
    exec(code, found)
    make = found["Halves"]
    monkeypatch.setitem(table.REWRITES, "halves", make)
    check(make(Scratch()), "perceptron")
