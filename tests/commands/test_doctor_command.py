"""`checkmate doctor`, and loading TensorFlow quietly."""

import os
import subprocess
import sys

from calling import invoke, lines_of_json

from checkmate.commands import doctor


def test_doctor_finds_what_is_here_and_what_is_not(monkeypatch):
    monkeypatch.setattr(doctor, "_devices", lambda: iter([doctor.Finding("devices", "ok", "one")]))
    found = invoke("doctor", "--json")
    assert found.exit_code == 0
    findings = {each["what"]: each for each in lines_of_json(found.stdout)}
    assert {"Python", "tensorflow", "keras", "numpy", "cylp", "ortools", "devices"} <= set(findings)
    monkeypatch.setitem(doctor.SOLVERS, "no_such_module", ("no-such-package", "none"))
    noted = invoke("doctor", "--json")
    assert noted.exit_code == 0
    monkeypatch.setitem(doctor.PACKAGES, "no_such_package", "no-such-package")
    found = invoke("doctor", "--json")
    assert found.exit_code == 1
    findings = {each["cure"]: each["state"] for each in lines_of_json(found.stdout)}
    assert findings["pip install no-such-package"] == "missing"
    assert findings["pip install no-such-package, for the solvers none"] == "note"
    assert "no-such-package: pip install no-such-package\n" in invoke("doctor").stdout


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


def test_doctor_survives_what_it_finds(monkeypatch):
    def broken():
        raise RuntimeError("no driver")
        yield

    monkeypatch.setattr(doctor, "_devices", broken)
    found = invoke("doctor")
    assert found.exit_code == 1
    assert "RuntimeError: no driver" in found.stdout


def test_doctor_looks_at_the_device(tensorflow):
    states = {finding.what: finding for finding in doctor._devices()}
    assert set(states) == {"training device", "free memory", "allocator"}
    assert "measured" in states["allocator"].found
