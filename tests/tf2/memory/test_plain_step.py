"""The plain step, measured where it fits, and what follows from it."""

import json
from dataclasses import replace

import pytest
from dense import batch_of, compiled

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")


@pytest.fixture(scope="module")
def step():
    return compiled(budget="80%")


def share_of(report, share, peak_bytes):
    """A share of what the step itself takes; the memory for further batches is added."""
    ahead = report.memory.next_batch_bytes
    assert ahead == report.memory.other_bytes > 0
    return int(share * (peak_bytes - ahead)) + ahead


def test_a_share_is_one_of_the_measured_peak(step):
    report = step.report()
    assert report.plain_measured_bytes
    assert report.budget_bytes == share_of(report, 0.8, report.plain_measured_bytes)
    assert report.measured_peak_bytes <= report.budget_bytes
    assert report.measured_slowdown == report.step_seconds / report.plain_seconds


def test_a_step_that_fits_as_it_is_runs_as_it_is(step):
    plain = step.report().plain_measured_bytes
    found = compiled(budget=2 * plain)
    assert found.result is None
    assert found.report().plain_measured_bytes <= found.budget_bytes


def test_measuring_leaves_variables_as_and_where_they_are(monkeypatch):
    import keras
    import numpy as np
    from dense import address, dense_model

    from checkmate.tf2.planning import new_plan

    model, optimizer = dense_model(), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    variables = [v for v in (*model.variables, *optimizer.variables) if v.shape.rank]
    measured, seen = new_plan.measured, []

    def seen_around(*args, **options):
        seen.append([(address(v), v.numpy()) for v in variables])
        found = measured(*args, **options)
        seen.append([(address(v), v.numpy()) for v in variables])
        return found

    monkeypatch.setattr(new_plan, "measured", seen_around)
    assert compiled(model, optimizer=optimizer, budget="80%").report().plain_measured_bytes
    for (place, value), (place_after, value_after) in zip(*seen, strict=True):
        assert place == place_after
        assert np.array_equal(value, value_after)


@pytest.mark.parametrize(
    ("of", "run"), [("measured", 1), ("measured", 3), ("confirm", 1), ("confirm", 3)]
)
def test_ctrl_c_while_steps_are_run_leaves_variables_as_they_are(monkeypatch, of, run):
    """The plain step runs first, then planned ones."""
    import keras
    import numpy as np
    from dense import dense_model

    from checkmate.tf2 import device as devices
    from checkmate.tf2.planning import new_plan, plan_search

    model, optimizer = dense_model(), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    before = [v.numpy() for v in (*model.variables, *optimizer.variables)]
    module = new_plan if of == "measured" else plan_search
    runs_steps, peak_above, runs = getattr(module, of), devices.peak_above, []

    def interrupted(device, call):
        found = peak_above(device, call)
        runs.append(found)
        if len(runs) == run:
            raise KeyboardInterrupt
        return found

    def counted(*args, **options):
        with monkeypatch.context() as patch:
            patch.setattr(devices, "peak_above", interrupted)
            return runs_steps(*args, **options)

    monkeypatch.setattr(module, of, counted)
    with pytest.raises(KeyboardInterrupt):
        compiled(model, optimizer=optimizer, budget="80%")
    for value, variable in zip(before, (*model.variables, *optimizer.variables), strict=True):
        assert np.array_equal(value, variable.numpy())


def test_where_too_little_is_free_nothing_is_run(monkeypatch):
    from checkmate.tf2.memory import plain_step

    monkeypatch.setattr(plain_step, "free_or_none", lambda device: 2**20)
    report = compiled(budget="90%").report()
    assert report.plain_measured_bytes is None
    assert report.budget_bytes == share_of(report, 0.9, report.plain_peak_bytes)
    assert "running it safely takes" in str(report)


def test_a_step_that_prints_is_not_run(tensorflow):
    from checkmate.tf2.graph.trace import trace
    from checkmate.tf2.memory.plain_step import measured

    def prints(x):
        tensorflow.print(x[0, 0])
        return tensorflow.reduce_sum(tensorflow.sin(x) ** 2)

    traced = trace(prints, tensorflow.TensorSpec((512, 512)))
    found = measured(None, traced, predicted_bytes=2**20, other_bytes=0, batch=None)
    assert not found.measured
    assert "prints" in found.why_not


def test_a_file_carries_what_was_measured(step, tmp_path):
    path = tmp_path / "plan.json"
    step.save(path)
    again = compiled(plan=path, budget="80%").report()
    assert again.plain_measured_bytes == step.report().plain_measured_bytes
    assert "measuring the plain step" not in again.seconds
    data = json.loads(path.read_text())
    for name in ("plain_measured_bytes", "plain_seconds", "step_seconds"):
        del data[name]
    path.write_text(json.dumps(data))
    assert compiled(plan=path, budget="90%").report().plain_measured_bytes is None


def test_a_step_slower_than_predicted_is_said(step):
    report = replace(step.report(), notes=())
    assert not report.with_seconds(1.0, report.result.overhead + 0.25).notes
    assert "Raise the budget" in report.with_seconds(1.0, report.result.overhead + 0.35).notes[0]
    assert not report.with_seconds(1e-3, 1e-3 * (report.result.overhead + 0.35)).notes, (
        "a step takes as long to start"
    )


def test_batches_are_of_the_size_that_is_traced(step):
    from checkmate.tf2.memory.pipeline import argument_bytes

    assert argument_bytes(step.planned.traced) >= sum(each.nbytes for each in batch_of())


def test_what_came_to_be_in_use_is_found(tensorflow, step):
    from checkmate.tf2 import device as devices
    from checkmate.tf2.planning.in_use import excess_bytes

    planned, budget = (
        replace(step.planned, in_use_bytes=devices.bytes_in_use("CPU:0")),
        step.budget_bytes,
    )
    planned.run(*map(tensorflow.constant, batch_of()))
    level = excess_bytes(planned, budget)
    held = tensorflow.zeros((2**22,))
    assert excess_bytes(planned, budget) >= min(level, 1) + 2**20
    del held


def test_memory_is_set_aside_for_more_batches_where_they_are_small(step):
    from checkmate.tf2.memory.pipeline import (
        MORE_BATCHES,
        argument_bytes,
        batches_ahead,
        bytes_ahead,
    )

    traced = step.planned.traced
    assert bytes_ahead(traced, 0) == 0
    assert bytes_ahead(traced, 2) in [k * argument_bytes(traced) for k in range(2, 9)]
    assert [batches_ahead(2, 100, peak * 100) for peak in (1, 50, 75, 100, 10**4)] == [
        2, 2, 3, 4, 2 + MORE_BATCHES,
    ]  # fmt: skip


def test_an_allocator_that_leaves_small_tensors_out_is_not_believed(monkeypatch):
    """Below what is predicted, its count of the plain step may be short of much."""
    from checkmate.tf2 import device as devices
    from checkmate.tf2.memory.plain_step import PlainStep

    half = compiled().report().plain_peak_bytes // 2
    monkeypatch.setattr(
        "checkmate.tf2.planning.new_plan.measured",
        lambda *_, **__: PlainStep(peak_bytes=half, seconds=1.0),
    )
    for complete in (True, False):
        monkeypatch.setattr(
            devices, "counts_everything", lambda device, complete=complete: complete
        )
        report = compiled(budget="300%").report()
        ahead = report.memory.next_batch_bytes
        believed = half + ahead if complete else report.plain_peak_bytes
        assert report.budget_bytes == share_of(report, 3, believed)
