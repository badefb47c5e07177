"""Eager dynamic rematerialization keeps the budget, or says what does not fit."""

import contextlib
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_programs import (
    MIB,
    above,
    arrays,
    chain,
    dtr,
    gradients,
    managed,
    managed_above,
    memory,
    normal,
    plain_peak,
    same,
    weights,
)
from scripts import run_python

from checkmate import BudgetError, CheckmateError, EvictionError
from checkmate.dtr.heuristic import HEURISTICS, Heuristic
from checkmate.errors import ThrashingError
from checkmate.tf2.eager.budget import Tuning
from checkmate.tf2.eager.storage import EagerCall, EagerStorage

pytestmark = pytest.mark.usefixtures("tensorflow")


def test_auto_is_what_is_free():
    script = """
        import checkmate, tensorflow as tf
        with checkmate.tf2.dtr("auto") as context:
            tf.ones(9) + 1
        print(context.stats.budget_bytes)
    """
    limit = {"TF_CPU_BFC_MEM_LIMIT_IN_MB": "100", "TF_CPU_ALLOCATOR_USE_BFC": "true"}
    ran = run_python(script, **limit)
    assert ran.stdout.split() == [str(int(0.96 * 100 * MIB))], ran.stderr


@pytest.mark.parametrize("heuristic", ["dtr_eq", "lru", "msps"])
def test_peak_is_within_the_budget(heuristic):
    variables, loss = chain()
    plain, _, peak = plain_peak(variables, loss)
    with above(0.7 * peak, heuristic=heuristic, overhead_limit=1e9) as context:
        for _ in range(5):
            same(arrays(gradients(variables, loss)), plain)
    stats = context.stats
    assert stats.peak_bytes <= stats.budget_bytes and not stats.overshoots
    assert stats.rematerializations > 0 and stats.overhead > 1
    assert stats.budget_bytes < stats.demand_bytes < stats.budget_bytes + 0.5 * peak


def test_without_a_budget_nothing_runs_again_and_memory_is_the_plain_tapes():
    variables, loss = chain()
    with dtr():
        gradients(variables, loss)  # what gradients read is known from here on
    _, _, peak = plain_peak(variables, loss)
    tf.config.experimental.reset_memory_stats("CPU:0")
    resting = memory()["current"]
    with dtr() as context:
        gradients(variables, loss)
        found = memory()["peak"] - resting
    assert context.stats.rematerializations == 0
    assert found <= 1.01 * peak


def test_nothing_is_left_behind():
    variables, loss = chain(depth=4)
    gradients(variables, loss)
    gc.collect()
    gc.disable()
    try:
        resting = memory()["current"]
        with managed(budget_bytes=resting + 2**19, strict=True) as runtime:
            for _ in range(3):
                kept = gradients(variables, loss)
                del kept
                assert not runtime.policy.live and not len(runtime.policy.pool)
                assert memory()["current"] <= resting + 1024
    finally:
        gc.enable()


def test_the_same_program_makes_the_same_decisions():
    variables, x = [weights(256, 64, seed=k) for k in range(6)], normal(256, 64)

    # Of ops that take no scratch memory: how much of it products take depends on how many threads
    # are free.
    def loss():
        h = x
        for w in variables:
            h = tf.tanh(h * w)
        return tf.reduce_sum(h * h)

    _, _, peak = plain_peak(variables, loss)
    found = []
    for _ in range(2):
        with above(0.7 * peak, heuristic="random") as context:
            for _ in range(2):
                gradients(variables, loss)
        found.append((context.stats.evictions, context.stats.rematerializations))
    assert found[0] == found[1] and found[0][1] > 0


def test_classes_made_anew_change_no_number():
    variables, loss = chain()
    plain, _, peak = plain_peak(variables, loss)
    classes = []
    for tuning in (Tuning(), Tuning(most_classes=3)):
        with managed_above(0.6 * peak, tuning=tuning) as runtime:
            same(arrays(gradients(variables, loss)), plain)
            classes.append(len(runtime.policy.neighbourhood.values))
        assert runtime.policy.rematerializations
    assert classes[0] > classes[1]


def test_what_comes_back_for_another_is_no_fresher_for_it():
    with managed(smallest_bytes=0) as runtime:
        first = tf.tanh(normal(8, 8))
        second = tf.tanh(first)
        read = first.cell.storage.last_access
        for _ in range(3):
            tf.exp(second)
        runtime.policy.evict_all()
        second.numpy()
        assert runtime.policy.rematerializations >= 2 and first.cell.defined
        assert first.cell.storage.last_access == read < second.cell.storage.last_access


