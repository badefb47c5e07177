"""Checkmate for TensorFlow 2 and Keras 3. The only room that imports them."""

from checkmate.tf2.fit import Rematerialize, planned, release, rematerialize
from checkmate.tf2.function import PlannedFunction, function
from checkmate.tf2.step import PlannedStep, compile
from checkmate.tf2.trace import TracedStep, trace
from checkmate.tf2.verify import Verification, verify

__all__ = [
    "PlannedFunction",
    "PlannedStep",
    "Rematerialize",
    "TracedStep",
    "Verification",
    "compile",
    "function",
    "planned",
    "release",
    "rematerialize",
    "trace",
    "verify",
]
