"""`bench cap`: the search for the largest batch, whichever way a step runs out of memory."""

import os
import subprocess

import pytest
import tensorflow as tf

from checkmate.bench import cap, memory_limits, process
from checkmate.bench.process import ProcessDiedError
from checkmate.errors import CheckmateError


@pytest.fixture
def processes(monkeypatch):
    """Sets the largest batches that train, and returns the list of what is tried: kind, batch and
    option `micro_batches`."""
    asked = []

    def of(plain, planned):
        def fresh_process(module, arguments):
            if arguments[1] == "in turn":
                asked.append(tuple(arguments[1:]))
                step_s = plain / 20, int(arguments[4]) / 10
                ratio = step_s[1] / step_s[0]
                return {
                    "plain_s": step_s[0],
                    "step_s": step_s[1],
                    "ratio_quartiles": [0.0, ratio, 99.0],
                }
            _, kind, _, batch, cap_bytes, micro_batches = arguments
            assert cap_bytes == str(400 << 20)
            most, batch = {"plain": plain, "planned": planned}[kind], int(batch)
            asked.append((kind, batch, micro_batches))
            if batch > most + 1:
                raise ProcessDiedError("status -11")
            return {
                "trained": batch <= most,
                "batch": batch,
                "step_s": batch / {"plain": 20, "planned": 10}[kind],
                "micro_batches": {"count": 2, "size": 7} if micro_batches == "auto" else None,
                "budget_bytes": 333,
            }

        monkeypatch.setattr(cap, "fresh_process", fresh_process)
        return asked

    return of


@pytest.mark.parametrize(("plain", "planned"), [(0, 0), (0, 3), (1, 1), (5, 4), (8, 21), (19, 100)])
def test_the_largest_batches_are_found(processes, plain, planned):
    processes(plain, planned)
    row = cap.measure("unet", 400 << 20, 3)
    found = [row[kind]["batch"] if row[kind] else 0 for kind in ("plain", "planned")]
    assert found[0] == plain
    # Exact below twice that.
    assert planned - max(0, planned // cap.CLOSE - 1) <= found[1] <= planned
    times, ratio = (f"{found[1] / plain:.2f}", "2.00") if plain and planned else ("-", "-")
    cells = cap.cells(row)
    assert cells[2:6] == (str(plain or "none"), str(found[1] or "none"), "-", times)
    assert cells[6:] == (("0.050", "0.100", ratio) if plain and planned else ("-", "-", "-"))


@pytest.mark.parametrize(
    ("plain", "planned", "expected"), [(2, 100, 14), (2, 14, 14), (2, 9, 9), (2, 0, 0), (0, 5, 5)]
)
def test_the_search_ends_at_so_many_times_the_plain_batch(processes, plain, planned, expected):
    asked = processes(plain, planned)
    row = cap.measure("unet", 400 << 20, 3, "auto", 7)
    assert (row["planned"]["batch"] if row["planned"] else 0) == expected
    tried = [batch for kind, batch, *_ in asked if kind == "planned"]
    assert not plain or max(tried) == 14
    assert expected != 14 or tried == [14]


def test_the_planned_step_gets_the_option_and_tells_its_slices(processes):
    asked = processes(2, 15)
    row = cap.measure("unet", 400 << 20, 3, "auto", 7)
    assert {each for kind, _, each, *_ in asked if kind == "planned"} == {"auto"}
    assert cap.cells(row)[4] == "2 of 7"
    assert asked[-1] == ("in turn", "3", "2", "14", "333", "2")


def test_batches_that_could_not_be_timed_in_turn_have_no_times(processes, monkeypatch):
    processes(2, 15)
    tried = cap.fresh_process

    def fresh_process(module, arguments):
        if arguments[1] == "in turn":
            raise CheckmateError("No plan fits.")
        return tried(module, arguments)

    monkeypatch.setattr(cap, "fresh_process", fresh_process)
    row = cap.measure("unet", 400 << 20, 3)
    assert row["in_turn"] is None
    assert cap.cells(row)[2:] == ("2", "15", "-", "-", "-", "-", "-")


@pytest.mark.parametrize(("status", "kind"), [(-11, ProcessDiedError), (1, CheckmateError)])
def test_a_crash_is_told_from_an_error(monkeypatch, status, kind):
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda *_, **__: subprocess.CompletedProcess([], status, "", "something broke"),
    )
    with pytest.raises(CheckmateError, match="something broke") as info:
        process.fresh_process("some.module", [])
    assert type(info.value) is kind


@pytest.mark.own_process
@pytest.mark.usefixtures("tensorflow")
def test_the_cap_of_a_cpu_is_its_allocator_s_limit():
    memory_limits.limit_memory((64 << 20) + 5)
    found = {each.by: each.bytes for each in memory_limits.memory_limits("CPU:0")}
    assert found[memory_limits.ALLOCATOR] == found[memory_limits.CAP] == 64 << 20


def test_the_cap_of_a_gpu_is_the_limit_of_its_logical_device(monkeypatch):
    given = {}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["gpu 0", "gpu 1"])
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", given.__setitem__)
    monkeypatch.delenv(memory_limits.CAP, raising=False)
    memory_limits.limit_memory((600 << 20) + 5)
    assert {gpu: [part.memory_limit for part in parts] for gpu, parts in given.items()} == {
        "gpu 0": [600]
    }
    assert memory_limits.CAP not in os.environ


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), True),
        (tf.errors.NotFoundError(None, None, "No algorithm worked!  Error messages:"), True),
        (tf.errors.InternalError(None, None, "RESOURCE_EXHAUSTED: workspace"), True),
        (tf.errors.InvalidArgumentError(None, None, "shapes must match"), False),
    ],
)
def test_errors_that_mean_too_little_memory(error, expected):
    assert memory_limits.is_out_of_memory(error) is expected


def test_a_process_gets_the_variables_that_it_is_given(monkeypatch):
    seen = {}

    def run(command, env, **_):
        seen.update(env)
        return subprocess.CompletedProcess([], 0, "1\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("TF_GPU_ALLOCATOR", "bfc")
    given = {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}
    assert process.fresh_process("some.module", [], environment=given) == 1
    assert seen["TF_GPU_ALLOCATOR"] == "cuda_malloc_async"
    assert seen["TF_CPU_ALLOCATOR_USE_BFC"] == "true"
