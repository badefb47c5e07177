"""Measurement: what an op takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    """What an op takes.

    Attributes:
      seconds: Of one evaluation.
      workspace_bytes: In use while it runs, besides its inputs and its value.
      in_place: The deps whose memory its value takes over.
    """

    seconds: float
    workspace_bytes: int
    in_place: tuple[int, ...] = ()
