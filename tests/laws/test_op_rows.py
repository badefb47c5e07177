"""Every row of the table of op types says what TensorFlow does: each op is run, whole, and cut
along each axis of each input."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")

NO_EXAMPLE = (
    *("PreventGradient", "Snapshot"),  # the identity in other words
    *("ResourceGather", "LookupTableFindV2"),
    # Of Grappler:
    *("_FusedBatchNormEx", "_FusedConv2D", "_FusedConv3D", "_FusedDepthwiseConv2dNative"),
    *("_FusedMatMul", "_MklFusedInstanceNorm", "_MklFusedMish", "_MklLayerNorm", "_MklSwish"),
    "_UnaryOpsComposition",
    # Functions of the graph, lists, and random numbers:
    *("If", "PartitionedCall", "StatefulPartitionedCall", "StatelessIf", "StatelessWhile", "While"),
    *("Case", "StatelessCase", "OptionalGetValue", "OptionalHasValue"),
    *("TensorListElementShape", "TensorListGetItem", "TensorListLength", "TensorListStack"),
    *("RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"),
    *("StatelessRandomNormalV2", "StatelessRandomUniformIntV2", "StatelessRandomUniformV2"),
    "StatelessTruncatedNormalV2",
)
"""Rows whose rule for axes is judged by whole steps (`tests/slices_oracle.py`)."""


@pytest.fixture(scope="module")
def calls(tensorflow):
    """Op type -> an example, for each row that has a rule for axes."""
    from calls_of_ops import by_hand, by_registry

    from checkmate.tf2.ops.table import TABLE

    written = by_hand()
    found = {}
    for op_type, row in TABLE.items():
        if row.axes is not None and op_type not in NO_EXAMPLE:
            found[op_type] = written.get(op_type) or by_registry(op_type)
    assert [op_type for op_type, call in found.items() if call is None] == []
    return found


def traced(call):
    import tensorflow as tf

    shapes, dtypes, function = call
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    return tf.function(lambda *x: tf.nest.flatten(function(*x))).get_concrete_function(*specs)


UNCHECKED = ("ResizeBicubicGrad", "ResizeBilinearGrad")
"""Kernels that do not refuse inputs with other numbers of examples: no graph has such an op."""


def cuts(op_type, call):
    """For each input the axis along which it is cut, or None: one input alone, and all along the
    same."""
    even = [[k for k, size in enumerate(shape) if not size % 2] for shape in call[0]]
    axes = [[None, *each] for each in even]
    alone = (
        [None] * k + [a] + [None] * (len(axes) - k - 1) for k in range(len(axes)) for a in axes[k]
    )
    together = ([a if a in each else None for each in even] for a in range(4))
    unique = {
        tuple(cut) for cut in itertools.chain(alone, together) if any(a is not None for a in cut)
    }
    return sorted((cut for cut in unique if op_type not in UNCHECKED or None not in cut), key=str)


def judged(op_type, call):
    """(how many relations were compared with numbers, those that do not hold, as texts)."""
    import tensorflow as tf
    from calls_of_ops import values
    from slices_oracle import combined, in_halves

    from checkmate.tf2.ops.relation import SAME, batched

    count, wrong = 0, []
    whole = traced(call)
    given = [
        values(shape, dtype, k) for k, (shape, dtype) in enumerate(zip(*call[:2], strict=True))
    ]
    for cut in cuts(op_type, call):
        found = in_halves(whole.graph, [SAME if axis is None else batched(axis) for axis in cut])
        if found is None:
            continue
        body, part = found
        # An input that is the same for all slices may be read in parts.
        halves = [
            tf.split(x, 2, relation.axis) if relation != SAME else [x, x]
            for x, relation in zip(given, body.arguments, strict=True)
        ]
        parts = [part(k, *each) for k, each in enumerate(zip(*halves, strict=True))]
        for relation, result, *each in zip(body.results, whole(*given), *parts, strict=True):
            together, count = combined(relation, [value.numpy() for value in each]), count + 1
            if together.shape != result.shape or not np.allclose(
                together, result.numpy(), rtol=1e-3, atol=1e-4, equal_nan=True
            ):
                wrong.append(f"{op_type} cut along {cut}: {relation}")
    return count, wrong


def check_columns(op_type, call):
    """Sizes, numbers, the order of inputs, and the work of an op are as its row says."""
    from calls_of_ops import values

    from checkmate.tf2.ops.rule import InPlace, Role
    from checkmate.tf2.ops.table import rule_of

    row, graph = rule_of(op_type), traced(call)
    operation = next(o for o in graph.graph.get_operations() if o.type == op_type)
    given = [
        values(shape, dtype, k) for k, (shape, dtype) in enumerate(zip(*call[:2], strict=True))
    ]
    result = graph(*given)[0].numpy()
    sizes = [tensor.shape.num_elements() for tensor in operation.inputs]
    size = operation.outputs[0].shape.num_elements()
    if row.in_place is InPlace.ANY_INPUT or row.role in (Role.ALIAS, Role.VIEW):
        assert size in sizes, op_type
    if row.flops is not None:
        assert row.flops(operation) >= 2 * size, op_type
    if row.fills_with is not None:
        assert (result == row.fills_with).all(), op_type
    if row.repeats is not None:
        names = [tensor.name for tensor in graph.inputs]
        source = given[names.index(operation.inputs[row.repeats].name)]
        assert set(result.flat) == set(source.numpy().flat), op_type


def test_each_factor_of_each_row_holds_for_numbers(calls):
    """What a rule says of slices is right for numbers, and each rule applies to some slices."""
    found = {op_type: judged(op_type, call) for op_type, call in calls.items()}
    wrong = [text for _, texts in found.values() for text in texts]
    assert not wrong, "\n".join(wrong)
    never = [op_type for op_type, (count, _) in found.items() if not count]
    assert not never, f"rules that never apply: {never}"


def test_each_column_holds_for_numbers(calls):
    for op_type, call in calls.items():
        check_columns(op_type, call)


def test_a_wrong_row_is_found(calls, monkeypatch):
    from dataclasses import replace

    from checkmate.tf2.ops import elementwise, table

    softmax = replace(table.rule_of("Softmax"), axes=elementwise.elementwise())
    monkeypatch.setitem(table.TABLE, "Softmax", softmax)
    assert judged("Softmax", calls["Softmax"])[1]
    monkeypatch.setitem(table.TABLE, "Neg", replace(table.rule_of("Neg"), fills_with=0))
    with pytest.raises(AssertionError, match="Neg"):
        check_columns("Neg", calls["Neg"])


def test_the_example_of_a_row_in_contributing(monkeypatch):
    from calls_of_ops import by_registry

    from checkmate.tf2.ops import table

    monkeypatch.setattr(table, "TABLE", dict(table.TABLE))
    text = (Path(__file__).parents[2] / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = re.search(r"<!-- example: op -->\n```python\n(.*?)```", text, re.DOTALL)[1]
    (op_type,) = re.findall(r'row\("(\w+)"', code)
    assert table.rule_of(op_type) == table.DEFAULT
    exec(code, vars(table) | {"TABLE": table.TABLE})
    call = by_registry(op_type)
    count, wrong = judged(op_type, call)
    assert count and not wrong
    check_columns(op_type, call)
    assert table.rule_of(op_type).is_elementwise


def test_a_value_that_follows_from_a_shape(tensorflow):
    from checkmate.tf2.ops.rule import Role
    from checkmate.tf2.ops.table import TABLE

    x = tensorflow.zeros((4, 6, 2))
    for op_type, row in TABLE.items():
        assert (row.of_shape is not None) == (row.role is Role.SHAPE), op_type
        if row.of_shape is not None:
            given = [x] if op_type == "ShapeN" else x
            found = getattr(tensorflow.raw_ops, op_type)(input=given)
            assert np.array_equal(np.squeeze(found), row.of_shape(x.shape))
