"""`bench workers`: what is made of what the workers of two clusters found, and a worker that
fails."""

import subprocess
from typing import ClassVar

import pytest

from checkmate.bench import workers
from checkmate.errors import CheckmateError


class Worker:
    """Stands for a process."""

    started: ClassVar[list[str]] = []

    def __init__(self, command, env, **_):
        planned, number = bool(command[-1]), len(Worker.started) % workers.WORKERS
        Worker.started.append(env["TF_CONFIG"])
        self.returncode, self.killed = 0, False
        self.found = (
            f'{{"losses": [2.0, {1.0 + 0.001 * planned * number}], "peak_bytes":'
            f' {(60 if planned else 100) << 20}, "budget_bytes": {70 << 20}, "recomputed":'
            f" {7 * planned}}}"
        )

    def communicate(self, timeout):
        return f"something else\n{self.found}\n", ""

    def kill(self):
        self.killed = True


def test_each_worker_is_compared_with_itself(monkeypatch):
    Worker.started.clear()
    monkeypatch.setattr(subprocess, "Popen", Worker)
    rows = list(workers.measure("60%"))
    # A cluster of its own each time.
    assert len(Worker.started) == 8 and len(set(Worker.started)) == 8
    assert [(row["optimized"], row["worker"], round(row["difference"], 6)) for row in rows] == [
        (True, 0, 0),
        (True, 1, 0.001),
        (False, 0, 0),
        (False, 1, 0.001),
    ]
    assert workers.cells(rows[0]) == ("on", "0", "nothing", "100.0", "60.0", "70.0", "7")
    assert workers.cells(rows[3])[:3] == ("off", "1", "1.0e-03")


def test_a_worker_that_fails_ends_the_others(monkeypatch):
    made = []

    class Failing(Worker):
        def __init__(self, command, env, **options):
            super().__init__(command, env, **options)
            self.returncode = 3
            made.append(self)

        def communicate(self, timeout):
            return "", "Traceback\nValueError: no"

    monkeypatch.setattr(subprocess, "Popen", Failing)
    with pytest.raises(
        CheckmateError, match=r"Worker 0 ended with status 3:\nTraceback\nValueError: no"
    ):
        next(workers.measure("60%"))
    assert len(made) == 2 and all(worker.killed for worker in made)
