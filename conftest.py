"""For every test: `tests/` is on the path, so that tests find `strategies` and `oracles`; and Hypothesis repeats itself.

The same examples on every run: a test that fails, fails again. A loaded machine is no reason to fail.
"""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

for folder in ("tests/solvers", "tests"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
settings.register_profile(
    "checkmate", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("checkmate")
