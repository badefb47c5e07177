"""Training on a GPU: where ops run, what a planned step computes, and how much memory it takes."""

import keras
import numpy as np
import pytest
from gpu.nets import NETS, net

import checkmate
from benchmarks.workloads import measured
from checkmate.demo.demo import plain_step, planned_step
from checkmate.tf2 import device as devices
from checkmate.tf2.memory import budget as budgets

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

MIB = 2**20


def losses(step, work):
    """Twenty steps, each with its peak."""
    return [measured(lambda: step(work.inputs, work.labels)[1]) for _ in range(20)]


def test_a_gpu_trains_and_its_allocator_reports(gpu):
    device = devices.training_device()
    assert device == "GPU:0"
    assert devices.allocator_reports(device) and devices.counts_everything(device)
    with gpu.device(device):
        before = devices.bytes_in_use(device)
        tensor = gpu.zeros((4 * MIB,))
        assert devices.bytes_in_use(device) - before >= 16 * MIB
    assert tensor.device.endswith(device)


@pytest.mark.parametrize("name", NETS)
def test_a_planned_step_is_the_plain_one_within_its_budget(name):
    work = net(name)
    step = planned_step(work, keras.optimizers.Adam(1e-4), "60%")
    found = checkmate.tf2.verify(step, (work.inputs, work.labels))
    assert found.ok, found
    assert found.measured_peak_bytes < 0.8 * found.plain_peak_bytes
    assert step.plan.recomputed
    assert all("GPU:0" in each.value.device for each in work.model.trainable_variables)


@pytest.mark.parametrize("name", NETS)
def test_losses_of_twenty_steps_are_those_of_plain_steps(name):
    work = net(name)
    expected = [run.loss for run in losses(plain_step(work, keras.optimizers.Adam(1e-4)), work)]
    del work
    work = net(name)
    step = planned_step(work, keras.optimizers.Adam(1e-4), "60%")
    runs = losses(step, work)
    np.testing.assert_allclose([run.loss for run in runs], expected, rtol=1e-3)
    assert max(run.peak_bytes for run in runs) <= step.budget_bytes


def test_the_budget_auto_is_most_of_what_is_free():
    device = devices.training_device()
    budget, free = budgets.auto_budget(device), budgets.free_bytes(device)
    assert 0.8 * free <= budget <= free
    assert free > 256 * MIB


def test_a_budget_in_bytes_is_kept_by_dtr(gpu):
    kernels = [gpu.Variable(gpu.random.stateless_normal((1024, 1024), (1, k))) for k in range(8)]

    def step():
        with gpu.GradientTape() as tape:
            value = gpu.random.stateless_normal((4096, 1024), (2, 3))
            for kernel in kernels:
                value = gpu.tanh(value @ kernel / 32.0)
            loss = gpu.reduce_mean(value**2)
        return tape.gradient(loss, kernels)

    expected = [gradient.numpy() for gradient in step()]
    device = devices.training_device()
    _, before, peak = devices.peak_above(device, lambda: [each.numpy() for each in step()])
    budget = before + int(0.7 * (peak - before))
    with checkmate.tf2.dtr(budget) as context:
        found = [gradient.numpy() for gradient in step()]
    assert context.stats.peak_bytes <= budget
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


def test_fit_in_float16_stays_within_its_budget(gpu):
    work = net("transformer_fp16")
    work.model.compile(optimizer="adam", loss=work.loss)
    batch = work.inputs.numpy(), work.labels.numpy()
    checkmate.tf2.rematerialize(work.model, budget="60%")
    history = work.model.fit(*batch, batch_size=len(batch[0]), epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    report = checkmate.tf2.planned(work.model).report()
    assert report.measured_peak_bytes <= report.budget_bytes


def test_the_largest_batch_trains_within_its_budget():
    work = net("cnn", batch=2)
    found = checkmate.tf2.max_batch(
        work.model, work.loss, "adam", work.inputs, work.labels, budget="128MiB", overhead_limit=1.3
    )
    batch = [
        np.repeat(each.numpy(), found.batch, axis=0)[: found.batch]
        for each in (work.inputs, work.labels)
    ]
    for _ in range(3):
        _, _, peak = devices.peak_above(
            devices.training_device(), lambda: float(found.step(*batch)[1])
        )
    assert peak <= found.step.budget_bytes


def test_a_refusal_names_a_budget_that_is_accepted():
    work, optimizer = net("cnn"), keras.optimizers.Adam(1e-4)
    with pytest.raises((checkmate.InfeasibleBudgetError, checkmate.NoPlanFoundError)) as refused:
        planned_step(work, optimizer, "10%")
    step = planned_step(work, optimizer, refused.value.smallest_budget_bytes)
    assert max(run.peak_bytes for run in losses(step, work)) <= step.budget_bytes


def test_no_workspace_is_that_of_an_algorithm_that_was_only_tried():
    """The first run of a convolution tries algorithms, of which some ask for gigabytes."""
    work = net("cnn")
    step = planned_step(work, keras.optimizers.Adam(1e-4), "60%")
    plain = plain_step(work, keras.optimizers.Adam(1e-4))
    peak = max(run.peak_bytes for run in losses(plain, work)[1:])
    assert max(op.workspace_bytes for op in step.graph.ops) < peak - step.report().fixed_bytes


def test_a_plan_from_a_file_keeps_its_budget(tmp_path):
    work = net("transformer_fp16")
    optimizer = keras.optimizers.Adam(1e-4)
    step = planned_step(work, optimizer, "60%")
    step.save(tmp_path / "plan.json")
    plan = step.plan
    del step  # whose buffers would count
    again = checkmate.tf2.compile(
        *(work.model, work.loss, optimizer, work.inputs, work.labels),
        budget="60%",
        plan=tmp_path / "plan.json",
    )
    assert again.plan == plan
    assert max(run.peak_bytes for run in losses(again, work)[1:]) <= again.budget_bytes


def test_dropout_draws_the_plain_steps_masks(gpu):
    def step():
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(512, activation="relu"), keras.layers.Dropout(0.5)] * 6
        model = keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(1)])
        return model, gpu.ones((4096, 512)), gpu.ones((4096, 1))

    def trained(budget):
        model, x, y = step()
        model.compile("sgd", "mse", jit_compile=False)
        if budget:
            checkmate.tf2.rematerialize(model, budget=budget)
        return model.fit(x, y, batch_size=4096, epochs=3, verbose=0).history["loss"]

    np.testing.assert_allclose(trained("60%"), trained(None), rtol=1e-4)
