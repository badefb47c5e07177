"""Models as people train them, small: one function per architecture, beyond those of
keras.applications.

All are built here from layers, untrained, with a made-up batch. They are small so that a table of
all of them takes minutes; what counts is which ops and structures they have.
"""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers as L

from checkmate.tf2.models import Workload

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def normal(*shape: int, seed: int = 1) -> tf.Tensor:
    """Standard normal numbers, the same in every run."""
    return tf.random.stateless_normal(shape, seed=(seed, 2))


def whole(*shape: int, below: int, seed: int = 3, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """Whole numbers from 0 on, the same in every run."""
    return tf.random.stateless_uniform(shape, seed=(seed, 4), maxval=below, dtype=dtype)


class Positions(L.Layer):
    """Token embeddings with a learned embedding of each position added."""

    def __init__(self, length: int, words: int, width: int, **options):
        super().__init__(**options)
        self.length = length
        self.tokens, self.places = L.Embedding(words, width), L.Embedding(length, width)

    def call(self, tokens):  # noqa: D102
        return self.tokens(tokens) + self.places(keras.ops.arange(self.length))


def decoder(
    batch: int = 8, length: int = 64, width: int = 128, depth: int = 3, words: int = 500
) -> Workload:
    """A causal language model: RMS norms, multi-head and grouped-query attention in turn, gated
    feed-forward (Touvron et al., 2023)."""
    tokens = keras.Input((length,), dtype="int32")
    x = Positions(length, words, width)(tokens)
    for k in range(depth):
        y = L.RMSNormalization()(x)
        attention = L.GroupQueryAttention(16, 8, 2) if k % 2 else L.MultiHeadAttention(8, 16)
        x = L.Add()([x, attention(y, y, use_causal_mask=True)])
        y = L.RMSNormalization()(x)
        x = L.Add()(
            [
                x,
                L.Dense(width)(
                    L.Multiply()([L.Dense(3 * width, activation="silu")(y), L.Dense(3 * width)(y)])
                ),
            ]
        )
    model = keras.Model(tokens, L.Dense(words)(L.RMSNormalization()(x)), name="decoder")
    data = whole(batch, length, below=words)
    return Workload(model, CROSS_ENTROPY, data, tf.roll(data, -1, 1), "adamw")


def seq2seq(batch: int = 16, length: int = 24, width: int = 64, words: int = 300) -> Workload:
    """An encoder-decoder transformer with cross-attention and a dict of inputs."""
    source, target = (
        keras.Input((length,), dtype="int32", name="source"),
        keras.Input((length,), dtype="int32", name="target"),
    )

    def block(x, memory=None):
        x = L.LayerNormalization()(
            x + L.MultiHeadAttention(4, 16, dropout=0.1)(x, x, use_causal_mask=memory is not None)
        )
        if memory is not None:
            x = L.LayerNormalization()(x + L.MultiHeadAttention(4, 16)(x, memory))
        return L.LayerNormalization()(x + L.Dense(width)(L.Dense(4 * width, activation="relu")(x)))

    memory = block(block(Positions(length, words, width)(source)))
    x = block(block(Positions(length, words, width)(target), memory), memory)
    model = keras.Model({"source": source, "target": target}, L.Dense(words)(x), name="seq2seq")
    data = {
        "source": whole(batch, length, below=words),
        "target": whole(batch, length, below=words, seed=5),
    }
    return Workload(model, CROSS_ENTROPY, data, whole(batch, length, below=words, seed=6))


def bidirectional_gru(
    batch: int = 32, length: int = 40, width: int = 64, words: int = 500
) -> Workload:
    """Masked tokens through two bidirectional GRUs and pooling, with int64 labels."""
    tokens = keras.Input((length,), dtype="int64")
    x = L.Embedding(words, width, mask_zero=True)(tokens)
    x = L.Dense(4 * width, activation="gelu")(
        L.Bidirectional(L.GRU(width, return_sequences=True))(x)
    )
    x = L.Dense(4 * width, activation="gelu")(
        L.Bidirectional(L.GRU(width, return_sequences=True))(x)
    )
    model = keras.Model(tokens, L.Dense(10)(L.GlobalMaxPooling1D()(x)), name="bidirectional_gru")
    return Workload(
        model,
        CROSS_ENTROPY,
        whole(batch, length, below=words, dtype=tf.int64),
        whole(batch, below=10, dtype=tf.int64),
        "rmsprop",
    )


def attention_lstm(
    batch: int = 16, length: int = 24, width: int = 64, words: int = 300
) -> Workload:
    """Translation with LSTMs whose state is handed over, and attention (Luong; Bahdanau)."""
    source, target = keras.Input((length,), dtype="int32"), keras.Input((length,), dtype="int32")
    memory, *state = L.LSTM(width, return_sequences=True, return_state=True)(
        L.Embedding(words, width, mask_zero=True)(source)
    )
    x = L.LSTM(width, return_sequences=True)(L.Embedding(words, width)(target), initial_state=state)
    x = L.Concatenate()([x, L.Attention()([x, memory]), L.AdditiveAttention()([x, memory])])
    model = keras.Model(
        [source, target],
        L.Dense(words)(L.Dense(4 * width, activation="tanh")(x)),
        name="attention_lstm",
    )
    data = [whole(batch, length, below=words), whole(batch, length, below=words, seed=5)]
    return Workload(model, CROSS_ENTROPY, data, whole(batch, length, below=words, seed=6))


def siamese(batch: int = 16, size: int = 48) -> Workload:
    """One tower for two images, and the distance of what it makes of them."""
    tower = keras.Sequential([keras.Input((size, size, 3))])
    for width in (16, 32, 64):
        tower.add(L.Conv2D(width, 3, padding="same", activation="relu"))
        tower.add(L.BatchNormalization())
        tower.add(L.MaxPooling2D())
    tower.add(L.GlobalAveragePooling2D())
    left, right = keras.Input((size, size, 3)), keras.Input((size, size, 3))
    distance = keras.ops.abs(tower(left) - tower(right))
    model = keras.Model([left, right], L.Dense(1, activation="sigmoid")(distance), name="siamese")
    labels = tf.cast(whole(batch, 1, below=2), tf.float32)
    return Workload(
        model,
        keras.losses.BinaryCrossentropy(),
        [normal(batch, size, size, 3), normal(batch, size, size, 3, seed=7)],
        labels,
    )


def multi_output(batch: int = 16, size: int = 48) -> Workload:
    """A box, a class and a mask from one backbone, each with its loss, in a dict."""
    image = keras.Input((size, size, 3))
    x = image
    for width in (16, 32):
        x = L.Conv2D(width, 3, padding="same")(x)
        x = L.LeakyReLU()(L.GroupNormalization(8)(x))
    pooled = L.Dropout(0.2)(L.GlobalAveragePooling2D()(x))
    outputs = {
        "box": L.Dense(4, name="box")(pooled),
        "kind": L.Dense(5, name="kind")(pooled),
        "mask": L.Conv2D(1, 1, activation="sigmoid", name="mask")(x),
    }

    def loss(labels, found):
        box = keras.losses.Huber()(labels["box"], found["box"])
        mask = keras.losses.Dice()(labels["mask"], found["mask"])
        return box + CROSS_ENTROPY(labels["kind"], found["kind"]) + mask

    labels = {
        "box": normal(batch, 4),
        "kind": whole(batch, below=5),
        "mask": tf.cast(whole(batch, size, size, 1, below=2), tf.float32),
    }
    return Workload(
        keras.Model(image, outputs, name="multi_output"), loss, normal(batch, size, size, 3), labels
    )


def vit(
    batch: int = 8, size: int = 64, patch: int = 8, width: int = 96, depth: int = 3
) -> Workload:
    """A vision transformer with a class token (Dosovitskiy et al., 2021), under the optimizer
    Lion."""
    count = (size // patch) ** 2

    class ClassToken(L.Layer):
        def build(self, shape):
            self.token = self.add_weight(shape=(1, 1, width), initializer="zeros")
            self.places = self.add_weight(shape=(1, count + 1, width), initializer="normal")

        def call(self, x):
            token = keras.ops.broadcast_to(self.token, (keras.ops.shape(x)[0], 1, width))
            return keras.ops.concatenate([token, x], 1) + self.places

    image = keras.Input((size, size, 3))
    x = ClassToken()(L.Reshape((count, width))(L.Conv2D(width, patch, strides=patch)(image)))
    for _ in range(depth):
        y = L.LayerNormalization(epsilon=1e-6)(x)
        x = x + L.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y)
        x = x + L.Dense(width)(
            L.Dropout(0.1)(
                L.Dense(4 * width, activation="gelu")(L.LayerNormalization(epsilon=1e-6)(x))
            )
        )
    model = keras.Model(image, L.Dense(10)(x[:, 0]), name="vit")
    return Workload(
        model, CROSS_ENTROPY, normal(batch, size, size, 3), whole(batch, below=10), "lion"
    )


def mixer(batch: int = 8, size: int = 64, patch: int = 8, width: int = 96) -> Workload:
    """MLP-Mixer (Tolstikhin et al., 2021): dense layers across channels and, transposed, across
    places."""
    image = keras.Input((size, size, 3))
    x = L.Reshape((-1, width))(L.Conv2D(width, patch, strides=patch)(image))
    for _ in range(3):
        y = L.Permute((2, 1))(L.LayerNormalization()(x))
        x = x + L.Permute((2, 1))(L.Dense((size // patch) ** 2)(L.Dense(128, activation="gelu")(y)))
        x = x + L.Dense(width)(L.Dense(256, activation="gelu")(L.LayerNormalization()(x)))
    model = keras.Model(image, L.Dense(10)(L.GlobalAveragePooling1D()(x)), name="mixer")
    return Workload(
        model, CROSS_ENTROPY, normal(batch, size, size, 3), whole(batch, below=10), "nadam"
    )


class Autoencoder(keras.Model):
    """A variational autoencoder: a sample between two networks, and a loss of its own (Kingma &
    Welling, 2014)."""

    def __init__(self, latent: int = 16):
        super().__init__(name="vae")
        self.encode = keras.Sequential(
            [L.Conv2D(w, 3, 2, padding="same", activation="relu") for w in (16, 32)] + [L.Flatten()]
        )
        self.mean, self.log_variance = L.Dense(latent), L.Dense(latent)
        self.decode = keras.Sequential(
            [L.Dense(12 * 12 * 32, activation="relu"), L.Reshape((12, 12, 32))]
            + [L.Conv2DTranspose(w, 3, 2, padding="same", activation="relu") for w in (32, 16)]
            + [L.Conv2D(3, 3, padding="same", activation="sigmoid")]
        )
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, images, training=False):  # noqa: D102
        x = self.encode(images)
        mean, log_variance = self.mean(x), self.log_variance(x)
        self.add_loss(
            -0.5 * keras.ops.mean(1 + log_variance - mean**2 - keras.ops.exp(log_variance))
        )
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
        return self.decode(mean + keras.ops.exp(0.5 * log_variance) * noise)


def vae(batch: int = 32) -> Workload:
    """The autoencoder above."""
    images = tf.sigmoid(normal(batch, 48, 48, 3))
    return Workload(Autoencoder(), keras.losses.MeanSquaredError(), images, images)


def diffusion_unet(batch: int = 8, size: int = 32, width: int = 32) -> Workload:
    """The noise predictor of a diffusion model: residual blocks told the time, attention at the
    bottom (Ho et al., 2020)."""

    def block(x, time, width):
        y = L.Conv2D(width, 3, padding="same")(L.Activation("swish")(L.GroupNormalization(8)(x)))
        y = y + L.Reshape((1, 1, width))(L.Dense(width)(time))
        y = L.Conv2D(width, 3, padding="same")(L.Activation("swish")(L.GroupNormalization(8)(y)))
        return y + (x if x.shape[-1] == width else L.Conv2D(width, 1)(x))

    image, when = keras.Input((size, size, 3)), keras.Input((), dtype="int32")
    angles = keras.ops.cast(when, "float32")[:, None] * keras.ops.exp(
        -keras.ops.arange(16, dtype="float32") / 2
    )
    time = L.Dense(64, activation="swish")(
        keras.ops.concatenate([keras.ops.sin(angles), keras.ops.cos(angles)], -1)
    )
    x = first = block(L.Conv2D(width, 3, padding="same")(image), time, width)
    x = second = block(L.AveragePooling2D(2)(x), time, 2 * width)
    y = L.Reshape((-1, 2 * width))(L.GroupNormalization(8)(x))
    x = x + L.Reshape(x.shape[1:])(L.MultiHeadAttention(2, width)(y, y))
    x = block(L.Concatenate()([x, second]), time, 2 * width)
    x = block(L.Concatenate()([L.UpSampling2D(interpolation="bilinear")(x), first]), time, width)
    model = keras.Model([image, when], L.Conv2D(3, 3, padding="same")(x), name="diffusion_unet")
    return Workload(
        model,
        "mse",
        [normal(batch, size, size, 3), whole(batch, below=1000)],
        normal(batch, size, size, 3, seed=9),
    )


def segmentation(batch: int = 4, size: int = 96) -> Workload:
    """Dilated convolutions side by side, a pooled branch, and what they find made large again (Chen
    et al., 2017)."""
    image = keras.Input((size, size, 3))
    x = L.Conv2D(16, 3, 2, padding="same", activation="relu")(image)
    x = low = L.SeparableConv2D(32, 3, padding="same", activation="relu")(x)
    x = L.SeparableConv2D(64, 3, 2, padding="same", activation="relu")(x)
    side = size // 4
    branches = [
        L.ReLU(max_value=6)(
            L.BatchNormalization()(L.Conv2D(32, 3, padding="same", dilation_rate=rate)(x))
        )
        for rate in (1, 2, 4)
    ]
    pooled = L.Conv2D(32, 1)(L.GlobalAveragePooling2D(keepdims=True)(x))
    branches.append(L.UpSampling2D(side, interpolation="bilinear")(pooled))
    x = L.SpatialDropout2D(0.1)(L.Conv2D(32, 1)(L.Concatenate()(branches)))
    x = L.Concatenate()([L.Resizing(2 * side, 2 * side)(x), low])
    x = L.Resizing(size, size, interpolation="bilinear")(L.Conv2D(5, 3, padding="same")(x))
    model = keras.Model(image, x, name="segmentation")
    return Workload(
        model,
        CROSS_ENTROPY,
        normal(batch, size, size, 3),
        whole(batch, size, size, below=5),
        keras.optimizers.SGD(0.01, 0.9, True),
    )


def super_resolution(batch: int = 4, size: int = 48) -> Workload:
    """Residual blocks and pixels made of channels (Shi et al., 2016), with a structural similarity
    in the loss."""
    image = keras.Input((size, size, 3))
    x = L.Conv2D(32, 3, padding="same")(image)
    for _ in range(3):
        x = x + L.Conv2D(32, 3, padding="same")(
            L.PReLU(shared_axes=[1, 2])(L.Conv2D(32, 3, padding="same")(x))
        )
    x = L.Lambda(lambda x: tf.nn.depth_to_space(x, 2), output_shape=(2 * size, 2 * size, 12))(
        L.Conv2D(48, 3, padding="same")(x)
    )
    model = keras.Model(
        image, L.Conv2D(3, 3, padding="same", activation="sigmoid")(x), name="super_resolution"
    )

    def loss(labels, found):
        return (
            tf.reduce_mean(tf.abs(labels - found))
            + 1
            - tf.reduce_mean(tf.image.ssim(labels, found, 1.0))
        )

    return Workload(
        model,
        loss,
        normal(batch, size, size, 3),
        tf.sigmoid(normal(batch, 2 * size, 2 * size, 3, seed=5)),
    )


def speech(batch: int = 8, samples: int = 8000) -> Workload:
    """A spectrogram in the model, convolutions, a GRU and the CTC loss, as in speech
    recognition."""
    sound = keras.Input((samples,))
    x = L.Lambda(
        lambda x: tf.math.log1p(tf.abs(tf.signal.stft(x, 256, 128))), output_shape=(61, 129)
    )(sound)
    x = L.Conv1D(64, 5, padding="same", activation="relu")(x)
    x = L.Conv1D(64, 3, dilation_rate=2, padding="causal", activation="relu")(x)
    x = L.LayerNormalization()(L.GRU(64, return_sequences=True)(x))
    model = keras.Model(sound, L.Dense(12)(x), name="speech")
    return Workload(
        model, keras.losses.CTC(), normal(batch, samples), 1 + whole(batch, 10, below=11)
    )


def recommender(batch: int = 2048, fields: int = 8, words: int = 400, width: int = 16) -> Workload:
    """Many sparse fields, a cross network and a deep one (Wang et al., 2017), under Adagrad."""
    ids, numbers = (
        keras.Input((fields,), dtype="int32", name="ids"),
        keras.Input((6,), name="numbers"),
    )
    x0 = x = L.Concatenate()(
        [
            *(L.Flatten()(L.Embedding(words, width)(ids[:, k : k + 1])) for k in range(fields)),
            L.Normalization()(numbers),
        ]
    )
    for _ in range(3):
        x = x0 * L.Dense(x0.shape[-1])(x) + x
    deep = x0
    for _ in range(3):
        deep = L.Dropout(0.1)(L.BatchNormalization()(L.Dense(128, activation="relu")(deep)))
    model = keras.Model(
        {"ids": ids, "numbers": numbers}, L.Dense(1)(L.Concatenate()([x, deep])), name="recommender"
    )
    labels = tf.cast(whole(batch, 1, below=2), tf.float32)
    data = {"ids": whole(batch, fields, below=words), "numbers": normal(batch, 6)}
    return Workload(
        model, keras.losses.BinaryCrossentropy(from_logits=True), data, labels, "adagrad"
    )


def graph_network(batch: int = 8, nodes: int = 200, edges: int = 800, width: int = 64) -> Workload:
    """Message passing: states gathered along edges, changed, and summed where they arrive."""

    class Message(L.Layer):
        def __init__(self):
            super().__init__()
            self.change, self.update = L.Dense(width, activation="relu"), L.GRUCell(width)

        def call(self, inputs):
            state, source, target = inputs
            sent = self.change(
                tf.concat(
                    [
                        tf.gather(state, source, batch_dims=1),
                        tf.gather(state, target, batch_dims=1),
                    ],
                    -1,
                )
            )
            flat = tf.reshape(target + tf.range(tf.shape(target)[0])[:, None] * nodes, [-1])
            arrived = tf.math.unsorted_segment_sum(
                tf.reshape(sent, [-1, width]), flat, batch * nodes
            )
            return tf.reshape(
                self.update(arrived, [tf.reshape(state, [-1, width])])[0], tf.shape(state)
            )

        def compute_output_shape(self, shapes):
            return shapes[0]

    state, source, target = (
        keras.Input((nodes, 16)),
        keras.Input((edges,), dtype="int32"),
        keras.Input((edges,), dtype="int32"),
    )
    x = L.Dense(width)(state)
    for _ in range(3):
        x = Message()([x, source, target])
    model = keras.Model(
        [state, source, target], L.Dense(1)(L.GlobalAveragePooling1D()(x)), name="graph_network"
    )
    data = [
        normal(batch, nodes, 16),
        whole(batch, edges, below=nodes),
        whole(batch, edges, below=nodes, seed=5),
    ]
    return Workload(model, "mse", data, normal(batch, 1))


def experts(batch: int = 8, length: int = 32, width: int = 64, count: int = 4) -> Workload:
    """A mixture of experts: the best two of a router's choice, by einsum, with a loss that balances
    them (Shazeer et al., 2017)."""

    class Experts(L.Layer):
        def build(self, shape):
            self.route = self.add_weight(shape=(width, count))
            self.up, self.down = (
                self.add_weight(shape=(count, width, 2 * width)),
                self.add_weight(shape=(count, 2 * width, width)),
            )

        def call(self, x):
            chances = tf.nn.softmax(tf.einsum("bld,de->ble", x, self.route))
            best, which = tf.math.top_k(chances, 2)
            weights = tf.reduce_sum(tf.one_hot(which, count) * best[..., None], 2)
            self.add_loss(0.01 * tf.reduce_sum(tf.reduce_mean(chances, [0, 1]) ** 2))
            hidden = tf.nn.gelu(tf.einsum("bld,edh->bleh", x, self.up))
            return x + tf.einsum("bleh,ehd,ble->bld", hidden, self.down, weights)

    tokens = keras.Input((length,), dtype="int32")
    x = L.Embedding(200, width)(tokens)
    for _ in range(2):
        x = Experts()(L.LayerNormalization()(x))
    model = keras.Model(tokens, L.Dense(200)(x), name="experts")
    return Workload(
        model,
        CROSS_ENTROPY,
        whole(batch, length, below=200),
        whole(batch, length, below=200, seed=5),
        "adafactor",
    )


MODELS = {
    each.__name__: each
    for each in (
        decoder,
        seq2seq,
        bidirectional_gru,
        attention_lstm,
        siamese,
        multi_output,
        vit,
        mixer,
        vae,
        diffusion_unet,
        segmentation,
        super_resolution,
        speech,
        recommender,
        graph_network,
        experts,
    )
}
"""Name -> what makes the workload."""
