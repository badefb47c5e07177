"""Laws of tiles on all small steps: the same bits, or the same to rounding."""

import pytest
import small_steps
from tiles_oracle import check

pytestmark = pytest.mark.usefixtures("tensorflow")

SMALL = (
    "mean",
    "batch norm",
    "logsumexp of batch",
    "eigenvalues",
    "sort",
    "cut to longest",
    "t[n]",
)
"""Of products that round, statistics, few exponentials, what random numbers are not, places that
show when the step runs, and lengths that do."""


@pytest.mark.parametrize("name", SMALL)
def test_small_steps(name):
    check(small_steps.STEPS[name], (6,), splits=name != "cut to longest")


@pytest.mark.long
@pytest.mark.parametrize("sums", (False, True))
@pytest.mark.parametrize("name", sorted(small_steps.STEPS.keys() - set(SMALL)))
def test_all_small_steps(name, sums):
    check(small_steps.STEPS[name], (2, 6), sums=sums, splits=False)
