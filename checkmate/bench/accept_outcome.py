"""What a line of `checkmate bench accept` answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STEPS = 20
"""Training steps of each kind; the losses of all are compared."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a line found.

    Attributes:
      passed: Whether it is as it should be.
      figures: By name; those in bytes end in _bytes, those in seconds in _s.
      details: Text for the file of results only, such as a report.
    """

    passed: bool
    figures: dict[str, Any] = field(default_factory=dict)
    details: str = ""


class NotRunError(Exception):
    """This machine cannot run the line; the message says why, as a clause."""
