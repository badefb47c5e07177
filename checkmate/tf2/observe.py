"""What TensorFlow's profiler sees while a step runs: every op that ran, and every byte that the allocator gave out and took back.

`get_memory_info` tells one number. The profiler's events tell which op asked for how much, how much larger the chunk was that it was
given, and what was in memory together at the peak.

Behind a fence: the events are a public file format (XPlane), whose protocol buffer TensorFlow ships as
`tensorflow.tsl.profiler.protobuf.xplane_pb2`, without a promise. `observe` refuses where that or the events are missing.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from checkmate.errors import CheckmateError
from checkmate.tf2 import device as devices


@dataclass(frozen=True, slots=True)
class Allocation:
    """A tensor's memory as the allocator gave it out.

    Attributes:
      op: The op that asked, by the name it has in the graph that ran.
      requested_bytes: What it asked for.
      chunk_bytes: What it was given: rounded up, and up to twice as much where a free chunk was not worth splitting.
    """

    op: str
    requested_bytes: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class Observation:
    """One call as the profiler saw it.

    Attributes:
      result: What the call returned.
      ran: (op name, kernel) -> how often it ran.
      peak_bytes: The most bytes in use at any moment, by the allocator's own count, what was in use before included.
      most_requested_bytes: The most that the call's own ops had asked for at once, without what the allocator adds.
      at_peak: What the call itself had in memory at that moment, the largest first.
      asked: Op name -> the most bytes that it asked the allocator for at a time.
      in_use: (seconds since the first of them, bytes in use from then on) for each time the allocator gave out or took back, by its own count.
    """

    result: Any = field(repr=False)
    ran: Counter[tuple[str, str]] = field(repr=False)
    peak_bytes: int
    most_requested_bytes: int
    at_peak: tuple[Allocation, ...] = field(repr=False)
    asked: dict[str, int] = field(repr=False)
    in_use: tuple[tuple[float, int], ...] = field(repr=False)

    @property
    def requested_bytes(self) -> int:
        """What the call's ops had asked for of what was in use at the peak."""
        return sum(each.requested_bytes for each in self.at_peak)

    @property
    def lost_bytes(self) -> int:
        """What the allocator had given out beyond that at the peak."""
        return sum(each.chunk_bytes - each.requested_bytes for each in self.at_peak)


def observe(call: Callable[[], Any]) -> Observation:
    """Runs `call` under TensorFlow's profiler, which slows it down somewhat.

    Raises:
      CheckmateError: Another profile is being taken, or this TensorFlow's profiler says nothing that is understood here.
    """
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError as error:
        raise CheckmateError(
            f"TensorFlow {tf.__version__} does not ship the XPlane format where it is known to be; verify needs it. {error}"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, python_tracer_level=0)
        try:
            tf.profiler.experimental.start(folder, options=options)
        except tf.errors.AlreadyExistsError as error:
            raise CheckmateError("TensorFlow's profiler is in use already. Stop it first.") from error
        try:
            result = call()
            devices.synchronize()
        finally:
            tf.profiler.experimental.stop()
        space = xplane_pb2.XSpace()
        for path in Path(folder).rglob("*.xplane.pb"):
            space.MergeFromString(path.read_bytes())
    host = [plane for plane in space.planes if plane.name == "/host:CPU"]
    if not host:
        raise CheckmateError(f"The profiler of TensorFlow {tf.__version__} saw nothing on the host; verify needs what it sees.")
    ran: Counter[tuple[str, str]] = Counter()
    memory: list[tuple[int, str, dict[str, Any]]] = []
    for plane in host:
        names = {key: each.name for key, each in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                name = names[event.metadata_id]
                if name in ("MemoryAllocation", "MemoryDeallocation"):
                    memory.append((line.timestamp_ns * 1000 + event.offset_ps, name, _statistics(plane, event)))
                elif name.count(":") == 1:
                    op, kernel = name.split(":")
                    ran[op, kernel] += 1
    allocator = devices.allocator_name(devices.training_device())
    ours = sorted((event for event in memory if allocator in event[2].get("allocator_name", "")), key=lambda event: event[0])
    in_use = tuple(((at - ours[0][0]) / 1e12, found["bytes_allocated"]) for at, _, found in ours)
    return Observation(result, ran, *_peak(ours), in_use)


def _peak(memory: list[tuple[int, str, dict[str, Any]]]) -> tuple[int, int, tuple[Allocation, ...], dict[str, int]]:
    live: dict[int, Allocation] = {}
    asked: dict[str, int] = {}
    peak, at_peak = 0, {}
    requested = most_requested = 0
    for _, name, found in memory:
        if name == "MemoryDeallocation":
            if found["addr"] in live:
                requested -= live.pop(found["addr"]).requested_bytes
            continue
        given = live[found["addr"]] = Allocation(str(found.get("tf_op", "")), found["requested_bytes"], found["allocation_bytes"])
        asked[given.op] = max(asked.get(given.op, 0), given.requested_bytes)
        requested += found["requested_bytes"]
        most_requested = max(most_requested, requested)
        if found["bytes_allocated"] > peak:
            peak, at_peak = found["bytes_allocated"], dict(live)
    return peak, most_requested, tuple(sorted(at_peak.values(), key=lambda each: -each.chunk_bytes)), asked


def _statistics(plane: Any, event: Any) -> dict[str, Any]:
    found = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind)
        found[plane.stat_metadata[stat.metadata_id].name] = plane.stat_metadata[value].name if kind == "ref_value" else value
    return found
