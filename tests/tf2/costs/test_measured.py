"""Cost models: what ops cost and need while they run, how it is measured, and where it is kept."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from requests_seen import most_requested_bytes
from tracing import VALUE_BYTES, N, op_of, traced

from checkmate.core.footprint import Footprint, Request
from checkmate.tf2 import device as devices
from checkmate.tf2 import trace
from checkmate.tf2.costs import chain
from checkmate.tf2.costs.cache import Measurement, forget
from checkmate.tf2.costs.chain import Chain
from checkmate.tf2.costs.isolated import IsolatedOps
from checkmate.tf2.costs.measured import costs_of, with_costs
from checkmate.tf2.graph import graph_writer

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.fixture(scope="module")
# The variable lives as long as this function.
def step(tensorflow):
    """A traced step with a variable, a loop, random numbers with state, and the same multiplication
    twice."""
    tf.random.set_seed(1)
    variable = tf.Variable(tf.ones((128, 128)))

    def step(x, y):
        a = x @ y
        b = tf.sin(a)
        c = tf.cos(b) @ y
        noise = tf.random.uniform((128, 128))
        _, d = tf.while_loop(
            lambda i, _: i < 2, lambda i, value: (i + 1, tf.sin(value)), (0, c * noise)
        )
        variable.assign_add(d)
        return b, c, a

    yield trace(step, *[tf.TensorSpec((128, 128))] * 2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache, in the process and on disk."""
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path / "costs"))
    forget()
    yield tmp_path / "costs"
    forget()


@pytest.fixture
def measured(monkeypatch):
    """The types of each group of ops that is run to be measured, in order."""
    groups = []
    measured = chain.measured

    def counting(members, *arguments):
        for each, found in zip(members, measured(members, *arguments), strict=True):
            groups.append([operation.type for operation in each.group])
            yield found

    monkeypatch.setattr(chain, "measured", counting)
    return groups


@pytest.mark.parametrize("model", ["profile", "roofline", "unit"])
def test_costs_are_positive_and_nothing_else_changes(step, folder, measured, model):
    graph = with_costs(step, model)
    assert all(op.cost > 0 for op in graph.ops)
    assert all(op.workspace_bytes >= 0 for op in graph.ops)
    plain = [dataclasses.replace(op, cost=1.0, workspace_bytes=0) for op in graph.ops]
    assert plain == [dataclasses.replace(op, cost=1.0, workspace_bytes=0) for op in step.graph.ops]
    assert (graph.outputs, graph.fixed_bytes) == (step.graph.outputs, step.graph.fixed_bytes)
    assert bool(measured) == folder.exists() == (model == "profile")


def test_more_work_costs_more(tensorflow, folder):
    def step(x, y):
        return x @ x, tf.sin(y)

    traced = trace(step, tf.TensorSpec((768, 768)), tf.TensorSpec((768, 8)))
    for model in ("profile", "roofline"):
        product, sine = with_costs(traced, model).costs
        assert product > 3 * sine


def test_a_workspace_is_measured(tensorflow, folder):
    """The inner values of a group are its workspace: of its two large ones at least one is in
    memory beside the result."""
    traced = trace(lambda x: tf.reduce_sum(tf.transpose(tf.sin(x)) @ x), tf.TensorSpec((512, 512)))
    assert len(traced.graph) == 1
    (op,) = with_costs(traced, "profile").ops
    assert 4 * 512 * 512 <= op.workspace_bytes <= 4 * 4 * 512 * 512
    (plain,) = with_costs(trace(lambda x: tf.sin(x), tf.TensorSpec((512, 512))), "profile").ops
    assert plain.workspace_bytes < 4 * 512 * 512 // 8


@pytest.fixture
def gpu(machine):
    """Has measuring ask what it asks of a GPU: whether requests are seen, and algorithms tried."""

    def of(*, requests=True, tries=False):
        machine.patch(devices, "requests_are_seen", lambda device: requests)
        machine.patch(chain, "_tries", lambda members, device: tries)
        if not requests:
            machine.patch(chain, "observe", lambda call: pytest.fail("the profiler was asked"))

    return of


