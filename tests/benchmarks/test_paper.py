"""The paper's tables: graphs are those of the paper, batches the largest, ratios those of plans."""

from dataclasses import replace

import pytest

from benchmarks import paper_batches
from benchmarks.paper_batches import largest, most_that
from benchmarks.problems import chain
from checkmate import CheckmateError, Plan, floor, replay, solve

GB = 10**9


@pytest.fixture
def branched(tensorflow):
    """A model in which one output is read twice."""
    import keras

    x = inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, name="conv")(x)
    y = keras.layers.ReLU(name="relu")(x)
    x = keras.layers.Add(name="add")([x, y])
    x = keras.layers.GlobalAveragePooling2D(name="mean")(x)
    return keras.Model(inputs, keras.layers.Dense(2, name="dense")(x), name="branched")


def test_layer_graph_is_the_papers(branched):
    from benchmarks.layer_graph import layer_graph

    graph = layer_graph(branched)
    names = ["conv", "relu", "add", "mean", "dense"]
    assert [op.name for op in graph.ops] == [*names, "loss", *(f"d_{n}" for n in reversed(names))]
    reads = {op.name: {graph.ops[d].name for d in op.deps} for op in graph.ops}
    assert reads["conv"] == set()
    assert reads["add"] == {"conv", "relu"}
    assert reads["loss"] == {"dense"}
    assert reads["d_dense"] == {"dense", "loss"}
    assert reads["d_conv"] == {"conv", "relu", "add", "d_relu", "d_add"}
    cost, size = (
        {op.name: getattr(op, key) for op in graph.ops} for key in ("cost", "output_bytes")
    )
    assert cost["conv"] == 6 * 6 * 4 * (3 * 3 * 3)
    assert cost["d_conv"] == 2 * cost["conv"]
    assert cost["add"] == 2 * 6 * 6 * 4
    assert (cost["mean"], cost["dense"]) == (0, 4 * 2)
    assert size["conv"] == size["d_conv"] == 4 * 6 * 6 * 4
    assert graph.fixed_bytes == 2 * 4 * branched.count_params()
    assert [op.is_backward for op in graph.ops] == [False] * 5 + [True] * 6


@pytest.mark.parametrize(
    ("name", "size", "options", "pixels"),
    [
        ("unet", (32, 48), {}, 16 * 24),
        ("segnet", (32, 48), {}, 16 * 24),
        ("fcn8", (64, 96), {"width": 8}, 72 * 104),
    ],
)
def test_segmentation_networks_say_what_they_see_in_each_pixel(
    name, size, options, pixels, tensorflow
):
    from benchmarks import paper_models

    model = getattr(paper_models, name)(size, 5, **options)
    assert model.output_shape == (None, pixels, 5)
    prediction = model(tensorflow.ones((1, *size, 3)))
    assert tensorflow.reduce_sum(prediction, -1).numpy() == pytest.approx(1, abs=1e-5)


def test_unknown_networks_are_refused_with_the_known_ones(tensorflow):
    from benchmarks.paper_models import build

    with pytest.raises(CheckmateError, match="vgg19"):
        build("lenet")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "published"), [("vgg19", 289.0), ("unet", 61.3), ("fcn8", 59.6), ("segnet", 61.6)]
)
def test_floors_of_the_paper_graphs_are_the_published_batches(name, published, tensorflow):
    """What the paper prints, rounded, is the batch at which one gradient with what it reads fills
    16 GB: so graph, sizes and resident bytes are the paper's."""
    from benchmarks.layer_graph import for_batch, layer_graph
    from benchmarks.paper_models import build

    example = layer_graph(build(name))
    tenths = most_that(lambda number: floor(for_batch(example, number / 10)).bytes <= 16 * GB)
    assert tenths / 10 == published
    assert round(tenths / 10) == paper_batches.PUBLISHED[name]


def grown(number):
    """A chain whose sizes grow with a number."""
    ops = (replace(op, output_bytes=number) for op in chain(5).ops)
    return replace(chain(5), ops=tuple(ops))


def test_largest_is_what_exact_search_says():
    """One more forward pass is enough for some numbers above the plain one, and not for those that
    only the floor allows."""
    budget = 60
    found = largest(grown, budget, time_limit_s=10)

    def cheap(number):
        result = solve(grown(number), budget, solver="state_space", throw=False)
        forward = sum(not op.is_backward for op in result.graph.ops)
        return result.cost is not None and result.cost <= result.graph.total_cost + forward

    assert found.plain < found.planned
    assert cheap(found.planned)
    assert not cheap(found.planned + 1)
    assert found.at_most == found.planned
    assert floor(grown(found.planned + 1)).bytes <= budget


def test_traced_graphs_are_those_of_the_step(branched):
    """The graph at a batch has the batch's sizes: the largest plain batch is one that fits."""
    at = paper_batches.traced_graphs(branched)
    budget = at(0).fixed_bytes + 2**20
    found = largest(at, budget, time_limit_s=5, tolerance=0.05)
    assert 0 < found.plain <= found.planned <= found.at_most
    peaks = [
        replay(at(batch), Plan.keep_all(at(batch))).peak_bytes
        for batch in (found.plain, found.plain + 1)
    ]
    assert peaks[0] <= budget < peaks[1]
