"""A trial run leaves no trace, and what it measures is what training measures."""

from __future__ import annotations

import numpy as np
import pytest
from dense import address

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.parametrize("name", ["cnn", "unet"])
def test_updates_leave_variables_where_they_are(name):
    """What is moved to the midst of the memory that the step uses keeps the allocator from handing it out in one piece."""
    import keras
    import keras_models
    from training import tightest

    keras.utils.set_random_seed(0)
    case = keras_models.ALL[name]()
    optimizer = keras.optimizers.Adam(1e-3)
    step = tightest(case, optimizer)
    variables = [v for v in (*case.model.trainable_variables, *optimizer.variables) if v.path != "learning_rate"]
    before = [address(v) for v in variables]
    assert len(set(before)) == len(before) > 20
    for _ in range(3):
        step(case.inputs, case.labels)
        assert [address(v) for v in variables] == before


@pytest.mark.parametrize("name", ["cnn", "two_inputs"])
def test_results_lie_where_those_before_the_last_did(name):
    """They would creep through the memory else, and each step would find it cut in another way."""
    import keras
    import keras_models
    import tensorflow as tf
    from training import tightest

    keras.utils.set_random_seed(0)
    case = keras_models.ALL[name]()
    step = tightest(case, keras.optimizers.Adam(1e-3))
    assert len(step.plan.recomputed) and all(step._main.traced.early)
    flat, places, held = step.planned_for(case.inputs, case.labels)[1], [], None
    for _ in range(6):
        held = step._main.run(*flat)
        places.append([np.asarray(memoryview(value)).ctypes.data for value in tf.nest.flatten(held)])
    assert places[:2] * 2 == places[2:] and not set(places[0]) & set(places[1])


@pytest.mark.parametrize("in_rooms", [False, True])
def test_results_of_every_kind_are_the_callers_own(in_rooms):
    """The same value twice, whole numbers, one number, an argument, and what is too large to have its memory early.

    Whoever keeps the results of many steps has those of each.
    """
    import tensorflow as tf
    from training import assert_equal

    from checkmate.tf2.execute import Replayed, Rooms
    from checkmate.tf2.trace import trace

    @tf.function
    def step(x):
        wave = tf.sin(x)
        for _ in range(6):
            wave = tf.sin(wave) * 1.5
        rows = tf.reduce_sum(wave, 1)
        return {"twice": (rows, rows), "kind": tf.argmax(rows), "sum": tf.reduce_sum(rows), "given": x, "large": wave, "sign": wave[0] > 0}

    x = tf.random.stateless_normal((256, 512), (1, 2))
    traced = trace(step, x)
    by_name = dict(zip(("given", "kind", "large", "sign", "sum", "twice", "again"), traced.early, strict=True))
    assert by_name == {"given": False, "kind": True, "large": False, "sign": True, "sum": True, "twice": True, "again": True}
    run = Replayed(traced, traced.plain_plan(), Rooms(traced) if in_rooms else None)
    kept = [run(x + number) for number in range(6)]
    for number, results in enumerate(kept):
        assert_equal(results, step(x + number))
    in_graph = tf.function(lambda x: [run(x + number) for number in range(3)])
    for number, results in enumerate(in_graph(x)):
        assert_equal(results, step(x + number))
    for number, results in enumerate(kept):
        assert_equal(results, step(x + number))


def test_a_result_is_written_as_soon_as_it_is_computed_and_its_value_may_go():
    import tensorflow as tf
    from training import assert_equal

    from checkmate.tf2.execute import Replayed
    from checkmate.tf2.graph_writer import reachable
    from checkmate.tf2.observe import observe
    from checkmate.tf2.trace import trace

    @tf.function
    def step(x):
        wave = prediction = tf.sin(x)
        for _ in range(32):
            wave = tf.cumsum(wave, 1)
        return prediction, tf.reduce_sum(wave)

    x = tf.random.stateless_normal((512, 512), (1, 2))
    traced = trace(step, x)
    i = next(i for i, op in enumerate(traced.graph.ops) if op.kind == "Sin")
    assert traced.early[0] and traced.results[i] == (0,) and i not in traced.graph.outputs
    run = Replayed(traced, traced.plain_plan())
    order = [operation.name.rpartition("/")[0] + operation.type for operation in reachable(run.function.graph)]
    assert order.index("plannedTensorStridedSliceUpdate") < order.index(next(name for name in order if name.endswith("Cumsum")))
    assert_equal(run(x), step(x))
    size = x.shape.num_elements() * x.dtype.size
    assert 3 * size <= observe(lambda: run(x)).most_requested_bytes < 3.1 * size, "the result, what is read and what is written"


