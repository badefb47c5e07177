"""`bench first-step`: what is put beside the plain step, and a first step of each kind of a small
model."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from checkmate.bench import first_step
from checkmate.cli import main
from checkmate.errors import CheckmateError

WHOLE = {
    "plain": (2.0, 3.0),
    "ours, cold": (10.0, 12.0),
    "ours, costs known": (8.0, 9.0),
    "ours, plan kept": (3.0, 6.0),
}


@pytest.fixture
def processes(monkeypatch):
    """Answers for each variant; the folder is the same for all of a model."""
    asked = []

    def fresh_process(module, arguments):
        asked.append(arguments)
        if arguments[2] == "XLA":
            raise CheckmateError("ended with status 1:\nValueError: no XLA here")
        wall_s, cpu_s = WHOLE[arguments[2]]
        phases = {"all": {"wall_s": wall_s, "cpu_s": cpu_s}}
        if arguments[2] != "plain":
            phases |= {
                "tracing": {"wall_s": 1.0, "cpu_s": None},
                "first step": {"wall_s": 0.5, "cpu_s": 0.75},
            }
        return {"phases": phases}

    monkeypatch.setattr(first_step, "fresh_process", fresh_process)
    return asked


def invoke(*arguments):
    found = CliRunner().invoke(main, ["bench", "first-step", *arguments])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_rows_are_beside_the_plain_step(processes):
    rows = list(first_step.measure("unet", "50%", 4))
    assert [row["variant"] for row in rows if row["phase"] == "all"] == list(first_step.VARIANTS)
    assert [arguments[:4] for arguments in processes] == [
        ["unet", "4", variant, "50%"] for variant in first_step.VARIANTS
    ]
    assert len({arguments[4] for arguments in processes}) == 1
    assert first_step.cells(rows[0]) == (
        "unet",
        "plain",
        "all",
        "2.00",
        "1.00",
        "3.00",
        "1.00",
    )
    assert first_step.cells(rows[1]) == ("unet", "XLA", "all", "ValueError: no XLA here")
    assert first_step.cells(rows[2]) == (
        "unet",
        "ours, cold",
        "all",
        "10.00",
        "5.00",
        "12.00",
        "4.00",
    )
    assert first_step.cells(rows[3]) == (
        "unet",
        "ours, cold",
        "tracing",
        "1.00",
        "0.50",
        "-",
        "-",
    )
    assert first_step.cells(rows[4])[2:] == ("first step", "0.50", "0.25", "0.75", "0.25")


def test_the_table_in_a_sentence_is_of_whole_variants(processes):
    said = invoke("unet", "--budget", "50%").splitlines()[-1]
    assert (
        "ours, cold: 5.0 wall, 4.0 CPU (median), 5.0 wall, 4.0 CPU (most); ours, costs known: 4.0"
        " wall, 3.0 CPU" in said
    )
    assert "XLA" not in said
    assert first_step.summary([]) == "Only plain steps ran."


def test_json_has_the_keys_of_the_help(processes):
    documented = set(re.findall(r"\w+", invoke("--help").split("JSON:")[1].split("Options:")[0]))
    rows = [json.loads(line) for line in invoke("unet", "--json").splitlines()]
    assert {key for row in rows for key in row} == documented - {"or"}


def test_a_budget_that_cannot_be_read_is_refused_before_anything_runs(processes):
    found = CliRunner().invoke(main, ["bench", "first-step", "--budget", "lots"])
    assert found.exit_code == 2
    assert "Cannot read 'lots'" in found.stderr
    assert processes == []


@pytest.mark.slow
@pytest.mark.own_process
def test_phases_of_a_small_model_add_up(tensorflow, monkeypatch, tmp_path):
    import keras

    from checkmate.bench import models
    from checkmate.tf2.models import Workload

    def tiny(*, batch):
        layers = [keras.layers.Dense(64, activation="tanh") for _ in range(4)]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
        return Workload(
            model,
            keras.losses.MeanSquaredError(),
            tensorflow.ones((batch, 64)),
            tensorflow.ones((batch, 1)),
        )

    # Activations of 1 MiB: what the process itself holds, here some 0.2 MiB, is small beside them.
    batch = 4096
    monkeypatch.setitem(models._WORKLOADS, "tiny", (tiny, batch))
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))  # put back after the test
    found = {
        variant: first_step.run("tiny", batch, variant, "90%", tmp_path)
        for variant in first_step.VARIANTS
        if variant != first_step.XLA
    }
    for variant, told in found.items():
        phases = dict(told["phases"])
        whole = phases.pop("all")
        assert whole["wall_s"] > 0 and whole["cpu_s"] > 0
        if variant != first_step.PLAIN:
            assert {"tracing", "no phase", "first step"} <= phases.keys()
            assert sum(phase["wall_s"] for phase in phases.values()) == pytest.approx(
                whole["wall_s"]
            )
            assert ("measuring ops" in phases) == (variant != first_step.PLAN_KEPT)


def test_a_token_of_the_decoder_does_not_see_those_after_it(tensorflow):
    from checkmate.bench.models import transformer

    predictions = {}
    for causal in (False, True):
        variant = "causal" if causal else ""
        work = transformer(batch=1, length=6, width=64, depth=1, words=20, variant=variant)
        tokens = np.array(work.inputs)
        before = work.model(tokens).numpy()
        tokens[0, 3] = (tokens[0, 3] + 1) % 20
        predictions[causal] = np.abs(work.model(tokens).numpy() - before).max(axis=-1)[0]
    assert predictions[True][:3].max() == 0 < predictions[True][3:].min()
    assert predictions[False].min() > 0
