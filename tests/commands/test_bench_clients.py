"""`checkmate bench clients`: what it asks, what it says of each answer, and three programs."""

import re

import pytest
from calling import invoke, lines_of_json

from checkmate import CheckmateError
from checkmate.bench import clients

MIB = 2**20
TRAINED = {
    "plain_bytes": 100 * MIB,
    "budget_bytes": 60 * MIB,
    "peak_bytes": 59 * MIB,
    "difference": 0.0,
}
REFUSED = {"refused": "proven", "message": "No.", "op": "conv", "named_bytes": 70 * MIB}
PLAIN = {"peak_bytes": 100, "losses": [1.0], "first_step_s": 1.0, "step_s": 0.1}


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        (TRAINED, "trained"),
        ({**TRAINED, "peak_bytes": 63 * MIB}, "trained, OVER by 5.0%"),
        ({**TRAINED, "difference": 0.1}, "trained, OTHER LOSSES"),
        ({**REFUSED, "named_peak_bytes": 70 * MIB}, "refused (proven; 70.0 MiB named, holds) conv"),
        (
            {**REFUSED, "named_peak_bytes": 71 * MIB},
            "refused (proven; 70.0 MiB named, NOT kept) conv",
        ),
        (
            {**REFUSED, "named_error": "No."},
            "refused (proven; 70.0 MiB named, NOT accepted) conv",
        ),
        (
            {**REFUSED, "named_bytes": None, "refused": "not found"},
            "refused (not found; no budget named) conv",
        ),
        ({"error": "It broke."}, "FAILED: It broke."),
    ],
)
def test_what_is_said_of_an_answer(row, answer):
    assert clients.answer(row) == answer


def test_losses_differ_by_their_largest_difference():
    assert clients.difference([1.0, 2.0], [1.0, 2.0]) == 0
    assert clients.difference([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.2 / 2.2)
    assert clients.difference([1.0], [1.0, 2.0]) == float("inf")


def test_what_is_asked_and_printed(monkeypatch):
    """A refusal's named budget goes to another process; a package that is missing has one row."""
    asked = []
    trained = {**PLAIN, "budget_bytes": 60, "predicted_bytes": 60, "recomputed": 1, "ops": 9}
    answers = {
        "good 60%": {**trained, "phases": {}},
        "tight 60%": {**REFUSED, "least_bytes": 65, "named_bytes": 70},
        "tight 70B": {"refused": "not found", "message": "No plan."},
    }

    def fresh_process(module, arguments):
        asked.append(arguments)
        name, _, *budget = arguments
        if name == "broken":
            raise CheckmateError("Trace\nValueError: no")
        return dict(answers[f"{name} {budget[0]}"]) if budget else dict(PLAIN)

    known = dict.fromkeys(("good", "tight", "broken"))
    monkeypatch.setattr(clients, "programs", lambda: (known, ["some_package"]))
    monkeypatch.setattr(clients, "fresh_process", fresh_process)
    monkeypatch.setattr(clients.first_step, "compile_annealer", lambda: None)
    printed = invoke("bench", "clients", "--budgets", "60%", "--json")
    assert printed.exit_code == 0, printed.output
    assert [each[0] for each in asked] == ["good", "good", "tight", "tight", "tight", "broken"]
    assert asked[4][2] == "70B"
    missing, good, tight, broken = lines_of_json(printed.stdout)
    assert "some_package is not installed" in missing["error"]
    assert good["difference"] == 0 and good["plain_step_s"] == 0.1
    assert tight["named_error"] == "No plan." and broken["error"] == "ValueError: no"
    shown = invoke("bench", "clients", "--help").stdout
    documented = set(re.findall(r"\w+", shown.split("JSON:")[1].split("Options:")[0]))
    assert {*missing, *good, *tight, *broken} <= documented
    assert "0 of 4 trained" in invoke("bench", "clients", "--budgets", "60%").stdout
    monkeypatch.setattr(clients, "programs", lambda: (known, []))
    assert "no program nothing" in invoke("bench", "clients", "nothing").output


@pytest.mark.slow
def test_programs_train_within_a_budget(tensorflow):
    """One with its own training step, one of tf_keras."""
    pytest.importorskip("tf_keras")
    names = ("dcgan", "keras2_unet")
    rows = [each for name in names for each in clients.rows([name], "80%", 2)]
    rows = [row for row in rows if row["program"] in names]
    assert [clients.answer(row) for row in rows] == ["trained"] * 2, rows
    # Another order alone may bring the other below 80 %; the U-Net must compute something again.
    assert rows[-1]["recomputed"], rows
