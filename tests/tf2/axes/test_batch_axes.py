"""The step in slices, as `batch_axes` says, against the step on the whole batch: every value."""

import pytest


@pytest.fixture(scope="module")
def programs(tensorflow):
    import programs

    return programs


NAMES = (
    *("perceptron", "convolutional", "dilated", "recurrent", "transformer", "embedding", "unet"),
    *("subpixels", "weighted", "regularized", "gradient_penalty", "two_batches_at_once"),
    *("experts", "graph_network"),
)


@pytest.mark.parametrize("name", NAMES)
def test_every_value_of_the_whole_follows_from_the_slices(programs, name):
    from oracle import in_slices

    with programs.double():
        step, batch = getattr(programs, name)()
        found = in_slices(step, batch, 2)
    assert not found.errors
    assert found.compared > 30
    assert found.axes.in_each_slice and found.axes.whole_ops and found.axes.handed_on
