"""From the nodes of a step, which run one after another, to the allocator's requests and releases;
and from a log of those back to footprints.

TensorFlow counts references to buffers. A buffer is released when the last node that reads it, or a
view of it, has run. A kernel that can run in place writes its output to the buffer of an input of
the same size that no other node holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise

from checkmate.core.footprint import Footprint, Kind, Node, Request

Tensor = tuple[str, int]

ENTRIES = 16
"""A list counts as so many requests, which find room where one request for all of it would not. It
has more entries, most often, and smaller ones."""

Log = Iterable[tuple[str | None, int, int, bool]]
"""(node that made the request, or None for a release; address; bytes; whether the memory is for an
output), in order of time."""


@dataclass(frozen=True, slots=True)
class Program:
    """The nodes of a step in the order in which they run, and the tensors that the step returns."""

    nodes: tuple[Node, ...]
    outputs: tuple[Tensor, ...]

    def events(self, footprints: Mapping[str, Footprint]) -> Events:
        """Returns the requests and releases of one run of the step.

        Args:
          footprints: As `learn` returns them; a node without one has its expected footprint.
        """
        executor, ends = _Executor(self), list[int]()
        for node in self.nodes:
            executor.run(
                node, footprints.get(node.name) or footprints.get(node.key) or node.expected()
            )
            ends.append(len(executor.events))
        results = {
            buffer
            for tensor in self.outputs
            if (buffer := executor.buffers.get(tensor)) is not None
        }
        return Events(tuple(executor.events), tuple(sorted(results)), tuple(ends))


@dataclass(frozen=True, slots=True)
class Events:
    """The requests and releases of a step.

    Attributes:
      steps: (buffer, bytes) for a request, (buffer, 0) for a release.
      results: The buffers of the results, which are not released.
      ends: How many steps there are until each node has run.
    """

    steps: tuple[tuple[int, int], ...]
    results: tuple[int, ...]
    ends: tuple[int, ...] = ()

    @property
    def most_requested_bytes(self) -> int:
        """The most bytes requested at once, without what an allocator adds."""
        return max(self._requested(), default=0)

    def at_most(self) -> int:
        """The number of the node that runs when most bytes are requested at once."""
        requested = self._requested()
        return bisect_right(self.ends, requested.index(max(requested)))

    def _requested(self) -> list[int]:
        """The bytes requested after each step."""
        live: dict[int, int] = {}
        found, total = [], 0
        for buffer, size in self.steps:
            total += size - live.pop(buffer, 0)
            live[buffer] = size
            found.append(total)
        return found


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request of a kernel as the allocator logged it.

    Attributes:
      is_output: Whether TensorFlow logged the memory as an output's.
      until: How many requests the kernel had made when the memory was released; None if another
        kernel had requested memory by then.
    """

    bytes: int
    is_output: bool
    until: int | None


def requests_by_node(log: Log) -> dict[str, list[LoggedRequest]]:
    """Returns the requests of each node, in order."""
    found: dict[str, list[LoggedRequest]] = defaultdict(list)
    live: dict[int, tuple[str, int]] = {}
    current = ""
    for node, address, size, is_output in log:
        if node is not None:
            node = current = node or current  # threads of a kernel ask without its name
            live[address] = node, len(found[node])
            found[node].append(LoggedRequest(size, is_output, None))
        elif address in live:
            owner, k = live.pop(address)
            if owner == current:
                found[owner][k] = replace(found[owner][k], until=len(found[owner]))
    return dict(found)


def learn(program: Program, logged: Mapping[str, Sequence[LoggedRequest]]) -> dict[str, Footprint]:
    """Returns the footprints of a program's kernels from the requests that they made in one run:
    by `Node.name`, and by `Node.key` for evaluations that only other plans have.

    Evaluations of one op differ if one of them runs within another kernel. If one evaluation ran in
    place, all of them may.
    """
    found: dict[str, Footprint] = {}
    in_place: dict[str, bool | None] = {}
    executor = _Executor(program)
    kernels = [node for node in program.nodes if node.kind is Kind.KERNEL]
    for node in program.nodes:
        seen = node.expected()
        if node.kind is Kind.KERNEL:
            seen = executor.seen(node, logged.get(node.name, ()))
            before = in_place.get(node.key)
            in_place[node.key] = seen.in_place if before is None else seen.in_place or before
            found[node.name] = seen
            other = found.get(node.key, seen)
            found[node.key] = seen if len(seen.requests) >= len(other.requests) else other
        executor.run(node, seen)
    for node in kernels:
        for name in (node.name, node.key):
            found[name] = replace(found[name], in_place=in_place[node.key])
    return found


