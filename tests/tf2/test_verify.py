"""verify(): says yes to what is the plain step, and no to everything else."""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_models import Case, cnn
from requests_seen import most_requested_bytes
from tracing import N, traced
from training import planned_function, state, tightest, with_constants

import checkmate
from checkmate.tf2 import device as devices
from checkmate.tf2.execution.differences import compare, evaluations, may_vanish, not_in_place
from checkmate.tf2.execution.replay import EVALUATION_MARK, Replayed
from checkmate.tf2.graph.operations import is_loop
from checkmate.tf2.planning.running import RunningStep

pytestmark = pytest.mark.usefixtures("tensorflow")


def planned_cnn():
    """(Case, optimizer, step that is confirmed on its batch)."""
    keras.utils.set_random_seed(0)
    case = cnn()
    optimizer = keras.optimizers.Adam(1e-3)
    step = tightest(case, optimizer)
    step.planned_for(case.inputs, case.labels)
    return case, optimizer, step


@pytest.fixture(scope="module")
def trained(tensorflow):
    """For tests that ask for no budget to hold: a pool of some MiB is cut in another way after each
    test."""
    return planned_cnn()


def test_a_planned_step_is_the_plain_one_and_nothing_changes(trained):
    case, optimizer, step = trained
    before = state(case.model, optimizer)
    found = checkmate.tf2.verify(step, (case.inputs, case.labels))
    within = replace(found, budget_bytes=found.measured_peak_bytes)
    assert within.ok, str(found)
    assert not replace(found, budget_bytes=found.measured_peak_bytes - 1).ok
    assert found.planned_evaluations > len(step.graph) and not found.not_run and not found.run_again
    assert len(found.differences) == 2 + len(step.planned.traced.function.variables)
    assert all(each.planned == 0 for each in found.differences), (
        "one thread, deterministic ops, nothing fused"
    )
    assert found.measured_peak_bytes - found.lost_bytes <= step.budget_bytes
    assert step.budget_bytes < found.plain_peak_bytes
    assert "verified" in str(within) and "NOT" not in str(within)
    for a, b in zip(before, state(case.model, optimizer), strict=True):
        np.testing.assert_array_equal(a, b)


def altered(step, change):
    """The step with its function changed, for as long as the test lasts."""
    changed = object.__new__(type(step))
    changed.__dict__.update(step.__dict__)
    planned = change(step.planned)
    changed._main = RunningStep(planned, step.budget_bytes, "changed")
    changed._by_shape = dict.fromkeys(step._by_shape, changed._main)
    return changed


def test_another_loss_is_seen(trained):
    case, _, step = trained

    def wrong(main):
        def run(*flat):
            prediction, loss = main.run(*flat)
            return prediction, loss * 1.001

        return replace(main, run=run)

    found = checkmate.tf2.verify(altered(step, wrong), (case.inputs, case.labels))
    assert not found.ok and "NOT AS PLANNED" in str(found)
    wrong = [each for each in found.differences if not each.is_rounding]
    assert [each.what for each in wrong] == ["output 1"] and wrong[0].planned == pytest.approx(
        1e-3, rel=0.1
    )


def test_what_the_graph_optimizer_fuses_is_told_apart(trained, tensorflow, monkeypatch):
    # The package has the function of that name.
    verify = importlib.import_module("checkmate.tf2.verify")
    case, _, step = trained
    options = tensorflow.config.optimizer.get_experimental_options
    before, compared = options(), []
    differences = verify._Verifier._compared_with

    def fused_otherwise(self, *runs):
        compared.append(options().get("disable_meta_optimizer", False))
        found = differences(self, *runs)
        return found if len(compared) > 2 else (replace(found[0], planned=np.inf), *found[1:])

    monkeypatch.setattr(verify._Verifier, "_compared_with", fused_otherwise)
    found = checkmate.tf2.verify(step, (case.inputs, case.labels))
    assert all(each.is_rounding for each in found.differences), str(found)
    assert "graph optimizer" in str(found)
    on = before.get("disable_meta_optimizer", False)
    assert compared == [on, on, True], "more plain steps first"
    assert options().get("disable_meta_optimizer", False) == compared[0]


