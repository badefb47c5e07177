"""Chain: groups of ops that run one after another in one function, each on inputs of its own, to be
timed and watched.

To build a function takes longer than to run most ops, and to start TensorFlow's profiler does, too.
So many groups are in one function, with clocks between them, and one profiler session watches all.
An op's inputs are filled where it runs, and are held by nothing else, so that it runs in place if
it ever does. They are out of memory before those of the next group are made.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

import tensorflow as tf

from checkmate.core.allocator import UNIT_BYTES
from checkmate.core.events import Log, Program, learn, requests_by_node
from checkmate.core.footprint import Footprint, Kind
from checkmate.errors import CheckmateError
from checkmate.tf2.costs.cache import Measurement
from checkmate.tf2.costs.isolated import Copied, IsolatedOps, some_value
from checkmate.tf2.graph import grappler, in_place
from checkmate.tf2.graph.bodies import called
from checkmate.tf2.graph.graph_writer import GraphWriter
from checkmate.tf2.graph.operations import is_call
from checkmate.tf2.graph.sizes import exact_bytes
from checkmate.tf2.memory.prediction import log_of, node_of
from checkmate.tf2.memory.profiler import observe
from checkmate.tf2.ops.table import rule_of

log = logging.getLogger("checkmate")

T = TypeVar("T")

LENGTH = 64
"""The groups in a chain, at most."""

RUNS, CALL_RUNS, MAX_RUNS, RUN_FOR_S, LEAST_S = 2, 8, 20, 0.0005, 1e-6
"""Each chain is timed at least RUNS times, CALL_RUNS if it has calls, which are compared with their
ops, and until its ops have run for RUN_FOR_S seconds on average or MAX_RUNS times. The shortest
time counts, LEAST_S at least."""

_SCOPE = "chain_"
"""How the names of all ops of chains begin."""

_numbers = count()

NOTHING = IsolatedOps((), (), ())
"""Stands at the end of each chain: what its clocks tell is not the time of an op."""


class Chain:
    """Groups of ops that can run, as one function. Making it runs it: that creates kernels and maps
    memory, and the profiler may watch. `tries` is whether that run tries algorithms, with time and
    memory that no later run needs."""

    def __init__(self, members: Sequence[IsolatedOps], device: str):
        self.members, self.scope = members, f"{_SCOPE}{next(_numbers)}"
        writer = GraphWriter()
        dtypes = {tensor.dtype for each in members for tensor in each.arguments}
        self._numbers = {
            f"{dtype.name}:0": some_value(tf.TensorSpec((), dtype)) for dtype in dtypes
        }
        names = {dtype: f"{dtype.name}:0" for dtype in dtypes}
        self._copied: list[Copied] = []
        self._clock = _clock()  # which keeps the Python function that its op calls
        clock = self._clock.get_operations()[0]
        after: tuple[str, ...] = ()
        for each in (*members, NOTHING):
            self._copied.append(each.write(writer, clock, names, after))
            after = self._copied[-1].clocks[1:]
        self._nodes = [node_of(each, writer.like.get(each.name)) for each in writer.nodes]
        clocks = [f"{name}:0" for each in self._copied for name in each.clocks]

        def build(*numbers: tf.Tensor) -> tf.Tensor:
            given = dict(zip(self._numbers, numbers, strict=True))
            with tf.device(device):
                times = writer.import_here(given, clocks, scope=self.scope)
            with tf.device("CPU:0"):
                return tf.stack(times)

        specs = [tf.TensorSpec((), number.dtype) for number in self._numbers.values()]
        self._function: Any = tf.compat.v1.wrap_function(build, specs)
        self._first = self.run()
        self.tries = _tries(members, device)

    def run_again(self) -> None:
        """Runs all ops with the algorithms chosen, and forgets how long the first run lasted."""
        self._first = self.run()

    def run(self) -> list[float]:
        clocks = grappler.run(self._function, *self._numbers.values()).numpy().reshape(-1, 2)
        *seconds, overhead = (clocks[:, 1] - clocks[:, 0]).tolist()
        return [
            (whole - overhead) / each.times
            for whole, each in zip(seconds, self.members, strict=True)
        ]

    def seconds(self) -> list[float]:
        """Runs all ops until their time is known."""
        runs, spent = [self._first], sum(self._first)
        enough = RUN_FOR_S * len(self.members)
        least = CALL_RUNS if _calls(self.members) else RUNS
        while len(runs) < least or (spent < enough and len(runs) < MAX_RUNS):
            runs.append(self.run())
            spent += sum(runs[-1])
        return [max(min(each), LEAST_S) for each in zip(*runs, strict=True)]

    def measurements(self, log: Log | None) -> list[Measurement]:
        """Of each group; `log` has the requests to the allocator in a run, None if they were not
        seen."""
        seconds = self.seconds()
        if log is None:
            return [
                Measurement(took, in_place.workspace(each.group, each.values, each.taken))
                for took, each in zip(seconds, self.members, strict=True)
            ]
        log = self._named(log)
        footprints = learn(Program(tuple(self._nodes), ()), requests_by_node(log))
        held_until = _held_until(log)
        return [
            Measurement(
                took,
                self._workspace(each, copied, footprints),
                _written_over(each, copied, held_until),
                tuple(footprints[copied.made[operation]] for operation in each.group),
            )
            for took, each, copied in zip(seconds, self.members, self._copied[:-1], strict=True)
        ]

    def _named(self, log: Log) -> Log:
        """The log with the names of calls, whose ops the profiler does not see: it comes after all
        that the group had before."""
        call_after: dict[str, str] = {}
        for copied in self._copied:
            before = [*copied.inputs, copied.clocks[0]]
            for operation, name in copied.made.items():
                if called(operation):
                    call_after |= dict.fromkeys(before, name)
                before.append(name)
        found, last = [], ""
        for node, address, size, is_output in log:
            last = node or last
            if node == "":
                node = call_after.get(last, "")
            found.append((node, address, size, is_output))
        return found

    def _workspace(self, ops: IsolatedOps, copied: Copied, footprints: dict[str, Footprint]) -> int:
        """Bytes that a group requests besides those of its inputs and its value; only inputs that
        it reuses can be overwritten or released before it ends."""
        taken = {
            name: exact_bytes(tensor)
            for name, tensor in zip(copied.inputs, ops.arguments, strict=True)
            if in_place.made_by(tensor) in ops.taken
        }
        kept = set(copied.inputs) - set(taken)
        nodes = [
            replace(node, kind=Kind.RESIDENT) if node.name in kept else node
            for node in self._nodes[copied.nodes]
        ]
        values = [(copied.made[o], k) for o in ops.values for k in range(len(o.outputs))]
        own = {name: footprints[name] for name in copied.made.values()}
        asked = Program(tuple(nodes), tuple(values)).events(own).most_requested_bytes
        of_values = sum(exact_bytes(tensor) for o in ops.values for tensor in o.outputs)
        return max(0, asked - sum(taken.values()) - of_values)


def measured(
    members: Sequence[IsolatedOps], device: str, reports: bool
) -> Iterator[Measurement | None]:
    """Yields the measurement of each group in order, None where TensorFlow refuses to run it.
    Neighbours are timed together, and should last similarly long. `reports` is whether the profiler
    sees the allocator's events."""
    try:
        yield from _measured(members, device, reports)
    finally:
        gc.collect()  # functions are in cycles, and have constants in memory


