"""`checkmate doctor`, and loading TensorFlow quietly."""

import os
import subprocess
import sys

import pytest
from calling import invoke, lines_of_json

import checkmate
from checkmate.commands import doctor
from checkmate.demo import trial

MIB = 2**20

AS_IT_SHOULD_BE = {
    "device": "GPU:0",
    "budget_bytes": 60 * MIB,
    "plain_peak_bytes": 100 * MIB,
    "peak_bytes": 59 * MIB,
    "plain_losses": [2.0, 1.0],
    "losses": [2.0, 1.0005],
    "recomputed": 7,
    "evaluations": 90,
    "not_run": [],
    "run_again": [],
    "differs": [],
}
"""What a training finds."""


@pytest.fixture
def here(monkeypatch):
    """Sets what doctor finds of devices, and what a training finds or raises."""

    def of(devices=(), training=None):
        def trained(*_, **__):
            if isinstance(training, dict):
                return {**AS_IT_SHOULD_BE, **training}
            raise training

        def found():
            yield from devices
            if not isinstance(devices, tuple):
                raise RuntimeError("no driver")

        monkeypatch.setattr(doctor, "_devices", found)
        monkeypatch.setattr(trial, "fresh_process", trained)

    return of


def test_doctor_finds_what_is_here_and_what_is_not(here, monkeypatch):
    here((doctor.Finding("devices", "ok", "one"),))
    found = invoke("doctor", "--json")
    assert found.exit_code == 0
    findings = {each["what"]: each for each in lines_of_json(found.stdout)}
    assert {"Python", "tensorflow", "keras", "numpy", "cylp", "ortools", "devices"} <= set(findings)
    monkeypatch.setitem(doctor.SOLVERS, "no_such_solver", "none")
    noted = invoke("doctor", "--json")
    assert noted.exit_code == 0
    monkeypatch.setattr(doctor, "PACKAGES", [*doctor.PACKAGES, "no_such_package"])
    found = invoke("doctor", "--json")
    assert found.exit_code == 1
    findings = {each["cure"]: each["state"] for each in lines_of_json(found.stdout)}
    assert findings["pip install no_such_package"] == "missing"
    assert findings["pip install no_such_solver, for the solvers none"] == "note"
    assert "no_such_package: pip install no_such_package\n" in invoke("doctor").stdout


def test_what_libraries_say_while_they_load_is_shown_only_if_that_fails():
    say = (
        "import os, sys; from checkmate.commands.quiet import quietly\nwith quietly():\n   "
        " os.write(2, b'noise\\n'); print('progress', file=sys.stderr)"
    )
    for level, failure, expected in (
        ("3", "", "progress"),
        ("3", "; 1 / 0", "noise"),
        ("0", "", "noise\nprogress"),
    ):
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": level}
        done = subprocess.run(
            [sys.executable, "-c", say + failure], capture_output=True, text=True, env=environment
        )
        assert expected in done.stderr
        assert ("noise" in done.stderr) == ("noise" in expected)
        assert ("ZeroDivisionError" in done.stderr) == bool(failure)


def test_doctor_survives_what_it_finds(here):
    here([])
    found = invoke("doctor")
    assert found.exit_code == 1
    assert "RuntimeError: no driver" in found.stdout


def test_doctor_looks_at_the_device(tensorflow):
    states = {finding.what: finding for finding in doctor._devices()}
    assert set(states) == {"training device", "free memory", "limit", "allocator"}
    assert "measured" in states["allocator"].found
    assert states["limit"].bytes > 0 and states["limit"].by in states["limit"].found


def tried(here, **changes):
    """The exit status of `doctor --run` and the states of its findings, for a training that finds
    this."""
    here(training=changes)
    found = invoke("doctor", "--run", "--json")
    return found.exit_code, {each["what"]: each for each in lines_of_json(found.stdout)}


def test_a_training_that_is_as_it_should_be(here):
    status, findings = tried(here)
    assert status == 0
    kinds = ("budget on GPU:0", "values", "evaluations")
    assert [findings[kind]["state"] for kind in kinds] == ["ok", "ok", "ok"]
    assert findings["budget on GPU:0"]["found"] == (
        "59.00 MiB in use at the peak, 60.00 MiB allowed; 100.00 MiB without a plan"
    )
    assert "by up to 5.0e-04" in findings["values"]["found"]


@pytest.mark.parametrize(
    ("what", "changes", "said"),
    [
        ("budget on GPU:0", {"peak_bytes": 61 * MIB}, "61.00 MiB in use"),
        ("values", {"losses": [2.0, 1.01]}, "1.0e-02"),
        ("values", {"losses": [2.0, float("nan")]}, "inf"),
        ("values", {"differs": ["conv2d/kernel"]}, "beyond rounding: conv2d/kernel"),
        ("evaluations", {"not_run": ["Relu/again"]}, "not run: Relu/again"),
        ("evaluations", {"run_again": ["Relu"]}, "run again: Relu"),
        ("evaluations", {"recomputed": 0}, "0 ops more than once"),
    ],
)
def test_a_training_that_is_not_is_status_1_and_says_what(here, what, changes, said):
    status, findings = tried(here, **changes)
    assert status == 1
    assert [each["what"] for each in findings.values() if each["state"] == "wrong"] == [what]
    assert said in findings[what]["found"]
    assert findings[what]["cure"] == trial.REPORT_IT


def test_memory_that_is_not_reported_is_no_error(here):
    status, findings = tried(here, peak_bytes=None, plain_peak_bytes=None)
    assert status == 0
    assert findings["budget on GPU:0"]["found"].startswith("not measured")


def test_a_training_that_fails_is_status_1(here):
    here(training=checkmate.CheckmateError("Traceback:\nInternalError: no kernel"))
    found = invoke("doctor", "--run")
    assert found.exit_code == 1
    assert "InternalError: no kernel" in found.stdout


def test_without_run_nothing_is_trained(here):
    here(training=AssertionError("it trained"))
    assert invoke("doctor").exit_code == 0


@pytest.mark.slow
def test_this_device_trains_as_it_should():
    found = trial.run_trial()
    assert found["peak_bytes"] and found["peak_bytes"] < found["plain_peak_bytes"]
    assert [what for what, is_right, _ in trial.checks(found) if not is_right] == []
