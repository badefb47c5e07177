"""Ops in tiles: the same bits whatever a plan computes again, or the same to rounding where sums
may be added up otherwise; states once; less memory, as predicted."""

from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from plans import random_plan
from processes import found as result_of
from processes import started
from programs import double
from slices_oracle import traced_on
from tiled_nets import STEPS, mixed_precision, normal, trained, two_layers
from tiles_oracle import check, numbers, parts

import checkmate
from checkmate.core.files import fingerprint
from checkmate.core.replay import floor, replay
from checkmate.solvers.solve import solve
from checkmate.tf2 import device as devices
from checkmate.tf2.graph.graph_writer import GraphWriter
from checkmate.tf2.ops.relation import batched
from checkmate.tf2.rewrites.tiles import Tile, Whole

pytestmark = pytest.mark.usefixtures("tensorflow")

QUICK = {"large_vocabulary", "unet", "triplets", "products_with_itself", "sizes_by_chance"}
PROGRAMS = [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in STEPS]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_bit_is_the_same(name):
    keras.utils.set_random_seed(0)
    check(STEPS[name], plans=[partial(random_plan, seed=0)])


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_sums_are_the_same_to_rounding(name):
    with double():
        check(STEPS[name], sums=True)


@pytest.mark.slow
def test_mixed_precision():
    keras.utils.set_random_seed(0)
    check(mixed_precision)


def test_places_of_which_only_a_run_tells_are_read_as_a_whole():
    """Here they are of other rows, too."""
    table = tf.Variable(tf.random.stateless_normal([48, 64], (1, 2)))

    def step(by):
        rows = tf.tanh(table)[:, :, None] * tf.ones([4])
        return tf.gather(rows, tf.minimum(tf.range(48) + by, 47))

    check(lambda: (step, (tf.constant(30),)))


@pytest.mark.parametrize(
    ("shape", "axis", "blocks"),
    [((6, 8), 0, 1), ((3, 24, 2), 1, 3), ((1, 2, 1, 8, 1, 2, 2, 1, 3), 3, 1), ((12,), 0, 2)],
)
def test_parts_that_are_joined_are_the_whole(shape, axis, blocks):
    """An axis that is two meanwhile, and more axes than kernels cut, too."""
    value, relation = tf.reshape(tf.range(np.prod(shape)), shape), batched(axis, blocks)

    class Around:
        writer = GraphWriter()
        whole = staticmethod(lambda tensor: "given:0")

    concrete = tf.function(tf.identity).get_concrete_function(value)
    like = concrete.inputs[0]
    tiles = [Tile(Around(), concrete, lambda _: None, None, 2, k) for k in range(2)]
    cut = [tile._part(like, relation) for tile in tiles]
    wholes = [Whole(Around.writer, like, relation, 2, in_place) for in_place in (False, True)]
    for part in cut:
        for each in wholes:
            each.add(part)
    whole = [each.name() for each in wholes]
    found = tf.function(lambda x: Around.writer.import_here({"given:0": x}, [*cut, *whole]))(value)
    pieces = np.split(value.numpy(), 2 * blocks, axis)
    for k in range(2):
        assert np.array_equal(found[k], np.concatenate(pieces[k::2], axis))
        assert np.array_equal(found[2 + k], value)


@pytest.mark.parametrize("batch", (4, 1))
def test_tiles_have_one_constant_where_they_read_the_same_numbers(batch):
    """Each a part of it, or all of them the whole."""
    mask = np.tril(np.ones([64, 64], "float32"))[None].repeat(batch, 0) * np.arange(64)

    def step(x):
        return tf.reduce_max(tf.nn.softmax(x[:, :, None] * x[:, None] * mask), 1)

    traced = traced_on(step, (tf.ones([4, 64]),))
    found = parts(traced, 4)
    constants = [o.outputs[0].shape for o in found.flat.graph.get_operations() if o.type == "Const"]
    assert sum(shape.num_elements() == 64 * 64 for shape in constants) == 1


@pytest.mark.own_process(TF_CPU_ALLOCATOR_USE_BFC="true")
def test_what_constants_alone_make_is_not_kept_between_steps():
    """TensorFlow would fold the distances of all heads into constants, beside what is planned."""
    heads, length = 4, 512
    weights = [tf.Variable(normal(64, 64) / 10) for _ in range(3)]

    def step(x):
        with tf.GradientTape() as tape:
            split = [tf.reshape(x @ each, [1, length, heads, 16]) for each in weights]
            q, k, v = (tf.transpose(each, [0, 2, 1, 3]) for each in split)
            places = tf.cast(tf.range(length), tf.float32)
            slopes = 2.0 ** -tf.cast(tf.range(1, heads + 1), tf.float32)
            bias = slopes[:, None, None] * tf.abs(places[:, None] - places)
            y = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) - bias) @ v
            loss = tf.reduce_mean(y * y)
        for each, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            each.assign_sub(gradient / 10)
        return loss

    planned = checkmate.tf2.function(step, budget="50%", verbose=False)
    for _ in range(2):
        planned(normal(1, length, 64))
    report = planned.report()
    assert report.measured_peak_bytes <= report.budget_bytes
    assert [*report.split_layers] == ["in 4 tiles"], "ops outside layers are told once"
    assert " at once for " in str(report) and "(0 B at once" not in str(report)


