"""Tile: the batch in slices, each a copy of the step's ops on a part of the examples, with one
update of the optimizer after all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2.axes.batch_axes import BatchAxes, batch_axes
from checkmate.tf2.graph.trace import TracedStep, analyse
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.rewrites.parts import Parts
from checkmate.tf2.rewrites.slices import Slices
from checkmate.tf2.rewrites.step import Applied, Equal, InSlices, Piece, Step


@dataclass(slots=True, eq=False)
class Tile:
    """The batch in slices of `site` examples each, the last of which may have fewer.

    The numbers are those of the step, up to the order of sums (`tf2.axes`). A step that computes
    across the examples is refused.

    Args:
      scratch: The memory in which slices leave what they hand on; memory of its own by default.
      device: Where; by default the device that trains.

    Examples:
      >>> traced = checkmate.tf2.trace(train_step, images, labels)
      >>> sliced = Tile().apply(Step.of(train_step, (images, labels), traced), 1024)
      >>> [piece.times for piece in sliced.pieces], sliced.equal.name
      ([8, 1], 'ROUNDING')
    """

    scratch: Scratch = field(default_factory=Scratch)
    device: str | None = None
    name: str = "tile"
    promise: Equal = Equal.DRAWS
    _of: TracedStep | None = None
    _axes: BatchAxes | None = None
    _parts: Parts | None = None
    _once: tuple[Any, TracedStep] | None = None

    def sites(self, step: Step) -> Iterator[int]:
        """Yields half of the batch, a quarter, and so on, down to two examples."""
        if not step.record:
            yield from (slices.size for slices in Slices.halved(step.examples))

    def axes(self, step: Step) -> BatchAxes:
        """Which of the step's values belong to single examples."""
        if self._axes is None or self._of is not step.traced:
            self._of, self._axes = step.traced, batch_axes(step.traced, step.examples)
            self.release()
        return self._axes

    def apply(self, step: Step, site: int) -> Step:
        """The step in slices of `site` examples."""
        axes, traced, name = self.axes(step), step.traced, step.traced.graph.name
        if axes.binding is not None:
            raise TraceError(axes.binding.sentence)
        if self._parts is None or self._once is None:
            self._parts = Parts(traced, axes, step.examples, self.scratch, self.device)
            self._once = self._parts.before(), self._after(self._parts, name)
        parts, (before, after) = self._parts, self._once
        slices = Slices(step.examples, site)
        each = {
            size: analyse(parts.each(size, site), name=f"{name} in {slices.count} micro-batches")
            for size in slices.sizes
        }
        early = tuple(tf.nest.flatten(before.structured_outputs))
        in_slices = InSlices(slices, before, each, after, early, parts.kept.variables)
        others = axes.other_draws
        return rewritten(
            step,
            in_slices,
            Applied(self.name, site),
            Equal.DRAWS if others else Equal.ROUNDING,
            _notes(others),
        )

    def _after(self, parts: Parts, name: str) -> TracedStep:
        try:
            return analyse(parts.after(), name=f"the update of {name}")
        except TraceError as error:
            raise TraceError(
                f"After the slices, {name!r} only writes what they have made, and there is nothing"
                " to plan in that. Return a value that it computes, such as the loss."
            ) from error

    def release(self) -> None:
        """Frees the functions that were made."""
        self._parts = self._once = None


def rewritten(
    step: Step, in_slices: InSlices, applied: Applied, equal: Equal, notes: tuple[str, ...]
) -> Step:
    """The step in slices."""
    times = in_slices.slices.sizes
    pieces = [Piece(traced, times[size]) for size, traced in in_slices.each.items()]
    return replace(
        step,
        pieces=(*pieces, Piece(in_slices.after, 1)),
        record=(*step.record, applied),
        equal=min(step.equal, equal),
        in_slices=in_slices,
        notes=(*step.notes, *notes),
    )


def _notes(others: Sequence[str]) -> tuple[str, ...]:
    if not others:
        return ()
    more = f" and {len(others) - 1} more ops" if len(others) > 1 else ""
    return (
        f"The random numbers of {others[0]!r}{more} are drawn for each slice: they are not those"
        " that the step on the whole batch draws.",
    )
