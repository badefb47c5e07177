"""Measurement: what an op takes."""

from __future__ import annotations

from dataclasses import dataclass

from checkmate.core.footprint import Footprint


@dataclass(frozen=True, slots=True)
class Measurement:
    """What an op takes.

    Attributes:
      seconds: Of one evaluation.
      workspace_bytes: In use while it runs, besides its inputs and its value.
      in_place: The deps whose memory its value takes over.
      footprints: Of the TensorFlow ops of its group, in order, None for each that was not seen;
        empty where none was.
    """

    seconds: float
    workspace_bytes: int
    in_place: tuple[int, ...] = ()
    footprints: tuple[Footprint | None, ...] = ()
