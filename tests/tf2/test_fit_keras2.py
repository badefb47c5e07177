"""rematerialize(): `fit` of tf_keras's models as tf_keras has it, bit for bit."""

import numpy as np
import pytest
from fitting import BATCH, FAST, WIDTH, assert_same, assert_same_training, data, history

from checkmate import TraceError

pytest.importorskip("tf_keras")
pytestmark = pytest.mark.usefixtures("tensorflow", "alone", "seeded")


@pytest.fixture
def seeded(monkeypatch):
    """Keras 3's seeds set those of tf_keras too, whose layers number their seeds themselves."""
    import keras
    import tf_keras

    seed_keras3 = keras.utils.set_random_seed

    def seed_both(seed):
        seed_keras3(seed)
        tf_keras.utils.set_random_seed(seed)

    monkeypatch.setattr(keras.utils, "set_random_seed", seed_both)


def classifier(optimizer=None, dropout=True, **options):
    import tf_keras
    from tf_keras import layers as L

    inputs = x = L.Input((WIDTH,))
    for _ in range(3):
        x = L.BatchNormalization()(L.Dense(2 * WIDTH, activation="gelu")(x))
        x = L.Dropout(0.2)(x) if dropout else x
    model = tf_keras.Model(inputs, L.Dense(4)(x), name="classifier")
    model.compile(
        optimizer or tf_keras.optimizers.Adam(1e-2, global_clipnorm=1.0),
        tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **options,
    )
    return model


def test_three_epochs_with_all_that_belongs_to_a_script():
    import tf_keras

    def train(model):
        seen = []
        callbacks = [
            tf_keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch)),
            tf_keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: seen.append((batch, dict(logs)))
            ),
        ]
        weights = {0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}
        found = history(
            model,
            *data(),
            epochs=3,
            validation_data=data(1, 100),
            class_weight=weights,
            callbacks=callbacks,
        )
        assert len(found["val_accuracy"]) == 3
        return found, seen, model.evaluate(*data(2, 100), verbose=0)

    assert_same(lambda: classifier(dropout=False), train)


@pytest.mark.slow
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_datasets_and_batches_one_by_one(steps_per_execution):
    """With sample weights, as a dataset, then batch by batch."""
    import tensorflow as tf

    x, y = data()
    weights = np.linspace(0.5, 1.5, len(y)).astype("float32")
    batches = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(BATCH, drop_remainder=True)

    def train(model):
        found = history(model, batches.repeat(2), batch_size=None)
        if steps_per_execution == 1:  # tf_keras cannot do it otherwise
            found |= model.train_on_batch(x[:BATCH], y[:BATCH], return_dict=True)
        return found, int(model._train_counter)

    assert_same(lambda: classifier(steps_per_execution=steps_per_execution), train)


@pytest.mark.slow
def test_a_train_step_of_ones_own():
    import tensorflow as tf
    import tf_keras

    class Own(tf_keras.Sequential):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
                loss = tf.where(loss > 1.0, 0.5 * loss, loss)
            self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
            return {"loss": loss}

    def make():
        layers = [tf_keras.layers.Dense(2 * WIDTH, activation="tanh") for _ in range(10)]
        model = Own([tf_keras.layers.Input((WIDTH,)), *layers, tf_keras.layers.Dense(4)])
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf_keras.optimizers.SGD(0.1, momentum=0.9), loss)
        return model

    assert_same(make, lambda model: history(model, *data(size=2 * BATCH), epochs=2), budget="70%")


@pytest.mark.slow
def test_an_optimizer_of_keras_before_2_11():
    import tf_keras

    optimizers = tf_keras.optimizers.legacy
    assert_same(
        lambda: classifier(optimizers.Adam(1e-2, clipnorm=1.0), dropout=False),
        lambda model: history(model, *data(size=2 * BATCH), epochs=2),
    )


@pytest.mark.slow
def test_as_a_callback_then_released(tmp_path):
    import checkmate

    callback = checkmate.tf2.Rematerialize(budget="85%", **FAST)

    def train(planned):
        model = classifier(dropout=False)
        callbacks = [callback, checkmate.tf2.TensorBoardScalars(tmp_path)] if planned else []
        found = history(model, *data(size=2 * BATCH), epochs=2, callbacks=callbacks)
        assert "make_train_function" not in vars(model)
        return model, (found, history(model, *data(size=2 * BATCH)))

    assert_same_training(train)
    assert callback.planned.plan.recomputed
    assert list((tmp_path / "train").iterdir())


def test_what_is_refused(monkeypatch):
    import tensorflow as tf
    import tf_keras

    import checkmate

    model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    with pytest.raises(TraceError, match="not compiled"):
        checkmate.tf2.rematerialize(model, budget="1GiB")
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(TraceError, match="run_eagerly"):
        checkmate.tf2.rematerialize(model, budget="1GiB")
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        replicated = tf_keras.Sequential([tf_keras.layers.Dense(1)])
        replicated.compile("sgd", "mse")
    with pytest.raises(TraceError, match="scope of a strategy"):
        checkmate.tf2.rematerialize(replicated, budget="1GiB")
    spec = tf.TensorSpec((4, 1))
    with pytest.raises(TraceError, match=r"tf_keras.*rematerialize"):
        checkmate.tf2.compile(model, "mse", "sgd", spec, spec, budget="1GiB")
    model.compile("sgd", "mse")
    monkeypatch.delattr(tf_keras.callbacks.Callback, "_implements_train_batch_hooks")
    with pytest.raises(TraceError, match="_implements_train_batch_hooks of tf_keras"):
        checkmate.tf2.rematerialize(model, budget="1GiB")


@pytest.mark.slow
def test_dropout_draws_the_same_masks_where_batches_are_equally_large():
    assert_same(classifier, lambda model: history(model, *data(size=2 * BATCH), epochs=2))
