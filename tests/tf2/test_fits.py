"""Whether a step fits a device that is not here, on paper."""

import json

import keras
import pytest
import tensorflow as tf
from calling import invoke, lines_of_json

import checkmate
from checkmate import tf2
from checkmate.tf2.costs.device_profile import DeviceProfile
from checkmate.tf2.training_step import training_step

pytestmark = pytest.mark.usefixtures("tensorflow")


def net(width=256):
    hidden = [keras.layers.Dense(width, "gelu", name=f"hidden_{k}") for k in range(6)]
    return keras.Sequential([keras.Input([128]), *hidden, keras.layers.Dense(10)], name="net")


def specs(batch=4096):
    return tf.TensorSpec([batch, 128]), tf.TensorSpec([batch, 10])


def answer(device, **options):
    return tf2.fits(net, "mse", "sgd", *specs(), device=device, **options)


def profiled(path, model=net):
    step, batch = training_step(model(), "mse", "sgd", *specs())
    found = DeviceProfile.measured(tf2.trace(step, *batch, name="net"), lambda done, total: None)
    found.save(path)
    return found


def test_plain_planned_or_not_at_all():
    plain = answer("T4", largest=False)
    assert plain and plain.is_plain and plain.slowdown is None
    peak = plain.plain_peak_bytes
    planned = answer(int(peak / 0.9 * 0.8), largest=False)
    assert planned and not planned.is_plain and planned.slowdown > 1
    assert planned.peak_bytes <= planned.budget_bytes < planned.plain_peak_bytes == peak
    none = answer("10MB", largest=False)
    assert not none and none.peak_bytes is None
    assert none.smallest_budget_bytes > none.budget_bytes and "does not fit" in str(none)
    shared = answer("T4", budget="80%", largest=False)
    assert shared.peak_bytes <= shared.budget_bytes < peak


@pytest.mark.slow
def test_the_largest_batch_trains_and_a_tenth_more_does_not():
    found = answer("40MB")
    assert found.plain_batch < found.largest_batch
    for batch, is_plain in ((found.plain_batch, True), (found.largest_batch, False)):
        own = [
            tf2.fits(net, "mse", "sgd", *specs(int(share * batch)), device="40MB", largest=False)
            for share in (0.9, 1.15)
        ]
        assert bool(own[0]) and not (own[1].is_plain if is_plain else bool(own[1])), str(own)


def test_the_largest_open_dimension():
    def model():
        inputs = keras.Input([None, 64])
        hidden = keras.layers.Dense(256, "gelu")(keras.layers.Dense(256, "gelu")(inputs))
        return keras.Model(inputs, keras.layers.Dense(8)(hidden))

    batch = tf.TensorSpec([8, 128, 64]), tf.TensorSpec([8, 128, 8])
    found = tf2.fits(model, "mse", "sgd", *batch, device="20MB")
    assert 128 <= found.plain_length <= found.largest_length
    longer = [tf.TensorSpec([8, int(1.2 * found.plain_length), each.shape[-1]]) for each in batch]
    assert not tf2.fits(model, "mse", "sgd", *longer, device="20MB", largest=False).is_plain
    assert answer("T4").largest_length is None


def test_a_budget_above_the_device_s_memory():
    with pytest.raises(checkmate.BudgetError, match=r"100.00 GiB is more than the 14.90 GiB of T4"):
        answer("T4", budget="100GiB", largest=False)


@pytest.mark.slow
def test_sizes_that_can_be_halved():
    layers = keras.layers

    def model():
        sides = keras.Input([None, None, 8])
        down = layers.MaxPooling2D()(layers.Conv2D(8, 3, padding="same")(sides))
        up = layers.UpSampling2D()(layers.Conv2D(8, 3, padding="same")(down))
        return keras.Model(sides, layers.Conv2D(1, 1)(layers.Concatenate()([up, sides])))

    batch = tf.TensorSpec([2, 32, 32, 8]), tf.TensorSpec([2, 32, 32, 1])
    found = tf2.fits(model, "mse", "sgd", *batch, device="64MiB")
    assert 128 < found.plain_length <= found.largest_length


