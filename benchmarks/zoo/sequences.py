"""Models on tokens and on sound."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers as L

from benchmarks.zoo.batches import CROSS_ENTROPY, Positions, normal, whole
from checkmate.tf2.models import Workload


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
    """Translation with LSTMs, the encoder's state as the decoder's initial one, and two kinds of
    attention."""
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


def experts(batch: int = 8, length: int = 32, width: int = 64, count: int = 4) -> Workload:
    """A mixture of experts: the router's two best, by einsum, with a loss that balances
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


def fourier(batch: int = 16) -> Workload:
    """FNet (Lee-Thorp et al., 2021): complex numbers, and einsum dense layers."""
    tokens = keras.Input((64,), dtype="int32")
    x = L.Embedding(200, 64)(tokens)
    for _ in range(2):
        x = L.LayerNormalization()(
            x + L.Lambda(lambda x: tf.math.real(tf.signal.fft2d(tf.cast(x, tf.complex64))))(x)
        )
        x = L.LayerNormalization()(
            x
            + L.EinsumDense("bld,de->ble", (None, 64))(
                L.EinsumDense("bld,de->ble", (None, 256), activation="gelu")(x)
            )
        )
    return Workload(
        keras.Model(tokens, L.Dense(200)(x), name="fourier"),
        CROSS_ENTROPY,
        whole(batch, 64, below=200),
        whole(batch, 64, below=200, seed=5),
    )


def text(batch: int = 64) -> Workload:
    """Sentences as strings: a vocabulary within the model, then convolutions and pooling."""
    words = [
        "the",
        "of",
        "and",
        "to",
        "in",
        "is",
        "was",
        "it",
        "for",
        "as",
        "with",
        "that",
        "be",
        "by",
        "on",
    ]
    sentences = keras.Input((), dtype="string")
    x = L.TextVectorization(vocabulary=words, output_sequence_length=40)(sentences)
    x = L.Conv1D(64, 3, padding="same", activation="relu")(L.Embedding(len(words) + 2, 64)(x))
    x = L.Conv1D(64, 3, padding="same", activation="relu")(L.SpatialDropout1D(0.1)(x))
    model = keras.Model(sentences, L.Dense(2)(L.GlobalMaxPooling1D()(x)), name="text")
    data = tf.constant(
        [" ".join(words[(k + j) % len(words)] for j in range(20 + k % 20)) for k in range(batch)]
    )
    return Workload(model, CROSS_ENTROPY, data, whole(batch, below=2))


MODELS = (
    decoder,
    seq2seq,
    bidirectional_gru,
    attention_lstm,
    speech,
    experts,
    fourier,
    text,
)
