"""Pictures of graphs and plans, without TensorFlow: memory over a step, what a plan changes, and
its cost."""

from checkmate.plot.bars import batch_sizes, layers
from checkmate.plot.curves import Point, budget_curve, online_curve
from checkmate.plot.matrices import matrices
from checkmate.plot.memory import measured, memory
from checkmate.plot.page import page
from checkmate.plot.picture import Picture
from checkmate.plot.usage import Allocated

__all__ = [
    "Allocated",
    "Picture",
    "Point",
    "batch_sizes",
    "budget_curve",
    "layers",
    "matrices",
    "measured",
    "memory",
    "online_curve",
    "page",
]
