"""AlreadyTraced: a traced function in the place of a function to trace."""

from __future__ import annotations

from typing import Any

from checkmate.errors import TraceError


class AlreadyTraced:
    """A traced function in the place of a function to trace."""

    def __init__(self, concrete: Any, specs: Any):
        self._concrete, self._specs = concrete, specs

    def __call__(self, *args: Any) -> Any:
        """Runs the function."""
        return self._concrete(*args)

    def get_concrete_function(self, *specs: Any) -> Any:
        """The function, for the shapes that it was traced with."""
        if tuple(specs) != tuple(self._specs):
            raise TraceError("This step was traced before, for other shapes.")
        return self._concrete
