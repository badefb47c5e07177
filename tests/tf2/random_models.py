"""Random small Keras models: convolutions, branches, concatenations, normalizations, attention,
dropout, loops."""

import keras
from hypothesis import strategies as st

BATCH = 16


def _convolution(draw, x):
    width, kernel = draw(st.sampled_from([8, 16, 24])), draw(st.sampled_from([1, 3]))
    layer = draw(st.sampled_from(["Conv2D", "SeparableConv2D", "DepthwiseConv2D"]))
    options = {
        "padding": "same",
        "use_bias": draw(st.booleans()),
        "activation": draw(st.sampled_from([None, "relu", "gelu", "swish"])),
    }
    return getattr(keras.layers, layer)(
        *([kernel] if layer == "DepthwiseConv2D" else [width, kernel]), **options
    )(x)


def _normalization(draw, x):
    layer = draw(
        st.sampled_from(["BatchNormalization", "LayerNormalization", "GroupNormalization"])
    )
    return (
        keras.layers.GroupNormalization(groups=-1)(x)
        if layer == "GroupNormalization"
        else getattr(keras.layers, layer)()(x)
    )


def _dropout(draw, x):
    return keras.layers.Dropout(draw(st.sampled_from([0.1, 0.5])))(x)


def _residual(draw, x):
    y = keras.layers.Conv2D(x.shape[-1], 3, padding="same", activation="relu")(x)
    return (
        keras.layers.Add()([x, y])
        if draw(st.booleans())
        else keras.layers.Multiply()([x, keras.layers.Activation("sigmoid")(y)])
    )


def _branches(draw, x):
    parts = [
        draw(st.sampled_from([_convolution, _normalization, _dropout, _residual]))(draw, x)
        for _ in range(draw(st.integers(2, 3)))
    ]
    return keras.layers.Concatenate()(parts)


def _attention(draw, x):
    height, width, channels = x.shape[1:]
    y = keras.layers.LayerNormalization()(keras.layers.Reshape((height * width, channels))(x))
    y = keras.layers.MultiHeadAttention(2, 8, dropout=draw(st.sampled_from([0.0, 0.1])))(y, y)
    return keras.layers.Add()([x, keras.layers.Reshape((height, width, channels))(y)])


def _excitation(draw, x):
    scale = keras.layers.Dense(x.shape[-1], "sigmoid")(
        keras.layers.GlobalAveragePooling2D(keepdims=True)(x)
    )
    return keras.layers.Multiply()([x, scale])


def _rows(draw, x):
    height, width, channels = x.shape[1:]
    recurrent = draw(st.sampled_from(["LSTM", "GRU", "SimpleRNN"]))
    y = getattr(keras.layers, recurrent)(channels, return_sequences=True)(
        keras.layers.Reshape((height, width * channels))(x)
    )
    return keras.layers.Add()([x, keras.layers.Reshape((height, 1, channels))(y)])


BLOCKS = [
    *(_convolution, _convolution, _normalization, _dropout, _residual, _branches, _attention),
    *(_excitation, _rows),
]


@st.composite
def models(draw):
    """(model, optimizer): on images of 12 x 12 x 3, with four numbers out of each."""
    keras.backend.clear_session()
    inputs = x = keras.Input((12, 12, 3))
    x = keras.layers.Conv2D(draw(st.sampled_from([8, 16])), 3, padding="same")(x)
    for _ in range(draw(st.integers(3, 9))):
        x = draw(st.sampled_from(BLOCKS))(draw, x)
    model = keras.Model(
        inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)), name="random_model"
    )
    optimizer = draw(st.sampled_from(["SGD", "Adam", "RMSprop"]))
    return model, getattr(keras.optimizers, optimizer)(
        1e-3, clipnorm=draw(st.sampled_from([None, 1.0]))
    )
