"""What is planned is what TensorFlow's graph optimizer leaves, and it runs without that optimizer.
Here the optimizer is on, as it is for users."""

import logging

import keras
import keras_models
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.grappler import tf_optimizer
from tracing import training

import checkmate
from checkmate.core.layer_names import layer_names
from checkmate.tf2.graph.operations import is_stateful
from checkmate.tf2.memory.profiler import observe


@pytest.fixture
def grappler():
    from checkmate.tf2.graph import grappler

    grappler._warned.clear()
    return grappler


def gelu_model():
    inputs = x = keras.Input((64, 32))
    for k in range(3):
        inner = keras.layers.Dense(
            128, activation=lambda x: keras.activations.gelu(x, approximate=True), name=f"wide_{k}"
        )(x)
        x = keras.layers.LayerNormalization()(
            keras.layers.Add()([x, keras.layers.Dense(32, name=f"narrow_{k}")(inner)])
        )
    return keras.Model(inputs, keras.layers.Dense(4)(x))


def gelu_step():
    return training(gelu_model(), keras.losses.MeanSquaredError(), keras.optimizers.Adam())


def specs():
    return tf.TensorSpec((64, 64, 32)), tf.TensorSpec((64, 64, 4))


def types(concrete):
    return [operation.type for operation in concrete.graph.get_operations()]


def test_tanh_gelu_is_planned_without_powers(optimizer_on):
    found = checkmate.tf2.trace(gelu_step(), *specs())
    large = [
        o
        for group in found.groups
        for o in group
        if o.type == "Pow" and o.outputs[0].shape.rank == 3
    ]
    assert "Pow" in types(found.function) and not large
    assert len(found.flat.graph.get_operations()) < 0.75 * len(
        found.function.graph.get_operations()
    )


def test_what_the_forward_pass_shares_with_a_gradient_is_forward(optimizer_on):
    """The square of x is made once, for x to the third and for its derivative, and has the name of
    the latter."""
    found = checkmate.tf2.trace(gelu_step(), *specs())
    tanh = [i for i, op in enumerate(found.graph.ops) if "Tanh" in op.kind.split("+")]
    assert len(tanh) == 3
    assert all(found.graph.ops[i].recomputable and not found.graph.ops[i].is_backward for i in tanh)


def test_the_optimizer_is_left_alone_where_it_is_off(tensorflow, grappler):
    concrete = tensorflow.function(lambda x: x**3.0).get_concrete_function(
        tensorflow.TensorSpec((8,))
    )
    assert grappler.optimize(concrete, ()) is concrete


RARER = ("experts", "custom_gradients", "mixed_float16", "mixed_bfloat16", "gan")
LARGE = ("lstm", "unet", "transformer")


@pytest.mark.parametrize(
    "case", ["cnn", *(pytest.param(each, marks=pytest.mark.slow) for each in LARGE)]
)
def test_values_are_those_of_the_plain_step_with_the_optimizer(case, optimizer_on):
    case = getattr(keras_models, case)()
    optimizer = __import__("keras").optimizers.Adam(0.01)
    for budget in ("80%", "90%"):
        try:
            step = checkmate.tf2.compile(
                case.model,
                case.loss,
                optimizer,
                case.inputs,
                case.labels,
                budget=budget,
                cost_model="roofline",
            )
            break
        except (checkmate.InfeasibleBudgetError, checkmate.NoPlanFoundError):
            continue
    assert step.plan.recomputed
    found = checkmate.tf2.verify(step, (case.inputs, case.labels))
    assert not found.not_run and not found.run_again, str(found)
    assert all(each.planned == 0 for each in found.differences), str(found)


def test_layers_are_those_of_the_model(optimizer_on):
    found = checkmate.tf2.trace(gelu_step(), *specs())
    replaced = [
        name
        for op, name in zip(found.graph.ops, layer_names(found.graph), strict=True)
        if "Optimizer/" in op.name
    ]
    assert replaced and all(name.startswith("layer_normalization") for name in replaced)


def test_only_the_call_is_without_the_optimizer(tensorflow, grappler, optimizer_on):
    function = tensorflow.function(lambda x: x * 2.0).get_concrete_function(
        tensorflow.TensorSpec((2,))
    )
    usual = context.context().function_call_options
    seen = []

    def call(x):
        seen.append(context.context().function_call_options.config_proto_serialized)
        return function(x)

    assert grappler.run(call, tensorflow.ones(2)).numpy().tolist() == [2, 2]
    assert tensorflow.compat.v1.ConfigProto.FromString(
        seen[0]
    ).graph_options.rewrite_options.disable_meta_optimizer
    assert context.context().function_call_options is usual
    with pytest.raises(ZeroDivisionError):
        grappler.run(lambda: 1 / 0)
    assert context.context().function_call_options is usual


@pytest.mark.parametrize("whole", [True, False], ids=["apart", "merged"])
def test_inside_of_another_function_what_is_apart_runs_without_the_optimizer(
    whole, tensorflow, grappler, optimizer_on
):
    """As on replicas, whose steps a function of all replicas calls. The optimizer makes squares of
    second powers."""
    total = tf.Variable(0.0)

    def body(x):
        y = tf.pow(x, 2.0)
        total.assign_add(tf.reduce_sum(y))
        return y

    spec = tf.TensorSpec((64, 64))
    inner = grappler.apart(body, spec) if whole else tf.function(body).get_concrete_function(spec)
    outer = tf.function(lambda x: tf.pow(grappler.run(inner, x), 2.0))
    outer(tf.ones((64, 64)))
    kernels = [kernel for _, kernel in observe(lambda: outer(tf.ones((64, 64)))).ran]
    assert ("Pow" in kernels) == whole
    assert "Square" in kernels, "the other function is optimized"
    assert total.numpy() == 2 * 64 * 64