def _measured(
    members: Sequence[IsolatedOps], device: str, reports: bool
) -> Iterator[Measurement | None]:
    made, logs = _watched(partial(_made, members, device), reports)
    trying = [each for each in made if isinstance(each, Chain) and each.tries]
    if trying:
        # Watched apart: the log of a first run has what each algorithm asked for that was tried.
        _, again = _watched(partial(_run_again, trying), reports)
        logs |= {each.scope: again.get(each.scope) for each in trying}
    for each in made:
        if isinstance(each, Chain):
            yield from each.measurements(logs.get(each.scope))
        else:
            yield None


def _run_again(chains: Sequence[Chain]) -> None:
    for each in chains:
        each.run_again()


def _tries(members: Sequence[IsolatedOps], device: str) -> bool:
    """Whether an op tries algorithms in its first run, or is compiled then."""
    types = {operation.type for each in members for operation in each.group}
    tries = device.startswith("GPU") and any(rule_of(each).tries_algorithms for each in types)
    return tries or _calls(members)


def _calls(members: Sequence[IsolatedOps]) -> bool:
    return any(is_call(operation) for each in members for operation in each.group)


def _clock() -> Any:
    """A graph whose first op returns the time. `tf.timestamp` refuses to run where ops are
    deterministic; a call of Python lasts longer."""
    try:
        tf.timestamp()
        read = tf.timestamp
    except tf.errors.FailedPreconditionError:
        read = partial(tf.numpy_function, time.perf_counter, [], tf.float64)
    return tf.function(read, autograph=False).get_concrete_function().graph