def readers_and_writes(step):
    """(a reader of a variable's content, a write to it that is not behind the reading, whether the write waits for the reader)."""
    from checkmate.tf2.graph_writer import reachable

    before = {}  # op -> itself and every op that runs before it
    for operation in reachable(step._main.run.function.graph):
        befores = {tensor.op for tensor in operation.inputs} | set(operation.control_inputs)
        before[operation] = {operation}.union(*(before[o] for o in befores))
    writes = [o for o in before if o.type in ("AssignSubVariableOp", "AssignAddVariableOp", "ResourceStridedSliceAssign")]
    return [
        (reader.name, write.name, reader in before[write])
        for write in writes
        for read in before
        if read.type == "ReadVariableOp" and read.inputs[0] is write.inputs[0] and write not in before[read]
        for reader in read.outputs[0].consumers()
    ]


def test_small_updates_wait_for_all_who_read_the_variable():
    """TensorFlow writes to other memory while somebody holds the old content."""
    import keras
    from keras_models import cnn
    from training import tightest

    found = readers_and_writes(tightest(cnn(), keras.optimizers.Adam(1e-3)))
    assert len(found) > len({write for _, write, _ in found}) > 10
    assert [(reader, write) for reader, write, waits in found if not waits] == []


def sines(x):
    """A chain whose gradient wants all of its values."""
    import tensorflow as tf

    for _ in range(6):
        x = tf.sin(x)
    return x


