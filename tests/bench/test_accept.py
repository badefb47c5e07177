"""`bench accept`: the table, its files, and what becomes of lines that pass, fail or cannot run."""

import json
import re
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import tensorflow as tf
from click.testing import CliRunner

from checkmate.bench import (
    accept,
    accept_memory,
    accept_process,
    accept_programs,
    accept_replicas,
    accept_stage,
    accept_training,
    hold_memory,
)
from checkmate.bench.accept_lines import LINES, Line
from checkmate.bench.accept_nets import NETS, net
from checkmate.bench.accept_outcome import NotRunError, Outcome
from checkmate.bench.training import Timed
from checkmate.cli import main
from checkmate.errors import CheckmateError, DriverUnavailableError
from checkmate.tf2 import gpus
from checkmate.tf2.memory import available, profiler

pytestmark = pytest.mark.usefixtures("tensorflow")
MIB = 2**20

ANSWERS = {
    "doctor": {
        "passed": True,
        "figures": {"peak_bytes": 3 * MIB, "step_s": 0.25, "a | b": "c", "lost_bytes": None},
        "details": "all of it",
    },
    "auto": {"passed": False, "figures": {"the driver (NVML), bytes": 5 * MIB}, "details": ""},
    "auto_growth": {"not_run": "TensorFlow sees no GPU"},
}


@pytest.fixture
def called(monkeypatch):
    """(line, its variables) of each process; they answer `ANSWERS`."""
    calls = []

    def fresh_process(module, arguments, *, environment, timeout_s):
        assert module == "checkmate.bench.accept_process"
        calls.append((arguments[0], environment))
        if arguments[0] not in ANSWERS:
            raise CheckmateError("It ended with status 1:\nTraceback\nInternalError: no kernel")
        return dict(ANSWERS[arguments[0]])

    monkeypatch.setattr(accept, "fresh_process", fresh_process)
    return calls


def run(*arguments):
    return CliRunner().invoke(main, ["bench", "accept", *map(str, arguments)])


