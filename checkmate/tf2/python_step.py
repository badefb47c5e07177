"""python_of(): the Python function behind a step.

Whether a `tf.function` converts Python control flow is not public: this file alone reads its
attribute `_autograph`. Without it, control flow is converted, as it is by default;
`test_python_step` asserts that the installed TensorFlow has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def python_of(step: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Returns the Python function of a step, and whether its control flow on tensors becomes
    TensorFlow's.

    Args:
      step: A function or a `tf.function`.
    """
    return getattr(step, "python_function", step), getattr(step, "_autograph", True)
