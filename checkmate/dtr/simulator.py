"""simulate(): run an op log or a graph under a budget as a dry run of DTR."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from checkmate.core.graph import DFGraph
from checkmate.core.json_files import open_file
from checkmate.core.plan import Compute, Free, Plan
from checkmate.dtr.heuristic import Heuristic, make_heuristic
from checkmate.dtr.log import OpLog
from checkmate.dtr.policy import CountingBackend
from checkmate.dtr.pool import Search
from checkmate.dtr.program import Program
from checkmate.dtr.runtime import Deallocation, Runtime
from checkmate.dtr.storage import Call, Storage, Tensor
from checkmate.errors import CheckmateError, EvictionError, ThrashingError
from checkmate.units import Bytes, format_bytes, parse_bytes


class DTRStatus(str, Enum):
    """How a run ended.

    Examples:
      >>> DTRStatus("ok") is DTRStatus.OK
      True
    """

    OK = "ok"  # the program is done within the budget
    THRASHED = (  # given up: recomputing has cost more than the limit, or there was no time left
        "thrashed"
    )
    OOM = "oom"  # given up: what is locked or pinned does not fit


@dataclass(frozen=True, slots=True)
class DTRRun:
    """The result of a run. Of a run that was given up, the figures are those up to that moment.

    Attributes:
      status: "ok", "thrashed" or "oom".
      heuristic: The name of the heuristic.
      budget_bytes: The budget; constants count.
      peak_bytes: The peak of the bytes in use.
      plain_peak_bytes: The same without a budget, where everything is freed once nothing refers to
        it. A budget of "60%" is a share of this.
      cost: Cost of all calls, in the log's unit (nanoseconds): `plain_cost` and what was
        recomputed.
      plain_cost: Cost of every call once.
      evictions: How often a storage was evicted.
      eager_evictions: How often because nothing referred to it any more.
      rematerializations: How often a call ran again.
      seconds: Wall time of the simulation.
      message: Why it was given up, or "".
      plan: The run as a plan, when it is of a graph and ended well. `replay` confirms its peak.

    Examples:
      >>> run = checkmate.simulate("resnet.log", "50%")
      >>> run.status, run.overhead, run.rematerializations
    """

    status: DTRStatus
    heuristic: str
    budget_bytes: int
    peak_bytes: int
    plain_peak_bytes: int
    cost: float
    plain_cost: float
    evictions: int
    eager_evictions: int
    rematerializations: int
    seconds: float = field(compare=False)
    message: str = ""
    plan: Plan | None = field(default=None, repr=False)

    @property
    def overhead(self) -> float:
        """cost / plain_cost: 1.0 means that nothing is recomputed."""
        return self.cost / self.plain_cost if self.plain_cost else 1.0

    def __str__(self) -> str:
        budget = (
            f"{self.heuristic} within {format_bytes(self.budget_bytes)}"
            f" ({self.budget_bytes / max(1, self.plain_peak_bytes):.0%} of plain)"
        )
        if self.status is not DTRStatus.OK:
            return f"{self.status.value}: {budget}. {self.message}"
        return (
            f"ok: {budget}: peak {format_bytes(self.peak_bytes)}, cost {self.overhead - 1:+.2%},"
            f" {self.evictions} evictions, {self.rematerializations} rematerializations."
        )


def simulate(
    log: OpLog | DFGraph | Program | str | os.PathLike,
    budget: Bytes,
    *,
    heuristic: str | Heuristic = "dtr_eq",
    deallocation: Deallocation | str = Deallocation.EAGER,
    overhead_limit: float = 2.0,
    search: Search | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> DTRRun:
    """Runs a program under a budget with dynamic rematerialization, as a dry run.

    Counted are the bytes of storages, constants included, and the cost of calls; not what the
    decisions themselves cost. A peak is that of the log's sizes: what an allocator would add is not
    in it.

    Args:
      log: An op log, a graph (with its workspaces and ops that may run only once), or a file with
        either.
      budget: A number of bytes, "6GiB", or "60%" of the program's peak without a budget.
      heuristic: A name (see `HEURISTICS`) or a `Heuristic`.
      deallocation: "eager", "banish" or "ignore": what happens when nothing refers to a storage any
        more.
      overhead_limit: The run is given up as "thrashed" when recomputing has cost more than
        (overhead_limit - 1) times the plain cost.
      out_of_time: Asked before every call; True gives the run up, as "thrashed", too.
      search: Which storages an eviction compares: all by default, or a sample, or only large ones.

    Returns:
      The figures of the run. Running out of memory or of time is a status, not an error.

    Raises:
      LogError: The log is cut, out of order, or names a tensor that it never made.
      CheckmateError: There is no such heuristic or policy.
      BudgetError: The budget cannot be understood.

    Examples:
      >>> from checkmate import DFGraph, Op, simulate
      >>> chain = DFGraph(
      ...     (Op("a", (), 1, 4), Op("b", (0,), 1, 4), Op("c", (1,), 1, 4), Op("d", (0, 2), 1, 4)),
      ...     outputs=(3,),
      ... )  # the plain step has 12 bytes at its peak
      >>> simulate(chain, 16).overhead, simulate(chain, 12, heuristic="lru").status.value
      (1.0, 'ok')

    Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), section 4. Decisions
    are those of the authors' simulator where it is deterministic, except for views made of several
    tensors, whose neighbourhoods are kept exact here, and for banishing within a finite budget. No
    guarantee on the overhead, except for chains (theorem 3.1).
    """
    program = as_program(log)
    chosen = make_heuristic(heuristic)
    if not overhead_limit >= 1:
        raise CheckmateError(
            f"An overhead limit of {overhead_limit!r} leaves no run; it must be 1 or more, and 2"
            " allows to double the cost."
        )
    budget_bytes = parse_bytes(budget, percent_of=program.plain_peak_bytes)
    backend = _Recorder(out_of_time) if program.graph else CountingBackend(out_of_time)
    runtime = Runtime(
        backend,
        budget_bytes=budget_bytes,
        heuristic=chosen,
        deallocation=_policy(deallocation),
        recompute_limit=program.cost * (overhead_limit - 1),
        search=search,
    )
    started = time.perf_counter()
    status, message, plan = DTRStatus.OK, "", None
    try:
        program.run(runtime)
        plan = backend.plan() if isinstance(backend, _Recorder) else None
    except ThrashingError as error:
        status, message = DTRStatus.THRASHED, str(error)
    except EvictionError as error:
        status, message = DTRStatus.OOM, str(error)
    return DTRRun(
        status,
        str(chosen),
        budget_bytes,
        backend.peak,
        program.plain_peak_bytes,
        program.cost + runtime.recomputed_cost,
        program.cost,
        runtime.evictions,
        runtime.eager_evictions,
        runtime.rematerializations,
        time.perf_counter() - started,
        message,
        plan,
    )


def as_program(log: OpLog | DFGraph | Program | str | os.PathLike) -> Program:
    """Returns the program that a runtime can run.

    Args:
      log: As for `simulate`.

    Raises:
      CheckmateError: It is none of these.

    Examples:
      >>> as_program(DFGraph((checkmate.Op("a", output_bytes=8),), outputs=(0,))).plain_peak_bytes
      8
    """
    if isinstance(log, Program):
        return log
    if isinstance(log, OpLog):
        return Program.from_log(log)
    if isinstance(log, DFGraph):
        return Program.from_graph(log)
    if isinstance(log, (str, os.PathLike)):
        return as_program(_load(Path(log)))
    raise CheckmateError(
        "simulate() takes an OpLog, a DFGraph or the path of a file with one; got"
        f" {type(log).__name__}."
    )


def _load(path: Path) -> OpLog | DFGraph:
    """Op logs have a key INSTRUCTION on every line, graph files none."""
    try:
        with open_file(path) as file:
            first = file.readline(2**16)  # a graph file may be one line
        is_log = b'"INSTRUCTION"' in first or path.suffix in (".log", ".jsonl")
    except OSError:
        is_log = False  # the message is the same for both
    return OpLog.load(path) if is_log else DFGraph.load(path)


def _policy(deallocation: Deallocation | str) -> Deallocation:
    try:
        return Deallocation(deallocation)
    except ValueError:
        known = ", ".join(policy.value for policy in Deallocation)
        raise CheckmateError(
            f"There is no deallocation policy {deallocation!r}. Known: {known}."
        ) from None


class _Recorder(CountingBackend):
    """Counts, and writes down the run of a graph as the steps of a plan. Call 0 is what is resident
    all the time."""

    def __init__(self, out_of_time: Callable[[], bool]) -> None:
        super().__init__(out_of_time)
        self._steps: list[Compute | Free] = []

    def compute(self, call: Call, duplicates: Sequence[Tensor]) -> None:
        super().compute(call, duplicates)
        if call.number:
            self._steps.append(Compute(call.number - 1))

    def free(self, storage: Storage) -> None:
        super().free(storage)
        self._steps.append(Free(storage.tensors[0].call.number - 1))

    def plan(self) -> Plan:
        return Plan(tuple(self._steps))
