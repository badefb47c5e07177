"""StoredSlices: what the file of a plan says of the slices that it is for."""

from __future__ import annotations

import os
from dataclasses import dataclass

from checkmate.core.files import read_plan
from checkmate.errors import PlanFileError


@dataclass(frozen=True, slots=True)
class StoredSlices:
    """The slices of a batch that the plan of a file is for.

    Attributes:
      size: How many examples a slice has.
      plain_bytes: What the step on the whole batch takes itself.
    """

    size: int
    plain_bytes: int

    def __post_init__(self) -> None:
        if not all(type(each) is int and each > 0 for each in (self.size, self.plain_bytes)):
            raise ValueError("its slices are not whole numbers of examples and bytes")


def slices_of(path: str | os.PathLike) -> StoredSlices | None:
    """Returns the slices that the plan of a file is for; None where it is for a whole batch.

    Raises:
      PlanFileError: The file cannot be read, or holds no plan.
    """
    found = read_plan(path).get("slices")
    try:
        return None if found is None else StoredSlices(**found)
    except (TypeError, ValueError) as error:
        raise PlanFileError(
            f"{path} is no file of a planned step: {type(error).__name__} {error}. Make the plan"
            " again."
        ) from error
