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
    """Sets the largest batches that train, and returns the list of processes."""
    started = []

    def of(plain, planned):
        class Process:
            def __init__(self, module, arguments):
                _, self.kind, _, batch, cap_bytes, self.option = arguments
                assert cap_bytes == str(400 << 20)
                most, self.batch = {"plain": plain, "planned": planned}[self.kind], int(batch)
                self.closed = False
                started.append(self)
                if self.batch > most + 1:
                    self.closed = True
                    raise ProcessDiedError("status -11")
                self.facts = {
                    "trained": self.batch <= most,
                    "batch": self.batch,
                    "step_s": 7.0,
                    "micro_batches": {"count": 2, "size": 7} if self.option == "auto" else None,
                }

            def step(self):
                assert not self.closed
                return self.batch / {"plain": 20, "planned": 10}[self.kind]

            def close(self):
                self.closed = True

        monkeypatch.setattr(cap, "StepProcess", Process)
        return started

    yield of
    assert all(each.closed for each in started)


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
    started = processes(plain, planned)
    row = cap.measure("unet", 400 << 20, 3, "auto", 7)
    assert (row["planned"]["batch"] if row["planned"] else 0) == expected
    tried = [each.batch for each in started if each.kind == "planned"]
    assert not plain or max(tried) == 14
    assert expected != 14 or tried == [14]


def test_the_planned_step_gets_the_option_and_tells_its_slices(processes):
    started = processes(2, 15)
    row = cap.measure("unet", 400 << 20, 3, "auto", 7)
    assert {each.option for each in started if each.kind == "planned"} == {"auto"}
    assert cap.cells(row)[4] == "2 of 7"


def test_steps_that_no_longer_fit_have_no_times(processes, monkeypatch):
    processes(2, 15)

    def ended(process):
        raise ProcessDiedError("status -11")

    monkeypatch.setattr(cap.StepProcess, "step", ended)
    row = cap.measure("unet", 400 << 20, 3)
    assert row["in_turn"] is None
    assert cap.cells(row)[2:] == ("2", "15", "-", "-", "-", "-", "-")


PROGRAM = """
import os, sys
from checkmate.bench.process import take_steps
from checkmate.errors import CheckmateError

left = [0.5, 0.25]


def step():
    if left:
        return left.pop()
    if sys.argv[1] == "dies":
        os.abort()
    raise CheckmateError("No more steps.")


print("something else")
take_steps({"batch": 3}, step)
"""


@pytest.mark.parametrize(
    ("end", "kind", "said"),
    [
        ("dies", ProcessDiedError, "ended with status -6"),
        ("fails", CheckmateError, "No more steps"),
    ],
)
def test_a_process_takes_a_step_when_it_is_asked(tmp_path, monkeypatch, end, kind, said):
    (tmp_path / "stepping.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    taking = process.StepProcess("stepping", [end])
    assert taking.facts == {"batch": 3}
    assert [taking.step(), taking.step()] == [0.25, 0.5]
    with pytest.raises(CheckmateError, match=said) as info:
        taking.step()
    assert type(info.value) is kind


def test_a_process_that_says_nothing_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "silent.py").write_text("import sys; sys.exit('nothing to say')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CheckmateError, match="nothing to say"):
        process.StepProcess("silent", [])


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
