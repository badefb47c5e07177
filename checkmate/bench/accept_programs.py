"""Lines of `checkmate bench accept` that run whole programs: the commands, files of plans, DTR,
`fit`, `max_batch`, dropout, replicas, and the tests."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import checkmate
from checkmate.bench import eager, trial
from checkmate.bench.accept_nets import net
from checkmate.bench.accept_outcome import STEPS, NotRunError, Outcome
from checkmate.bench.accept_stage import stage
from checkmate.bench.accept_training import HALF_TOLERANCE, optimizer
from checkmate.bench.training import (
    LOSS_TOLERANCE,
    MIB,
    loss_difference,
    plain_step,
    planned_step,
    timed,
    timed_in_turn,
)

GRADIENT_TOLERANCE = 1e-4
"""Difference of gradients under DTR, as a share of the largest, that counts as rounding: sums of
many partial gradients are added in another order."""


def doctor() -> Outcome:
    """Does `checkmate doctor` find all that is needed?"""
    command = [sys.executable, "-m", "checkmate", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    limits = {f"{row['by']}, bytes": row["bytes"] for row in rows if row["what"] == "limit"}
    found = {row["what"]: row["found"] for row in rows if row["what"] == "training device"}
    return Outcome(done.returncode == 0 and bool(limits), {**found, **limits}, done.stdout)


def doctor_run() -> Outcome:
    """Does the small net of `checkmate doctor --run` train as it should?"""
    found = trial.run_trial()
    checks = found.checks()
    figures = {
        "plain_peak_bytes": found.plain_peak_bytes,
        "peak_bytes": found.peak_bytes,
        "budget_bytes": found.budget_bytes,
        "evaluations": found.evaluations,
    }
    said = "\n".join(f"{what}: {text}" for what, _, text in checks)
    return Outcome(all(is_right for _, is_right, _ in checks), figures, said)


def _losses_with_plan(file: str) -> dict[str, Any]:
    """Trains with the plan of a file, which is written if it is not there."""
    work = net("cnn")
    given: dict[str, Any] = {"plan": file} if Path(file).exists() else {}
    step = planned_step(work, optimizer(), "60%" if not given else "auto", **given)
    if not given:
        step.save(file)
    runs = [timed(step, work) for _ in range(STEPS)]
    return {
        "losses": [run.loss for run in runs],
        # In a process's first step cuDNN tries algorithms, each with scratch memory of its own.
        "peak_bytes": max(run.peak_bytes for run in runs[1:]),
        "budget_bytes": step.budget_bytes,
        "computed": list(step.plan.computed),
        "solving_s": step.report().seconds.get("solving", 0.0),
    }


def plan_file() -> Outcome:
    """Does another process train with the plan of a file?

    Its budget is "auto", under which the step would run as it is without the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "step.json")
        first, second = (stage(_losses_with_plan, file) for _ in range(2))
    difference = loss_difference(first["losses"], second["losses"])
    within = second["peak_bytes"] <= first["budget_bytes"]
    return Outcome(
        within and difference <= LOSS_TOLERANCE and first["computed"] == second["computed"],
        {
            "budget_bytes": first["budget_bytes"],
            "first_peak_bytes": first["peak_bytes"],
            "second_peak_bytes": second["peak_bytes"],
            "first_solving_s": first["solving_s"],
            "second_solving_s": second["solving_s"],
            "loss_difference": difference,
        },
    )


def dtr(workload: str) -> Outcome:
    """Does an eager program train within half of its peak under `dtr`, with the same gradients?"""
    *_, row = eager.measure(workload, "50%", 3)
    if "error" in row:
        return Outcome(False, {"budget_bytes": row["budget_bytes"]}, row["error"])
    same = row["difference"] <= GRADIENT_TOLERANCE and row["state_equal"]
    names = ("plain_peak_bytes", "budget_bytes", "peak_bytes", "plain_s", "step_s", "difference")
    figures = {name: row[name] for name in names}
    return Outcome(same and row["peak_bytes"] <= row["budget_bytes"], figures)


