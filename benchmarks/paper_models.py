"""The networks of Checkmate's experiments (Jain et al., MLSys 2020), untrained, and what the paper
publishes about them.

The classifiers are those of keras.applications at 224x224. U-Net, FCN8 and SegNet segment images of
416x608 pixels into 19 classes: U-Net (Ronneberger et al., 2015) on the first four blocks of VGG16,
FCN8 (Long et al., 2015) and SegNet (Badrinarayanan et al., 2017) on a plain encoder. Paddings,
croppings and reshapes are layers of their own, since the paper counts every layer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from keras import layers

from checkmate.errors import CheckmateError

SIZE = (416, 608)
CLASSES = 19


def build(name: str) -> keras.Model:
    """Builds a network of `NAMES`."""
    if name not in _MODELS:
        raise CheckmateError(f"There is no network {name!r}. Known: {', '.join(NAMES)}.")
    return _MODELS[name]()


def unet(size: tuple[int, int] = SIZE, classes: int = CLASSES) -> keras.Model:
    """U-Net on the first four blocks of VGG16; its output is half as high and wide as the image.

    Args:
      size: Height and width in pixels, multiples of 16.
      classes: Classes of a pixel.
    """
    encoder = keras.applications.VGG16(weights=None, include_top=False, input_shape=(*size, 3))
    pools = [encoder.get_layer(f"block{k}_pool").output for k in (1, 2, 3, 4)]
    x = _convolution(pools[3], 512)
    for skip, width in zip(reversed(pools[:3]), (256, 128, 64), strict=True):
        x = _convolution(layers.Concatenate()([layers.UpSampling2D()(x), skip]), width)
    scores = layers.Conv2D(classes, 3, padding="same")(x)
    return _segmentation(encoder.input, scores, "unet")


def segnet(size: tuple[int, int] = SIZE, classes: int = CLASSES) -> keras.Model:
    """SegNet with four encoder levels; its output is half as high and wide as the image.

    Args: As for `unet`.
    """
    inputs = keras.Input((*size, 3))
    x = _convolution(_encoder(inputs, (64, 128, 256, 256))[-1], 512)
    for width in (256, 128, 64):
        x = _convolution(layers.UpSampling2D()(x), width)
    return _segmentation(inputs, layers.Conv2D(classes, 3, padding="same")(x), "segnet")


def fcn8(size: tuple[int, int] = SIZE, classes: int = CLASSES, *, width: int = 4096) -> keras.Model:
    """FCN8 on an encoder of five levels; its output is eight pixels higher and wider than the
    image.

    Args:
      size: Height and width in pixels, multiples of 32.
      classes: Classes of a pixel.
      width: Channels of the two convolutions that replace dense layers.
    """
    inputs = keras.Input((*size, 3))
    third, fourth, x = _encoder(inputs, (64, 128, 256, 256, 256))[2:]
    for kernel in (7, 1):
        x = layers.Conv2D(width, kernel, padding="same", activation="relu")(x)
        x = layers.Dropout(0.5)(x)
    x = layers.Conv2D(classes, 1)(x)
    for skip in (fourth, third):
        x = layers.Conv2DTranspose(classes, 4, strides=2, use_bias=False)(x)
        scores = layers.Conv2D(classes, 1)(skip)
        down, right = (x.shape[k] - scores.shape[k] for k in (1, 2))
        x = layers.Cropping2D(((0, down), (0, right)))(x)
        x = layers.Add()([x, scores])
    scores = layers.Conv2DTranspose(classes, 16, strides=8, use_bias=False)(x)
    return _segmentation(inputs, scores, "fcn8")


def _convolution(x: Any, width: int) -> Any:
    """A padded 3x3 convolution, normalized."""
    return layers.BatchNormalization()(layers.Conv2D(width, 3)(layers.ZeroPadding2D()(x)))


def _encoder(x: Any, widths: tuple[int, ...]) -> list[Any]:
    """The output of each level: a convolution and a pooling."""
    levels = []
    for width in widths:
        x = layers.MaxPooling2D()(layers.Activation("relu")(_convolution(x, width)))
        levels.append(x)
    return levels


def _segmentation(inputs: Any, scores: Any, name: str) -> keras.Model:
    """A model with a softmax per pixel, the pixels in one dimension."""
    _, height, width, classes = scores.shape
    x = layers.Reshape((height * width, classes))(scores)
    return keras.Model(inputs, layers.Activation("softmax")(x), name=name)


def _application(name: str) -> keras.Model:
    return getattr(keras.applications, name)(weights=None)


_MODELS: dict[str, Callable[[], keras.Model]] = {
    "vgg16": partial(_application, "VGG16"),
    "vgg19": partial(_application, "VGG19"),
    "mobilenet": partial(_application, "MobileNet"),
    "resnet50": partial(_application, "ResNet50"),
    "unet": unet,
    "fcn8": fcn8,
    "segnet": segnet,
}

NAMES = tuple(_MODELS)
