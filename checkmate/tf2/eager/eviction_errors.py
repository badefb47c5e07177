"""What the policy raises when the budget cannot be kept. Keras's layers pass these errors on
unchanged, with their figures."""

from __future__ import annotations

from collections.abc import Iterable

from checkmate.errors import EvictionError, ThrashingError
from checkmate.tf2.eager.private_api import passing_through_keras
from checkmate.tf2.eager.storage import EagerStorage
from checkmate.units import format_bytes


def does_not_fit(
    name: str, in_use: int, needed: int, budget_bytes: float, live: Iterable[EagerStorage]
) -> EvictionError:
    """An op needs more than can be evicted.

    Args:
      name: The op's type.
      in_use: Bytes in use, none of which can be evicted.
      needed: Bytes that the op needs.
      live: All storages; the error lists those that are locked.
    """
    locked = sorted(
        (storage for storage in live if storage.locks and storage.material),
        key=lambda storage: -storage.bytes,
    )
    listed = ", ".join(
        f"{storage.tensors[0].call.name} {format_bytes(storage.bytes)}" for storage in locked[:5]
    )
    inputs = sum(storage.bytes for storage in locked)
    error = EvictionError(
        f"{name!r} needs {format_bytes(needed)} in addition to {format_bytes(in_use)} that cannot"
        f" be evicted: together {format_bytes(in_use + needed)},"
        f" {format_bytes(in_use + needed - budget_bytes)} more than the budget of"
        f" {format_bytes(budget_bytes)}. Of it, {format_bytes(inputs)} are inputs of running ops"
        + (f" ({listed}{', ...' if len(locked) > 5 else ''})" if locked else "")
        + f", {format_bytes(max(0, in_use - inputs))} are variables, data and other tensors that"
        f" cannot be recomputed. The budget must be at least {format_bytes(in_use + needed)}; or"
        " make the batch smaller.",
        budget_bytes=budget_bytes,
        needed_bytes=in_use + needed,
    )
    return passing_through_keras(error)


def went_over(over: float, budget_bytes: float, why: str) -> EvictionError:
    """Memory was `over` bytes above the budget."""
    error = EvictionError(
        f"Memory went {format_bytes(over)} above the budget of {format_bytes(budget_bytes)}: {why}."
        f" The budget must be at least {format_bytes(budget_bytes + over)} for what ran so far;"
        " strict=False goes on, and `stats.overshoots` counts.",
        budget_bytes=budget_bytes,
        needed_bytes=int(budget_bytes + over),
    )
    return passing_through_keras(error)


def thrashing(
    ratio: float, overhead_limit: float, budget_bytes: float, demand_bytes: int
) -> EvictionError:
    """Recomputation has cost `ratio` times what ran first; `demand_bytes` would have been in use
    without eviction."""
    error = ThrashingError(
        f"Recomputation has cost {ratio:.1f} times what ran first, more than the overhead limit of"
        f" {overhead_limit:g} allows, within {format_bytes(budget_bytes)}. With"
        f" {format_bytes(demand_bytes)} nothing would have been recomputed so far; the smallest"
        " budget that works is between the two. Try"
        f" {format_bytes((budget_bytes + demand_bytes) / 2)}, or raise the overhead limit.",
        budget_bytes=budget_bytes,
        enough_bytes=demand_bytes,
    )
    return passing_through_keras(error)
