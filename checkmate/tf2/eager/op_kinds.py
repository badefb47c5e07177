"""TensorFlow's op types, by its registry and the table of op types; what one op needs at certain
input shapes: memory, cost, and the shapes and types of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import tensorflow as tf

from checkmate.tf2.eager import private_api
from checkmate.tf2.ops.rule import Eager, Source, State
from checkmate.tf2.ops.table import rule_of

_UNTYPED = 0
_PLAIN = frozenset({"bool", "float", "int", "string", "type"})


class OpKind:
    """One op type.

    Attributes:
      is_registered: It is no function of the program, which is one opaque op.
      passed_on: Left to TensorFlow: it is not registered, or makes nothing to evict.
      refusal: Why it cannot run under the runtime, or "".
      of_shape: Computes its output from its input's shape, where that suffices.
      stateful: It runs exactly once; its outputs cannot be recomputed.
      tries_algorithms: Its first run at some shapes may take much more memory than later runs, and
        the op can run twice.
      is_view: Its first output shares the memory of its first input.
      is_reduction: The same where there is nothing to reduce.
      inputs: For each input argument the names of the attributes for (type, number, list of types);
        "" where there is none.
      plain_attrs: All its attributes are types, numbers and strings; others may be lists, which
        belong to the program.
      is_list: For each input argument, whether it is a list of tensors; `lists` if any is.
      types: For each input argument the number of its type, or of the type that TensorFlow gives to
        a Python number there; `_UNTYPED` if it depends on other arguments.
      one_each: The lengths of its inputs when none of them is a list.
      reads: (inputs, outputs) that its gradient is known or has been seen to read, by index; None
        before the first gradient.
    """

    __slots__ = (
        *("count", "inputs", "is_constant", "is_list", "is_reduction", "is_registered", "is_view"),
        *("lists", "name", "of_shape", "one_each", "passed_on", "plain_attrs", "reads"),
        *("reads_variable", "refusal", "stateful", "tries_algorithms", "types"),
    )

    def __init__(self, name: str):
        self.name = name
        definition = private_api.op_def(name)
        rule = rule_of(name)
        self.is_registered = definition is not None
        self.refusal = rule.eager_refusal
        self.passed_on = (
            definition is None or rule.eager is Eager.PASSED_ON or bool(rule.eager_refusal)
        )
        arguments = definition.input_arg if definition is not None else ()
        attrs = definition.attr if definition is not None else ()
        self.inputs = [
            (argument.type_attr, argument.number_attr, argument.type_list_attr)
            for argument in arguments
        ]
        self.count = len(self.inputs)
        self.is_list = [bool(number or types) for _, number, types in self.inputs]
        self.lists = any(self.is_list)
        self.of_shape = None if self.lists else rule.of_shape
        self.one_each: tuple[int | None, ...] = (None,) * len(self.inputs)
        defaults = {attr.name: attr.default_value.type for attr in attrs}
        self.types = [
            argument.type or defaults.get(argument.type_attr, _UNTYPED) for argument in arguments
        ]
        self.stateful = definition is not None and (
            definition.is_stateful or rule.state is State.DRAWS
        )
        self.plain_attrs = all(attr.type in _PLAIN for attr in attrs)
        self.tries_algorithms = rule.tries_algorithms and not self.stateful
        self.is_constant = rule.source is Source.CONSTANT
        self.reads_variable = rule.source is Source.VARIABLE
        self.is_view = rule.eager is Eager.VIEW
        self.is_reduction = rule.eager is Eager.REDUCTION
        self.reads: tuple[frozenset[int], frozenset[int]] | None = rule.gradient_reads

    def lengths(self, attrs: Sequence[Any] | None) -> tuple[int | None, ...]:
        """For each input argument how many tensors it is, None for one that is no list, read from
        the attributes of the slow path."""
        if not self.lists:
            return self.one_each
        values = dict(zip((attrs or ())[::2], (attrs or ())[1::2], strict=True))
        return tuple(
            None if not is_list else values[number] if number else len(values[types])
            for (_, number, types), is_list in zip(self.inputs, self.is_list, strict=True)
        )


kind_of = cache(OpKind)
"""The `OpKind` of an op type's name."""


class OutputSpec:
    """Shape and type of an output. There is one object for each shape and type.

    Attributes:
      bytes: Bytes that the allocator hands out for it; 0 for a type that is no number.
      signature: Shape and number of the type, as `private_api.signature_of` a real tensor.
      on_tapes: The same, as tapes ask for it.
    """

    __slots__ = ("bytes", "dtype", "on_tapes", "shape", "signature")

    def __init__(self, count: int, shape: tuple[int, ...], dtype: tf.DType):
        self.bytes, self.shape, self.dtype = count, shape, dtype
        self.signature = (shape, dtype.as_datatype_enum)
        self.on_tapes = private_api.on_tapes(shape, dtype)


@dataclass(slots=True, eq=False)
class Needs:
    """Memory and cost of one op type at certain input shapes.

    Attributes:
      cost: Seconds, by a roofline.
      bytes: Outputs and scratch memory: a guess on the high side until `measured`, then the
        allocator's figure.
      outputs: Its outputs, or None where their shapes are not known before the op runs.
      steady: They are the same whenever it runs.
      runs: After how many more runs the allocator's report counts.
      measured: It has run so often that the report of the last run counts.
    """

    cost: float
    least_bytes: int
    bytes: int
    outputs: list[OutputSpec] | None = None
    steady: bool = False
    is_view: bool = False
    runs: int = 1
    measured: bool = False

    def __post_init__(self) -> None:
        self.steady = self.steady or self.outputs is not None

    def learn(self, used_bytes: int, held_bytes: int) -> None:
        """The allocator reported a peak of `used_bytes`, and `held_bytes` after the op: its
        outputs, and what the holes they were given are larger."""
        self.bytes = (
            used_bytes
            if self.outputs is None
            else self.least_bytes + max(0, used_bytes - max(held_bytes, self.least_bytes))
        )
        self.runs -= 1
        self.measured = self.runs <= 0

    def raise_to(self, used_bytes: int) -> None:
        self.bytes = max(self.bytes, used_bytes)


Signature = tuple[Any, ...]
"""Shape and type of an input, and of a variable which one it is."""
