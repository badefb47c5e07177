"""Program: a compiled model and a batch, as a script calls `fit` with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled model, of Keras 3 or tf_keras, and a batch.

    Attributes:
      labels: None where the model's `train_step` needs none.
    """

    model: Any
    inputs: Any
    labels: Any = None

    @property
    def batch(self) -> Any:
        """An element of the dataset for `fit`."""
        return self.inputs if self.labels is None else (self.inputs, self.labels)