def test_each_line_is_a_process_and_its_answer_is_in_both_files(called, tmp_path):
    found = run("--lines", "doctor,auto,auto-growth,xla_cnn", "-o", tmp_path / "found", "--json")
    assert found.exit_code == 1
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert [(row["line"], row["result"]) for row in rows] == [
        ("doctor", "passed"),
        ("auto", "failed"),
        ("auto_growth", "not run"),
        ("xla_cnn", "failed"),
    ]
    assert rows[2]["why"] == "because TensorFlow sees no GPU"
    assert rows[3]["why"] == "InternalError: no kernel"
    assert called[2][1]["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    folders = {environment["CHECKMATE_CACHE_DIR"] for _, environment in called}
    assert len(folders) == 1  # measured costs are shared, and no others are read

    written = json.loads((tmp_path / "found" / "accept.json").read_text(encoding="utf-8"))
    assert written["lines"] == rows
    assert written["machine"]["tensorflow"] == tf.__version__
    page = (tmp_path / "found" / "accept.md").read_text(encoding="utf-8")
    assert "4 lines: 1 passed, 2 failed, 1 not run: auto, xla_cnn." in page
    table = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(table) == 5
    assert all(len(re.findall(r"(?<!\\)\|", line)) == len(accept.COLUMNS) + 1 for line in table)
    assert "peak 3.00 MiB, step 0.25 s, a \\| b c, lost unknown" in page
    assert "the driver (NVML) 5.00 MiB" in page
    documented = CliRunner().invoke(main, ["bench", "accept", "--help"]).stdout.split("JSON:")[1]
    assert set(rows[0]) <= set(re.findall(r"\w+", documented))


def test_a_run_without_failures_is_status_0(called, tmp_path):
    found = run("--lines", "doctor,auto_growth", "-o", tmp_path)
    assert found.exit_code == 0
    assert "2 lines: 1 passed, 0 failed, 1 not run." in found.stdout


def test_files_have_the_rows_until_it_was_interrupted(called, tmp_path):
    rows = accept.measure(["doctor", "auto"], tmp_path)
    next(rows)
    assert len(json.loads((tmp_path / "accept.json").read_text())["lines"]) == 1


def test_a_line_that_there_is_not_is_status_2():
    found = run("--lines", "verify_cmn")
    assert found.exit_code == 2
    assert "Did you mean verify_cnn" in found.stderr


def test_the_table_asks_questions_and_says_what_needs_a_gpu():
    assert len(LINES) > 40
    for line in LINES.values():
        assert line.asks.endswith("?") and len(line.asks) < 160
    on_cpus = [name for name, line in LINES.items() if not line.gpus]
    assert len(on_cpus) >= 20
    assert {f"train_{name}" for name in NETS} <= set(on_cpus)
    assert {"layout_cnn", "crowded", "cuda_malloc_async", "pytest"} & set(on_cpus) == set()
    quick = accept.chosen(None, quick=True)
    assert 5 < len(quick) < 12 and set(quick) < set(on_cpus)
    assert accept.chosen(["tight"], quick=True) == ["tight"]
    assert accept.chosen(None, quick=False) == list(LINES)


@pytest.mark.parametrize(
    ("seen", "wanted", "why"),
    [
        (0, 1, "TensorFlow sees no GPU with CUDA_VISIBLE_DEVICES=7"),
        (1, 2, "TensorFlow sees 1 GPU with CUDA_VISIBLE_DEVICES=7, and this takes 2"),
        (1, 1, None),
        (0, 0, None),
    ],
)
def test_a_line_without_its_gpus_is_not_run(monkeypatch, seen, wanted, why):
    environment = {"CUDA_VISIBLE_DEVICES": "as it was told"}
    line = Line("one", lambda: Outcome(True), gpus=wanted, environment=environment)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU"] * seen)
    monkeypatch.setitem(LINES, "one", line)
    expected = {"passed": True, "figures": {}, "details": ""} if why is None else {"not_run": why}
    assert accept_process.run("one") == expected


def unable():
    raise NotRunError("there is no tree")


def test_a_part_of_a_line_tells_what_it_cannot(monkeypatch):
    monkeypatch.setattr(
        accept_stage,
        "fresh_process",
        lambda module, arguments, **_: accept_stage.run(*arguments[:2], json.loads(arguments[2])),
    )
    with pytest.raises(NotRunError, match="there is no tree"):
        accept_stage.stage(unable)
    assert accept_stage.stage(dict, [["a", 1]]) == {"a": 1}


PLAIN = {"losses": [2.0, 1.0], "peak_bytes": 100, "step_s": 1.0, "first_s": 2.0}
PLANNED = {
    **{"budget_bytes": 60, "predicted_bytes": 55, "measured_bytes": 54, "step_s": 1.5},
    **{"device_batches_bytes": 58, "host_batches_bytes": 57, "losses": [2.0, 1.0]},
    **{"compile_s": 3.0, "phases": {"measuring ops": 1.0}, "recomputed": 4, "report": "text"},
}


@pytest.mark.parametrize(
    ("net_name", "changes", "passed"),
    [
        ("cnn", {}, True),
        ("cnn", {"host_batches_bytes": 61}, False),
        ("cnn", {"device_batches_bytes": 61}, False),
        ("cnn", {"losses": [2.0, 1.005]}, False),
        ("cnn_bf16", {"losses": [2.0, 1.005]}, True),
        ("transformer_fp16", {"losses": [2.0, float("nan")]}, False),
    ],
)
def test_training_passes_within_its_budget_and_with_the_plain_losses(
    monkeypatch, net_name, changes, passed
):
    answers = {"plain_training": PLAIN, "within_budget": {**PLANNED, **changes}}
    monkeypatch.setattr(
        accept_training, "stage", lambda function, *_: dict(answers[function.__name__])
    )
    found = accept_training.trains_within_budget(net_name)
    assert found.passed is passed
    assert found.figures["measuring_ops_s"] == 1.0
    assert found.details == "text"


@pytest.mark.parametrize(
    ("budget", "limits", "given", "passed"),
    [
        (85, [100, 300], None, True),
        (75, [100, 300], None, False),
        (101, [100, 300], None, False),
        (48, [100, 300], 50, True),
        (90, [100, 300], 50, False),  # the limit that was given is not the one that is found
    ],
)
def test_auto_is_compared_with_the_least_limit(monkeypatch, budget, limits, given, passed):
    from checkmate.bench import memory_limits

    found = [memory_limits.Limit(size, f"limit {size}") for size in limits]
    monkeypatch.setattr(memory_limits, "memory_limits", lambda device: found)
    monkeypatch.setattr(memory_limits, "limit_memory", lambda size: None)
    monkeypatch.setattr(available, "auto_budget", lambda device: budget)
    assert accept_memory.auto_budget(given).passed is passed


def test_without_the_driver_s_package_auto_is_not_run(monkeypatch):
    def missing(device):
        raise DriverUnavailableError("No module named 'pynvml'")

    monkeypatch.setattr(available, "auto_budget", missing)
    with pytest.raises(NotRunError, match="the driver cannot be asked: No module named 'pynvml'"):
        accept_memory.auto_budget()


def test_memory_is_held_but_for_so_much(monkeypatch):
    """On a machine of 1000 MiB, of which zeros take what they are made of."""
    taken = [0]

    def zeros(shape):
        taken[0] += 4 * shape[0]

    monkeypatch.setattr(tf, "zeros", zeros)
    monkeypatch.setattr(gpus, "driver_free_bytes", lambda device: 1000 * MIB - taken[0])
    hold_memory.hold(300 * MIB)
    assert 300 * MIB <= 1000 * MIB - taken[0] < 340 * MIB


def test_a_process_that_holds_memory_is_ended(monkeypatch):
    started = []

    class Holder(subprocess.Popen):
        def __init__(self, command, **options):
            started.append(self)
            super().__init__([sys.executable, "-c", "print('ready'); input()"], **options)

    monkeypatch.setattr(accept_memory.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(accept_memory.subprocess, "Popen", Holder)
    monkeypatch.setattr(accept_memory, "stage", lambda *_, **__: dict(PLANNED))
    found = accept_memory.crowded_gpu()
    assert found.passed
    assert found.figures["left_bytes"] == 72 + accept_memory.CONTEXT_BYTES
    assert started[0].returncode is not None


@pytest.mark.parametrize(("second", "passed"), [([1.0, 1.2], True), ([1.0, 2.0], False)])
def test_costs_of_two_processes_are_compared(monkeypatch, second, passed):
    answers = iter([[1.0, 1.0], second])
    monkeypatch.setattr(accept_memory, "stage", lambda *_, **__: {"costs": next(answers)})
    found = accept_memory.costs_twice()
    assert found.passed is passed
    assert found.figures["worst_ratio_of_an_op"] == second[1]


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"computed": [0, 1]}, False),
        ({"peak_bytes": 61}, False),
        ({"losses": [3]}, False),
    ],
)
def test_a_plan_of_a_file_is_the_same_in_another_process(monkeypatch, changes, passed):
    first = {"losses": [2.0], "peak_bytes": 59, "budget_bytes": 60, "computed": [0, 1, 0]}
    first["solving_s"] = 0.5
    answers = iter([first, {**first, "budget_bytes": 900, **changes}])
    monkeypatch.setattr(accept_programs, "stage", lambda *_: next(answers))
    assert accept_programs.plan_file().passed is passed


