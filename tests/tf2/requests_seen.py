"""Bytes that ops request, as the profiler saw them."""

from __future__ import annotations

from checkmate.tf2.memory.profiler import Observation


def most_requested_bytes(seen: Observation) -> int:
    """The peak of the requests of a call's own ops."""
    live: dict[int, int] = {}
    most = 0
    for event in seen.events:
        if event.is_request:
            live[event.address] = event.requested_bytes
            most = max(most, sum(live.values()))
        else:
            live.pop(event.address, None)
    return most
