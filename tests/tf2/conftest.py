"""Fixtures of the tests with TensorFlow."""

import pytest


@pytest.fixture(scope="module")
def alone(tensorflow):
    """What else this process holds is not counted: for tests of numbers, whose budgets are shares
    of what a step takes."""
    from dense import nothing_else

    with pytest.MonkeyPatch.context() as patch:
        nothing_else(patch)
        yield


@pytest.fixture
def optimizer_on(tensorflow):
    """TensorFlow's graph optimizer is on, as it is for users; other tests have it off."""
    options, name = tensorflow.config.optimizer, "disable_meta_optimizer"
    before = options.get_experimental_options().get(name, False)
    options.set_experimental_options({name: False})
    yield
    options.set_experimental_options({name: before})


@pytest.fixture
def machine(tensorflow, monkeypatch):
    """GPUs that are not there."""
    from fake_gpus import Machine

    return Machine(monkeypatch)
