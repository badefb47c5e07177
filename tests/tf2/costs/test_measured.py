"""Cost models: what ops cost and need while they run, how it is measured, and where it is kept."""

import json
from unittest.mock import Mock

import numpy as np
import pytest

from checkmate import BudgetError

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.fixture(scope="module")
# The variable lives as long as this function.
def step(tensorflow):
    """A traced step with a variable, a loop, random numbers with state, and the same multiplication
    twice."""
    tf = tensorflow
    from checkmate.tf2 import trace

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
    from checkmate.tf2.costs.cache import forget

    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path / "costs"))
    forget()
    yield tmp_path / "costs"
    forget()


@pytest.fixture
def measured(monkeypatch):
    """The types of each group of ops that is run to be measured, in order."""
    from checkmate.tf2.costs.isolated import IsolatedOps

    groups = []
    measure = IsolatedOps.measure

    def counting(self, *arguments):
        groups.append([operation.type for operation in self.group])
        return measure(self, *arguments)

    monkeypatch.setattr(IsolatedOps, "measure", counting)
    return groups


def with_costs(step, model, **options):
    from checkmate.tf2.costs.measured import with_costs

    return with_costs(step, model, **options)


@pytest.mark.parametrize("model", ["profile", "roofline", "unit"])
def test_costs_are_positive_and_nothing_else_changes(step, folder, model):
    import dataclasses

    graph = with_costs(step, model)
    assert all(op.cost > 0 for op in graph.ops)
    assert all(op.workspace_bytes >= 0 for op in graph.ops)
    plain = [dataclasses.replace(op, cost=1.0, workspace_bytes=0) for op in graph.ops]
    assert plain == [dataclasses.replace(op, cost=1.0, workspace_bytes=0) for op in step.graph.ops]
    assert (graph.outputs, graph.fixed_bytes) == (step.graph.outputs, step.graph.fixed_bytes)


def test_more_work_costs_more(tensorflow, folder):
    tf = tensorflow
    from checkmate.tf2 import trace

    def step(x, y):
        return x @ x, tf.sin(y)

    traced = trace(step, tf.TensorSpec((768, 768)), tf.TensorSpec((768, 8)))
    for model in ("profile", "roofline"):
        product, sine = with_costs(traced, model).costs
        assert product > 3 * sine


def test_a_workspace_is_measured(tensorflow, folder):
    """The inner values of a group are its workspace: of its two large ones at least one is in
    memory beside the result."""
    tf = tensorflow
    from checkmate.tf2 import trace

    traced = trace(lambda x: tf.reduce_sum(tf.transpose(tf.sin(x)) @ x), tf.TensorSpec((512, 512)))
    assert len(traced.graph) == 1
    (op,) = with_costs(traced, "profile").ops
    assert 4 * 512 * 512 <= op.workspace_bytes <= 4 * 4 * 512 * 512
    (plain,) = with_costs(trace(lambda x: tf.sin(x), tf.TensorSpec((512, 512))), "profile").ops
    assert plain.workspace_bytes < 4 * 512 * 512 // 8


def test_where_requests_are_not_seen_a_workspace_is_what_shapes_tell_and_not_nothing(
    tensorflow, folder, monkeypatch
):
    """CUDA's own allocator tells the profiler nothing, as if no op asked for memory."""
    tf = tensorflow
    from checkmate.tf2 import device as devices
    from checkmate.tf2 import trace

    def step(x, y):
        chosen = tf.where(y > 0, x, y)
        return tf.reduce_sum(tf.transpose(tf.sin(x)) @ x) + tf.reduce_sum(chosen @ x), chosen

    traced = trace(step, *[tf.TensorSpec((512, 512))] * 2)
    by_shapes = with_costs(traced, "roofline")
    monkeypatch.setattr(devices, "requests_are_seen", lambda device: False)
    monkeypatch.setattr(
        "checkmate.tf2.costs.isolated.observe", lambda call: pytest.fail("the profiler was asked")
    )
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
    from checkmate.tf2.costs.cache import forget

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
    tf = tensorflow
    from checkmate.tf2 import trace
    from checkmate.tf2.costs.cache import forget

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
    tf = tensorflow
    from checkmate.tf2 import trace

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
        lambda text: json.dumps({**json.loads(text), "entries": [1, 2]}),
    ],
)
def test_a_damaged_file_is_written_anew(step, folder, measured, damage):
    from checkmate.tf2.costs.cache import forget

    with_costs(step, "profile")
    (path,) = folder.iterdir()
    whole = path.read_text()
    count = len(measured)
    path.write_text(damage(whole))
    forget()  # as a new process
    with_costs(step, "profile")
    assert len(measured) == 2 * count
    assert json.loads(path.read_text())["entries"].keys() == json.loads(whole)["entries"].keys()


@pytest.mark.parametrize("full", [False, True])
def test_a_folder_that_cannot_be_written_is_no_failure(step, folder, measured, full, monkeypatch):
    if full:
        error = OSError(28, "No space left on device")
        monkeypatch.setattr("checkmate.core.json_files.tempfile.mkstemp", Mock(side_effect=error))
    else:
        folder.write_text("a file where the folder should be")
    assert all(op.cost > 0 for op in with_costs(step, "profile").ops)
    assert measured