def test_the_run_that_tries_algorithms_is_not_the_one_that_is_measured(gpu, folder):
    """On a GPU a convolution's first run asks for the memory of each algorithm that it tries, one
    after another. Of a later run each op's requests are seen once."""
    kernel = tf.ones((3, 3, 8, 8))

    def step(x):
        return tf.nn.conv2d(tf.sin(x), kernel, 1, "SAME") * 2.0

    traced = trace(step, tf.TensorSpec((4, 64, 64, 8)))
    usual = costs_of(traced)
    forget()
    for file in folder.iterdir():
        file.unlink()
    gpu(tries=True)
    assert costs_of(traced).footprints == usual.footprints


def test_where_requests_are_not_seen_a_workspace_is_what_shapes_tell_and_not_nothing(gpu, folder):
    """CUDA's own allocator tells the profiler nothing, as if no op asked for memory."""

    def step(x, y):
        chosen = tf.where(y > 0, x, y)
        return tf.reduce_sum(tf.transpose(tf.sin(x)) @ x) + tf.reduce_sum(chosen @ x), chosen

    traced = trace(step, *[tf.TensorSpec((512, 512))] * 2)
    by_shapes = with_costs(traced, "roofline")
    gpu(requests=False)
    graph = with_costs(traced, "profile")
    found = [(op.workspace_bytes, op.in_place) for op in graph.ops]
    assert found == [(op.workspace_bytes, op.in_place) for op in by_shapes.ops]
    assert max(op.workspace_bytes for op in graph.ops) >= 4 * 512 * 512


def test_each_distinct_op_is_run_once(step, folder, measured):
    progress = []
    graph = with_costs(
        step, "profile", on_progress=lambda done, total: progress.append((done, total))
    )
    assert 0 < len(measured) < len(graph)
    assert all(measured.count(group) == 1 or group == ["MatMul"] for group in measured)
    types = {kind for group in measured for kind in group}
    assert "MatMul" in types
    assert not types & {"AssignAddVariableOp", "RandomUniform"}, (
        "side effects are not repeated to measure them"
    )
    assert progress[-1] == (len(measured), len(measured))
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)


def test_measuring_leaves_variables_alone(step, folder):
    before = [variable.numpy() for variable in step.function.variables]
    with_costs(step, "profile")
    for variable, value in zip(step.function.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_what_was_measured_is_kept_in_the_process(step, folder, measured):
    first = with_costs(step, "profile")
    count = len(measured)
    assert with_costs(step, "profile") == first
    assert len(measured) == count


def test_what_was_measured_is_kept_on_disk(step, folder, measured):
    first = with_costs(step, "profile")
    (path,) = folder.iterdir()
    data = json.loads(path.read_text())
    assert len(data["entries"]) == len(measured)
    assert "TensorFlow" in data["device"]
    measured.clear()
    forget()  # as a new process
    assert with_costs(step, "profile") == first
    assert not measured


def test_only_what_is_new_is_measured(tensorflow, step, folder, measured):
    with_costs(step, "profile")
    (path,) = folder.iterdir()
    known = json.loads(path.read_text())["entries"]
    measured.clear()
    forget()  # as a new process
    with_costs(trace(lambda x, y: (x @ y, tf.exp(x)), *[tf.TensorSpec((128, 128))] * 2), "profile")
    assert measured == [["Exp"]]
    entries = json.loads(path.read_text())["entries"]
    assert len(entries) == len(known) + 1
    assert known.items() <= entries.items()


def test_other_shapes_are_other_ops(tensorflow, folder, measured):
    for n in (64, 128, 64):
        with_costs(trace(lambda x: tf.sin(x), tf.TensorSpec((n, n))), "profile")
    assert measured == [["Sin"], ["Sin"]]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"checkmate-profile"', '"something else"'),
        lambda text: json.dumps({**json.loads(text), "version": 99}),
        lambda text: json.dumps({**json.loads(text), "device": "another"}),
        lambda text: json.dumps({**json.loads(text), "entries": {"x": ["soon", None]}}),
        lambda text: json.dumps({**json.loads(text), "entries": {"x": [1.0, 0, [], [[2, []]]]}}),
        lambda text: json.dumps({**json.loads(text), "entries": [1, 2]}),
    ],
)
def test_a_damaged_file_is_written_anew(step, folder, measured, damage):
    with_costs(step, "profile")
    (path,) = folder.iterdir()
    whole = path.read_text()
    count = len(measured)
    path.write_text(damage(whole))
    forget()  # as a new process
    with_costs(step, "profile")
    assert len(measured) == 2 * count
    assert json.loads(path.read_text())["entries"].keys() == json.loads(whole)["entries"].keys()