def _fit(budget: str) -> dict[str, Any]:
    """`fit` in float16, with the callback if there is a budget."""
    work = net("transformer_fp16")
    work.model.compile(optimizer="adam", loss=work.loss, jit_compile=False)
    tokens, labels = work.inputs.numpy(), work.labels.numpy()
    callbacks = [checkmate.tf2.Rematerialize(budget=budget)] if budget else []
    history = work.model.fit(
        tokens,
        labels,
        batch_size=len(tokens) // 2,
        shuffle=False,
        epochs=4,
        verbose=0,
        callbacks=callbacks,
    ).history
    return {"losses": history["loss"]}


def fit() -> Outcome:
    """Does `fit` in mixed float16 have the same losses with the callback?"""
    plain, planned = stage(_fit, ""), stage(_fit, "60%")
    difference = loss_difference(plain["losses"], planned["losses"])
    figures = {"first_loss": plain["losses"][0], "last_loss": plain["losses"][-1]}
    return Outcome(difference <= HALF_TOLERANCE, {**figures, "loss_difference": difference})


def max_batch() -> Outcome:
    """Does the largest batch that is found train within the budget?"""
    import tensorflow as tf

    from checkmate.tf2 import device as devices

    on_gpu = devices.training_device().startswith("GPU")
    work = net("cnn", batch=2)
    given = work.inputs, work.labels
    budget = (1024 if on_gpu else 64) * MIB
    found = checkmate.tf2.max_batch(
        work.model, work.loss, "adam", *given, budget=budget, max_overhead=0.2
    )
    times = -(-found.batch // 2)
    batch = [tf.repeat(each, times, axis=0)[: found.batch] for each in given]
    peaks = [
        devices.peak_above(devices.training_device(), lambda: float(found.step(*batch)[1]))[2]
        for _ in range(3)
    ]
    return Outcome(
        max(peaks) <= budget and found.batch > found.plain_batch,
        {
            "budget_bytes": budget,
            "peak_bytes": max(peaks),
            "plain_batch": found.plain_batch,
            "batch": found.batch,
        },
    )


def _dense(dropout: bool) -> Any:
    """24 dense layers, with a Dropout after each or without."""
    import keras
    import tensorflow as tf

    from checkmate.tf2.models import Workload

    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((256,))
    for _ in range(24):
        x = keras.layers.Dense(256, activation="tanh")(x)
        x = keras.layers.Dropout(0.1)(x) if dropout else x
    model = keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(x), name="dropout")
    features = tf.random.stateless_normal((4096, 256), (1, 2))
    labels = tf.random.stateless_uniform((4096,), (3, 4), maxval=10, dtype=tf.int32)
    return Workload(model, keras.losses.SparseCategoricalCrossentropy(), features, labels)


def dropout() -> Outcome:
    """Are the masks of 24 dropouts those of the plain step? What do they cost, whose seeds are read
    on the host?"""
    losses, ratios, peak, budget = [], [], 0, 0
    for with_dropout in (True, False):
        work = _dense(with_dropout)
        plain = plain_step(work, optimizer())
        expected = [timed(plain, work).loss for _ in range(3)]
        work = _dense(with_dropout)
        planned = planned_step(work, optimizer(), "60%")
        runs = [timed(planned, work) for _ in range(3)]
        losses.append(loss_difference(expected, [run.loss for run in runs]))
        if with_dropout:
            peak, budget = max(run.peak_bytes for run in runs), planned.budget_bytes
        plain = plain_step(work, optimizer())
        runs_in_turn = [partial(timed, step, work) for step in (plain, planned)]
        ratios.append(timed_in_turn(6, *runs_in_turn)["ratio_quartiles"][1])
        del plain, planned, work, runs_in_turn
    return Outcome(
        max(losses) <= LOSS_TOLERANCE and peak <= budget,
        {
            "loss_difference": max(losses),
            "planned_to_plain": ratios[0],
            "planned_to_plain_without_dropout": ratios[1],
            "budget_bytes": budget,
            "peak_bytes": peak,
        },
    )


def pytest_gpu() -> Outcome:
    """Do the tests marked `gpu` pass?"""
    root = Path(checkmate.__file__).parents[1]
    if not (root / "tests" / "gpu").is_dir():
        raise NotRunError("the tests are in a checkout only")
    if importlib.util.find_spec("pytest") is None:
        raise NotRunError("pytest is not installed")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", "0", "tests/gpu"]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=900, check=False
    )
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    return Outcome(done.returncode == 0, {"pytest": last}, done.stdout[-4000:])
