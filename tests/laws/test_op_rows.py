"""Every row of the table of op types says what TensorFlow does: each op is run, whole, and cut
along each axis of each input and of each output."""

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
    *(
        "_FusedMatMul",
        "_MklFusedBatchMatMulV2",
        "_MklFusedInstanceNorm",
        "_MklFusedMish",
        "_MklLayerNorm",
        "_MklSwish",
    ),
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


TO_ROUNDING = (
    # A sum's order, by the number of rows, columns, channels or threads:
    "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum Conv2D Conv2DBackpropInput "
    "Conv2DBackpropFilter Conv3D Conv3DBackpropInputV2 Conv3DBackpropFilterV2 "
    "DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput "
    "DepthwiseConv2dNativeBackpropFilter Sum Mean Prod BiasAddGrad "
    # Entries after the last full vector, in another way than those in vectors:
    "FusedBatchNormV3 FusedBatchNormGradV3 LRN LRNGrad Softmax LogSoftmax "
    "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits "
    "Exp Expm1 Log Log1p Sigmoid SigmoidGrad Softplus "
    "SoftplusGrad Rsqrt SqrtGrad Reciprocal Pow Xlogy Sin Cos Asin Acos Atan Atan2 Atanh Erfinv "
    "Ndtri"
)
"""Op types of which parts that are joined were found to differ by rounding from the whole, on CPUs:
here or at other sizes."""

COUNTS = (2, 3)
"""Into how many parts an axis is cut, where its length allows."""


def cuts(op_type, shapes, results, count):
    """For each input and each output the axis along which it is cut, or None: one of them alone,
    and all inputs along the same."""
    even = [[k for k, size in enumerate(shape) if not size % count] for shape in shapes + results]
    given = len(shapes)
    alone = [
        [None] * k + [a] + [None] * (len(even) - k - 1)
        for k in range(len(even))
        for a in even[k]
        if op_type not in UNCHECKED or given == 1
    ]
    unread = [None] * len(results)
    together = [[a if a in each else None for each in even[:given]] + unread for a in range(5)]
    unique = {tuple(cut) for cut in alone + together if any(a is not None for a in cut)}
    return sorted(unique, key=str)


def same_bits(one, other):
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def judged(op_type, call):
    """(how many relations were compared with numbers, those that do not hold, as texts; those of
    parts that hold up to rounding)."""
    from calls_of_ops import values

    whole = traced(call)
    given = [
        values(shape, dtype, k) for k, (shape, dtype) in enumerate(zip(*call[:2], strict=True))
    ]
    expected = [result.numpy() for result in whole(*given)]
    shapes, results = ([tuple(t.shape) for t in each] for each in (whole.inputs, expected))
    compared = 0
    wrong, rounded = [], []
    for count in COUNTS:
        said = set()
        for along in cuts(op_type, shapes, results, count):
            for relation, found, result in in_cuts(whole, given, expected, along, count, said):
                compared += 1
                text = f"{op_type} cut along {along} in {count}: {relation}"
                if found.shape != result.shape or not np.allclose(
                    found, result, rtol=1e-3, atol=1e-4, equal_nan=True
                ):
                    wrong.append(text)
                elif relation.kind.value == "batched" and not same_bits(found, result):
                    rounded.append(text)
    return compared, wrong, rounded


def in_cuts(whole, given, expected, along, count, said):
    """(relation, value of the parts, value of the whole) of each result, if parts suffice and the
    rules have not said so already."""
    import tensorflow as tf
    from slices_oracle import combined, cut, in_parts

    from checkmate.tf2.ops.relation import SAME, batched

    relations = [SAME if axis is None else batched(axis) for axis in along]
    asked = relations[len(given) :]
    found = in_parts(whole.graph, relations[: len(given)], count, asked)
    if found is None:
        return []
    body, part = found
    relations = (*body.arguments, *body.results)
    if relations in said:
        return []
    said.add(relations)
    # An input that is the same for all parts may be read in parts.
    pieces = [cut(r, x.numpy(), count) for r, x in zip(body.arguments, given, strict=True)]
    parts = [part(k, *map(tf.constant, each)) for k, each in enumerate(zip(*pieces, strict=True))]
    together = (
        combined(relation, [value.numpy() for value in each])
        for relation, *each in zip(body.results, *parts, strict=True)
    )
    return zip(body.results, together, expected, strict=True)


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
    """What a rule says of parts is right for numbers, and each rule applies to some parts."""
    found = {op_type: judged(op_type, call) for op_type, call in calls.items()}
    wrong = [text for _, texts, _ in found.values() for text in texts]
    assert not wrong, "\n".join(wrong)
    never = [op_type for op_type, (count, *_) in found.items() if not count]
    assert not never, f"rules that never apply: {never}"
    rounded = {op_type for op_type, (*_, texts) in found.items() if texts}
    assert rounded <= {*TO_ROUNDING.split()}, rounded


TOLD = {
    "bias of channels in front": "0123 0 0123",
    "its gradient": "0123 0",
    "convolution": "03 23 03",
    "gradient of its input": "23 03 03",
    "by height and width only": "23 03 03",
    "gradient of its filter": "03 03 23",
    "points": "0123 23 0123",
    "gradient of points": "0123 0123 23",
    "groups": "0 - 0",
    "filters of each channel": "03 2 03",
    "filters of one channel": "0 3 03",
    "their gradients": "0 03 3",
    "joined axes": "012 01",
    "parts by index": "023 0 0123",
    "pooled channels": "0 0",
    "statistics of the batch": "3 0 0 3 0 0 0 0",
    "their gradient": "3 3 0 3 0 0",
}
"""Call -> for each input and output the axes along which it can be cut in two."""

TOLD_OF_FUSED = {
    "_FusedMatMul": "0 0 0 01",
    "_FusedConv2D": "0 3 0 03 03",
    "_FusedConv3D": "0 4 0 04",
    "_FusedDepthwiseConv2dNative": "03 2 0 03",
    "_MklFusedBatchMatMulV2": "012 012 - 023 0123",
    "_FusedBatchNormEx": "3 0 0 3 0 0",
}


def told(call):
    from slices_oracle import in_parts

    from checkmate.tf2.ops.relation import SAME, batched

    whole = traced(call)
    given, tensors = len(whole.inputs), [*whole.inputs, *whole.outputs]

    def is_cut(k, axis):
        relations = [batched(axis) if each == k else SAME for each in range(len(tensors))]
        found = in_parts(whole.graph, relations[:given], 2, relations[given:])
        return found is not None and (k < given or found[0].results[k - given] == relations[k])

    axes = (
        "".join(str(a) for a, size in enumerate(x.shape) if not size % 2 and is_cut(k, a))
        for k, x in enumerate(tensors)
    )
    return " ".join(each or "-" for each in axes)


@pytest.mark.parametrize("name", TOLD)
def test_axes_that_hang_on_attributes_and_shapes(name):
    from calls_of_ops import further

    op_type, call = further()[name]
    assert told(call) == TOLD[name]
    assert not judged(op_type, call)[1]


@pytest.mark.own_process(TF_ENABLE_ONEDNN_OPTS="1")
def test_axes_of_fused_ops(tensorflow):
    from calls_of_ops import fused

    for op_type, call in fused().items():
        assert told(call) == TOLD_OF_FUSED[op_type]
        try:
            assert not judged(op_type, call)[1]
        except (tensorflow.errors.InternalError, tensorflow.errors.InvalidArgumentError):
            continue  # oneDNN has the only kernel, and does not run on this processor


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
    count, wrong, _ = judged(op_type, call)
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
