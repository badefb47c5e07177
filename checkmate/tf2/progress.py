"""Progress, where `planning.py` looks for it."""

from checkmate.progress import Progress

__all__ = ["Progress"]
