"""rematerialize(): `fit` as Keras has it, bit for bit, with recomputation underneath."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from fitting import (
    BATCH,
    FAST,
    WIDTH,
    assert_same,
    assert_same_training,
    blocks,
    classifier,
    data,
    history,
    small,
    under_budget,
)

import checkmate
from checkmate import TraceError

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")


def test_three_epochs_with_all_that_belongs_to_a_script():
    def train(model):
        seen = []
        callbacks = [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch)),
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: seen.append((batch, dict(logs)))
            ),
        ]
        weights = {0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}
        return history(
            model,
            *data(),
            epochs=3,
            validation_data=data(1, 100),
            class_weight=weights,
            callbacks=callbacks,
        ), seen

    model = assert_same(classifier, train)
    assert len(model.history.history["val_accuracy"]) == 3
    forward = [
        op
        for op in checkmate.tf2.planned(model).graph.ops
        if "MatMul" in op.kind and not op.is_backward
    ]
    assert any(op.recomputable for op in forward), (
        "metrics, which come after the update, keep all that reads weights from being recomputed"
    )


def test_a_train_step_of_ones_own():
    """With a loop in Python, losses of layers, a metric of its own, two steps at a time, from a
    dataset."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.blocks = [keras.layers.Dense(2 * WIDTH) for _ in range(3)]
            self.head = keras.layers.Dense(4)
            self.seen = keras.metrics.Mean(name="seen")

        def call(self, x, training=False):
            for block in self.blocks:
                x = keras.ops.sin(block(x)) + 0.1
                self.add_loss(1e-3 * keras.ops.mean(x**2))
            return self.head(x)

        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            self.optimizer.apply(
                tape.gradient(loss, self.trainable_variables), self.trainable_variables
            )
            self.seen.update_state(loss)
            return {"loss": loss, "seen": self.seen.result()}

    def make():
        model = Own()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9, clipvalue=0.5), loss, steps_per_execution=2
        )
        return model

    batches = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH)
    assert_same(
        make, lambda model: history(model, batches, batch_size=None, epochs=1), budget="65%"
    )


