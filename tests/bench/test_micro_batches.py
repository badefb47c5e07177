"""`bench steps --micro-batches`: its rows, and the steps that it measures."""

import json
import re

import pytest
from click.testing import CliRunner

from checkmate.bench import micro_batches
from checkmate.bench.micro_batches import ACCUMULATION, BOTH, RECOMPUTATION
from checkmate.cli import main
from checkmate.errors import CheckmateError

MIB = 2**20
PLAIN = {"batch": 6, "fixed_bytes": 100 * MIB, "predicted_bytes": 100 * MIB}
PEAKS = {1: 200, 2: 160, 3: 145, 6: 120}
"""Of gradient accumulation: number of parts -> MiB."""


def figures(peak, ratio, count):
    return {
        "plain_s": 2.0,
        "step_s": 2.0 * ratio,
        "ratio_quartiles": [ratio - 0.1, ratio, ratio + 0.1],
        "ratio": ratio,
        "peak_bytes": peak * MIB,
        "micro_batches": {"count": count, "size": 6 // count},
        "recomputed": 3,
    }


@pytest.fixture
def processes(monkeypatch):
    """Answers for each way; recomputation has no plan for less than 150 MiB."""
    asked = []

    def fresh_process(module, arguments):
        assert module == "checkmate.bench.micro_batches"
        name, steps, way, *numbers = arguments
        assert (name, steps) == ("unet", "5")
        asked.append((way, *numbers))
        if way == "plain":
            return PLAIN
        if way == "accumulation":
            parts = int(numbers[0])
            return figures(PEAKS[parts], 1 + parts / 10, parts)
        option, budget_bytes = numbers
        if int(budget_bytes) < 150 * MIB and option == "1":
            raise CheckmateError("No plan fits.")
        if int(budget_bytes) < 120 * MIB:
            raise CheckmateError("No slices fit.")
        return figures(130, 1.25 if option == "1" else 1.1, 1 if option == "1" else 2)

    monkeypatch.setattr(micro_batches, "fresh_process", fresh_process)
    return asked


def invoke(*arguments):
    found = CliRunner().invoke(main, ["bench", "steps", "--micro-batches", *arguments])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_each_budget_has_a_row_per_way(processes):
    rows = list(micro_batches.measure("unet", "60%,50%,45%,10%", 5))
    assert [(row["budget"], row["way"]) for row in rows] == [
        (budget, way)
        for budget in ("60%", "50%", "45%", "10%")
        for way in (RECOMPUTATION, ACCUMULATION, BOTH)
    ]
    assert {row["budget_bytes"] // MIB for row in rows} == {160, 150, 145, 110}
    counts = [row.get("micro_batches", {}).get("count") for row in rows]
    assert counts == [1, 2, 2, 1, 3, 2, None, 3, 2, None, None, None]
    assert [row["of_better"] for row in rows if "of_better" in row and row["way"] == BOTH] == [
        pytest.approx(1.1 / 1.2),
        pytest.approx(1.1 / 1.25),
        pytest.approx(1.1 / 1.3),
    ]
    assert {row["of_better"] for row in rows if "of_better" in row and row["way"] != BOTH} == {None}


def test_each_number_of_parts_is_measured_once(processes):
    list(micro_batches.measure("unet", "60%,50%,45%,10%", 5))
    parts = [number for way, *numbers in processes for number in numbers if way == "accumulation"]
    assert parts == ["1", "2", "3", "6"]


def test_what_accumulation_is_short_of_is_said(processes):
    *_, accumulation, both = micro_batches.measure("unet", "10%", 5)
    assert "takes 120.00 MiB at least" in accumulation["error"]
    assert "10.00 MiB more than the budget of 110.00 MiB" in accumulation["error"]
    assert both["error"] == "No slices fit."


def test_the_table_and_its_sentence(processes):
    said = invoke("unet", "--budgets", "60%,10%")
    assert re.search(r"both +2 of 3 +130 +160 +0.3667 +1.100 +0.917", said)
    assert "No plan fits." in said
    assert said.splitlines()[-1] == (
        "Both together is within 1 budgets, one of the others within 1, of 2. It takes at most"
        " 0.917 times as long as the better of them."
    )


def test_a_peak_over_the_budget_is_not_within_it():
    row = {"model": "unet", "budget": "9%", "budget_bytes": 1, "of_better": None}
    rows = [{**row, "way": BOTH, "peak_bytes": 2}, {**row, "way": ACCUMULATION, "peak_bytes": 1}]
    said = "Both together is within 0 budgets, one of the others within 1, of 1."
    assert micro_batches.summary(rows) == said


def test_json_has_the_keys_of_the_help(processes):
    told = invoke("--help").split("With --micro-batches: model")[1].split("Options:")[0]
    rows = [json.loads(line) for line in invoke("unet", "--json").splitlines()]
    documented = {"model", *re.findall(r"\w+", told)}
    assert {key for row in rows for key in row} <= documented
    assert documented - {key for row in rows for key in row} <= {
        *("or", "and", "of", "the", "count", "size", "slices")
    }


@pytest.mark.slow
@pytest.mark.own_process
def test_the_steps_of_a_small_model(tensorflow, monkeypatch):
    import keras

    from checkmate.bench import models
    from checkmate.tf2.models import Workload

    def tiny(*, batch):
        layers = [keras.layers.Dense(64, activation="tanh") for _ in range(8)]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
        inputs, labels = tensorflow.ones((batch, 64)), tensorflow.ones((batch, 1))
        return Workload(model, keras.losses.MeanSquaredError(), inputs, labels)

    monkeypatch.setitem(models._WORKLOADS, "tiny", (tiny, 8192))
    plain = micro_batches.run("tiny", 2, "plain")
    whole, parts = (micro_batches.run("tiny", 2, "accumulation", each) for each in ("1", "4"))
    assert plain["batch"] == 8192
    assert whole["micro_batches"] == {"count": 1, "size": 8192}
    assert parts["micro_batches"] == {"count": 4, "size": 2048}
    assert parts["peak_bytes"] < whole["peak_bytes"] - plain["predicted_bytes"] / 2
    budget_bytes = plain["fixed_bytes"] + plain["predicted_bytes"] * 7 // 10
    planned = micro_batches.run("tiny", 2, "planned", "1", str(budget_bytes))
    assert planned["recomputed"]
    assert planned["peak_bytes"] <= budget_bytes
    assert planned["micro_batches"] == {"count": 1, "size": 8192}
