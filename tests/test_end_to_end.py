"""Eight programs through four doors: within the budget by the allocator's count, with the numbers
of plain Keras. Each program trains in a process of its own and takes 64 MiB at least, so that what
the allocator rounds up does not count."""

import numpy as np
import pytest

BUDGET, STEPS, LEAST = "60%", 3, 64 * 2**20


def mlp(keras):
    layers = [keras.layers.Dense(512, activation="relu") for _ in range(10)]
    return keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(10)]), (4096, 512)


def dropout_and_normalization(keras):
    layers = []
    for _ in range(5):
        layers += [keras.layers.Dense(512), keras.layers.BatchNormalization()]
        layers += [keras.layers.ReLU(), keras.layers.Dropout(0.2, seed=1)]
    return keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(10)]), (4096, 512)


def convolutions(keras):
    layers = [keras.layers.Conv2D(16, 3, padding="same", activation="gelu") for _ in range(6)]
    tail = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((64, 64, 3)), *layers, *tail]), (32, 64, 64, 3)


def unet(keras):
    x = inputs = keras.Input((64, 64, 3))
    left = []
    for width in (16, 32):
        x = keras.layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = keras.layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        left.append(x)
        x = keras.layers.MaxPooling2D()(x)
    for width, skipped in zip((32, 16), reversed(left), strict=True):
        x = keras.layers.Concatenate()([keras.layers.UpSampling2D()(x), skipped])
        x = keras.layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x)), (32, 64, 64, 3)


def transformer(keras):
    x = inputs = keras.Input((128, 128))
    for _ in range(3):
        y = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(4, 32)(y, y)
        y = keras.layers.Dense(512, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dense(128)(y)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x)), (32, 128, 128)


def recurrent(keras):
    layers = [keras.layers.LSTM(128, return_sequences=True) for _ in range(2)]
    head = [keras.layers.Dense(256, activation="relu") for _ in range(6)]
    tail = [*head, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((64, 64)), *layers, *tail]), (128, 64, 64)


def embedding(keras):
    layers = [keras.layers.Dense(256, activation="tanh") for _ in range(6)]
    tail = [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(10)]
    head = [keras.Input((64,), dtype="int32"), keras.layers.Embedding(1000, 128)]
    return keras.Sequential([*head, *layers, *tail]), (128, 64)


def own_train_step(keras):
    import tensorflow as tf

    class Penalized(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                logits = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=logits) + 1e-3 * tf.reduce_mean(logits**2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    x = inputs = keras.Input((512,))
    for _ in range(10):
        x = keras.layers.Dense(512, activation="silu")(x)
    return Penalized(inputs, keras.layers.Dense(10)(x)), (4096, 512)


PROGRAMS = (
    *(mlp, dropout_and_normalization, convolutions, unet, transformer, recurrent, embedding),
    own_train_step,
)


def made(program):
    """A compiled model and a batch, the same each time."""
    import keras

    keras.utils.set_random_seed(0)
    model, shape = program(keras)
    random = np.random.default_rng(0)
    x = random.random(shape, np.float32)
    if model.inputs[0].dtype == "int32":
        x = (1000 * x).astype(np.int32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    return model, x, random.integers(0, 10, shape[0])


def by_fit(program, budget):
    import checkmate

    model, x, y = made(program)
    if budget:
        checkmate.tf2.rematerialize(model, budget=budget, verbose=False)
    losses = model.fit(x, y, batch_size=len(x), epochs=STEPS, shuffle=False, verbose=0)
    return losses.history["loss"], checkmate.tf2.planned(model).report() if budget else None


def by_distribute(program, budget):
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        return by_fit(program, budget)


def by_compile(program, budget):
    import tensorflow as tf

    import checkmate

    model, x, y = made(program)
    batch = tf.constant(x), tf.constant(y)
    if budget:
        step = checkmate.tf2.compile(
            model, model.loss, model.optimizer, *batch, budget=budget, verbose=False
        )
        return [float(step(*batch)[1]) for _ in range(STEPS)], step.report()
    return [float(model.train_on_batch(*batch)) for _ in range(STEPS)], None


def by_function(program, budget):
    import tensorflow as tf

    import checkmate

    model, x, y = made(program)
    batch = tf.constant(x), tf.constant(y)

    def step(x, y):
        return model.train_step((x, y))["loss"]

    run = (
        checkmate.tf2.function(step, budget=budget, verbose=False) if budget else tf.function(step)
    )
    values = []
    for _ in range(STEPS):
        model.reset_metrics()
        values.append(float(run(*batch)))
    return values, run.report() if budget else None


OFTEN, LONG = (dropout_and_normalization,), pytest.mark.long
DOORS = (by_fit, by_compile, by_function, by_distribute)


@pytest.mark.own_process
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(each, id=each.__name__, marks=pytest.mark.slow if each in OFTEN else LONG)
        for each in PROGRAMS
    ],
)
def test_a_program_through_every_door(program, tensorflow):
    info = tensorflow.config.experimental.get_memory_info
    for door in DOORS:
        if program is own_train_step and door is by_compile:
            continue  # its step is not the usual one
        plain, _ = door(program, None)
        losses, report = door(program, BUDGET)
        assert report.plain_peak_bytes >= LEAST, door
        assert report.result is not None, door
        peak = info("CPU:0")["peak"]  # since the plan was made
        assert peak <= report.budget_bytes, door
        assert peak <= 1.01 * report.expected_peak_bytes, door
        np.testing.assert_allclose(losses, plain, rtol=1e-6, err_msg=door.__name__)
