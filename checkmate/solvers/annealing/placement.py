"""Where annealing may place evaluations."""

from __future__ import annotations

IN_STAGES, REPEATS_ANYWHERE, IN_ANY_ORDER = range(3)
"""Where the move set may place evaluations.

IN_STAGES: recomputations stand in stage form (see `StagePlan`), as those of the start must.
REPEATS_ANYWHERE: recomputations stand anywhere. IN_ANY_ORDER: first evaluations move, too.
"""