def test_a_backward_pass_goes_back_through_the_program():
    asked = []

    class Watched(Heuristic):
        def divisor(self, count, last_access, clock, horizon=0):
            asked.append((clock, horizon))
            return super().divisor(count, last_access, clock, horizon)

    variables, loss = chain()
    _, _, peak = plain_peak(variables, loss)
    with managed_above(0.6 * peak, heuristic=Watched()) as runtime:
        gradients(variables, loss)
        policy = runtime.policy
        assert policy.clock == policy.pass_ended == policy.first_cost
    places = [place for place, _ in asked]
    turn = places.index(max(places))
    assert 0 < turn < len(places) - 1
    assert places == sorted(places[:turn]) + sorted(places[turn:], reverse=True)
    assert all(horizon == Tuning().horizon_share * place for place, horizon in asked)


def test_inside_of_another_tape_a_backward_pass_is_a_part_of_the_program():
    x = tf.Variable(normal(32, 32))
    with managed(smallest_bytes=0) as runtime:
        policy = runtime.policy
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                y = tf.tanh(tf.tanh(x))
            before = policy.clock
            slope = inner.gradient(y, x)
            assert slope.cell.storage.last_access > before
            assert policy.pass_ended == 0 and not slope.cell.storage.is_gradient
        assert outer.gradient(slope, x) is not None
        assert policy.pass_ended > before


def test_a_sum_of_gradients_is_a_gradient():
    x = tf.Variable(normal(32, 32))
    with dtr(smallest_bytes=0):
        with tf.GradientTape() as tape:
            y = tf.add_n([tf.tanh(x * k) for k in range(7)])
        total = tape.gradient(y, x)
        assert total.cell.call.name.startswith("Add") and total.cell.storage.is_gradient


def test_long_chains_come_back_without_recursion():
    with managed(smallest_bytes=0) as runtime:
        x = tf.ones((4,))
        for _ in range(3000):
            x = x + 1.0
        runtime.policy.evict_all()
        assert float(x[0]) == 3001
    assert runtime.policy.rematerializations >= 3000


def test_a_budget_that_no_op_fits():
    variables, loss = chain(depth=3)
    with (
        pytest.raises(
            EvictionError,
            match=(
                r"needs .* in addition to .* that cannot be evicted: together .* more than the"
                r" budget of .* must be at least"
            ),
        ) as info,
        above(60_000),
    ):
        gradients(variables, loss)
    assert "MatMul" in str(info.value)
    same(arrays(gradients(variables, loss))[:1], arrays([loss()]))


def test_the_floor_that_is_named_works_in_the_end():
    variables, loss = chain(depth=3)
    plain, _, _ = plain_peak(variables, loss)
    budget = memory()["current"] + 100_000
    for _ in range(20):
        try:
            with dtr(budget) as context:
                same(arrays(gradients(variables, loss)), plain)
            break
        except EvictionError as error:
            assert error.budget_bytes == budget < error.needed_bytes
            budget = error.needed_bytes + 20_000
    assert context.stats.peak_bytes <= budget


def test_what_the_user_holds_and_cannot_be_recomputed_counts():
    tf.random.set_seed(1)
    held = []
    with (
        pytest.raises(
            EvictionError, match="variables, data and other tensors that cannot be recomputed"
        ),
        above(MIB),
    ):
        for _ in range(8):
            held.append(tf.random.uniform((256, 256)))
    assert 1 <= len(held) <= 4


def test_the_figures_of_an_error_go_through_keras():
    layer = keras.layers.Dense(256, kernel_initializer="ones")
    layer.build((None, 256))
    with pytest.raises(EvictionError) as info, above(10_000):
        layer(normal(256, 256))
    assert info.value.budget_bytes < info.value.needed_bytes


def test_a_budget_that_is_used_up_before():
    held = normal(64, 64)
    with pytest.raises(EvictionError, match="used up before"):
        dtr("1B").__enter__()
    del held
    with pytest.raises(BudgetError, match="share"):
        dtr("60%")
    with pytest.raises(CheckmateError, match="overhead limit"):
        dtr(overhead_limit=1)
    with pytest.raises(CheckmateError, match="heuristic"):
        dtr(heuristic="best")


def test_endless_recomputation_is_ended():
    variables, loss = chain()
    _, _, peak = plain_peak(variables, loss)
    with (
        pytest.raises(
            ThrashingError,
            match=r"With .* nothing would have been recomputed .* is between the two",
        ) as info,
        above(0.5 * peak, overhead_limit=1.05) as context,
    ):
        gradients(variables, loss)
    assert (
        info.value.budget_bytes
        == context.stats.budget_bytes
        < info.value.enough_bytes
        == context.stats.demand_bytes
    )
    with dtr(2 * info.value.enough_bytes) as context:  # twice: room for what the allocator loses
        gradients(variables, loss)
    assert not context.stats.rematerializations


