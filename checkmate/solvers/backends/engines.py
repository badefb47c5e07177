"""Calls solver packages: from an engine's name and a matrix problem to an answer, or to one of the
library's errors.

Large problems are solved in a process of their own. So every engine keeps its wall-clock limit,
Ctrl-C works, and a crash of the package becomes an error. Small problems are solved in this
process, which takes less time than a new one; afterwards the handler of Ctrl-C is restored. All
problems are solved in processes of their own if packages conflict: CP-SAT of OR-tools 9.15 with
TensorFlow 2.21 loaded ends the process, and OR-tools and highspy cannot be imported into one
process.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from checkmate.errors import CheckmateError, SolverFailedError, SolverUnavailableError
from checkmate.solvers.backends.matrices import Answer, AnswerStatus, MatrixProblem
from checkmate.solvers.backends.ortools_intervals import IntervalAnswer, IntervalProblem

ENGINES = {
    **dict.fromkeys(("cbc", "clp"), "checkmate.solvers.backends.cbc"),
    **dict.fromkeys(("scip", "cp_sat"), "checkmate.solvers.backends.ortools"),
    "highs": "checkmate.solvers.backends.scipy",
}
"""Engine -> the module that imports its package in a function."""

PACKAGES = ("cylp", "ortools", "scipy")
"""Their packages, whose names on the package index are those of the modules."""

SMALL = 1500
"""Nonzeros up to which a problem is solved in this process: graphs of about ten ops."""

OBJECTIVE = 1e4
"""Factor of the objective of integer programs, whose costs are shares of 1: engines have absolute
gaps, which do not shrink with the objective. Without the factor, CBC's bound is 3.5e-6 above the
optimum of the graph in `pytest tests/solvers/test_bad_input.py -k small_costs`."""

LONGEST_S = 1e6
"""Seconds that stand for no limit: not all engines accept infinity."""

FEW_VALUES = 8
"""Values up to which a problem of intervals is solved in this process."""


def solve_matrices(
    problem: MatrixProblem, *, engine: str, time_limit_s: float, start: np.ndarray | None = None
) -> Answer:
    """Solves `problem` with the package of `engine`, on one thread.

    Args:
      time_limit_s: Wall-clock seconds. After a tenth more, and a second, the engine is killed, and
        there is no answer.
      start: A feasible x. Engines that can, start from it; it is the answer if they find none.

    Raises:
      SolverUnavailableError: The engine is not known, or its package cannot be imported.
      SolverFailedError: The package failed; its own error is chained, if any.
    """
    if engine not in ENGINES:
        raise SolverUnavailableError(f"There is no engine {engine!r}. Known: {', '.join(ENGINES)}.")
    scale = 1.0 if engine == "clp" else OBJECTIVE
    scaled = replace(problem, cost=scale * problem.cost)
    question = {"problem": scaled, "engine": engine, "time_limit_s": time_limit_s, "start": start}
    size = "{} rows and {} columns".format(*problem.shape)
    answer = _answer(ENGINES[engine], question, small=len(problem.value) <= SMALL, size=size)
    if answer is None:
        answer = Answer(AnswerStatus.UNKNOWN)
    answer = replace(answer, bound=answer.bound / scale)
    if answer.x is None and answer.status is AnswerStatus.UNKNOWN and start is not None:
        return Answer(AnswerStatus.FEASIBLE, start, answer.bound)
    return answer


def solve_intervals(
    problem: IntervalProblem, *, time_limit_s: float, start: Any = None
) -> IntervalAnswer:
    """Solves `problem` with CP-SAT, in a process of its own unless it is tiny; `start` is a hint:
    for each value the (start, end) of its intervals. Limits and errors are those of
    `solve_matrices`."""
    limits = {"time_limit_s": time_limit_s, "start": start}
    question = {"problem": problem, "engine": "cp_sat", **limits}
    size, small = f"{len(problem.sizes)} values", len(problem.sizes) <= FEW_VALUES
    module = "checkmate.solvers.backends.ortools_intervals"
    answer = _answer(module, question, small=small, size=size)
    return IntervalAnswer(AnswerStatus.UNKNOWN) if answer is None else answer


def _answer(module: str, question: dict, *, small: bool, size: str) -> Any:
    """The backend's answer, or None if time ran out. All exceptions become the library's errors."""
    engine, time_limit_s = question["engine"], min(question["time_limit_s"], LONGEST_S)
    question = {**question, "time_limit_s": time_limit_s}
    try:
        if time_limit_s <= 0:
            return None
        if small and not needs_process():
            return _ask_here(module, question)
        return _ask_in_child(module, question, time_limit_s)
    except CheckmateError:
        raise
    except Exception as error:
        package = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ImportError) and package in PACKAGES:
            raise SolverUnavailableError(
                f"Engine {engine!r} needs the package {package!r}, which cannot be imported:"
                f" {error}. Install it with: pip install {package}"
            ) from error
        raise SolverFailedError(
            f"Engine {engine!r} broke on {size}: {type(error).__name__} {error}. Try another"
            " engine."
        ) from error


def needs_process() -> bool:
    """Whether engines need a process of their own: TensorFlow is loaded, highspy could be imported
    later, or the handler of Ctrl-C cannot be restored after them."""
    interruptible = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is not None
    )
    highspy = importlib.util.find_spec("highspy") is not None
    return "tensorflow" in sys.modules or highspy or not interruptible


def _ask(module: str, question: dict) -> Any:
    return importlib.import_module(module).solve(**question)


def _ask_here(module: str, question: dict) -> Any:
    """CBC and OR-tools replace the handler of Ctrl-C, by one that ignores it or by none."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        return _ask(module, question)
    finally:
        signal.signal(signal.SIGINT, handler)


def _ask_in_child(module: str, question: dict, time_limit_s: float) -> Any:
    """Asks in a new process; returns None if it did not answer in time. The process has its own
    session, so that only this process receives the terminal's Ctrl-C."""
    path = [str(Path(__file__).parents[3]), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    code = "from checkmate.solvers.backends.engines import answer_parent; answer_parent()"
    command, pipe, late = [sys.executable, "-c", code], subprocess.PIPE, False
    child = subprocess.Popen(
        command, env=environment, start_new_session=True, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        try:
            asked = pickle.dumps((module, question))
            output, errors = child.communicate(asked, timeout=time_limit_s)
        except subprocess.TimeoutExpired:
            late = True
            # CBC stops on this signal and keeps its best x; the others stop soon by themselves.
            child.send_signal(signal.SIGINT)
            try:
                output, errors = child.communicate(timeout=0.1 * time_limit_s + 1)
            except subprocess.TimeoutExpired:
                return None
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    if late and (child.returncode or not output):  # the signal came while it was still importing
        return None
    if child.returncode or not output:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise SolverFailedError(
            f"The process of engine {question['engine']!r} ended with code {child.returncode}:"
            f" {last[0]}. Try another engine."
        )
    answer = pickle.loads(output)
    if isinstance(answer, Exception):
        raise answer
    return answer


def answer_parent() -> None:
    """The child process: reads a question from standard input, writes the answer, or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # engines print to standard output
    try:
        answer = _ask(*pickle.loads(sys.stdin.buffer.read()))
    except Exception as error:
        answer = error
    pickle.dump(answer, pipe)
    pipe.flush()
    os._exit(0)  # does not wait for the packages' own shutdown
