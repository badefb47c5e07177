"""A user's program, which mypy reads: the steps that the doors return have types. It is not run."""
# mypy: warn-unused-ignores

from typing import Any

import keras
import tensorflow as tf
from typing_extensions import assert_type

import checkmate


def compiled(model: keras.Model, x: tf.Tensor, y: tf.Tensor) -> None:
    step = checkmate.tf2.compile(model, "mse", "adam", x, y, budget="60%")
    prediction, loss = step(x, y)
    print(prediction, loss)
    assert_type(step(x, y), tuple[Any, tf.Tensor])
    step(x, y).losses  # type: ignore[attr-defined]  # noqa: B018
    step.plan.recomputed.items()
    checkmate.tf2.compile(model, "mse", "adam", x, y, budjet="60%")  # type: ignore[call-arg]


@checkmate.tf2.function(budget="60%")
def decorated(x: tf.Tensor, scale: float) -> tuple[float, str]:
    return scale, "of a step"


def plain(x: tf.Tensor, scale: float = 1.0) -> dict[str, float]:
    return {"loss": scale}


class Trainer:
    @checkmate.tf2.function(budget="60%", verbose=False)
    def step(self, x: tf.Tensor, scale: float) -> float:
        return scale


def functions(x: tf.Tensor) -> None:
    assert_type(decorated(x, 2.0), tuple[float, str])
    assert_type(decorated(x, scale=2.0), tuple[float, str])
    decorated(x)  # type: ignore[call-arg]
    decorated(x, "half")  # type: ignore[arg-type]
    step = checkmate.tf2.function(plain, x, budget="60%")
    assert_type(step(x), dict[str, float])
    step.report().sentence  # noqa: B018
    assert_type(Trainer().step(x, 2.0), float)
    Trainer().step(x, "half")  # type: ignore[arg-type]