def test_a_folder_that_cannot_be_written_is_no_failure(step, folder, measured):
    folder.write_text("a file where the folder should be")
    assert all(op.cost > 0 for op in with_costs(step, "profile").ops)
    assert measured


def test_what_is_measured_before_an_interruption_is_kept(step, folder):
    def interrupted(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with_costs(step, "profile", on_progress=interrupted)
    (path,) = folder.iterdir()
    assert len(json.loads(path.read_text())["entries"]) == 2


def test_unit_counts_tensorflow_ops(step):
    assert [op.cost for op in with_costs(step, "unit").ops] == [len(group) for group in step.groups]


def test_a_function_is_a_cost_model(step):
    graph = with_costs(
        step,
        lambda traced, on_progress: [
            Measurement(float(k), 7 * k) for k in range(len(traced.graph))
        ],
    )
    bodies = [op.workspace_bytes for op in step.graph.ops]  # of loops, by their shapes
    assert [(op.cost, op.workspace_bytes) for op in graph.ops] == [
        (k, max(7 * k, bodies[k])) for k in range(len(graph))
    ]


def test_a_function_that_forgets_ops_is_refused(step):
    with pytest.raises(ValueError):
        with_costs(step, lambda traced, on_progress: [])


def test_what_the_table_does_not_know_is_found_out_by_running(tensorflow):
    """A choice between two tensors is written over one of them, and a product of matrices over
    none."""

    def step(x):  # each value is read twice, so that each is an op of its own
        a, b = tf.cos(x), tf.sin(x)
        c = tf.where(a[:, :1] > 0, a, b)
        return tf.reduce_sum(tf.tanh(c) * c) + tf.reduce_sum((c @ a) * b)

    found = traced(step)
    assert not op_of(found, "SelectV2")[1].in_place, "the table does not say so"
    graph = with_costs(found, "profile")
    i, op = op_of(found, "SelectV2")
    assert graph.ops[i].in_place and {*graph.ops[i].in_place} <= {*op.deps}
    assert not any(op.in_place for op in graph.ops if op.kind == "MatMul")


def test_a_loss_beside_its_gradient_is_written_over_the_logits():
    """The kernel makes both; the loss is small beside it, and counted as resident."""
    labels = tf.zeros(N, tf.int32)

    def step(x):
        logits = x @ x
        loss, gradient = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
            features=logits, labels=labels
        )
        return tf.reduce_sum(loss) + tf.reduce_sum(gradient @ x), tf.reduce_max(logits)

    found = traced(step)
    i, op = op_of(found, "SparseSoftmaxCrossEntropyWithLogits")
    assert op.output_bytes == VALUE_BYTES
    assert found.graph.fixed_bytes >= VALUE_BYTES + 2 * 4 * N, "the argument, labels and the loss"
    assert with_costs(found, "profile").ops[i].in_place == (op_of(found, "MatMul")[0],)


