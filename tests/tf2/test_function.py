"""function(): any training step, with the numbers that it has without a budget; and plans that
last."""

import json
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from schemas import refused, validator
from training import assert_equal
from unhurried import UNHURRIED

import checkmate
from checkmate import PlanError, PlanFileError, TraceError
from checkmate.tf2.planning.store import MADE_FOR, NO_PROOF, slices_of

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")

BATCH, WIDTH, DEPTH = 1024, 32, 5
FAST = {"cost_model": "roofline", "solver": UNHURRIED}


def batch(size=BATCH, seed=0):
    chance = np.random.default_rng(seed)
    return chance.normal(size=(size, WIDTH)).astype("float32"), chance.normal(
        size=(size, WIDTH)
    ).astype("float32")


def network(seed=0):
    """A tf.Module of dense layers."""

    class Network(tf.Module):
        def __init__(self):
            super().__init__()
            chance = np.random.default_rng(seed)
            self.weights = [
                tf.Variable(chance.normal(size=(WIDTH, WIDTH)).astype("float32") / 6)
                for _ in range(DEPTH)
            ]

        def __call__(self, x):
            for weight in self.weights:
                x = tf.sin(tf.tanh(x @ weight) * 3.0)
            return x

    return Network()


def same(make, calls, *, budget="80%", recomputes=True):
    """The results of `calls(step)` and the variables are the same with and without a budget;
    returns the planned step."""
    found = []
    for wrap in (tf.function, lambda step: checkmate.tf2.function(step, budget=budget, **FAST)):
        keras.utils.set_random_seed(3)
        step, variables = make()
        step = wrap(step)
        results = calls(step)
        found.append(tf.nest.map_structure(np.asarray, (results, list(variables()))))
    assert_equal(found[1], found[0])
    assert bool(step.plan.recomputed) == recomputes
    return step


def sgd_step():
    """A step with a keyword, a nest, a Python number and several results."""
    net = network()

    def step(data, *, rate, power=2):
        with tf.GradientTape() as tape:
            prediction = net(data["x"])
            loss = tf.reduce_mean(tf.abs(prediction - data["pair"][0]) ** power)
        gradients = tape.gradient(loss, net.weights)
        for weight, gradient in zip(net.weights, gradients, strict=True):
            weight.assign_sub(rate * gradient)
        return {"loss": loss, "norms": [tf.norm(gradient) for gradient in gradients]}, None

    return step, lambda: net.weights


def nest(size=BATCH, seed=0):
    x, y = batch(size, seed)
    return {"x": x, "pair": (y, None)}


def test_keywords_nests_and_a_smaller_batch():
    rate = tf.constant(0.5)
    step = same(
        sgd_step,
        lambda step: [
            step(nest(), rate=rate),
            step(nest(100), rate=rate),
            step(nest(seed=1), rate=rate),
        ],
    )
    assert step.kinds == 1
    with pytest.raises(TraceError, match=f"batch of {BATCH} and is called with {2 * BATCH}"):
        step(nest(2 * BATCH), rate=rate)


def test_another_python_number_is_another_step():
    rate = tf.constant(0.5)
    step = same(
        sgd_step, lambda step: [step(nest(), rate=rate, power=power) for power in (2, 3, 2)]
    )
    assert step.kinds == 2


