"""Shared by all tests. That this file is here also puts `tests/` on the path, so that tests can import `strategies` and `oracles`."""

from hypothesis import HealthCheck, settings

# The same examples on every run: a test that fails, fails again. A loaded machine is no reason to fail.
settings.register_profile("checkmate", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.load_profile("checkmate")