def isolated(step, *shapes, times=1):
    """The ops of a step, each group by itself, and what was traced, which keeps them alive."""
    found = traced(step, *shapes)
    parts = zip(found.groups, found.values, found.taken, strict=True)
    return [IsolatedOps(*each, times) for each in parts], found


@pytest.mark.parametrize(("seconds", "runs"), [(1.0, 2), (0.004, 2), (0.0002, 3), (1e-6, 20)])
def test_ops_are_timed_no_more_often_than_it_takes_to_know(tensorflow, monkeypatch, seconds, runs):
    """A step of some hundred small ops is measured before its first step."""
    ops, _kept = isolated(tensorflow.sin, (64, 64))
    timed = []
    monkeypatch.setattr(Chain, "run", lambda self: timed.append(seconds) or [seconds])
    assert Chain(ops, "CPU:0").seconds() == [seconds]
    assert len(timed) == runs


def test_a_short_op_is_evaluated_many_times_in_the_memory_of_one(tensorflow):
    from checkmate.tf2.memory.profiler import observe

    ops, _kept = isolated(tensorflow.sin, times=5)
    seen = observe(Chain(ops, "CPU:0").run)
    assert 2 * VALUE_BYTES <= most_requested_bytes(seen) < 2.01 * VALUE_BYTES
    assert sum(count for (_, kernel), count in seen.ran.items() if kernel == "Sin") == 5


def test_on_a_gpu_the_clock_is_read_when_its_kernels_have_run(tensorflow, machine):
    """They run asynchronously. The op that waits for them does nothing on a CPU."""
    from checkmate.tf2.memory.profiler import observe

    machine.patch(graph_writer, "training_device", lambda: "GPU:0")
    ops, _kept = isolated(tensorflow.sin, (64, 64))
    ran = [kernel for _, kernel in observe(Chain(ops, "CPU:0").run).ran]
    assert ran.count("SyncDevice") == 4, "before and after the op, and before and after nothing"


def test_what_ops_ask_for_is_seen(tensorflow, folder):
    """In place where nothing else holds the input; a product asks for its value."""

    def step(x):
        a = x @ x
        b = tf.sin(a)
        return tf.reduce_sum(b), tf.reduce_sum(b * (b @ a)), tf.cos(b)

    found = traced(step)
    costs = costs_of(found)
    footprints = {
        operation.type: costs.footprints[operation.name]
        for group in found.groups
        for operation in group
    }
    assert Request(VALUE_BYTES, output=0) in footprints["MatMul"].requests
    assert footprints["Cos"] == Footprint((), in_place=True)
    i, op = op_of(found, "Cos")
    assert costs.graph.ops[i].in_place == op.deps
    assert costs_of(found) == costs, "from the cache"


def test_arguments_of_one_shape_are_two_tensors(tensorflow):
    """TensorFlow makes one of equal ops, and a tensor that is read twice is not written over."""
    ops, _kept = isolated(tensorflow.add, *[(512, 512)] * 2)
    (found,) = chain.measured(ops, "CPU:0", True)
    assert [each.in_place for each in found.footprints] == [True]


def test_the_gradient_of_a_pooling_asks_for_what_it_asks_for_in_a_step(tensorflow):
    """With oneDNN, it reads what the pooling left, and does not pool once more."""
    from checkmate.tf2.memory.profiler import observe

    def step(x):
        y = tf.nn.max_pool2d(x, 2, 2, "VALID")
        return y, tf.gradients(tf.reduce_sum(tf.sin(y)), x)

    function = tf.function(step)
    function(x := tf.fill((8, 128, 128, 16), 0.5))
    in_step = [
        event.requested_bytes
        for event in observe(lambda: function(x)).events
        if event.is_request and event.op.endswith("MaxPoolGrad")
    ]
    ops, _kept = isolated(step, (8, 128, 128, 16))
    (gradient,) = (each for each in ops if "MaxPoolGrad" in {o.type for o in each.group})
    (found,) = chain.measured([gradient], "CPU:0", True)
    footprint = found.footprints[[o.type for o in gradient.group].index("MaxPoolGrad")]
    assert in_step and [each.bytes for each in footprint.requests] == in_step