def test_as_a_decorator():
    net = network()

    @checkmate.tf2.function(budget="80%", **FAST)
    def gradients(x):
        """Its own text."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net(x))
        return tape.gradient(loss, net.weights)

    with pytest.raises(PlanError, match="no plan yet"):
        gradients.report()
    assert len(gradients(batch()[0])) == DEPTH
    assert gradients.report().result.plan is gradients.plan
    assert (gradients.__name__, gradients.__doc__) == ("gradients", "Its own text.")


def test_two_networks_against_each_other():
    """The generator is trained through the discriminator, which was updated in the same step, on
    other noise."""

    def make():
        generator, discriminator = network(1), network(2)
        optimizers = [keras.optimizers.Adam(1e-2), keras.optimizers.RMSprop(1e-3)]
        noise = tf.random.Generator.from_seed(4)
        for optimizer, net in zip(optimizers, (discriminator, generator), strict=True):
            optimizer.build(net.weights)

        def step(real):
            with tf.GradientTape() as tape:
                fake = generator(noise.normal(real.shape))
                d_loss = tf.reduce_mean(discriminator(real) ** 2) + tf.reduce_mean(
                    (1 - discriminator(fake)) ** 2
                )
            optimizers[0].apply(tape.gradient(d_loss, discriminator.weights), discriminator.weights)
            with tf.GradientTape() as tape:
                g_loss = tf.reduce_mean(discriminator(generator(noise.normal(real.shape))) ** 2)
            optimizers[1].apply(tape.gradient(g_loss, generator.weights), generator.weights)
            return d_loss, g_loss

        return (
            step,
            lambda: (
                [v for o in optimizers for v in o.variables]
                + generator.weights
                + discriminator.weights
            ),
        )

    # In bytes: the plain step's peak differs from run to run (4.9 to 6.6 MiB), as the two networks
    # may run side by side, and a share of the larger ones asks for no recomputation.
    same(make, lambda step: [step(batch(seed=seed)[0]) for seed in range(3)], budget="3.25MiB")


@pytest.mark.parametrize("budget", ["80%", "64GiB"])
def test_what_tensorflow_draws_goes_on_as_if_nothing_was_measured(budget):
    def make():
        net = network()

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(net(x + tf.random.normal(x.shape)))
            return loss, tape.gradient(loss, net.weights)

        return step, lambda: net.weights

    same(
        make,
        lambda step: [step(batch()[0]) for _ in range(2)],
        budget=budget,
        recomputes=budget == "80%",
    )


def test_conditions_on_tensors_are_converted():
    def make():
        net = network()

        def step(x, flip):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(net(x)) if flip else -tf.reduce_mean(net(x))
            return tape.gradient(loss, net.weights)

        return step, lambda: net.weights

    same(
        make,
        lambda step: [step(batch()[0], tf.constant(flip)) for flip in (True, False)],
        budget="1000%",
        recomputes=False,
    )


def test_parts_that_recompute_by_themselves():
    """They do, the report says so, and the rest is planned."""

    def make():
        first, second = network(1), network(2)

        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(
                    second(tf.recompute_grad(lambda x: tf.tanh(x @ first.weights[0]))(x))
                )
            return tape.gradient(loss, [x, *second.weights])

        return step, lambda: second.weights

    step = same(make, lambda step: [step(batch()[0])], budget="80%")
    assert any("1 part again by itself" in note for note in step.report().notes)
    assert not any("by itself" in note for note in planned(batch()[0]).report().notes)


def test_numbers_are_checked_as_tensorflow_does():
    tf.debugging.enable_check_numerics()
    try:
        step = same(
            sgd_step,
            lambda step: [step(nest(), rate=tf.constant(0.5)) for _ in range(2)],
            budget="50%",
        )
        bad = nest()
        bad["x"][3, 4] = np.inf
        with pytest.raises(tf.errors.InvalidArgumentError, match="Inf"):
            step(bad, rate=tf.constant(0.5))
    finally:
        tf.debugging.disable_check_numerics()


def test_python_state_that_tracing_would_lose():
    net, losses, count = network(), [], 0

    def step(x):
        nonlocal count
        count += 1
        loss = tf.reduce_mean(net(x))
        losses.append(loss)
        return loss

    with pytest.raises(TraceError, match=r"changed count, losses.*tf\.Variable"):
        checkmate.tf2.function(step, batch()[0], budget="1GiB", **FAST)


def gradients_of(net):
    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net(x))
        return tape.gradient(loss, net.weights)

    return gradients


def planned(x, **options):
    options = {"budget": "80%", **FAST, **options}
    return checkmate.tf2.function(gradients_of(network()), x, **options)


@pytest.fixture(scope="module")
def kept(tensorflow, tmp_path_factory):
    """(a planned step, the file of its plan)"""
    step = planned(batch()[0])
    step(batch()[0])
    path = tmp_path_factory.mktemp("plans") / "step.json"
    step.save(path)
    return step, path


def test_a_plan_from_a_file_runs_without_a_solver(kept):
    class Never:
        name = "never"

        def run(self, search):
            raise AssertionError("the solver was asked")

    def own(report, total_bytes):
        """Without what others have in memory, which may differ."""
        return total_bytes - report.memory.other_bytes

    step, path = kept
    assert step.report().in_a_line() in repr(step)
    plan, report = step.plan, step.report()  # a step is planned anew where others are in memory
    for budget in ("auto", "80%"):
        again = planned(batch()[0], plan=path, solver=Never(), budget=budget)
        assert again.plan == plan
        found = again.report()
        assert own(found, found.predicted_peak_bytes) == own(report, report.predicted_peak_bytes)
        assert any(str(path) in note for note in found.notes)
        assert found.in_a_line().endswith(f", plan from {path}")
        assert again.result.gap == pytest.approx(step.result.gap)
        assert (again.result.status, found._proof()) == (step.result.status, report._proof())
        if budget == "auto":
            # A share is one of the plain step alone; that of `step` was reduced if others came to
            # be in memory before its plan was saved, as under load.
            assert own(found, found.budget_bytes) == own(report, report.budget_bytes)
    larger = planned(batch()[0], plan=path, budget="99%")
    assert larger.result.bound == larger.graph.total_cost  # a cheaper plan may fit
    del again, larger
    again = planned(batch()[0], plan=path)
    assert_equal(again(batch()[0]), step(batch()[0]))


def test_a_plan_file_is_of_its_schema(kept):
    data = json.loads(kept[1].read_text())
    validator("plan").validate(data)
    assert set(MADE_FOR) == set(data["made_for"])
    of_steps = ("costs", "made_for", "unchanged", "plain_bytes", "rise_bytes")
    assert {*of_steps, *NO_PROOF, "budget_bytes", "peak_bytes"} <= set(data)
    for key, value in (
        ("unchanged", "zz"),
        ("rewrites", {}),
        ("made_for", {"device": 5}),
        ("costs", [[1]]),
        ("costs", [[1, 2, [-1]]]),
        ("costs", [["a", 2]]),
    ):
        assert refused("plan", data | {key: value})


APPLIED = {"version": 2, "applied": [["tile", 4]], "plain_bytes": 1}


@pytest.mark.parametrize(
    "rewrites",
    [
        {},
        APPLIED | {"applied": []},
        APPLIED | {"applied": [["tile", 0]]},
        APPLIED | {"applied": [["tile"]]},
        APPLIED | {"version": 3},
        {"version": 2, "plain_bytes": 1},
        5,
        "zz",
    ],
)
def test_rewrites_that_are_none(kept, tmp_path, rewrites):
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(json.loads(kept[1].read_text()) | {"rewrites": rewrites}))
    assert refused("plan", json.loads(path.read_text()))
    with pytest.raises(PlanFileError, match=r"rewrites(: \w+)? is .*was expected"):
        slices_of(path)


def test_a_plan_in_slices_of_the_version_before_is_refused_by_number(kept, tmp_path):
    path = tmp_path / "before.json"
    slices = {"slices": {"size": 4, "plain_bytes": 1}}
    path.write_text(json.dumps(json.loads(kept[1].read_text()) | slices))
    with pytest.raises(PlanFileError, match=r"of version 1, and this is version 2"):
        slices_of(path)


def changed(data, **changes):
    """The contents of a file with a field made another by a function."""
    return data | {key: change(data[key]) for key, change in changes.items()}


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda data: data | {"steps": data["steps"][1:]}, PlanError, "op"),
        *(
            (partial(changed, **{key: value}), PlanFileError, text)
            for key, value, text in (
                (
                    "costs",
                    lambda rows: rows[1:],
                    r"costs has \d+ rows; one for each of the \d+ ops",
                ),
                (
                    "costs",
                    lambda rows: [[-1, 0], *rows[1:]],
                    "row 0 of costs: cost is -1; a finite",
                ),
                (
                    "costs",
                    lambda rows: [[1], *rows[1:]],
                    r"row 0 of costs is \[1\]; \[cost, workspace",
                ),
                (
                    "costs",
                    lambda rows: [[1, 0, ["a"]], *rows[1:]],
                    r'row 0 of costs: in_place is \["a"\]; a list of numbers of ops was expected',
                ),
                ("costs", lambda rows: [[1, 0, [0]], *rows[1:]], "its costs are not of this graph"),
                ("costs", lambda rows: None, "is a plan of a graph alone: it has no costs"),
                ("costs", lambda rows: "zz", 'costs is "zz"; a list was expected'),
                ("unchanged", lambda _: "zz", 'unchanged is "zz"; true or false was expected'),
                ("unchanged", lambda _: None, "unchanged is missing; true or false was expected"),
                ("budget_bytes", lambda _: None, "budget_bytes is missing; a whole number of"),
                (
                    "rise_bytes",
                    lambda _: -1,
                    "rise_bytes is -1; a whole number of bytes, 0 or more",
                ),
                ("made_for", lambda _: 5, "made_for is 5; an object was expected"),
                ("made_for", lambda old: old | {"parts": 5}, "made_for: parts is 5; an object was"),
                ("made_for", lambda old: old | {"device_kind": "TPU"}, "TPU there and CPU here"),
                ("bound", lambda _: 1e9, r"bound is 1e\+09; at most .*, the cost of the plan,"),
                (
                    "status",
                    lambda _: "INFEASIBLE",
                    'status is "INFEASIBLE"; "OPTIMAL" or "FEASIBLE"',
                ),
                ("bound_covers", lambda _: "all", 'bound_covers is "all"; "given order" or "any'),
            )
        ),
        (lambda data: [], PlanFileError, "an object was expected"),
    ],
)
def test_files_that_are_refused(kept, tmp_path, change, error, text):
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(change(json.loads(kept[1].read_text()))))
    with pytest.raises(error, match=text):
        planned(batch()[0], plan=path)


def test_files_of_something_else(kept, tmp_path):
    path = tmp_path / "half.json"
    path.write_text(kept[1].read_text()[:1000])
    with pytest.raises(PlanFileError, match="cut short"):
        planned(batch()[0], plan=path)
    with pytest.raises(PlanFileError, match="There is no plan file"):
        planned(batch()[0], plan=tmp_path / "none.json")
    with pytest.raises(
        PlanFileError,
        match=rf"float32\[{BATCH}, {WIDTH}\].*there and.*float32\[64, {WIDTH}\].*here",
    ):
        planned(batch(64)[0], plan=kept[1])
    with pytest.raises(PlanFileError, match="more than the budget"):
        planned(batch()[0], plan=kept[1], budget=kept[0].budget_bytes // 2)


def test_a_folder_of_plans(tmp_path):
    folder = tmp_path / "plans"
    first = planned(batch()[0], plan=folder)
    assert len(list(folder.iterdir())) == 1
    assert "solving" in first.report().seconds
    second = planned(batch()[0], plan=folder)
    assert second.plan == first.plan
    assert "solving" not in second.report().seconds
    third = planned(batch()[0], plan=folder, budget="90%")
    assert "solving" in third.report().seconds
    assert len(list(folder.iterdir())) == 2
    for file in folder.iterdir():
        file.write_text(file.read_text()[:50])
    assert "solving" in planned(batch()[0], plan=folder).report().seconds


def test_a_folder_for_plans_that_cannot_be_one(tmp_path, monkeypatch):
    with (
        monkeypatch.context() as patch,
        pytest.raises(PlanFileError, match=r"kept in /dev/null: File exists\. Name a folder"),
    ):
        patch.setattr(
            "checkmate.tf2.planning.planner.trace", lambda *_, **__: pytest.fail("it was traced")
        )
        planned(batch()[0], plan="/dev/null")
    monkeypatch.setattr(
        "checkmate.core.json_files.tempfile.mkstemp",
        lambda **_: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    assert planned(batch()[0], plan=tmp_path / "folder").plan is not None and not list(
        (tmp_path / "folder").iterdir()
    )
