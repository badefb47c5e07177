"""Python state that a step changes while it is traced. Python code runs when a step is traced and
not in every step, so that such a change would be lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


@tf.autograph.experimental.do_not_convert
def python_state(step: Callable | None) -> dict[str, Any]:
    """Numbers, strings, and lengths of containers that a function refers to but does not own."""
    if step is None:
        return {}
    own = inspect.unwrap(step)
    try:
        seen = inspect.getclosurevars(own)
    except TypeError:  # an object with __call__
        return {}
    names = {**seen.globals, **seen.nonlocals}
    holder = getattr(own, "__self__", None)
    # Names that begin with "_" are Keras's own, and tracing is meant to set `built`.
    if isinstance(holder, keras.Layer):
        names |= {
            f"self.{name}": value
            for name, value in vars(holder).items()
            if not (name.startswith("_") or name == "built")
        }
    elif holder is not None and not isinstance(holder, tf.Module):
        names |= {f"self.{name}": value for name, value in getattr(holder, "__dict__", {}).items()}
    return {
        name: _state_of(value)
        for name, value in names.items()
        if isinstance(value, (int, float, str, list, dict, set))
    }


def _state_of(value: Any) -> Any:
    return len(value) if isinstance(value, (list, dict, set)) else value


@tf.autograph.experimental.do_not_convert
def tell_changes(
    before: dict[str, Any], after: dict[str, Any], tell: Callable[[str], None] | None
) -> None:
    """Tells which of the values that a function refers to it changed while it was traced."""
    changed = sorted(name for name in before if name in after and before[name] != after[name])
    if changed and tell is not None:
        tell(
            f"While it was traced, the step changed {', '.join(changed)}. Python code runs when a"
            " step is traced and not in every step, so this would be lost. Return the value from"
            " the step, or keep it in a tf.Variable."
        )