class _Executor:
    """Counts the references to buffers while the nodes of a program run."""

    def __init__(self, program: Program):
        self.events: list[tuple[int, int]] = []
        self.buffers: dict[Tensor, int | None] = {}  # None: resident
        self._numbers = count()
        self._sizes: dict[int, int] = {}
        self._more: dict[int, list[int]] = {}  # the other pieces of a list
        self._holders: Counter[int] = Counter()
        self._readers = Counter(tensor for node in program.nodes for tensor in node.reads)
        self._readers.update(program.outputs)

    def run(self, node: Node, footprint: Footprint) -> None:
        """Runs a node that has this footprint."""
        inputs = [self.buffers.get(tensor) for tensor in node.reads]
        if node.kind is Kind.KERNEL:
            self._run_kernel(node, footprint, inputs)
        else:
            viewed = inputs if node.kind is Kind.VIEW else []
            for k in range(len(node.output_bytes)):
                shared = viewed[k if k < len(viewed) else 0] if viewed else None
                self._make((node.name, k), shared)
        for buffer in inputs:
            self._drop(buffer)

    def seen(self, node: Node, logged: Sequence[LoggedRequest]) -> Footprint:
        """Returns the footprint of a node that runs next, from the requests that it made."""
        outputs: dict[int, int] = {}  # request -> output
        for k, size in enumerate(node.output_bytes):
            # Requests that TensorFlow logged as outputs, in order; else one that outlives the
            # kernel, the last of several.
            fitting = [
                (not each.is_output, each.until is not None, j if each.is_output else -j, j)
                for j, each in enumerate(logged)
                if each.bytes == size and j not in outputs
            ]
            if fitting:
                outputs[min(fitting)[-1]] = k
        requests = tuple(
            Request(each.bytes, output=outputs[j])
            if j in outputs
            else Request(each.bytes, until=each.until)
            for j, each in enumerate(logged)
        )
        inputs = [self.buffers.get(tensor) for tensor in node.reads]
        in_place = None
        for k, size in enumerate(node.output_bytes):
            if node.shares and k not in outputs.values():
                in_place = False  # it has the memory of an input, whoever holds that
            elif size and self._readers[node.name, k] and self._host(inputs, size) is not None:
                in_place = in_place or k not in outputs.values()
            elif size and k not in outputs.values() and in_place is None:
                # No request and no buffer to take: another kernel allocates the output, or none.
                in_place = False
        return Footprint(requests, in_place)

    def _run_kernel(self, node: Node, footprint: Footprint, inputs: list[int | None]) -> None:
        asked = {request.output for request in footprint.requests}
        in_place = node.in_place if footprint.in_place is None else footprint.in_place
        placed: dict[int, int | None] = {}
        requests = [*footprint.requests]
        for k, size in enumerate(node.output_bytes):
            if size and in_place and self._readers[node.name, k]:
                host = self._host(inputs, size, placed.values())
                if host is not None:
                    placed[k] = host
            elif size and k not in asked and not in_place:
                # It was a workspace where the op ran without what reads this output.
                alone = [j for j, r in enumerate(requests) if (r.bytes, r.output) == (size, None)]
                if alone:
                    requests[alone[0]] = Request(size, k)
                    asked.add(k)
                else:
                    placed[k] = self._shared(inputs, size) if node.shares else None
        missing = [
            Request(size, k)
            for k, size in enumerate(node.output_bytes)
            if size and k not in asked and k not in placed
        ]
        workspaces: dict[int, int | None] = {}  # buffer -> `Request.until`
        unread: list[int] = []
        for number, request in enumerate([*requests, *missing]):
            for buffer, until in [*workspaces.items()]:
                if until is not None and until <= number:
                    self._release(buffer)
                    del workspaces[buffer]
            if request.output in placed:
                continue
            pieces = ENTRIES if request.output in node.lists else 1
            buffer = self._ask(request.bytes, pieces)
            if request.output is None:
                workspaces[buffer] = request.until
            elif not self._make((node.name, request.output), buffer):
                unread.append(buffer)
        for buffer in (*workspaces, *unread):
            self._release(buffer)
        for k, host in placed.items():
            self._make((node.name, k), host)

    def _host(
        self, inputs: list[int | None], size: int, reused: Iterable[int | None] = ()
    ) -> int | None:
        """The first input of this size that no other node holds and no other output reuses."""
        free = (b for b in inputs if b is not None and self._holders[b] == 1 and b not in reused)
        return next((b for b in free if self._sizes[b] == size), None)

    def _shared(self, inputs: list[int | None], size: int) -> int | None:
        """The largest input, if it can hold an output of this size; None if that is resident."""
        large = [b for b in inputs if b is not None and self._sizes[b] >= size]
        return max(large, key=self._sizes.__getitem__, default=None)

    def _ask(self, size: int, pieces: int = 1) -> int:
        """The buffer of a request, which is the first of several where it has pieces."""
        numbers = [next(self._numbers) for _ in range(min(pieces, size))]
        buffer, self._sizes[numbers[0]] = numbers[0], size
        self._more[buffer] = numbers[1:]
        bounds = [size * k // len(numbers) for k in range(len(numbers) + 1)]
        self.events += [
            (n, end - first) for n, (first, end) in zip(numbers, pairwise(bounds), strict=True)
        ]
        return buffer

    def _make(self, tensor: Tensor, buffer: int | None) -> int:
        """Records the buffer of a tensor, and returns how many nodes will read it."""
        self.buffers[tensor] = buffer
        readers = self._readers[tensor]
        if buffer is not None:
            self._holders[buffer] += readers
        return readers

    def _drop(self, buffer: int | None) -> None:
        """Removes one reference."""
        if buffer is not None:
            self._holders[buffer] -= 1
            if not self._holders[buffer]:
                self._release(buffer)

    def _release(self, buffer: int) -> None:
        self.events += [(each, 0) for each in (buffer, *self._more[buffer])]