def test_what_is_measured_before_an_interruption_is_kept(step, folder, measured, monkeypatch):
    from checkmate.tf2.costs.isolated import IsolatedOps

    counting = IsolatedOps.measure

    def interrupted(self, *arguments):
        if len(measured) == 2:
            raise KeyboardInterrupt
        return counting(self, *arguments)

    monkeypatch.setattr(IsolatedOps, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        with_costs(step, "profile")
    (path,) = folder.iterdir()
    assert len(json.loads(path.read_text())["entries"]) == 2


@pytest.mark.parametrize("model", ["roofline", "unit"])
def test_models_that_run_nothing(step, folder, measured, model):
    with_costs(step, model)
    assert not measured
    assert not folder.exists()


def test_unit_counts_tensorflow_ops(step):
    assert [op.cost for op in with_costs(step, "unit").ops] == [len(group) for group in step.groups]


def test_a_function_is_a_cost_model(step):
    from checkmate.tf2.costs.measurement import Measurement

    graph = with_costs(
        step,
        lambda traced, on_progress: [
            Measurement(float(k), 7 * k) for k in range(len(traced.graph))
        ],
    )
    assert [(op.cost, op.workspace_bytes) for op in graph.ops] == [
        (k, 7 * k) for k in range(len(graph))
    ]


def test_a_function_that_forgets_ops_is_refused(step):
    with pytest.raises(ValueError):
        with_costs(step, lambda traced, on_progress: [])


def test_an_unknown_name_is_refused(step):
    with pytest.raises(BudgetError, match=r"'flops'.*profile, roofline, unit"):
        with_costs(step, "flops")


def test_the_device_and_its_settings_are_part_of_the_key(monkeypatch):
    from checkmate.tf2 import device as devices

    here = devices.describe("CPU:0")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert devices.describe("CPU:0") != here


def test_what_the_table_does_not_know_is_found_out_by_running(tensorflow):
    """A choice between two tensors is written over one of them, and a product of matrices over
    none."""
    from tracing import op_of, traced

    from checkmate.tf2.costs.measured import with_costs

    tf = tensorflow

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


@pytest.mark.parametrize("small_share", [0.001, 0.0])
def test_a_loss_beside_its_gradient_is_written_over_the_logits(
    tensorflow, monkeypatch, small_share
):
    """The kernel makes both; the loss is small beside it, and counted as resident."""
    from tracing import VALUE_BYTES, N, op_of, traced

    from checkmate.tf2.costs.measured import with_costs

    tf = tensorflow
    monkeypatch.setattr("checkmate.tf2.graph.sizes.SMALL_SHARE", small_share)
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


@pytest.mark.parametrize(("seconds", "runs"), [(1.0, 3), (0.001, 3), (0.0001, 30), (1e-6, 50)])
def test_an_op_is_timed_no_more_often_than_it_takes_to_know(monkeypatch, seconds, runs):
    """A step of some hundred small ops is measured before its first step."""
    from checkmate.tf2.costs import timing

    timed = []
    monkeypatch.setattr(timing, "_seconds", lambda call: timed.append(call) or seconds)
    assert set(timing.seconds_of_calls(lambda: None)) == {seconds}
    assert runs <= len(timed) <= runs + 1


CALL_S = 50e-6


@pytest.mark.parametrize(
    ("op_s", "expected_s", "calls"),
    [(2e-6, 2e-6, {8}), (2e-6, 5e-3, {1, 8}), (5e-3, 5e-3, {1}), (5e-3, 2e-6, {8})],
)
def test_a_short_op_is_timed_many_times_in_one_call(
    tensorflow, monkeypatch, op_s, expected_s, calls
):
    """What the call takes does not count. The clock here counts the kernels that ran."""
    from tracing import traced

    from checkmate.tf2.costs import isolated, timing
    from checkmate.tf2.memory.profiler import observe

    ran = []

    def seconds(call):
        kernels = observe(call).ran
        ran.append(sum(kernels[each] for each in kernels if each[1] == "Sin"))
        return CALL_S + ran[-1] * op_s

    monkeypatch.setattr(timing, "_seconds", seconds)
    monkeypatch.setattr(timing, "MOST_REPEATS", 3)
    found = traced(tensorflow.sin)
    ops = isolated.IsolatedOps(found.groups[0], found.values[0], found.taken[0])
    measured = ops.measure("CPU:0", False, overhead_s=CALL_S, expected_s=expected_s)
    assert set(ran) == calls
    assert measured.seconds == pytest.approx(op_s, rel=0.01)


def test_evaluations_that_are_timed_together_take_the_memory_of_one(tensorflow):
    from tracing import VALUE_BYTES, traced

    from checkmate.tf2.costs import isolated
    from checkmate.tf2.memory.profiler import observe

    found = traced(tensorflow.sin)
    ops = isolated.IsolatedOps(found.groups[0], found.values[0], found.taken[0])
    (spec,) = (tensorflow.TensorSpec(each.shape, each.dtype) for each in ops.arguments)
    value = isolated.some_value(spec)
    seen = observe(ops._call(5, [spec], [value]))
    assert seen.most_requested_bytes == VALUE_BYTES
    assert sum(count for (_, kernel), count in seen.ran.items() if kernel == "Sin") == 5


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
