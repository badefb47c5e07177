"""Call: the arguments of a call, its tensors apart from what is part of the step.

Arguments are nests. Their tensors and arrays are what varies from call to call; all else (numbers,
strings, None, objects) is part of the step, as it is for a `tf.function`: another number is another
step and is planned anew.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2.training_step import refuse_text


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
        name: len(value) if isinstance(value, (list, dict, set)) else value
        for name, value in names.items()
        if isinstance(value, (int, float, str, list, dict, set))
    }


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


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Arguments of a call: `structure` is (args, kwargs) with the number of each leaf in its place;
    `leaves` has None in the `places` of tensors."""

    structure: Any
    leaves: list[Any]
    places: tuple[int, ...]
    tensors: list[Any] = field(repr=False)

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        whole = (args, kwargs)
        leaves = tf.nest.flatten(whole)
        for leaf in leaves:
            if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
                raise TraceError(
                    f"A plan is made for exact sizes, which a {type(leaf).__name__} does not have."
                    " Pass a dense tensor, as tf.sparse.to_dense or .to_tensor() gives."
                )
            if _is_array(leaf):
                refuse_text(tf.as_dtype(leaf.dtype))
        places = tuple(k for k, leaf in enumerate(leaves) if _is_array(leaf))
        structure = tf.nest.pack_sequence_as(whole, list(range(len(leaves))))
        others = [None if _is_array(leaf) else leaf for leaf in leaves]
        return cls(structure, others, places, [leaves[k] for k in places])

    @property
    def kind(self) -> tuple:
        """Equal for the calls that run under one plan."""
        arrays = tuple(
            (tf.as_dtype(tensor.dtype), tuple(tensor.shape)[1:], len(tensor.shape))
            for tensor in self.tensors
        )
        return repr(self.structure), tuple(map(_identity, self.leaves)), self.places, arrays

    def specs(self, batch_size: int | None) -> tuple[tf.TensorSpec, ...]:
        """The tensors' specs, with `batch_size` instead of the first dimension of those that have
        that of the batch."""
        shapes = [list(tensor.shape) for tensor in self.tensors]
        batch = next((shape[0] for shape in shapes if shape), None)
        if batch_size is not None:
            shapes = [
                [batch_size, *shape[1:]] if shape and shape[0] == batch else shape
                for shape in shapes
            ]
        return tuple(
            tf.TensorSpec(shape, tf.as_dtype(tensor.dtype))
            for shape, tensor in zip(shapes, self.tensors, strict=True)
        )

    def without_tensors(self) -> Call:
        """The same without values: it may be kept."""
        return Call(self.structure, self.leaves, self.places, [])

    def with_tensors(self, tensors: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return tf.nest.pack_sequence_as(self.structure, leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (tf.Tensor, tf.TensorSpec, np.ndarray, np.generic))


def _identity(leaf: Any) -> Any:
    """Something hashable that is equal for leaves that make the same step."""
    by_value = (bool, int, float, complex, str, bytes, type(None), tf.DType)
    return (type(leaf), leaf) if isinstance(leaf, by_value) else id(leaf)


def converted(
    step: Callable[..., Any], signature: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments in the order and dtypes of an `input_signature`, as a `tf.function` converts
    them; specs stay as they are."""
    try:
        given = inspect.signature(step).bind(*args, **kwargs).args
        if len(given) != len(signature):
            raise TypeError(f"{len(given)} arguments instead of {len(signature)}")
        for spec, value in zip(signature, given, strict=True):
            if not isinstance(spec, tf.TensorSpec):
                tf.nest.assert_same_structure(spec, value)
    except (TypeError, ValueError) as error:
        raise TraceError(
            f"The step has the input_signature {tuple(signature)}, and was called with other"
            f" arguments: {error}"
        ) from error

    def one(spec: tf.TensorSpec, value: Any) -> Any:
        try:
            if not tf.is_tensor(value) and not isinstance(value, tf.TensorSpec):
                value = tf.convert_to_tensor(value, spec.dtype)
        except (TypeError, ValueError) as error:
            raise TraceError(
                f"An argument cannot be turned into {spec}, as the input_signature asks: {error}"
            ) from error
        if value.dtype != spec.dtype or not spec.shape.is_compatible_with(value.shape):
            raise TraceError(
                f"The input_signature asks for {spec}; got {value.dtype.name}"
                f"{tf.TensorShape(value.shape).as_list()}. Convert the argument before the call."
            )
        return value

    return tuple(
        one(spec, value)
        if isinstance(spec, tf.TensorSpec)
        else tf.nest.map_structure(one, spec, value)
        for spec, value in zip(signature, given, strict=True)
    )
