"""The steps that confirm a plan leave no trace, and what they take is what training takes."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint32", "bool"]
)
def test_values_come_back_to_the_bit(dtype):
    import tensorflow as tf

    from checkmate.tf2.memory.confirm import kept_state

    special = (
        [0.0, -0.0, 1.5, -3.25, 65504.0, np.inf, np.nan]
        if "float" in dtype
        else [0, 1, 1, 0, 1, 0, 1]
    )
    for values in (special, special[2:5]):
        variable = tf.Variable(tf.cast(tf.constant(values), dtype), dtype=dtype)
        before = variable.numpy()
        with kept_state([variable]):
            variable.assign(tf.zeros_like(variable))
        assert variable.numpy().tobytes() == before.tobytes()
        with pytest.raises(KeyError), kept_state([variable]):
            variable.assign(tf.ones_like(variable))
            raise KeyError
        assert variable.numpy().tobytes() == before.tobytes()


@pytest.mark.parametrize(
    ("peaks", "counted"),
    [
        ([13], 13),
        ([10, 13], 13),
        (
            [13, 10],
            10,
            # The first of several builds what TensorFlow keeps of a function, and holds no results
            # yet.
        ),
        ([14, 10, 12], 12),
        ([14, 12, 10], 12),
    ],
)
@pytest.mark.parametrize("watch", [False, True])
def test_the_highest_of_the_runs_that_began_with_results_counts(monkeypatch, peaks, counted, watch):
    from dense import planned

    from checkmate.tf2 import device as devices
    from checkmate.tf2.memory import confirm as module

    step, more, peak_above = planned().planned, iter(peaks), devices.peak_above
    monkeypatch.setattr(module, "TIMED_FOR_S", 0)

    def given(device, call):
        result, before, _ = peak_above(device, call)
        return result, before, next(more)

    monkeypatch.setattr(devices, "peak_above", given)
    found = module.confirm(step.run, step.traced, steps=len(peaks), watch=watch)
    assert found.runs == len(peaks)
    assert found.allocated_bytes == counted and next(more, None) is None
    assert bool(found.requests) == watch
    assert (found.seconds is None) == (len(peaks) - watch < 2), (
        "the first of several is no time, and one that is watched is not, either"
    )


@pytest.mark.parametrize("run_s", [0.0, 0.04, 0.2])
@pytest.mark.parametrize("watch", [False, True])
def test_a_short_step_is_run_again_for_its_time(monkeypatch, run_s, watch):
    """Its first runs are its slowest."""
    from dense import planned

    from checkmate.tf2.memory import confirm as module

    step, times = planned().planned, iter(range(100))
    clock = SimpleNamespace(perf_counter=lambda: next(times) * run_s)
    monkeypatch.setattr(module, "time", clock)
    found = module.confirm(step.run, step.traced, steps=3, watch=watch)
    timed = {0.0: 5, 0.04: 3, 0.2: 1}[run_s]
    assert found.runs == max(3, 1 + timed + watch)
    assert found.seconds == pytest.approx(run_s)


def test_a_watched_run_tells_what_ops_asked_for():
    from dense import planned

    from checkmate.core.events import bursts
    from checkmate.tf2.memory.confirm import confirm
    from checkmate.tf2.memory.prediction import Predictor

    step = planned().planned
    asked = bursts(confirm(step.run, step.traced, steps=2, watch=True).requests)
    program = Predictor(step.traced, step.graph, (), step.run.buffers).write(step.plan).program
    products = [
        node for node in program.nodes if "/MatMul" in node.name and node.output_bytes[0] >= 2**16
    ]
    assert set(asked) <= {node.name for node in program.nodes}
    assert {node.name for node in products} == {
        name for name, each in asked.items() if "/MatMul" in name and each[0].bytes >= 2**16
    }
    assert all(
        (asked[node.name][0].bytes, asked[node.name][0].is_output) == (node.output_bytes[0], True)
        for node in products
    )


def test_variables_and_random_state_are_as_before(tensorflow):
    """To the bit, whatever the step assigns; and what is drawn in training goes on as if no step
    had confirmed it."""
    import keras
    from training import planned_function

    tf = tensorflow

    def trained(run_before):
        keras.utils.set_random_seed(3)
        weight, count = (
            tf.Variable(tf.random.stateless_normal((64, 64), (1, 2))),
            tf.Variable(0, dtype=tf.int64),
        )

        def step(x):
            count.assign_add(1)
            noise = tf.random.uniform(x.shape)
            weight.assign(weight * tf.reduce_mean(x * noise) - 0.5)
            return noise

        planned = planned_function(step, tf.ones((64, 64)), budget="1000%")
        for _ in range(run_before):
            from checkmate.tf2.execution.replay import Replayed
            from checkmate.tf2.memory.confirm import confirm

            run = Replayed(planned.planned.traced, planned.planned.traced.plain_plan())
            before = [v.numpy().tobytes() for v in (weight, count)]
            assert confirm(
                run, planned.planned.traced, steps=3, watch=True, batch=[tf.ones((64, 64))]
            )
            assert [v.numpy().tobytes() for v in (weight, count)] == before
        return [planned(tf.ones((64, 64))).numpy() for _ in range(2)]

    np.testing.assert_array_equal(trained(0), trained(2))


def test_where_memory_runs_out_that_is_what_is_found(tensorflow, monkeypatch):
    from dense import planned

    from checkmate.tf2.memory.confirm import Confirmed, confirm

    step = planned().planned
    variables = step.traced.function.variables
    before = [v.numpy() for v in variables]

    def runs_out(*_):
        for v in variables:
            v.assign(tensorflow.zeros_like(v))
        raise tensorflow.errors.ResourceExhaustedError(None, None, "no memory")

    assert confirm(runs_out, step.traced, steps=3, watch=True) == Confirmed(None)
    for value, variable in zip(before, variables, strict=True):
        np.testing.assert_array_equal(value, variable.numpy())


def test_a_step_that_fails_on_made_up_data_is_not_confirmed(tensorflow):
    from training import planned_function

    from checkmate.tf2.memory.confirm import confirm

    def picky(x):
        with tensorflow.control_dependencies(
            [tensorflow.debugging.assert_equal(tensorflow.reduce_sum(x), -1.0)]
        ):
            return tensorflow.sin(x)

    traced = planned_function(picky, tensorflow.ones((4,)), budget="1000%").planned.traced
    run = lambda *flat: traced.function(*flat)  # noqa: E731
    assert confirm(run, traced, steps=1, watch=False) is None


@pytest.mark.own_process  # beside other tests, counts were lower than alone
def test_what_was_confirmed_and_not_taken_is_out_of_memory(tensorflow, monkeypatch):
    from dense import confirmed
    from training import planned_function, with_constants

    from checkmate.tf2 import device as devices
    from checkmate.tf2.planning import plan_search

    confirm, held = plan_search.confirm, []
    confirmed(monkeypatch, lambda budget, k: budget // 2 if k else None)
    told = plan_search.confirm

    def run_too(*step, **options):
        held.append(confirm(*step, **options).function_bytes)
        return told()

    monkeypatch.setattr(plan_search, "confirm", run_too)
    x = tensorflow.random.stateless_normal((512, 512), (1, 2))
    gc.collect()
    before = devices.bytes_in_use(devices.training_device())
    step = planned_function(with_constants, x, budget="90%")
    assert len(held) == 2 and min(held) >= 6 * 2**20
    left = devices.bytes_in_use(devices.training_device())
    assert held[1] <= left - before < sum(held)
    gc.collect()
    assert devices.bytes_in_use(devices.training_device()) == left
    del step


def test_what_tensorflow_folds_is_in_memory_once_where_the_step_draws_too(tensorflow):
    """What is drawn goes on from call to call, so what confirms the step runs a copy: that and its
    constants must be gone when training begins."""
    import gc

    from training import planned_function, with_constants

    from checkmate.tf2 import device as devices

    def step(x):
        return with_constants(x + tensorflow.random.uniform(x.shape))

    x, device = tensorflow.random.stateless_normal((512, 512), (1, 2)), devices.training_device()
    gc.collect()
    before = devices.bytes_in_use(device)
    planned = planned_function(step, x, budget="300%")
    planned(x)
    constants = 6 * x.shape.num_elements() * x.dtype.size
    assert constants <= devices.bytes_in_use(device) - before < 2 * constants
    assert planned.report().measured_peak_bytes > planned.report().fixed_bytes + constants
