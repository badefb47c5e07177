"""Pictures of graphs and plans, without TensorFlow: what memory does, what a plan changes, and what it costs."""

from checkmate.plot.bars import batch_sizes, layers
from checkmate.plot.curves import Point, budget_curve
from checkmate.plot.matrices import matrices
from checkmate.plot.memory import memory
from checkmate.plot.page import page
from checkmate.plot.picture import Picture

__all__ = ["Picture", "Point", "batch_sizes", "budget_curve", "layers", "matrices", "memory", "page"]
