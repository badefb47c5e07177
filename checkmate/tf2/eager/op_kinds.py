"""What the runtime needs to know of each TensorFlow op type: the constants at the top, and what
TensorFlow's registry says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from checkmate.tf2.eager import private_api
from checkmate.tf2.ops.rule import Eager, State
from checkmate.tf2.ops.table import rule_of

SHAPE_OPS: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "Shape": list,
    "Size": math.prod,
    "Rank": len,
}
"""Ops whose output follows from the input's shape, and how."""

_UNTYPED = 0
_PLAIN = frozenset({"bool", "float", "int", "string", "type"})


class OpKind:
    """One op type.

    Attributes:
      passed_on: Left to TensorFlow: it is no registered op (a function, which is one opaque op), or
        makes nothing to evict.
      stateful: It runs exactly once; what it makes cannot be recomputed.
      tries_algorithms: Its first run at some shapes may take much more memory than later runs, and
        the op can run twice.
      is_view: Its first output shares the memory of its first input.
      is_reduction: The same where there is nothing to reduce.
      inputs: For each input argument the names of the attributes for (type, number, list of types);
        "" where there is none.
      count: How many input arguments it has.
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
        "count",
        "inputs",
        "is_list",
        "is_reduction",
        "is_view",
        "lists",
        "name",
        "one_each",
        "passed_on",
        "plain_attrs",
        "reads",
        "stateful",
        "tries_algorithms",
        "types",
    )

    def __init__(self, name: str):
        self.name = name
        definition = private_api.op_def(name)
        rule = rule_of(name)
        self.passed_on = (
            definition is None or rule.eager is Eager.PASSED_ON or bool(rule.eager_refusal)
        )
        arguments = definition.input_arg if definition is not None else ()
        self.inputs = [
            (argument.type_attr, argument.number_attr, argument.type_list_attr)
            for argument in arguments
        ]
        self.count = len(self.inputs)
        self.is_list = [bool(number or types) for _, number, types in self.inputs]
        self.lists = any(self.is_list)
        self.one_each: tuple[int | None, ...] = (None,) * len(self.inputs)
        defaults = (
            {attr.name: attr.default_value.type for attr in definition.attr}
            if definition is not None
            else {}
        )
        self.types = [
            argument.type or defaults.get(argument.type_attr, _UNTYPED) for argument in arguments
        ]
        self.stateful = definition is not None and (
            definition.is_stateful or rule.state is State.DRAWS
        )
        attrs = definition.attr if definition is not None else ()
        self.plain_attrs = all(attr.type in _PLAIN for attr in attrs)
        self.tries_algorithms = rule.tries_algorithms and not self.stateful
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