@pytest.mark.parametrize("strict", [True, False])
def test_an_op_that_needs_more_than_predicted_is_an_error_or_counted(strict):
    everywhere = tf.ones(2**20, tf.bool)
    refused = pytest.raises(
        EvictionError, match=r"above the budget of .*: 'Where' took \d.*, more than was foreseen"
    )
    with managed_above(6 * MIB, strict=strict) as runtime:
        evictable = tf.tanh(tf.ones((256, 256)))
        with refused if strict else contextlib.nullcontext():
            tf.where(everywhere)  # 8 MiB of indices, or the hole that they are given
    assert evictable is not None and runtime.policy.budget.overshoots == 1


@pytest.mark.parametrize(("when", "resident_bytes"), [("first", 0), ("again", 2**27)])
def test_where_the_allocator_has_no_hole_more_is_evicted(when, resident_bytes, monkeypatch):
    # Many times what can be evicted: what is left is the same all the same.
    resident = tf.zeros(resident_bytes, tf.uint8)
    variables, loss = chain(depth=20)  # after each refusal there is something left to evict
    plain, _, peak = plain_peak(variables, loss)
    name = {"first": "run", "again": "run_again"}[when]
    real, refusals = getattr(EagerCall, name), []

    def refusing(call, *args):
        if call.name == "Tanh" and len(refusals) < 2:
            refusals.append(call)
            raise tf.errors.ResourceExhaustedError(None, None, "no hole is large enough")
        return real(call, *args)

    with above(0.7 * peak, overhead_limit=1e9) as context:
        gradients(variables, loss)
        evicted = context.stats.evictions
        monkeypatch.setattr(EagerCall, name, refusing)
        same(arrays(gradients(variables, loss)), plain)
        assert len(refusals) == 2
        assert context.stats.evictions > evicted
    assert len(resident) == resident_bytes


def test_a_sibling_that_a_refusal_evicts_can_be_evicted_again(monkeypatch):
    real, refusals = EagerCall.run_again, []
    x = normal(64, 64)
    expected = arrays(tf.split(tf.tanh(x), 2))
    with managed_above(16 * MIB) as runtime:
        policy = runtime.policy
        a, b = tf.split(tf.tanh(x), 2)
        evictable = tf.exp(x)
        policy.evict(a.cell.storage)

        def refusing(call):
            if call is a.cell.call and not refusals:
                refusals.append(call)
                policy.evict(b.cell.storage)
                raise tf.errors.ResourceExhaustedError(None, None, "no hole is large enough")
            return real(call)

        monkeypatch.setattr(EagerCall, "run_again", refusing)
        same(arrays([a, b]), expected)
        assert refusals and evictable is not None
        assert {a.cell.storage, b.cell.storage} <= set(policy.pool)
        policy.evict_all()
        same(arrays([a, b]), expected)


def test_nothing_is_left_behind_by_a_gradient_that_fails():
    variables, loss = chain()
    w = variables[0]
    shared = [w] * 10
    many = lambda: loss() + sum(x[0, 0] * loss() for x in shared)  # noqa: E731
    _, resting, peak = plain_peak(variables, many)
    gc.collect()
    for _ in range(2):
        with pytest.raises(ThrashingError), above(0.4 * peak, overhead_limit=1.05):
            gradients(variables, many)
        gc.collect()
    assert memory()["current"] <= resting + 2**18


def test_needs_are_those_of_the_attributes_too():
    x = normal(64, 64)
    with above(2**20):
        for dtype in (tf.float64, tf.float16, tf.int8):
            found = tf.cast(x, dtype)
            assert found.dtype == dtype
            assert found.numpy().dtype == dtype.as_numpy_dtype


@pytest.mark.parametrize(
    "shape, axes", [((256, 1024), None), ((1024, 256), []), ((1024, 256, 1), [2])]
)
def test_views_need_no_memory(shape, axes):
    """Nor do sums that add nothing up."""
    x = tf.ones((1024, 256))
    with above(1.5 * MIB, strict=False) as context:
        viewed = tf.reshape(tf.tanh(x), shape)
        viewed = viewed if axes is None else tf.reduce_sum(viewed, axes)
    assert viewed.shape == shape[:2]
    assert not context.stats.evictions and context.stats.peak_bytes <= context.stats.budget_bytes


