"""`checkmate demo --picture`: both trainings are watched, and what was seen is drawn."""

import pytest
from click.testing import CliRunner

from checkmate.cli import main
from checkmate.demo import demo

MIB = 2**20


@pytest.fixture
def losses():
    """Of each kind of training."""
    return {"plain": 1.0, "planned": 1.0, "moved": 1.0}


@pytest.fixture
def calls(monkeypatch, losses):
    called = []

    def fresh_process(module, arguments):
        called.append(arguments)
        planned = arguments[-1] == "50%"
        loss = losses["moved" if "--moved" in arguments else "planned" if planned else "plain"]
        seen = (
            [(0.0, MIB), (0.5, (4 if planned else 9) * MIB), (1.0, MIB)]
            if "--watch" in arguments
            else []
        )
        budget = 5 * MIB if planned else None
        return {
            "device": "CPU:0",
            "budget_bytes": budget,
            "peak_bytes": 4 * MIB,
            "step_s": 1.0,
            "losses": [loss],
            "in_use": seen,
        }

    monkeypatch.setattr(demo, "fresh_process", fresh_process)
    return called


def test_a_picture_of_both_trainings(calls, tmp_path):
    path = tmp_path / "seen.svg"
    found = CliRunner().invoke(main, ["demo", "--budget", "50%", "--picture", str(path)])
    assert found.exit_code == 0, found.output
    assert path.read_bytes().startswith(b"<?xml")
    assert all("--watch" in arguments for arguments in calls)


def test_without_a_picture_nobody_watches(calls):
    assert CliRunner().invoke(main, ["demo", "--budget", "50%"]).exit_code == 0
    assert not any("--watch" in arguments for arguments in calls)


def test_beside_losses_that_differ_stands_what_a_last_bit_makes_of_them(calls, losses):
    losses["planned"], losses["moved"] = 1.02, 1.01
    found = CliRunner().invoke(main, ["demo", "--budget", "50%"])
    assert found.exit_code == 1
    assert (
        "DIFFERENT losses: by up to 2.0e-02; the plain step's own differ by up to 1.0e-02 if each"
        " weight starts one bit off" in found.output
    )
    assert [arguments for arguments in calls if "--moved" in arguments] == [
        ["--moved", "mobilenet", "4"]
    ]


def test_losses_that_agree_need_no_third_training(calls):
    CliRunner().invoke(main, ["demo", "--budget", "50%"])
    assert len(calls) == 2


@pytest.mark.slow
@pytest.mark.own_process
def test_the_first_plain_step_is_a_warm_up_and_the_first_planned_one_counts(
    tensorflow, monkeypatch
):
    """On a GPU TensorFlow tries several algorithms of an op in the first step that it runs."""
    from checkmate.demo import training
    from checkmate.tf2.models import Workload

    calls = []

    def first_is_larger(*_, **__):
        def step(inputs, labels):
            size = (64 if not calls else 8) * MIB // 4
            calls.append(size)
            return None, tensorflow.reduce_sum(tensorflow.zeros(size))

        step.budget_bytes, step.report = 100 * MIB, lambda: ""
        return step

    monkeypatch.setattr(training, "plain_step", first_is_larger)
    monkeypatch.setattr(training, "planned_step", first_is_larger)
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