def test_an_op_that_fails_on_made_up_data_is_unknown_and_the_others_are_not(tensorflow):
    def step(x):
        return tf.debugging.check_numerics(tf.math.log(x - 1.0), ""), tf.sin(x), tf.cos(x)

    ops, _kept = isolated(step, (64, 64))
    measurements = zip(ops, chain.measured(ops, "CPU:0", True), strict=True)
    found = {each.group[-1].type: found for each, found in measurements}
    assert found.pop("CheckNumerics") is None
    assert len(found) == 2 and all(found.values())


def test_what_was_measured_is_not_left_in_memory(tensorflow, folder):
    constant = np.random.default_rng(0).random((512, 512)).astype("float32")
    found = traced(lambda x: tensorflow.sin(x @ constant), (512, 512))
    before = devices.bytes_in_use("CPU:0")
    with_costs(found, "profile")
    assert devices.bytes_in_use("CPU:0") == before


def test_the_profiler_does_not_trace_the_device(tensorflow, monkeypatch):
    """On a GPU that would start CUPTI for each op that is measured; what the allocator does is seen
    without."""
    from checkmate.tf2.memory.profiler import observe

    profiler, options = tensorflow.profiler.experimental, []
    start = profiler.start

    def asked(folder, **given):
        options.append(given["options"])
        start(folder, **given)

    monkeypatch.setattr(profiler, "start", asked)
    assert observe(lambda: tensorflow.zeros((512, 512)) + 1.0).events
    assert [each.device_tracer_level for each in options] == [0]


def test_small_ops_are_measured_where_the_allocator_does_not_see_them():
    """oneDNN's allocator, the default, serves small requests outside of what it counts."""
    import os
    import subprocess
    import sys

    program = (
        "import tensorflow as tf, checkmate\n"
        "w = tf.Variable(tf.ones((64, 64)))\n"
        "def step(x):\n"
        "    with tf.GradientTape() as tape: loss = tf.reduce_mean(tf.tanh(x @ w))\n"
        "    w.assign_sub(tape.gradient(loss, w)); return loss\n"
        "run = checkmate.tf2.function(step, budget='100MiB', verbose=False)\n"
        "print(float(run(tf.ones((8, 64)))))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPU_ALLOCATOR_USE_BFC"}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def test_a_function_that_xla_compiles_is_measured_with_what_it_asks_for(tensorflow):
    """As the grouped convolutions of Keras on a CPU, whose gradient takes far more than it makes;
    the profiler sees no op ask."""
    convolution = tf.function(
        lambda x, k: tf.nn.convolution(x, k, padding="SAME"), jit_compile=True
    )

    def step(x, k):
        y, z = tf.tanh(x), tf.tanh(x[::-1])
        with tf.GradientTape() as tape:
            tape.watch((y, z, k))
            made = convolution(y, k) + convolution(z, k)
            loss = tf.reduce_sum(made * made)
        return tape.gradient(loss, (y, z, k))

    found = traced(step, (2, 24, 24, 64), (7, 7, 1, 64))
    costs = costs_of(found)
    made = 4 * 2 * 24 * 24 * 64
    calls = [op for op in costs.graph.ops if op.kind.endswith("PartitionedCall")]
    backward = [op for op in calls if op.is_backward]
    assert len(backward) == 2
    for op in backward:
        assert op.workspace_bytes > 3 * made
        assert op.cost > 10 * max(o.cost for o in costs.graph.ops if o not in calls)
    forward = [costs.footprints[op.name] for op in calls if op not in backward]
    assert len(forward) == 2 and all(made in [r.bytes for r in f.requests] for f in forward)