def test_state_that_moves_on_twice_is_seen(trained):
    case, _, step = trained
    seed = next(v for v in case.model.variables if "seed" in v.path)

    def wrong(main):
        def run(*flat):
            seed.assign(seed.value + 1)
            return main.run(*flat)

        return replace(main, run=run)

    found = checkmate.tf2.verify(altered(step, wrong), (case.inputs, case.labels))
    assert not found.ok and any(
        seed.path.rsplit("/", 1)[1] in each.what
        for each in found.differences
        if not each.is_rounding
    )


def test_evaluations_that_do_not_run_are_seen(trained):
    """As when TensorFlow finds two evaluations equal and keeps one: the plain step runs nothing
    twice."""
    case, _, step = trained
    plain = replace(
        step.planned, run=lambda *flat: step.planned.traced.function(*_packed(step, flat))
    )
    found = checkmate.tf2.verify(altered(step, lambda main: plain), (case.inputs, case.labels))
    assert not found.ok and len(found.not_run) > 20


@pytest.fixture
def on_gpu(monkeypatch):
    """The profiler traces no kernels but those in which oneDNN runs several ops, which GPUs have
    none of; it sees requests for memory, or nothing at all, as with CUDA's own allocator."""
    verify = importlib.import_module("checkmate.tf2.verify")
    observe = verify.observe

    def of(*, requests):
        def seen(call):
            found = observe(call)
            fused = {key: times for key, times in found.ran.items() if "WithBias" in key[1]}
            return replace(found, ran=Counter(fused), **({} if requests else {"asked": {}}))

        monkeypatch.setattr(verify.devices, "kernels_are_traced", lambda device: False)
        monkeypatch.setattr(verify.devices, "requests_are_seen", lambda device: requests)
        monkeypatch.setattr(verify, "observe", seen)

    return of


def test_where_no_kernels_are_traced_requests_for_memory_tell_what_ran(trained, on_gpu):
    on_gpu(requests=True)
    case, _, step = trained
    found = checkmate.tf2.verify(step, (case.inputs, case.labels))
    assert not found.not_run and not found.run_again
    assert any("does not trace the kernels of a GPU" in note for note in found.notes)
    plain = replace(
        step.planned, run=lambda *flat: step.planned.traced.function(*_packed(step, flat))
    )
    found = checkmate.tf2.verify(altered(step, lambda main: plain), (case.inputs, case.labels))
    assert not found.ok and found.not_run


def test_where_nothing_is_seen_nothing_is_said_of_evaluations(trained, on_gpu):
    on_gpu(requests=False)
    case, _, step = trained
    found = checkmate.tf2.verify(step, (case.inputs, case.labels))
    assert found.planned_evaluations and not found.not_run
    assert any("which evaluations ran is not known" in note for note in found.notes)


def evaluations_of(main):
    """The ops that a plan evaluates, by the names that their evaluations have in the graph that
    runs."""
    return {
        f"planned/{operation.name}{EVALUATION_MARK}{k}": operation
        for i, times in Counter(main.plan.computed).items()
        for operation in main.traced.groups[i]
        for k in range(times)
    }


def test_a_kernel_run_within_that_of_an_op_outside_of_the_plan_is_not_missed(trained):
    """A bias is added to few numbers in an op too small for the plan, and TensorFlow multiplies
    within its kernel."""
    main = trained[2].planned
    names = evaluations_of(main)
    product = next(
        name for name, operation in names.items() if operation.type in ("MatMul", "Conv2D")
    )
    ran = Counter(
        {(name, operation.type): 1 for name, operation in names.items() if name != product}
    )
    assert evaluations(main.traced, main.plan, ran)[1] == (product.removeprefix("planned/"),)
    ran["planned/head/BiasAdd", "_FusedMatMul"] = 1
    assert evaluations(main.traced, main.plan, ran)[1] == ()
    del ran["planned/head/BiasAdd", "_FusedMatMul"]
    ran[
        product.replace(
            EVALUATION_MARK, "/ArithmeticOptimizer/FoldTransposeIntoMatMul_evaluation_"
        ),
        "MatMul",
    ] = 1
    assert evaluations(main.traced, main.plan, ran)[1] == ()