def test_what_the_context_makes_from_the_start():
    """The whole program under the context: variables, an optimizer's slots, several models."""

    def program():
        keras.utils.set_random_seed(4)
        models = [
            keras.Sequential(
                [keras.Input((32,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)]
            )
            for _ in range(2)
        ]
        optimizers = [keras.optimizers.Adam(1e-2) for _ in models]
        x = normal(128, 32)
        for _ in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x) - models[0](x) + 1.0) ** 2)
                optimizer.apply_gradients(
                    zip(
                        tape.gradient(loss, model.trainable_variables),
                        model.trainable_variables,
                        strict=True,
                    )
                )
        return [value for model in models for value in model.get_weights()]

    plain = program()
    with above(2**21) as context:
        found = program()
    same(found, plain)
    assert context.stats.ops


def test_what_is_evicted_while_another_input_comes_back_leaves_memory(monkeypatch):
    x, left = normal(8, 8), []
    expected = arrays([tf.tanh(x) * tf.exp(x)])
    real = EagerCall.run_again
    with managed(smallest_bytes=0) as runtime:
        a, b = tf.tanh(x), tf.exp(x)
        runtime.policy.evict(a.cell.storage)

        def run_again(call):
            if call is a.cell.call:
                value = weakref.ref(b.cell.value)
                runtime.policy.evict(b.cell.storage)
                left.append(value())
            return real(call)

        monkeypatch.setattr(EagerCall, "run_again", run_again)
        same(arrays([a * b]), expected)
    assert left == [None]


def test_gradients_are_evicted_last_and_what_nothing_refers_to_first():

    for name in ("dtr_eq", "dtr", "local"):
        cost = HEURISTICS[name].neighbourhood()
        value, gradient = (EagerStorage(1024, 3.0, 0.0, is_late) for is_late in (False, True))
        value.refs = gradient.refs = 1
        cost.rematerialized([value, gradient])
        assert cost.cost(gradient) > 1e6 * cost.cost(value) == 3e6
        gradient.refs = 0
        assert cost.cost(gradient) == 0


def test_a_gradient_that_reads_more_than_is_known_gets_it(monkeypatch):
    import tensorflow as tf

    from checkmate.tf2.eager.op_kinds import kind_of

    def gradient():
        with tf.GradientTape() as tape:
            _, r = tf.linalg.qr(x * 2.0)  # nothing else reads the first output
            y = tf.reduce_sum(tf.tanh(r))
            del _, r
        return arrays([tape.gradient(y, x)])

    x = tf.Variable(normal(32, 32))
    plain, kind = gradient(), kind_of("Qr")
    monkeypatch.setattr(kind, "reads", (frozenset(), frozenset()))
    with managed(smallest_bytes=0) as runtime:
        same(gradient(), plain)
    assert runtime.policy.rematerializations and kind.reads == (frozenset(), {0, 1})


def data(count):
    """A tensor of so many bytes that no op makes, copied from an array that lies as TensorFlow's
    own do not."""
    return tf.constant(np.ones(count + 1, np.uint8)[1:])


def made_by(how, at_end=False):
    """Something that is larger than a budget of 6 MiB, in ways that no op's inputs tell
    beforehand."""
    x = tf.ones(1024)
    if how == "a function":
        tf.function(
            lambda: tf.reduce_sum(tf.sqrt(tf.random.stateless_normal([64 * MIB // 4], [1, 2])))
        )()
    elif how == "data":
        data(64 * MIB)
        if not at_end:
            x + x
    else:
        for count in (10, 10, 10, 64 * MIB // 4):
            tf.range(0.0, float(count)) if how == "a range" else tf.fill(
                tf.constant([count], tf.int64), 1.0
            )


@pytest.mark.parametrize(
    "how",
    [
        "a function",
        # Seen as bytes in use alone: memory of other tests, as it goes, could hide it.
        pytest.param("data", marks=pytest.mark.own_process),
        "a range",
        "a shape of long integers",
    ],
)
def test_nothing_goes_above_the_budget_unseen(how):
    gc.collect()
    budget = memory()["current"] + 6 * MIB
    for at_end in (False, True) if how == "data" else (False,):
        with (
            pytest.raises(EvictionError, match=r"above the budget|more than the budget") as info,
            dtr(budget),
        ):
            made_by(how, at_end)
        assert info.value.needed_bytes > budget == info.value.budget_bytes
        if how == "data":
            with dtr(budget, strict=False) as context:
                made_by(how, at_end)
            assert context.stats.overshoots == 1 and context.stats.peak_bytes > budget
