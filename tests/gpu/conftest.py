"""What the tests on a GPU share. Without one they are skipped, and say why."""

import pytest


@pytest.fixture(scope="session")
def gpu(tensorflow):
    """TensorFlow with a GPU, on which it trains."""
    if not tensorflow.config.list_physical_devices("GPU"):
        pytest.skip("TensorFlow sees no GPU here")
    return tensorflow