@pytest.mark.own_process
@pytest.mark.slow
def test_what_the_profiler_loses_is_looked_for_again(tensorflow, monkeypatch):
    verify = importlib.import_module("checkmate.tf2.verify")
    case, _, step = planned_cnn()
    looks, observe = [], verify.observe
    names = [(name, operation.type) for name, operation in evaluations_of(step.planned).items()]

    def forgetful(call):
        """Half of all that runs is seen at the first look, and the other half at the second."""
        looks.append(names[len(looks) % 2 :: 2])
        return replace(observe(call), ran=Counter(looks[-1]))

    monkeypatch.setattr(verify, "observe", forgetful)
    found = checkmate.tf2.verify(step, (case.inputs, case.labels))
    assert found.ok and not found.not_run and len(looks) == 2, str(found)


@pytest.mark.slow
@pytest.mark.own_process
def test_loops_of_cheap_ops_and_sizes_are_not_missed(tensorflow):
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in range(12):
                y = tf.exp(-y * y)
            y = tf.map_fn(lambda row: tf.cumsum(row) * 0.5, y[:, :4])
            loss = tf.reduce_mean(tf.boolean_mask(y, x[:, :4] > 0))
        return loss, tape.gradient(loss, x)

    x = tf.random.stateless_normal((256, 256), (1, 2))
    planned = planned_function(step, x, budget="70%")
    assert len(planned.plan.computed) > len(planned.graph), "something has to be computed again"
    found = checkmate.tf2.verify(planned, (x,))
    assert found.ok, str(found)
    evaluated = evaluations_of(planned.planned)
    loops = {name for name, operation in evaluated.items() if is_loop(operation)}
    ran = Counter(
        {(name, operation.type): 1 for name, operation in evaluated.items() if name not in loops}
    )
    assert loops and evaluations(planned.planned.traced, planned.plan, ran)[1] == ()


@pytest.mark.own_process
@pytest.mark.slow
def test_grouped_convolutions_which_keras_has_compiled_by_xla(tensorflow):
    """Their sizes are known, and so are those of what is made of them."""
    inputs = x = keras.Input((24, 24, 16))
    for _ in range(4):
        x = keras.layers.Conv2D(16, 3, padding="same", groups=4, activation="tanh")(x)
        x = keras.layers.LayerNormalization()(x)
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(x)))
    chance = np.random.default_rng(0)
    case = Case(
        model,
        "mse",
        chance.normal(size=(8, 24, 24, 16)).astype("float32"),
        chance.normal(size=(8, 3)).astype("float32"),
    )
    step = tightest(case, keras.optimizers.SGD(0.1))
    assert not any("size of some outputs" in note for note in step.report().notes)
    found = checkmate.tf2.verify(step, (case.inputs, case.labels))
    assert found.ok, str(found)


@pytest.mark.parametrize(
    ("shape", "order", "nothing"),
    [
        ((4, 1, 3), (1, 0, 2), True),
        ((4, 1, 3), (2, 1, 0), False),
        ((4, 2, 3), (1, 0, 2), False),
        ((None, 1, 3), (0, 2, 1), True),
    ],
)
def test_a_transposition_that_moves_nothing(tensorflow, shape, order, nothing):
    with tensorflow.Graph().as_default():
        values = tensorflow.compat.v1.placeholder(tensorflow.float32, shape)
        assert may_vanish(tensorflow.transpose(values, order).op) is nothing


def _packed(step, flat):
    return tf.nest.pack_sequence_as(step._specs, flat)


def test_constants_that_tensorflow_folds_are_counted(trained, tensorflow):
    x = tensorflow.random.stateless_normal((512, 512), (1, 2))
    # Enough for nothing to be planned, hence the result of another step.
    step = planned_function(with_constants, x, budget="1000%")

    def planned(main):
        return replace(main, result=trained[2].planned.result, run=Replayed(main.traced, main.plan))

    found = checkmate.tf2.verify(altered(step, planned), (x,))
    fixed, constants, working = 3 * 2**20, 6 * 2**20, 3 * 2**20
    assert fixed + constants + working <= found.measured_peak_bytes


