"""Where the program is, in seconds of what its ops cost when they first ran."""

from __future__ import annotations


class Position:
    """The place of the program. A backward pass goes back through the program, since tapes read
    last what was made first.

    Attributes:
      first_cost: What the program's ops cost, without recomputation.
      place: Where the program is. In a backward pass that no tape records it is where the op first
        ran whose gradient is next, so that what lies far from it will be read late.
      pass_began: The place at which the last backward pass was over.
      returning: A backward pass that no tape records is running.
      gradients: How many tapes are being asked for gradients, one inside of another.
    """

    __slots__ = ("first_cost", "gradients", "pass_began", "place", "returning")

    def __init__(self) -> None:
        self.first_cost = self.place = self.pass_began = 0.0
        self.returning, self.gradients = False, 0

    def advance(self, cost: float) -> None:
        """An op of the program ran for the first time."""
        self.first_cost += cost
        if not self.returning:
            self.place = self.first_cost

    def begin_gradients(self, *, recorded: bool) -> bool:
        """A tape is asked for gradients. Returns whether this begins a pass that goes back."""
        self.gradients += 1
        begins = not self.returning and not recorded
        self.returning = self.returning or begins
        return begins

    def end_gradients(self, *, began: bool) -> None:
        """A tape has been asked for gradients; `began` is what `begin_gradients` returned."""
        self.gradients -= 1
        if began:
            self.returning = False
            self.place = self.pass_began = self.first_cost
