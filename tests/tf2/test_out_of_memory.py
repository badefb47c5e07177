"""What is said when TensorFlow runs out of memory, and whether the ways out are ways out."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkmate.tf2 import ExplainOutOfMemory, rematerialize
from checkmate.units import parse_bytes

LIMITED = pytest.mark.own_process(TF_CPU_ALLOCATOR_USE_BFC="true", TF_CPU_BFC_MEM_LIMIT_IN_MB="160")
BATCH, LAYERS = 1024, 56
ROWS, LABELS = np.ones([2 * BATCH, 1024], np.float32), np.ones([2 * BATCH, 1], np.float32)


def net():
    # TensorFlow itself may crash where a request of oneDNN's kernels fails, so there are few.
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Activation(keras.ops.sin, name=f"block_{k}") for k in range(LAYERS)]
    model = keras.Sequential(
        [keras.Input([1024]), keras.layers.Dense(1024), *hidden, keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


@LIMITED
def test_fit_says_what_filled_the_memory_and_the_first_way_out_trains():
    model, explain = net(), ExplainOutOfMemory()
    model.make_train_function()
    train = model.train_function
    with pytest.raises(tf.errors.ResourceExhaustedError) as error:
        model.fit(ROWS, LABELS, batch_size=BATCH, verbose=0, callbacks=[explain])
    assert model.train_function is train
    said, report = str(error.value), explain.report
    assert str(report) in said and "OOM when allocating tensor" in said
    kinds = dict(report.kinds)
    assert sum(kinds.values()) == report.peak_bytes > report.budget_bytes
    assert kinds["activations: values of the forward pass"] > 0.8 * report.peak_bytes
    weights = sum(4 * np.prod(each.shape) for each in model.trainable_variables)
    assert kinds["weights"] == pytest.approx(weights, rel=0.02)  # in chunks of 256 bytes
    assert {name for name, _ in report.layers} <= {"dense", *(f"block_{k}" for k in range(LAYERS))}
    *sliced, plan, batch = report.ways
    assert all(each.peak_bytes <= report.budget_bytes for each in report.ways)
    assert "micro_batches=" in sliced[0].what and 'budget="auto"' in plan.what
    assert "a batch of about" in batch.what
    rematerialize(model, verbose=False).fit(ROWS, LABELS, BATCH, verbose=0)


@LIMITED
def test_a_step_of_one_s_own():
    scale = tf.Variable(1.5)

    @tf.function
    def train_step(rows):
        with tf.GradientTape() as tape:
            for _ in range(24):
                rows = tf.sin(scale * rows)
            loss = tf.reduce_mean(rows)
        scale.assign_sub(tape.gradient(loss, scale))
        return loss

    rows = tf.ones([2**21])
    with (
        pytest.raises(tf.errors.ResourceExhaustedError, match="Out of memory in 'train_step'"),
        ExplainOutOfMemory(train_step, rows) as explain,
    ):
        train_step(rows)
    assert parse_bytes("180MiB") < explain.report.peak_bytes < parse_bytes("420MiB")
    assert any(
        each.what == '@checkmate.tf2.function(budget="auto")' for each in explain.report.ways
    )


@LIMITED
def test_where_nothing_can_be_said_the_error_is_tensorflow_s_own():
    def train_step(rows):
        if float(tf.reduce_sum(rows)):  # cannot be traced
            return tf.zeros([2**28])
        return rows

    with (
        pytest.raises(tf.errors.ResourceExhaustedError, match="is not known: ") as error,
        ExplainOutOfMemory(train_step, tf.ones([3])) as explain,
    ):
        train_step(tf.ones([3]))
    assert explain.report is None and "OOM when allocating" in str(error.value)


@pytest.mark.usefixtures("tensorflow")
def test_other_errors_pass_and_training_is_as_it_was():
    model = net()
    history = model.fit(ROWS[:8], LABELS[:8], verbose=0, callbacks=[ExplainOutOfMemory()])
    assert len(history.epoch) == 1
    with pytest.raises(ZeroDivisionError), ExplainOutOfMemory(lambda: None):
        1 / 0  # noqa: B018


@LIMITED
@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 8])
def test_the_batch_that_failed_is_told_by_the_tensor_that_did_not_fit(left):
    explain = ExplainOutOfMemory()
    rows, labels = (np.concatenate([each, each[:left]]) for each in (ROWS, LABELS))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="Out of memory in"):
        net().fit(rows, labels, batch_size=2 * BATCH, shuffle=False, verbose=0, callbacks=[explain])
    assert dict(explain.report.kinds)["the batch"] == ROWS.nbytes + LABELS.nbytes


@pytest.mark.usefixtures("tensorflow")
def test_another_error_leaves_the_model_as_it_was():
    def rows():
        yield ROWS[:8], LABELS[:8]
        raise RuntimeError("no more")

    shapes = tf.TensorSpec([8, 1024]), tf.TensorSpec([8, 1])
    model = net()
    model.make_train_function()
    train = model.train_function
    with pytest.raises(tf.errors.OpError, match="no more"):
        data = tf.data.Dataset.from_generator(rows, output_signature=shapes)
        model.fit(data, verbose=0, callbacks=[ExplainOutOfMemory()])
    assert model.train_function is train