def test_a_size_that_is_too_small_for_the_model_does_not_fit():
    layers = keras.layers

    def model():
        sides = keras.Input([None, None, 3])
        hidden = layers.Conv2D(8, 3, activation="relu")(layers.Conv2D(8, 3)(sides))
        return keras.Model(sides, layers.Dense(3)(layers.GlobalAveragePooling2D()(hidden)))

    batch = tf.TensorSpec([4, 1024, 1024, 3]), tf.TensorSpec([4, 3])
    found = tf2.fits(model, "mse", "adam", *batch, device="64MB")
    assert not found and 8 < found.plain_length <= found.largest_length < 1024
    assert "batch of" not in found.refusal and "micro_batches" not in found.refusal


def test_a_measured_device_is_what_compile_says(tmp_path):
    profile = profiled(tmp_path / "here.json")
    assert DeviceProfile.load(tmp_path / "here.json") == profile
    found = answer(tmp_path / "here.json", budget="70%", largest=False)
    assert "measured on it" in found.costs
    x, y = (tf.ones(spec.shape) for spec in specs())
    step = tf2.compile(net(), "mse", "sgd", x, y, budget="70%", verbose=False)
    report = step.report()
    others = report.memory.other_bytes - report.memory.next_batch_bytes
    assert found.plain_peak_bytes == pytest.approx(report.plain_peak_bytes - others, rel=0.01)
    # The plans need not be the same: each is the cheapest found of those that are within.
    assert (
        found.peak_bytes
        <= found.budget_bytes
        == pytest.approx(report.budget_bytes - others, rel=0.01)
    )
    assert found.slowdown == pytest.approx(report.predicted_slowdown, abs=0.03)


def test_a_profile_is_added_to_and_names_its_device(tmp_path):
    path = tmp_path / "here.json"
    few = len(profiled(path).entries)
    profiled(path, lambda: net(320))
    assert len(DeviceProfile.load(path).entries) > few
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "device": "another"}))
    with pytest.raises(checkmate.PlanFileError, match="is a profile of another with"):
        profiled(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "checkmate-plan"}, "is no device profile"),
        ({"version": 9}, "of version 9, and this library reads version 1"),
        ({"entries": {"a": [1]}}, r"entry a is \[1\]; a measurement was expected"),
        ({"bytes_per_s": 0}, "bytes_per_s is 0; a number above 0 was expected"),
        ({"memory_bytes": "much"}, 'memory_bytes is "much"; a whole number, 1 or more'),
    ],
)
def test_files_that_are_no_profiles(tmp_path, change, said):
    path = tmp_path / "here.json"
    profiled(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(checkmate.PlanFileError, match=said):
        answer(path)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("A200", "Did you mean H200 or A100"),
        ("80", "Did you mean '80GB'"),
        ("80 apples", "an amount of memory such as"),
        ("6G", "Did you mean '6GiB'"),
        ("3KiB", "has 3.00 KiB only.$"),
        (None, "None"),
    ],
)
def test_no_such_device(device, said):
    with pytest.raises(checkmate.BudgetError, match=said):
        answer(device)


def test_an_open_batch_is_asked_for():
    with pytest.raises(checkmate.TraceError, match=r"some open\. Give the batch size"):
        tf2.fits(net, "mse", "sgd", *specs(None), device="T4")
    with pytest.raises(checkmate.TraceError, match="Keras 3 model; got str"):
        tf2.fits("resnet50", "mse", "sgd", *specs(), device="T4")
    with pytest.raises(TypeError, match="missing its label_spec"):
        tf2.fits(net, "mse", "sgd", specs()[0], None, device="T4")


def test_names_are_read_as_people_write_them():
    names = ("a100-80gb", "NVIDIA A100 80GB", "A100_80GB")
    assert {DeviceProfile.of(name).name for name in names} == {"A100-80GB"}
    assert DeviceProfile.of("80GB").memory_bytes == 80 * 10**9


def test_the_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(
        "import keras\n\ndef small():\n"
        "    layers = [keras.layers.Dense(64, 'gelu') for _ in range(3)]\n"
        "    return keras.Sequential([keras.Input([32]), *layers, keras.layers.Dense(1)])\n"
    )
    made = invoke("profile", "nets:small", "--batch", 512, "-o", "here.json")
    assert made.exit_code == 0 and "ops measured on" in made.output
    common = ("plan", "nets:small", "--batch", 512, "--device", "here.json", "-b", "80%", "--json")
    done = invoke(*common, "--recompute", "dense*")
    assert done.exit_code == 0, done.output
    fits, plan = lines_of_json(done.stdout)
    assert fits["plain_batch"] > 512 and plan["peak_bytes"] <= plan["budget_bytes"]
    assert invoke("plan", "nets:small", "--device", "H300").exit_code == 2