def _made(members: Sequence[IsolatedOps], device: str) -> list[Chain | IsolatedOps]:
    if len(members) > LENGTH:
        return _made(members[:LENGTH], device) + _made(members[LENGTH:], device)
    try:
        return [Chain(members, device)] if members else []
    except (tf.errors.OpError, ValueError, TypeError) as error:
        if len(members) == 1:
            log.info("%s is not measured: %s", members[0].group[-1].name, error)
            return [members[0]]
    half = len(members) // 2
    return _made(members[:half], device) + _made(members[half:], device)


def _watched(call: Callable[[], T], reports: bool) -> tuple[T, dict[str, Log | None]]:
    """Runs each of some chains once, and returns the result and each one's requests to the
    allocator, by `Chain.scope`; nothing where that was not seen."""
    try:
        seen = observe(call) if reports else None
    except CheckmateError as error:  # another profile is being taken
        log.info("What ops ask the allocator for was not seen: %s", error)
        seen = None
    if seen is None:
        return call(), {}
    logs: dict[str, list[Any]] = defaultdict(list)
    scope = ""
    for node, address, size, is_output in log_of(seen):
        if node and not node.startswith(_SCOPE):
            node = ""  # what XLA compiled a function with
        if node:
            scope, _, node = node.partition("/")
        elif node is not None and size < UNIT_BYTES:
            continue  # what Python returns as the time
        logs[scope].append((node, address, size, is_output))
    return seen.result, dict(logs)


def _held_until(log: Log) -> dict[str, tuple[int, int]]:
    """(when the memory was released that a node requested last, as a number in order; its
    bytes)."""
    live: dict[int, tuple[str, int]] = {}
    held: dict[str, tuple[int, int]] = {}
    for k, (node, address, size, _) in enumerate(log):
        if node is not None:
            live[address] = node, size
        elif address in live:
            owner, bytes_ = live.pop(address)
            held[owner] = k, bytes_
    return held


def _written_over(
    ops: IsolatedOps, copied: Copied, held: dict[str, tuple[int, int]]
) -> tuple[int, ...]:
    """The argument whose buffer the group's value reused: of the memory of its size, its own is
    held longest."""
    names = (*copied.inputs, *copied.made.values())
    found = []
    for tensor in in_place.candidates(ops.group, ops.values):
        fitting = [name for name in names if held.get(name, (0, 0))[1] == exact_bytes(tensor)]
        last = max(fitting, key=lambda name: held[name][0], default="")
        found += [
            k for k, name in enumerate(copied.inputs) if name == last and ops.arguments[k] is tensor
        ]
    return tuple(found)
