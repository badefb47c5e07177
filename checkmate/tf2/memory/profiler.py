"""A step under TensorFlow's profiler: every op that ran, and every byte that the allocator gave out
and took back.

`get_memory_info` gives one number. The profiler's events say which op asked for how much, how much
larger its chunk was, and what was in memory together at the peak.

The events are a public file format (XPlane), whose protocol buffer TensorFlow ships as
`tensorflow.tsl.profiler.protobuf.xplane_pb2`, which is not part of its public API. `observe`
refuses where that or the events are missing.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from checkmate.errors import CheckmateError
from checkmate.tf2 import device as devices
from checkmate.unlogged import unlogged


class AllocatorEvent(NamedTuple):
    """A request to the allocator, or the release of a chunk.

    Attributes:
      op: The op of a request, by its name in the graph that ran; "" where the profiler does not
        know, and for a release.
      chunk_bytes: The request rounded up, and up to twice as much where a free chunk was not worth
        splitting.
      in_use_bytes: From then on, by the allocator's own count.
      available_bytes: The allocator's limit less these.
      region_type: "output", "temp", "persist"; "" where the profiler does not know.
    """

    picoseconds: int
    is_request: bool
    op: str
    address: int
    requested_bytes: int
    chunk_bytes: int
    in_use_bytes: int
    available_bytes: int
    limit_bytes: int
    region_type: str


@dataclass(frozen=True, slots=True)
class Observation:
    """One call as the profiler saw it.

    Attributes:
      ran: (op name, kernel) -> the number of evaluations.
      asked: Op name -> its largest request.
      lost_bytes: Bytes that the allocator gave out beyond what the call's own ops requested, at the
        peak of its count.
    """

    result: Any = field(repr=False)
    ran: Counter[tuple[str, str]] = field(repr=False)
    asked: dict[str, int] = field(repr=False)
    lost_bytes: int
    events: tuple[AllocatorEvent, ...] = field(repr=False)

    @property
    def in_use(self) -> tuple[tuple[float, int], ...]:
        """(seconds since the first event, bytes in use from then on), by the allocator's count."""
        return tuple(
            ((each.picoseconds - self.events[0].picoseconds) / 1e12, each.in_use_bytes)
            for each in self.events
        )


def observe(call: Callable[[], Any]) -> Observation:
    """Runs `call` under TensorFlow's profiler, which slows it down somewhat. Raises
    `CheckmateError` where another profile is being taken, or where this TensorFlow's is not
    understood."""
    result, planes = _profiled(call)
    ran: Counter[tuple[str, str]] = Counter()
    events: list[AllocatorEvent] = []
    allocator = devices.allocator_name(devices.training_device())
    for plane in planes:
        names = {key: each.name for key, each in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                name = names[event.metadata_id]
                if name in ("MemoryAllocation", "MemoryDeallocation"):
                    found = _statistics(plane, event)
                    time = line.timestamp_ns * 1000 + event.offset_ps
                    if allocator in found.get("allocator_name", ""):
                        events.append(_allocator_event(time, name == "MemoryAllocation", found))
                elif name.count(":") == 1:
                    op, kernel = name.split(":")
                    ran[op, kernel] += 1
    events.sort(key=lambda each: each.picoseconds)
    return Observation(result, ran, *_requests(events), tuple(events))


def _profiled(call: Callable[[], Any]) -> tuple[Any, list[Any]]:
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError as error:
        raise CheckmateError(
            f"TensorFlow {tf.__version__} does not ship the XPlane format where it is known to be;"
            f" verify needs it. {error}"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        # What the host sees is enough: every op (level 3) and what the allocators of all devices
        # do. To have GPUs trace, too, would start and stop CUPTI each time. TensorFlow 2.21 does
        # not heed these options, and traces at its default level, 2: see `kernels_are_traced`.
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=3, python_tracer_level=0, device_tracer_level=0
        )
        try:
            with unlogged(2, LOGGED):
                tf.profiler.experimental.start(folder, options=options)
        except tf.errors.AlreadyExistsError as error:
            raise CheckmateError(
                "TensorFlow's profiler is in use already. Stop it first."
            ) from error
        try:
            result = call()
            devices.synchronize()
        finally:
            with unlogged(2, LOGGED):
                tf.profiler.experimental.stop()
        space = xplane_pb2.XSpace()
        for path in Path(folder).rglob("*.xplane.pb"):
            space.MergeFromString(path.read_bytes())
    host = [plane for plane in space.planes if plane.name == "/host:CPU"]
    if not host:
        raise CheckmateError(
            f"The profiler of TensorFlow {tf.__version__} saw nothing on the host; verify needs"
            " what it sees."
        )
    return result, host


LOGGED = (b"session_manager.cc", b"profiler_session.cc", b"save_profile.cc", b"InitializeLog()")
"""In the lines that TensorFlow writes to standard error for each profile, some nine."""


def _requests(events: list[AllocatorEvent]) -> tuple[dict[str, int], int]:
    """Each op's largest request, and the bytes that were lost at the peak."""
    lost: dict[int, int] = {}
    asked: dict[str, int] = {}
    peak = lost_bytes = 0
    for event in events:
        if not event.is_request:
            lost.pop(event.address, None)
            continue
        lost[event.address] = event.chunk_bytes - event.requested_bytes
        asked[event.op] = max(asked.get(event.op, 0), event.requested_bytes)
        if event.in_use_bytes > peak:
            peak, lost_bytes = event.in_use_bytes, sum(lost.values())
    return asked, lost_bytes


def _allocator_event(picoseconds: int, is_request: bool, found: dict[str, Any]) -> AllocatorEvent:
    return AllocatorEvent(
        picoseconds,
        is_request,
        op=str(found.get("tf_op", "")),
        address=found["addr"],
        requested_bytes=found["requested_bytes"],
        chunk_bytes=found["allocation_bytes"],
        in_use_bytes=found["bytes_allocated"],
        available_bytes=found["bytes_available"],
        limit_bytes=sum(found[f"bytes_{part}"] for part in ("available", "reserved", "allocated")),
        region_type=str(found.get("region_type", "")),
    )


def _statistics(plane: Any, event: Any) -> dict[str, Any]:
    found = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind)
        found[plane.stat_metadata[stat.metadata_id].name] = (
            plane.stat_metadata[value].name if kind == "ref_value" else value
        )
    return found