@pytest.fixture
def optimizes(monkeypatch):
    """Has TensorFlow's optimizer return what this changes of its result."""
    optimize = tf_optimizer.OptimizeGraph

    def of(change):
        def changed(*arguments):
            graph_def = optimize(*arguments)
            change(graph_def)
            return graph_def

        monkeypatch.setattr(tf_optimizer, "OptimizeGraph", changed)

    return of


def lacks_an_output(graph_def):
    del graph_def.node[:]


def has_an_unknown_op(graph_def):
    graph_def.node.add(name="strange", op="NoSuchOp")


def has_a_cycle(graph_def):
    graph_def.node.add(name="egg", op="Neg", input=["hen"])
    graph_def.node.add(name="hen", op="Neg", input=["egg"])


def calls_what_is_not_there(graph_def):
    graph_def.node.add(name="call", op="StatefulPartitionedCall").attr["f"].func.name = "nobody"


def is_not_there(graph_def):
    raise AttributeError("no such entry")


@pytest.mark.parametrize(
    "wrong",
    [lacks_an_output, has_an_unknown_op, has_a_cycle, calls_what_is_not_there, is_not_there],
)
def test_without_a_result_that_can_be_used_the_traced_graph_is_planned(
    wrong, grappler, optimizer_on, optimizes, caplog
):
    optimizes(wrong)
    concrete = tf.function(lambda x: x**3.0).get_concrete_function(tf.TensorSpec((8,)))
    with caplog.at_level(logging.WARNING, logger="checkmate"):
        assert grappler.optimize(concrete, ()) is concrete
        assert grappler.optimize(concrete, ()) is concrete
    assert len(caplog.records) == 1 and "as traced" in caplog.text


def test_a_side_effect_that_is_gone_is_noticed(grappler, optimizer_on, optimizes):
    count = tf.Variable(0.0)

    def step(x):
        count.assign_add(1.0)
        return x**3.0

    def without_writes(graph_def):
        kept = [node for node in graph_def.node if "Assign" not in node.op]
        del graph_def.node[:]
        graph_def.node.extend(kept)

    concrete = tf.function(step).get_concrete_function(tf.TensorSpec((8,)))
    assert grappler.optimize(concrete, [count]) is not concrete
    optimizes(without_writes)
    assert grappler.optimize(concrete, [count]) is concrete


def test_conditions_keep_their_branches(tensorflow, grappler, optimizer_on):
    """TensorFlow would make other functions of them, and move what only one branch reads into
    it."""

    def step(x):
        only_there = tf.sin(x) ** 3.0
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.cos(only_there), lambda: x)

    concrete = tf.function(step).get_concrete_function(tf.TensorSpec((8,)))
    found = grappler.optimize(concrete, ())
    assert found is not concrete and "Sin" in types(found) and "Pow" not in types(found)
    for x in (tf.range(8.0), -tf.range(8.0)):
        assert grappler.run(found, x)[0].numpy().tobytes() == concrete(x).numpy().tobytes()


def test_what_a_call_returns_keeps_its_shape(tensorflow, grappler, optimizer_on, monkeypatch):
    """A call that is left for XLA, and what is made of it: nothing could be planned without."""
    compiled = tf.function(lambda x: tf.nn.relu(x) @ x, jit_compile=True)
    concrete = tf.function(lambda x: tf.sin(compiled(x)) ** 3.0).get_concrete_function(
        tf.TensorSpec((8, 8))
    )
    found = grappler.optimize(concrete, ())
    assert found is not concrete
    assert all(
        tensor.shape == (8, 8)
        for o in found.graph.get_operations()
        if o.type in ("Sin", "Mul")
        for tensor in o.outputs
    )
    monkeypatch.setattr("checkmate.tf2.graph.grappler.tell_shapes", lambda *_: None)
    assert grappler.optimize(concrete, ()) is concrete


@pytest.mark.parametrize(
    "name",
    [
        *("normalizations", "loops", "text"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in RARER),
    ],
)
def test_unusual_steps_go_through_the_optimizer(name, optimizer_on, grappler, caplog):
    from benchmarks.zoo import training

    step, batch = training(name)
    with caplog.at_level(logging.WARNING):
        found = checkmate.tf2.trace(tf.function(step), *batch)
    assert not [record for record in caplog.records if record.name in ("checkmate", "tensorflow")]
    assert len(found.flat.graph.get_operations()) < 0.85 * len(
        found.function.graph.get_operations()
    )


def test_large_sums_stay_sums(tensorflow, grappler, optimizer_on, monkeypatch):
    """TensorFlow's memory pass would make accumulators of them, which no plan may free or compute
    again."""

    def step(x):
        each = [tensorflow.sin(x), tensorflow.cos(x), tensorflow.tanh(x), tensorflow.exp(x)]
        return tensorflow.reduce_sum(tensorflow.add_n(each))

    concrete = tensorflow.function(step).get_concrete_function(tensorflow.TensorSpec((8192, 8192)))
    assert "AddN" in types(grappler.optimize(concrete, ()))
    monkeypatch.setattr(grappler, "_NO_MEMORY_OPTIMIZATION", 0)
    short_of_memory = grappler.training_device()
    short_of_memory.properties.memory_size = 2**28  # what TensorFlow says of a CPU
    monkeypatch.setattr(grappler, "training_device", lambda: short_of_memory)
    found = grappler.optimize(concrete, ())
    assert "AddN" not in types(found) and any(
        is_stateful(operation) for operation in found.graph.get_operations()
    )
