"""`checkmate demo`: its judgement of two trainings, and `--picture`, for which both are watched."""

import pytest
from calling import invoke

from checkmate.demo import demo

MIB = 2**20
GIB = 2**30


def trained(peak_bytes, losses, budget_bytes=None):
    """What the process of one training prints."""
    facts = {"device": "CPU:0", "budget_bytes": budget_bytes, "report": "what it reports"}
    seen = [(0.0, MIB), (0.5, peak_bytes), (1.0, MIB)]
    step_s = 1.25 if budget_bytes else 1.0
    return {**facts, "peak_bytes": peak_bytes, "step_s": step_s, "losses": losses, "in_use": seen}


@pytest.fixture
def trainings(monkeypatch):
    """Sets what the trainings say: the plain one, and that within the budget; returns how they were
    called."""
    calls = []

    def of(plain, planned):
        def fresh_process(module, arguments):
            assert module == "checkmate.demo.demo"
            calls.append(list(arguments))
            found = planned if arguments[-1].endswith("%") else plain
            return found if "--watch" in arguments else {**found, "in_use": []}

        monkeypatch.setattr(demo, "fresh_process", fresh_process)
        return calls

    return of


def test_within_the_budget(trainings):
    """Without a picture nobody watches."""
    within = trained(GIB, [2.0, 1.5 + 1e-6], int(1.5 * GIB))
    calls = trainings(trained(3 * GIB, [2.0, 1.5]), within)
    found = invoke("demo", "--model", "unet", "--budget", "50%", "--steps", "2")
    assert found.exit_code == 0
    assert calls == [["unet", "2", "50%"], ["unet", "2"]]
    said = " ".join(found.output.split())
    assert (
        "With a budget of 1.50 GiB, unet trained in 1.00 GiB instead of 3.00 GiB (measured, 33%),"
        " at 1.25 times the step time, with the same losses." in said
    )
    assert "what it reports" not in said
    assert "what it reports" in invoke("demo", "--report").output


def test_above_the_budget(trainings):
    trainings(trained(3 * GIB, [2.0]), trained(GIB, [2.0], GIB))
    assert invoke("demo", "--steps", "1").exit_code == 0, "exactly at the budget"
    trainings(trained(3 * GIB, [2.0, 1.5]), trained(GIB + 1, [2.0, 1.5], GIB))
    found = invoke("demo", "--steps", "2")
    assert found.exit_code == 1
    assert "above the budget" in found.output
    assert "losses differ" not in found.output


@pytest.mark.parametrize("losses", [[2.0, 1.6], [2.01, 1.5], [2.0, float("nan")]])
def test_other_losses(trainings, losses):
    trainings(trained(3 * GIB, [2.0, 1.5]), trained(GIB, losses, 2 * GIB))
    found = invoke("demo", "--budget", "50%", "--steps", "2")
    assert found.exit_code == 1
    assert "losses differ" in found.output
    assert "DIFFERENT (by up to" in found.output


def test_a_picture_of_both_trainings(trainings, tmp_path):
    calls = trainings(trained(9 * MIB, [1.0]), trained(4 * MIB, [1.0], 5 * MIB))
    path = tmp_path / "seen.svg"
    found = invoke("demo", "--budget", "50%", "--picture", path)
    assert found.exit_code == 0, found.output
    assert path.read_bytes().startswith(b"<?xml")
    assert len(calls) == 2 and all("--watch" in arguments for arguments in calls)


@pytest.mark.slow
@pytest.mark.own_process
def test_the_first_plain_step_is_a_warm_up_and_the_first_planned_one_counts(
    tensorflow, monkeypatch
):
    """On a GPU TensorFlow tries several algorithms of an op in the first step that it runs."""
    from checkmate.tf2.models import Workload

    calls = []

    def first_is_larger(*_, **__):
        def step(inputs, labels):
            size = (64 if not calls else 8) * MIB // 4
            calls.append(size)
            return None, tensorflow.reduce_sum(tensorflow.zeros(size))

        step.budget_bytes, step.report = 100 * MIB, lambda: ""
        return step

    monkeypatch.setattr(demo, "plain_step", first_is_larger)
    monkeypatch.setattr(demo, "planned_step", first_is_larger)
    monkeypatch.setattr(
        "checkmate.demo.models.workload", lambda _: Workload(None, None, None, None)
    )
    peaks = {}
    for budget, steps in ((None, 3), (None, 1), ("60%", 3)):
        calls.clear()
        peaks[budget, steps] = demo.train("any", steps, budget)["peak_bytes"] // MIB
    assert peaks[None, 3] in range(8, 32)
    assert peaks[None, 1] >= 64
    assert peaks["60%", 3] >= 64
