"""Checkmate for TensorFlow 2 and Keras 3. The only room that imports them."""

from checkmate.tf2.step import PlannedStep, compile
from checkmate.tf2.trace import TracedStep, trace

__all__ = ["PlannedStep", "TracedStep", "compile", "trace"]