@pytest.mark.own_process(TF_CPU_ALLOCATOR_USE_BFC="true")
def test_the_gradient_of_a_sum_is_not_kept_between_steps():
    """It is the same in each step. Its tiles would be folded, too."""
    weight, batch = tf.Variable(normal(6, 8, 24) / 5), normal(3, 211, 6, 8)

    def step(x):
        with tf.GradientTape() as tape:
            h = tf.einsum("bnhd,hde->bnhe", x, weight)
            s = tf.nn.softmax(tf.einsum("bnhe,bmhe->bhnm", h, h))
            loss = tf.reduce_sum(tf.einsum("bhnn->bh", s))
        weight.assign_sub(1e-4 * tape.gradient(loss, weight))
        return loss

    planned = checkmate.tf2.function(step, budget="45%", verbose=False)
    for _ in range(2):
        planned(batch)
    report = planned.report()
    assert report.split_layers and report.measured_peak_bytes <= report.budget_bytes


def test_effects_happen_once():
    """Also where an op waits for a sum that is made in tiles."""
    step, batch = STEPS["effects"]()
    traced = traced_on(step, batch)
    kinds = {"AssignAddVariableOp", "AssignVariableOp", "RngReadAndSkip"}
    ran = [
        [o.type for o in each.flat.graph.get_operations() if o.type in kinds]
        for each in (traced, parts(traced, 8))
    ]
    assert sorted(ran[0]) == sorted(ran[1]) and kinds <= {*ran[0]}


def test_a_step_is_split_in_the_same_way_again():
    step, batch = STEPS["triplets"]()
    prints = [fingerprint(parts(traced_on(step, batch), 8).graph) for _ in range(2)]
    assert prints[0] == prints[1]


@pytest.mark.slow
def test_a_plan_within_less_memory_than_a_plain_op_needs():
    keras.utils.set_random_seed(0)
    step, batch = trained(*two_layers((256, 16)))
    traced = traced_on(step, batch)
    budget = 3 * floor(traced.graph).bytes // 4
    found = parts(traced, 8)
    plan = solve(found.graph, budget).plan
    assert replay(found.graph, plan).peak_bytes <= budget
    for wanted, value in zip(numbers(traced, batch), numbers(found, batch, plan), strict=True):
        assert value.tobytes() == wanted.tobytes()


def compiled(budget="50%", **options):
    keras.utils.set_random_seed(0)
    model, x, y = two_layers()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.1)
    fast = {"cost_model": "roofline", "verbose": False} | options
    step = checkmate.tf2.compile(model, loss, optimizer, x, y, budget=budget, **fast)
    return step, [float(tf.nest.flatten(step(x, y))[-1]) for _ in range(2)], (x, y)


@pytest.mark.slow
def test_a_plan_file_holds_how_ops_are_split(tmp_path):
    path = tmp_path / "plan.json"
    step, losses, _ = compiled()
    step.save(path)
    assert step.planned.split
    again, same, _ = compiled("60%", plan=path)
    assert again.planned.split == step.planned.split and again.plan.steps == step.plan.steps
    assert same == losses and len(set(losses)) == 2


@pytest.mark.slow
def test_a_user_says_whether_ops_are_split():
    with pytest.raises(checkmate.errors.CheckmateError, match=r"Or allow sums .*: rounding=True"):
        compiled("15%")
    step = compiled("15%", rounding=True)[0]
    assert step.planned.split.sums and " at once for " in str(step.report())
    with pytest.raises(checkmate.InfeasibleBudgetError) as refusal:
        compiled("20%", rewrites=())
    assert "rounding" not in str(refusal.value), "nothing may be split"


@pytest.mark.slow
def test_replicas_share_a_split():
    result = result_of(started(Path(__file__).with_name("tiled_replicas.py")))
    assert result["split"] and result["planned"] == result["plain"]
    assert len(set(result["plain"][0])) == 2, "nothing is trained"


@pytest.mark.own_process(TF_CPU_ALLOCATOR_USE_BFC="false")
@pytest.mark.slow
@pytest.mark.parametrize("budget", ("60%", "40%"))
def test_the_predicted_peak_is_the_allocators(budget):
    step, _, batch = compiled(budget, cost_model="profile")
    memory, peaks = step.report().memory, []
    assert step.planned.split
    for _ in range(6):
        planned, flat = step.planned_for(*batch)
        call = lambda run=planned.run, flat=flat: run(*flat)  # noqa: E731
        peaks.append(memory.peak(devices.peak_above(devices.training_device(), call)[2]))
    apart = (np.array(peaks) - step.report().predicted_peak_bytes) / memory.activation_budget_bytes
    assert apart.max() <= 0.005 and apart.min() >= -0.1, apart
    assert max(peaks) <= memory.limit_bytes
