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


@pytest.fixture
def processes(monkeypatch):
    """Answers for each way, and the list of what was asked for; recomputation has no plan for less
    than 150 MiB. A step of accumulation takes longer with each part."""
    asked, running = [], set()

    class Process:
        def __init__(self, module, arguments):
            assert module == "checkmate.bench.micro_batches"
            assert arguments[:2] == ["unet", "5"]
            way, *numbers = arguments[2:]
            asked.append((way, *numbers))
            if way == "accumulation":
                count = int(numbers[0])
                peak, self.seconds = PEAKS[count], 1.9 + 0.1 * count
            else:
                option, budget_bytes = numbers
                if int(budget_bytes) < 150 * MIB and option == "1":
                    raise CheckmateError("No plan fits.")
                if int(budget_bytes) < 120 * MIB:
                    raise CheckmateError("No slices fit.")
                count = 1 if option == "1" else 2
                peak, self.seconds = 130, 2.5 if option == "1" else 2.2
            self.facts = {
                "peak_bytes": peak * MIB,
                "micro_batches": {"count": count, "size": 6 // count},
                "recomputed": 3,
            }
            running.add(self)

        def step(self):
            assert self in running
            return self.seconds

        def close(self):
            running.discard(self)

    def fresh_process(module, arguments):
        assert arguments == ["unet", "5", "figures"]
        return PLAIN

    monkeypatch.setattr(micro_batches, "StepProcess", Process)
    monkeypatch.setattr(micro_batches, "fresh_process", fresh_process)
    yield asked
    assert not running


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
        pytest.approx(2.2 / 2.1),
        pytest.approx(2.2 / 2.2),
        pytest.approx(2.2 / 2.2),
    ]
    assert {row["of_better"] for row in rows if "of_better" in row and row["way"] != BOTH} == {None}


def test_parts_that_were_too_large_are_not_tried_again(processes):
    list(micro_batches.measure("unet", "60%,50%,45%,10%", 5))
    parts = [int(numbers[0]) for way, *numbers in processes if way == "accumulation"]
    plain, *tried = parts
    assert plain == 1
    # 2 for 160 MiB, 3 for 150 MiB and for 145 MiB; 120 MiB are too much for 110 MiB.
    assert tried == [1, 2, 3, 3, 6]


def test_what_accumulation_is_short_of_is_said(processes):
    *_, accumulation, both = micro_batches.measure("unet", "10%", 5)
    assert "takes 120.00 MiB at least" in accumulation["error"]
    assert "10.00 MiB more than the budget of 110.00 MiB" in accumulation["error"]
    assert both["error"] == "No slices fit."


def test_the_table_and_its_sentence(processes):
    said = invoke("unet", "--budgets", "60%,10%")
    assert re.search(r"both +2 of 3 +130 +160 +0.3667 +1.100 +1.048", said)
    assert "No plan fits." in said
    assert said.splitlines()[-1] == (
        "Both together is within 1 budgets, one of the others within 1, of 2. It takes at most"
        " 1.048 times as long as the better of them."
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


@pytest.mark.long
@pytest.mark.own_process
def test_the_steps_of_a_small_model(tensorflow):
    import keras

    from checkmate.bench.training import measured, plain_prediction, planned_loss_step
    from checkmate.tf2.models import Workload

    def tiny(*, batch):
        layers = [keras.layers.Dense(64, activation="tanh") for _ in range(8)]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
        inputs, labels = tensorflow.ones((batch, 64)), tensorflow.ones((batch, 1))
        return Workload(model, keras.losses.MeanSquaredError(), inputs, labels)

    def run(way, *numbers):
        """What the process of a way says, and the loss of its step."""
        keras.utils.set_random_seed(0)
        facts, step = way(tiny(batch=8192), *numbers)
        peak_bytes = max(measured(step).peak_bytes for _ in range(2))
        return facts | {"peak_bytes": peak_bytes, "loss": float(step())}

    keras.utils.set_random_seed(0)
    report = planned_loss_step(tiny(batch=8192), keras.optimizers.Adam(1e-4), "1000%", 1).report()
    figures = plain_prediction(report)
    whole, parts = run(micro_batches.accumulated, 1), run(micro_batches.accumulated, 4)
    assert whole["micro_batches"] == {"count": 1, "size": 8192}
    assert parts["micro_batches"] == {"count": 4, "size": 2048}
    assert parts["peak_bytes"] < whole["peak_bytes"] - figures["predicted_bytes"] / 2
    budget_bytes = figures["fixed_bytes"] + figures["predicted_bytes"] * 7 // 10
    planned = run(micro_batches.planned, 1, budget_bytes)
    assert planned["recomputed"]
    assert planned["peak_bytes"] <= budget_bytes
    assert planned["micro_batches"] == {"count": 1, "size": 8192}
    both = run(micro_batches.planned, "auto", budget_bytes)
    assert both["peak_bytes"] <= budget_bytes
    for each in (parts, planned, both):
        assert each["loss"] == pytest.approx(whole["loss"], rel=1e-4)