def test_rounding_is_what_the_plain_step_does_too():
    plain = np.float32([1.0, 2.0])
    start = np.float32([0.5, 1.0])

    def rounding(ours, *others):
        return compare(
            "x", plain, np.float32(ours), [np.float32(other) for other in others], start
        ).is_rounding

    assert rounding(plain, plain)
    assert rounding([1.0, 2.0000005], plain)  # two units in the last place
    assert not rounding([1.0, 2.001], plain)
    assert rounding([1.0, 2.001], [1.0, 2.0002])
    assert not rounding([1.0, np.nan], plain)
    plain = np.float32([1.0, np.nan, np.inf])
    start = np.float32([0.5, 1.0, 1.0])
    assert rounding([1.0000001, np.nan, np.inf], plain)
    assert not rounding([1.01, np.nan, np.inf], plain)
    assert not rounding([1.0, np.nan, -np.inf], plain) and not rounding([1.0, 2.0, np.inf], plain)
    turned = np.complex64([1 + 1j, 2])
    assert compare("c", turned, turned * (1 + 1e-7j), [turned], 0).is_rounding
    assert not compare("c", turned, np.conj(turned), [turned], 0).is_rounding
    whole = np.int32([1, 2])
    assert compare("n", whole, whole, [whole], 0).is_rounding
    assert not compare("n", whole, whole + 1, [whole + 1], 0).is_rounding, (
        "counters and seeds are exact"
    )


def test_the_observed_peak_is_the_allocators():
    from checkmate.tf2.memory.profiler import observe

    x = tf.random.normal([512, 512])
    run = tf.function(lambda x: tf.reduce_sum(tf.sin(x @ x) @ x)).get_concrete_function(x)
    run(x)
    peak = devices.peak_above("CPU:0", lambda: run(x))[2]
    seen = observe(lambda: run(x))
    size = x.shape.num_elements() * 4
    assert most_requested_bytes(seen) >= 2 * size
    assert max(seen.asked.values()) == size
    assert 0 <= seen.lost_bytes < size
    assert any(kernel == "Sin" and times == 1 for (_, kernel), times in seen.ran.items())
    times, sizes = zip(*seen.in_use, strict=True)
    assert max(sizes) == peak
    assert times[0] == 0
    assert list(times) == sorted(times)
    assert min(sizes) < peak


def test_a_sum_that_adds_nothing_may_be_taken_out(tensorflow):
    """The gradient of a broadcast sums over axes that are known only at run time, and gives the
    result a shape."""

    @tf.function(input_signature=[tf.TensorSpec((4, 3)), tf.TensorSpec((None,), tf.int32)])
    def sums(x, axes):
        unknown = tf.raw_ops.Sum(input=x, axis=axes)
        none = tf.reshape(tf.raw_ops.Sum(input=x, axis=axes), (4, 3))
        some = tf.reshape(tf.raw_ops.Sum(input=x, axis=axes), (3,))
        return unknown, none, some, tf.reduce_sum(x, axis=1)

    found = [
        operation
        for operation in sums.get_concrete_function().graph.get_operations()
        if operation.type == "Sum"
    ]
    assert [may_vanish(operation) for operation in found] == [False, True, False, False]


def test_what_was_not_written_over_its_input_is_named(tensorflow):
    """A product of matrices never is; a sine is, where nobody else reads what it is of."""
    from checkmate.tf2.memory.profiler import observe

    weight = tf.Variable(tf.ones((N, N)) / N)

    def step(x):  # each value is read twice, so that each is an op of its own
        a = tf.cos(x)
        b, c = a @ weight, weight @ a
        return tf.reduce_sum(tf.tanh(b) * tf.sin(c) + b * c)

    found = traced(step)
    plan = found.plain_plan()
    run = Replayed(found, plan)
    run(tf.ones((N, N)))
    asked = observe(lambda: run(tf.ones((N, N)))).asked

    def named(graph):
        return not_in_place(found, graph, plan, asked)

    assert any(op.in_place for op in found.graph.ops)
    assert named(found.graph) == ()
    every = [
        replace(
            op,
            in_place=tuple(
                d for d in op.deps if found.graph.ops[d].output_bytes >= op.output_bytes
            ),
        )
        for op in found.graph.ops
    ]
    assert any("matmul" in name for name in named(replace(found.graph, ops=tuple(every))))
