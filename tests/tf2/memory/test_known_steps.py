"""What was measured of a step, on disk: read back as it was written, or not at all."""

import json

import pytest


@pytest.fixture
def traced(tensorflow):
    """A small step, under names that differ from one call to the next, as Keras gives them."""
    import tensorflow as tf

    from checkmate.tf2.graph.trace import trace

    def make(layer, rows=64):
        weights = tf.Variable(tf.ones((32, 32)))

        def step(x):
            with tf.GradientTape() as tape, tf.name_scope(layer):
                loss = tf.reduce_sum(tf.tanh(tf.tanh(x @ weights) @ weights))
            weights.assign_sub(tape.gradient(loss, weights))
            return loss

        return trace(step, tf.TensorSpec((rows, 32), tf.float32), name="net")

    return make


@pytest.fixture
def known(tmp_path, monkeypatch):
    from checkmate.core.footprint import Footprint, Request
    from checkmate.tf2.memory import known_steps
    from checkmate.tf2.memory.plain_step import PlainStep

    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))

    def of(step):
        name = next(o.name for o in step.flat.graph.get_operations() if o.type == "Tanh")
        seen = Footprint((Request(8192, output=0), Request(300, until=2)), True)
        return known_steps.KnownStep(
            PlainStep(70_000, 0.25),
            {f"{name}/evaluation_1": seen, name: seen, "shape_3": Footprint((), None)},
        )

    return of


def test_another_model_of_the_same_kind_finds_it_under_its_own_names(traced, known):
    from checkmate.tf2.memory import known_steps

    first, second = traced("dense"), traced("dense_7")
    known_steps.save(first, known(first))
    assert known_steps.load(first) == known(first)
    assert known_steps.load(second) == known(second)
    assert known_steps.load(traced("dense", rows=128)) == known_steps.KnownStep()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-9],
        lambda text: "[]",
        lambda text: text.replace("8192", "-8192"),
        lambda text: text.replace("8192", '"8192"'),
        lambda text: text.replace("70000", "0.5"),
        lambda text: json.dumps({**json.loads(text), "version": 0}),
        lambda text: json.dumps({**json.loads(text), "footprints": [1]}),
    ],
    ids=["torn", "another kind", "negative", "text", "half a byte", "another version", "a list"],
)
def test_a_file_that_is_not_one_is_not_believed_and_written_anew(traced, known, tmp_path, change):
    from checkmate.tf2.memory import known_steps

    step = traced("dense")
    known_steps.save(step, known(step))
    (path,) = tmp_path.glob("step-*.json")
    path.write_text(change(path.read_text()))
    assert known_steps.load(step) == known_steps.KnownStep()
    known_steps.save(step, known(step))
    assert known_steps.load(step) == known(step)


def test_the_oldest_files_go(traced, known, tmp_path, monkeypatch):
    import os

    from checkmate.tf2.memory import known_steps

    monkeypatch.setattr(known_steps, "MAX_FILES", 2)
    for age, rows in enumerate((64, 96, 128)):
        step = traced("dense", rows)
        known_steps.save(step, known(step))
        for path in tmp_path.glob("step-*.json"):
            os.utime(path, (path.stat().st_mtime - 10, path.stat().st_mtime - 10))
        assert len(list(tmp_path.glob("step-*.json"))) == min(2, age + 1)
    assert known_steps.load(traced("dense", 64)) == known_steps.KnownStep()
    assert known_steps.load(step) == known(step)


def test_a_folder_that_cannot_be_written_to_costs_nothing(traced, known, tmp_path, monkeypatch):
    from checkmate.tf2.memory import known_steps

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path / "file"))
    known_steps.save(traced("dense"), known(traced("dense")))
    assert known_steps.load(traced("dense")) == known_steps.KnownStep()
