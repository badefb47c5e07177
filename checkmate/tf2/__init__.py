"""Checkmate for TensorFlow 2 and Keras 3. Only this folder imports them."""

import difflib
from typing import TYPE_CHECKING

from checkmate.tf2.compile import PlannedStep, compile
from checkmate.tf2.execution.differences import Verification
from checkmate.tf2.fit import Rematerialize, planned, release, rematerialize
from checkmate.tf2.fits import Fits, fits
from checkmate.tf2.function import function
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.max_batch import MaxBatch, max_batch
from checkmate.tf2.max_length import MaxLength, max_length
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.out_of_memory import ExplainOutOfMemory, OutOfMemoryReport
from checkmate.tf2.planned_function import PlannedFunction
from checkmate.tf2.tensorboard import TensorBoardScalars
from checkmate.tf2.verify import verify

if TYPE_CHECKING:
    from checkmate.tf2.eager.context import dtr

__all__ = [
    "ExplainOutOfMemory",
    "Fits",
    "MaxBatch",
    "MaxLength",
    "OutOfMemoryReport",
    "PlanOptions",
    "PlannedFunction",
    "PlannedStep",
    "Rematerialize",
    "TensorBoardScalars",
    "TracedStep",
    "Verification",
    "compile",
    "dtr",
    "fits",
    "function",
    "max_batch",
    "max_length",
    "planned",
    "release",
    "rematerialize",
    "trace",
    "verify",
]


def __getattr__(name: str):
    # `dtr` uses private parts of TensorFlow. Where they are not as expected, only `dtr` must fail.
    if name == "dtr":
        from checkmate.tf2.eager.context import dtr

        return dtr
    close = difflib.get_close_matches(name, __all__, n=1)
    hint = f". Did you mean checkmate.tf2.{close[0]}?" if close else ""
    raise AttributeError(f"module 'checkmate.tf2' has no attribute {name!r}{hint}")
