"""`checkmate bench refusals`: what it asks, and when it says that a refusal holds."""

import re

import pytest
from calling import invoke, lines_of_json

from checkmate import CheckmateError
from checkmate.bench import refusals, zoo

REFUSED = {
    "asked_bytes": 30,
    "refused": "proven",
    "least_bytes": 50,
    "named_bytes": 60,
    "here": True,
}


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({}, True),
        ({"here": False}, False),
        ({"peak_bytes": 61}, False),
        ({"peak_bytes": 49}, False),
        ({"refused": "not found", "least_bytes": None}, True),
        ({"error": "No plan fits 60 B."}, False),
        ({"named_bytes": None}, True),
    ],
)
def test_a_refusal_holds_where_what_it_says_works(changed, holds):
    assert refusals.holds({**REFUSED, "peak_bytes": 55, **changed}) == holds


def test_what_is_named_is_given_to_another_process(monkeypatch):
    asked = []

    def fresh_process(module, arguments):
        asked.append(arguments)
        if arguments[0] == "wrong":
            raise CheckmateError("No plan fits 60 B.")
        return {"peak_bytes": 55} if len(arguments) == 3 else REFUSED

    monkeypatch.setattr(refusals, "fresh_process", fresh_process)
    monkeypatch.setattr(zoo, "models", lambda: {"mlp": None, "wrong": None})
    printed = invoke("bench", "refusals", "mlp", "wrong", "--json")
    assert printed.exit_code == 0, printed.output
    assert asked == [["mlp", "4"], ["mlp", "4", "60"], ["wrong", "4"]]
    documented = set(
        re.findall(
            r"\w+",
            invoke("bench", "refusals", "--help").stdout.split("JSON:")[1].split("Options:")[0],
        )
    )
    row, failed = lines_of_json(printed.stdout)
    assert {*row, *failed} <= documented
    assert "1 of 2 answers hold" in invoke("bench", "refusals", "mlp", "wrong").stdout