def test_the_step_in_which_algorithms_are_tried_is_left_out(monkeypatch, tmp_path):
    runs = iter([Timed(1.0, 900, 0, 2.0), *[Timed(0.1, 100 + k, 0, 1.0) for k in range(50)]])
    step = SimpleNamespace(
        save=lambda file: None,
        budget_bytes=200,
        plan=SimpleNamespace(computed=[0]),
        report=lambda: SimpleNamespace(seconds={}),
    )
    monkeypatch.setattr(accept_programs, "net", lambda name: None)
    monkeypatch.setattr(accept_programs, "planned_step", lambda *_, **__: step)
    monkeypatch.setattr(accept_programs, "timed", lambda *_: next(runs))
    found = accept_programs._losses_with_plan(str(tmp_path / "plan.json"))
    assert found["losses"][0] == 2.0 and 100 < found["peak_bytes"] < 200


def test_a_run_of_dtr_that_is_refused_fails(monkeypatch):
    row = {"budget_bytes": 50, "error": "does not fit"}
    monkeypatch.setattr(accept_programs.eager, "measure", lambda *_: iter([{}, row]))
    found = accept_programs.dtr("mlp")
    assert not found.passed and found.details == "does not fit"


def test_replicas_on_one_gpu_are_not_run(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one"])
    with pytest.raises(NotRunError, match="sees one GPU, and this takes two"):
        accept_replicas.train("")


def transposes(count):
    """Names as TensorFlow's layout pass gives them."""
    return [f"conv_{k}-0-TransposeNHWCToNCHW-LayoutOptimizer" for k in range(count)]


@pytest.mark.parametrize(("extra", "plain", "passed"), [(0, 1, True), (5, 1, False), (5, 7, False)])
def test_transpositions_that_nobody_planned_are_found(monkeypatch, extra, plain, passed):
    """In place of steps: which ops request memory, as the profiler traces no kernels of a GPU, and
    the ops of the planned one."""
    kinds = {"conv_0": "Conv2D", **dict.fromkeys(transposes(2), "Transpose"), "relu": "Relu"}
    written = [SimpleNamespace(name=name, type=kind) for name, kind in kinds.items()]
    graph = SimpleNamespace(get_operations=lambda: written)
    run = SimpleNamespace(function=SimpleNamespace(graph=graph))
    step = SimpleNamespace(planned=SimpleNamespace(run=run))
    seen = iter([plain, 2 + extra])
    monkeypatch.setattr(accept_training, "net", lambda name: SimpleNamespace(inputs=0, labels=0))
    monkeypatch.setattr(accept_training, "optimizer", lambda: None)
    monkeypatch.setattr(accept_training, "plain_step", lambda *_: lambda *_: None)
    monkeypatch.setattr(accept_training, "planned_step", lambda *_: step)
    monkeypatch.setattr(
        profiler,
        "observe",
        lambda call: SimpleNamespace(
            ran=Counter(), asked=dict.fromkeys(["conv_0", *transposes(next(seen))], 512)
        ),
    )
    found = accept_training.adds_no_transposes("cnn")
    assert found.passed is passed
    assert found.figures["transposes_that_ran"] == 2 + extra


def test_a_net_is_the_same_each_time_and_keras_stays_as_it_was():
    import keras
    import numpy as np

    first, second = (net("transformer_fp16", batch=2) for _ in range(2))
    assert keras.config.dtype_policy().name == "float32"
    assert first.model.layers[-1].compute_dtype == "float16"
    for a, b in zip(first.model.weights, second.model.weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_line_runs_for_real(tmp_path):
    found = run("--lines", "verify_lstm,transposes_lstm", "-o", tmp_path, "--json")
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert found.exit_code == 0, rows
    assert rows[0]["result"] == "passed" and rows[0]["figures"]["evaluations"] > 50
    assert rows[1]["result"] == "not run"