def test_dicts_of_inputs_and_outputs_with_an_optimizer_that_does_everything():
    def make():
        left, right = keras.Input((WIDTH,), name="left"), keras.Input((WIDTH,), name="right")
        x = blocks(keras.layers.Concatenate()([left, right]), kernel_regularizer="l2")
        outputs = {
            "kind": keras.layers.Dense(4, activation="softmax", name="kind")(x),
            "value": keras.layers.Dense(1, name="value")(x),
        }
        model = keras.Model({"left": left, "right": right}, outputs)
        optimizer = keras.optimizers.AdamW(
            1e-2,
            clipnorm=1.0,
            use_ema=True,
            ema_overwrite_frequency=2,
            gradient_accumulation_steps=2,
            weight_decay=1e-2,
        )
        losses = {"kind": "sparse_categorical_crossentropy", "value": "mse"}
        model.compile(
            optimizer,
            losses,
            loss_weights={"kind": 1.0, "value": 0.5},
            metrics={"kind": ["accuracy"]},
            weighted_metrics=[],
        )
        return model

    # Keras counts batches alike in the losses of outputs where it does not know their size.
    x, y = data(size=2 * BATCH)
    weight = np.linspace(0.5, 1.5, 2 * BATCH)
    labels = {"kind": y, "value": x[:, :1]}
    weights = {"kind": weight, "value": weight[::-1].copy()}
    assert_same(
        make,
        lambda model: history(
            model, {"left": x, "right": -x}, labels, sample_weight=weights, epochs=2
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    def make():
        keras.config.set_dtype_policy(policy)
        try:
            return classifier()
        finally:
            keras.config.set_dtype_policy("float32")

    # What products of half precision need beyond their results is known only by running them.
    model = assert_same(
        make, lambda model: history(model, *data(size=2 * BATCH), epochs=1), cost_model="profile"
    )
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (
        policy == "mixed_float16"
    )
    operations = [
        o
        for group in checkmate.tf2.planned(model).steps[0].planned.traced.groups
        for o in group
        if o.outputs
    ]
    half = {tf.float16, tf.bfloat16} & {o.outputs[0].dtype for o in operations}
    assert half == {tf.as_dtype(policy.removeprefix("mixed_"))}


@pytest.mark.slow
def test_with_a_budget_and_without_in_turn(tmp_path):
    """As a callback, for good, released, then saved and loaded: each goes on where the one before
    ended."""
    x, y = data(size=2 * BATCH)
    callback = checkmate.tf2.Rematerialize(budget="85%", **FAST)

    def train(planned):
        model, found = small(), []
        callbacks = [callback, checkmate.tf2.TensorBoardScalars(tmp_path)] if planned else []
        found.append(history(model, x, y, epochs=2, callbacks=callbacks))
        assert "make_train_function" not in vars(model)
        if planned:
            assert callback.planned.plan.recomputed
            under_budget(model)
        found.append(
            [model.train_on_batch(x[:BATCH], y[:BATCH], return_dict=True) for _ in range(2)]
        )
        found.append(history(model, x, y))
        if planned:
            assert checkmate.tf2.release(model) is model
            with pytest.raises(TraceError, match="not under a budget"):
                checkmate.tf2.planned(model)
        found.append(history(model, x, y))
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        if planned:
            under_budget(again)
        found.append(history(again, x, y))
        return again, found

    assert_same_training(train)
    check_scalars(tmp_path / "train", callback.planned.report())


def check_scalars(folder, report):
    """TensorBoard's files say what was planned, and what the second epoch took; in the first, the
    only batches were planned or the last."""
    found = {}
    for file in folder.iterdir():
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found[value.tag.removeprefix("checkmate/"), event.step] = float(
                    tf.make_ndarray(value.tensor)
                )
    for step in (0, 1):
        assert found["budget_GiB", step] * 2**30 == pytest.approx(report.budget_bytes)
        assert found["recomputations", step] == sum(report.result.plan.recomputed.values()) > 0
        assert found["overhead_predicted", step] == pytest.approx(report.result.overhead, rel=1e-4)
        predicted = found["planned_peak_predicted_GiB", step] * 2**30
        assert predicted == pytest.approx(report.predicted_peak_bytes)
        assert predicted < found["plain_peak_predicted_GiB", step] * 2**30
        assert found["planned_peak_measured_GiB", step] * 2**30 > report.fixed_bytes


@pytest.mark.slow
def test_broken_off_resumed_and_stopped_early(tmp_path):
    class PowerCut(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if self.epoch == 1:
                raise RuntimeError("power cut")

    x, y = data(size=2 * BATCH)

    def train(model):
        place = tmp_path / ("planned" if "make_train_function" in vars(model) else "plain")
        with pytest.raises(RuntimeError, match="power cut"):
            history(
                model,
                x,
                y,
                epochs=6,
                callbacks=[keras.callbacks.BackupAndRestore(place), PowerCut()],
            )
        for variable in model.trainable_variables:  # another process would have others
            variable.assign(keras.ops.zeros_like(variable))
        callbacks = [
            keras.callbacks.BackupAndRestore(place),
            keras.callbacks.EarlyStopping(
                "loss", mode="max", patience=2, restore_best_weights=True
            ),
            keras.callbacks.ModelCheckpoint(
                f"{place}.weights.h5", monitor="loss", save_best_only=True, save_weights_only=True
            ),
        ]
        losses = history(model, x, y, epochs=6, callbacks=callbacks)["loss"]
        assert len(losses) == 3, "it went on with the second epoch and was stopped after the fourth"
        best = small()
        best.load_weights(f"{place}.weights.h5")
        return losses, best.get_weights()

    assert_same(small, train)


@pytest.mark.slow
def test_the_batch_size_that_is_planned_for():
    x, y = data()
    model = under_budget(small(), batch_size=BATCH)
    model.train_on_batch(x[:100], y[:100])
    step = checkmate.tf2.planned(model)
    assert step.graph.fixed_bytes > BATCH * WIDTH * 4
    with pytest.raises(
        TraceError, match=rf"batch of {BATCH} and is called with {2 * BATCH}.*[KM]iB"
    ):
        model.train_on_batch(x[: 2 * BATCH], y[: 2 * BATCH])
    history(model, x, y, epochs=1)
    assert checkmate.tf2.planned(model) is step
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.train_on_batch(x[:BATCH], y[:BATCH])
    assert checkmate.tf2.planned(model) is not step, "what is compiled anew is planned anew"


def test_a_model_that_recomputes_by_itself():
    if not hasattr(keras, "RematScope"):
        pytest.skip(f"Keras {keras.__version__} has no RematScope")
    x, y = data(size=BATCH)

    def train(planned):
        with keras.RematScope(mode="activations"):
            model = small(depth=2)
        if planned:
            under_budget(model, "64GiB")
        return model, history(model, x, y)

    model = assert_same_training(train)
    assert any(
        "parts again by itself" in note for note in checkmate.tf2.planned(model).report().notes
    )


@pytest.mark.slow
def test_a_large_budget_costs_no_memory():
    from processes import found, started

    asked = found(started(Path(__file__).with_name("large_budget.py")))
    # A thousandth: gradients of small weights are in memory at another time. The smallest
    # activation is a tenth.
    assert max(asked["planned"]) <= 1.001 * max(asked["plain"])


@pytest.mark.slow
def test_a_plan_in_a_folder_is_that_of_the_next_script(tmp_path):
    """fit takes it without measuring or solving."""
    from keras_models import mlp

    for number in range(2):
        keras.utils.set_random_seed(0)
        case = mlp(2048)
        case.model.compile("adam", case.loss, jit_compile=False)
        checkmate.tf2.rematerialize(case.model, budget="75%", plan=tmp_path, verbose=False)
        case.model.fit(case.inputs, case.labels, batch_size=2048, verbose=0)
        report = checkmate.tf2.planned(case.model).report()
        assert ("measuring ops" not in report.seconds) == bool(number)
        assert report.result is not None
    assert len(list(tmp_path.iterdir())) == 1
