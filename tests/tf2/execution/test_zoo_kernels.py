"""Every op of every model of the zoo has a kernel that runs on a GPU, and few of them have the host
wait for the GPU in the middle of the step, but where plain TensorFlow does."""

import gc
import logging

import keras
import kernels
import pytest
import virtual_gpu

import checkmate
from benchmarks import zoo
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph import grappler
from checkmate.tf2.graph.operations import is_constant

ON_THE_HOST = {
    "ScatterNd": "of truth values, for the message of an assertion that failed",
    "PyFunc": "Python",
    "RaggedTensorToTensor": "preprocessing of text, which is before the model",
    "StringLower": "text",
    "StaticRegexReplace": "text",
    "StringSplitV2": "text",
    "LookupTableFindV2": "text",
    "Equal": "of text",
    "Const": "of text",
}
"""Op types of which an op may have no kernel for GPUs, and why."""

FETCHING = {
    "If": "conditions choose on the host",
    "StatelessIf": "conditions choose on the host",
    "StatelessRandomGetKeyCounter": "seeds of nets so small that seeds are planned, too",
    "Reshape": "kernels for 32-bit integers, which GPUs keep on the host",
    "ExpandDims": "the same",
    "AddV2": "the same",
    "Equal": "the same",
    "Less": "the same",
    "GreaterEqual": "the same",
    "Maximum": "the same",
    "Pack": "the same",
    "StridedSlice": "the same",
    "Sub": "the same",
    "Sum": "the same",
    "TensorListSetItem": "indices and sizes of lists",
    "TensorListGetItem": "the same",
    "TensorListReserve": "the same",
}
"""Op types of which an op may fetch numbers from the GPU after the first planned op, and why. The
plain step does the same."""

NEVER_FETCHING = ("unet", "vit", "diffusion_unet", "resnet50", "efficientnetb0", "mobilenetv3small")


@pytest.fixture(autouse=True)
def as_on_a_gpu(optimizer_on, monkeypatch):
    kernels.needs_a_build_for_gpus()
    monkeypatch.setattr(grappler, "training_device", virtual_gpu.device)


LEFT_OUT = ("nasnetmobile",)
"""To trace and write it takes minutes."""

ASKED_BY_CI = (
    *("attention_lstm", "branching", "conv3d", "decoder", "diffusion_unet", "experts", "fourier"),
    *("gan", "linear_algebra", "loops", "mixed_float16", "mobilenetv3small", "normalizations"),
    *("speech", "stateful_rnn", "text", "unet", "vit"),
)
"""Models of few ops each, which have nearly all types of ops between them."""


def models():
    for name in sorted(set(zoo.models()) - {*LEFT_OUT}):
        mark = pytest.mark.slow if name in ASKED_BY_CI else pytest.mark.long
        yield pytest.param(name, marks=mark)


@pytest.mark.parametrize("name", models())
def test_a_gpu_has_the_kernels(name, tensorflow, caplog):
    with caplog.at_level(logging.WARNING, logger="checkmate"):
        step, batch = zoo.training(name)
        traced = checkmate.tf2.trace(tensorflow.function(step), *batch)
    assert "cannot be used" not in caplog.text
    run = Replayed(traced, traced.plain_plan())
    bodies = [body.graph for body in run.written.writer._bodies.values() if body]
    in_bodies = [operation for graph in bodies for operation in graph.get_operations()]
    operations = run.function.graph.get_operations()
    without = {o.type for o in (*operations, *in_bodies) if kernels.gpu_kernel(o) is None}
    assert without <= {*ON_THE_HOST}
    fetching = {o.type for o in (*kernels.after_planned_ops(operations), *in_bodies) if fetches(o)}
    assert fetching <= {*FETCHING, *ON_THE_HOST}
    assert not fetching or name not in NEVER_FETCHING
    keras.backend.clear_session()
    gc.collect()


def fetches(operation):
    """True for an op that fetches what is not known before the step."""
    return any(not is_constant(tensor.op) for tensor in kernels.fetched(operation))