def test_a_small_update_waits_for_those_that_only_another_small_update_asks_for():
    """As an optimizer's counter does, which is written before the small variables are whose new values are made of what it was."""
    import tensorflow as tf
    from training import planned_function

    counter, small = tf.Variable(0, dtype=tf.int64), tf.Variable(tf.zeros(3))

    def count(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = sines(x)
        was = counter.read_value()
        counter.assign(was + 1)
        small.assign(small / tf.cast(was + 2, tf.float32))
        return tape.gradient(h, x)

    x = tf.ones((512, 512))
    step = planned_function(count, x, budget="70%")
    assert step.plan.recomputed
    found = readers_and_writes(step)
    assert len({write for _, write, _ in found}) == 2
    assert [(reader, write) for reader, write, waits in found if not waits] == []


def test_a_large_update_waits_for_small_gradients_that_read_the_variable():
    """As one of a dense layer on top of a large net: the gradient of its kernel is there before that of its small input."""
    import tensorflow as tf
    from training import planned_function

    weight = tf.Variable(tf.eye(512))

    def descend(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = sines(x)
            small = tf.reduce_mean(h, axis=0, keepdims=True)
            loss = tf.reduce_sum(tf.square(small @ weight))
        to_weight, to_x = tape.gradient(loss, (weight, x))
        weight.assign_sub(to_weight)
        return to_x

    step = planned_function(descend, tf.ones((512, 512)), budget="90%")
    assert step.plan.recomputed
    found = readers_and_writes(step)
    assert len(found) == 2
    assert [(reader, write) for reader, write, waits in found if not waits] == []


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint32", "bool"])
def test_values_come_back_to_the_bit(dtype):
    import tensorflow as tf

    from checkmate.tf2.check import kept_state

    special = [0.0, -0.0, 1.5, -3.25, 65504.0, np.inf, np.nan] if "float" in dtype else [0, 1, 1, 0, 1, 0, 1]
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
    ("peaks", "most", "usual"),
    [
        ([10, 10, 13, 13, *[9] * 8], 13, 9),  # the first run holds no results yet
        ([12, 10, 10, *[9] * 8], 10, 9),
        ([12, 10, 10, 11, *[9] * 7], 11, 9),  # training begins with it
        ([12, 10, 10, 9, 9, 9, 9, 9, 11, 9, 11], 11, 9),  # it takes the same by turns
        ([12, 10, 10, 9, 11, 9, 11, 9, 11, 9, 14, 9, 14], 14, 10),
        ([10, 10, 13, 10, 13, *[9] * 8], 13, 9),
        ([12, 10, 10, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 11, 7),  # it never does
        ([10, 30], 30, 30),  # known to be too much
        ([10, 10, 10, 9, 30], 30, 10),
    ],
)
def test_runs_that_tell_what_a_step_takes(tensorflow, monkeypatch, peaks, most, usual):
    from dense import planned

    from checkmate.tf2 import check
    from checkmate.tf2 import device as devices

    step = planned()._main
    between, mib, more = step.traced.between_bytes, 2**20, iter(peaks)

    def peak_above(device, call):
        before = tensorflow.config.experimental.get_memory_info(device)["current"]
        return None, before, resting + next(more) * mib

    device = devices.training_device()
    resting = tensorflow.config.experimental.get_memory_info(device)["current"] - between
    monkeypatch.setattr(devices, "peak_above", peak_above)
    found = check.on_trial(step.run, step.traced, device, enough=20 * mib)
    assert (round(found.most_bytes / mib), round(found.usual_bytes / mib)) == (most, usual)
    assert next(more, None) is None


def test_what_was_tried_and_not_taken_is_out_of_memory(tensorflow, monkeypatch):
    import gc

    from dense import trial
    from training import planned_function, with_constants

    from checkmate.tf2 import attempt
    from checkmate.tf2 import device as devices

    x, on_trial, asked = tensorflow.random.stateless_normal((512, 512), (1, 2)), attempt.on_trial, []

    def too_much_at_first(*step, enough, **options):
        asked.append(enough)
        return trial(2 * enough) if len(asked) < 3 else on_trial(*step, enough=enough, **options)

    monkeypatch.setattr(attempt, "on_trial", too_much_at_first)
    step = planned_function(with_constants, x, budget="300%")
    assert len(asked) >= 3
    before = tensorflow.config.experimental.get_memory_info(devices.training_device())["current"]
    gc.collect()
    assert tensorflow.config.experimental.get_memory_info(devices.training_device())["current"] == before
    del step


def test_what_tensorflow_folds_is_in_memory_once_where_the_step_draws_too(tensorflow):
    """What is drawn goes on from call to call, so a trial runs a copy: that and its constants must be gone when training begins."""
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


def test_a_tensor_of_one_number_everywhere_lies_in_memory_only_where_it_is_read(tensorflow):
    """TensorFlow folds it into a constant otherwise."""
    import gc

    from checkmate.tf2 import device as devices
    from checkmate.tf2.simplify import simplify

    tf, size = tensorflow, 2**19

    @tf.function
    def step(x):
        y = tf.tanh(x)
        rest = [tf.concat([y, each], 0) for each in (tf.zeros_like(y), tf.ones_like(y), tf.fill(y.shape, -0.0), tf.ones_like(y) * 3)]
        return [tf.reduce_sum(each * each) for each in rest], tf.add_n([y, tf.zeros_like(y)])

    def current():
        gc.collect()
        return tf.config.experimental.get_memory_info(devices.training_device())["current"]

    x = tf.random.stateless_normal((size,), (1, 2))
    concrete = step.get_concrete_function(x)
    simplified = simplify(concrete)
    before = current()
    found = [np.array(each) for each in tf.nest.flatten(simplified(x))]
    assert current() - before < size
    for a, b in zip(found, tf.nest.flatten(concrete(x)), strict=True):
        np.testing.assert_array_equal(a, np.asarray(b))


def test_in_a_capped_pool_the_first_plan_stays_far_below_the_budget_and_is_taken(monkeypatch, predicted):
    """Some of TensorFlow's kernels do not look whether they got memory, and end the process."""
    import keras
    from keras_models import cnn
    from training import compiled

    from checkmate.tf2 import attempt
    from checkmate.tf2 import device as devices
    from checkmate.tf2.check import Trial

    def on_trial(run, traced, device, *, enough, **_):
        took = (traced.graph.fixed_bytes + enough) // 2  # much is left
        return Trial(took, took, 0)

    case, optimizer = cnn(), keras.optimizers.Adam(1e-3)
    budget = compiled(case, optimizer, "90%").budget_bytes
    solve, asked = attempt.solve, []
    monkeypatch.setattr(attempt, "solve", lambda graph, budget, **options: asked.append(budget) or solve(graph, budget, **options))
    monkeypatch.setattr(attempt, "on_trial", on_trial)
    for cap, spared in ((None, attempt.ALLOCATOR_RESERVE), (2 * budget, attempt.ALLOCATOR_RESERVE), (budget, attempt.CRAMPED_RESERVE)):
        monkeypatch.setattr(devices, "cap_bytes", lambda device, cap=cap: cap)
        asked.clear()
        step = compiled(case, optimizer, budget)
        most = budget - step.report().outside_bytes
        assert most - asked[0] == pytest.approx(spared * (most - step.graph.fixed_bytes), rel=0.01)
        assert (len(asked) == 1) == (cap == budget)
        assert step.report().measured_peak_bytes <= budget


def test_a_plan_for_more_is_tried_where_those_for_less_took_too_much(monkeypatch):
    """What the allocator loses differs from plan to plan, so that a plan for more memory may take less."""
    from types import SimpleNamespace

    from checkmate.solvers.result import SolveStatus
    from checkmate.tf2 import attempt as attempts
    from checkmate.tf2.check import Trial

    monkeypatch.setattr(attempts, "SMALLEST_CORRECTION", 0.08)

    class Other:
        """A plan that is equal to itself alone."""

        recomputed = True

    fixed, budget = 10_000_000, 110_000_000
    took = iter([1.2, 1.02, 0.5, 0.97])  # of what the budget leaves for activations
    tried = []

    def on_trial(run, held):
        peak = int(fixed + next(took) * (budget - fixed))
        return Trial(peak, peak, 0)

    def solved(target):
        tried.append(target)
        return SimpleNamespace(plan=Other(), peak_bytes=target, cost=-target, status=SolveStatus.FEASIBLE)

    attempt = SimpleNamespace(
        planner=SimpleNamespace(budget_bytes=budget),
        graph=SimpleNamespace(fixed_bytes=fixed),
        outside=0,
        reserve=0,
        _is_cramped=False,
        _can_measure=True,
        _solve=solved,
        spare=lambda room: 0.02 * room,
        built=lambda plan: (None, 0),
        on_trial=on_trial,
        is_above_plain=lambda trial: False,
        planned=lambda result, *_, reserve: SimpleNamespace(result=result, reserve=reserve),
    )
    planned = attempts.Attempt.within_budget(attempt, 0)
    assert tried[2] < tried[1] < tried[3] < tried[0]
    assert len(tried) == 4 and planned.reserve == budget - tried[3]


@pytest.mark.parametrize("has_loops", [False, True])
@pytest.mark.parametrize("room", [1000, 10**5, 10**6, 3 * 2**20, 10**7, 10**9])
def test_a_refusal_names_a_budget_that_what_was_measured_leaves_enough_of(room, has_loops):
    from types import SimpleNamespace

    from checkmate.tf2.attempt import LOOP_SPARE_SHARE, SMALL_SPARE_SHARE, SPARE_SHARE, Attempt

    resident, share = 7000, LOOP_SPARE_SHARE if has_loops else SPARE_SHARE
    attempt = SimpleNamespace(outside=3000, graph=SimpleNamespace(fixed_bytes=resident - 3000), traced=SimpleNamespace(has_loops=has_loops))
    attempt.spare = lambda room: Attempt.spare(attempt, room)
    budget = Attempt.with_spare(attempt, resident + room)
    assert budget - (resident + room) >= attempt.spare(budget - resident) - 1  # a byte of rounding
    assert share * room - 1 <= attempt.spare(room) <= SMALL_SPARE_SHARE * room
    assert room >= 3 * 2**20 or attempt.spare(room) > 2 * SPARE_SHARE * room - 1  # a small pool varies by more


@pytest.mark.parametrize(
    ("took", "targets", "least"),
    [
        ([110], [], 110),  # no plan with a peak of 115 can take less
        ([150, 120], [114], 120),  # nor one of 132
        ([150, 140, 135], [114, 131], 135),
        ([None], [], None),
    ],
)
def test_the_plan_that_takes_least_is_looked_for_above_the_lowest_peak(took, targets, least):
    """What the allocator loses can be more than what a plan saves."""
    from types import SimpleNamespace

    from checkmate.tf2.attempt import Attempt

    asked, measured = [], iter(took)

    def solved(target):
        asked.append(target)
        return SimpleNamespace(plan=object())

    attempt = SimpleNamespace(
        curve=SimpleNamespace(lowest=SimpleNamespace(plan=object()), smallest_bytes=100),
        outside=0,
        _solve=solved,
        _run_wholly=lambda result, _: SimpleNamespace(plan=result.plan, report=SimpleNamespace(measured_peak_bytes=next(measured))),
    )
    found = Attempt._of_lowest_peak(attempt, 0)
    assert found.report.measured_peak_bytes == least
    assert asked == targets
