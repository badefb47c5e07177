"""`checkmate plan`: from a model to files."""

import json
import sys
from pathlib import Path

import pytest
from calling import invoke, lines_of_json
from schemas import validator

import checkmate
from checkmate import DFGraph, replay
from checkmate.core.files import load_plan

MODELS = """
import keras
def small():
    wide = [keras.layers.Dense(64, activation="relu", name=f"dense{k}") for k in range(6)]
    layers = [keras.Input((16,)), *wide, keras.layers.Dense(4)]
    return keras.Sequential(layers, name="small"), "mse"
def normed():
    layers = [keras.Input((16,)), keras.layers.Dense(64), keras.layers.BatchNormalization()]
    layers += [keras.layers.Dense(64, "relu") for _ in range(5)]
    return keras.Sequential([*layers, keras.layers.Dense(4)], name="normed"), "mse"
def attention():
    x = keras.Input((256, 32))
    y = keras.layers.MultiHeadAttention(8, 4)(x, x)
    return keras.Model(x, keras.layers.Dense(4)(y), name="attention"), "mse"
def with_batch():
    model, loss = small()
    return model, loss, keras.ops.zeros((8, 16)), keras.ops.zeros((8, 4))
def compiled():
    model, loss = small()
    model.compile("adam", loss)
    return model
def wrong():
    return 3
def asks(width):
    return small()
def fails():
    raise OSError("no such data")
not_callable = 3
"""


@pytest.fixture
def models(tensorflow, tmp_path, monkeypatch):
    (tmp_path / "some_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("some_models", None)


QUICK = ("--costs", "unit", "--batch", "512", "--json")


def test_plan_writes_a_graph_and_plans(models):
    found = invoke("plan", "some_models:small", "-b", "90%,1B", *QUICK)
    assert found.exit_code == 1, found.output
    fits, fails = lines_of_json(found.stdout)
    assert (fits["status"], fails["status"]) == ("OPTIMAL", "INFEASIBLE")
    assert fits["graph_file"] == "some-models-small-b512.graph.json"
    graph = DFGraph.load(models / fits["graph_file"])
    for kind in ("graph", "plan"):
        validator(kind).validate(json.loads((models / fits[f"{kind}_file"]).read_text()))
    assert (
        replay(graph, load_plan(models / fits["plan_file"], graph=graph)).peak_bytes
        == fits["peak_bytes"]
    )
    shown = invoke("show", fits["plan_file"])
    assert shown.exit_code == 0
    assert "dense3" in shown.stdout


def test_plan_says_what_it_wrote_and_what_to_do_next(models):
    found = invoke("plan", "some_models:small", "-b", "95%,90%,1B", *QUICK[:-1])
    name = "some-models-small-b512"
    for line in (
        f"Written: {name}-95pct.plan.json",
        f"Written: {name}.graph.json",
        f"See one:  checkmate show {name}-90pct.plan.json --html plan.html",
        f'Run one:  checkmate.tf2.compile(..., plan="{name}-90pct.plan.json")',
    ):
        assert line in found.stdout.splitlines()
    assert "See one" not in invoke("plan", "some_models:small", "-b", "1B", *QUICK[:-1]).stdout


@pytest.mark.parametrize(
    ("batch", "budget", "said", "unsaid"),
    [
        ("1", "1B", "are resident whatever runs", "batch"),
        ("1", "95KiB", "have that op need less.", "batch"),
        ("512", "1B", "Not even a batch of 1 fits 1 B", "A smaller batch"),
        ("512", "400KiB", "A smaller batch may fit 400.00 KiB: one of 1 needs", "Not even"),
    ],
)
def test_a_refusal_speaks_of_a_smaller_batch_where_one_helps(models, batch, budget, said, unsaid):
    quick = ("--costs", "unit", "--batch", batch, "--optimizer", "sgd")
    found = invoke("plan", "some_models:small", "-b", budget, *quick)
    assert said in found.stderr and unsaid not in found.stderr


@pytest.mark.own_process
@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param("small", "4", marks=pytest.mark.long),
        pytest.param("normed", "4", marks=pytest.mark.slow),
        pytest.param("small", "auto", marks=pytest.mark.slow),
    ],
)
def test_compile_runs_what_plan_wrote_in_slices(models, name, count):
    """By the number that is asked for also where the batch cannot be split exactly."""
    import keras

    asked = ("-b", "60%", "--micro-batches", count, *QUICK, "--costs", "roofline")
    found = invoke("plan", f"some_models:{name}", *asked)
    (facts,) = lines_of_json(found.stdout)
    assert facts["plan_file"].startswith(f"some-models-{name}-b512-in-"), found.output
    number = int(facts["plan_file"].split("-in-")[1].split("-")[0])
    assert number == 4 or count == "auto"
    import some_models

    model, loss = getattr(some_models, name)()
    specs = [keras.KerasTensor((512, size), "float32") for size in (16, 4)]
    step = checkmate.tf2.compile(
        model, loss, "adam", *specs, plan=facts["plan_file"], micro_batches=number, verbose=False
    )
    assert step.report().micro_batches.count == number
    assert any(facts["plan_file"] in note for note in step.report().notes)


@pytest.mark.slow
@pytest.mark.own_process
def test_compile_runs_what_plan_wrote_in_parts(models):
    import keras

    asked = ("-b", "100%,25%", "--batch", "1", "--costs", "roofline", "--json")
    found = lines_of_json(invoke("plan", "some_models:attention", *asked).stdout)
    assert [each["status"] for each in found] == ["OPTIMAL"] * 2
    whole, parts = (each["graph_file"] for each in found)
    assert whole == "some-models-attention-b1.graph.json" != parts and "-in-parts-of-" in parts
    refused = invoke("plan", "some_models:attention", *asked, "--rewrites", "none")
    assert [each["status"] for each in lines_of_json(refused.stdout)] == ["OPTIMAL", "INFEASIBLE"]
    from some_models import attention

    model, loss = attention()
    specs = [keras.KerasTensor((1, 256, size), "float32") for size in (32, 4)]
    file = found[1]["plan_file"]
    step = checkmate.tf2.compile(model, loss, "adam", *specs, plan=file, verbose=False)
    assert any(file in note for note in step.report().notes)


def test_compile_runs_what_plan_wrote(models):
    import keras

    found = invoke("plan", "some_models:small", "-b", "95%", *QUICK)
    facts = lines_of_json(found.stdout)[0]
    from some_models import small

    model, loss = small()
    x, y = keras.ops.ones((512, 16)), keras.ops.ones((512, 4))
    step = checkmate.tf2.compile(
        model,
        loss,
        "adam",
        x,
        y,
        budget="64GiB",
        plan=facts["plan_file"],
        verbose=False,
    )
    assert step.plan == load_plan(facts["plan_file"], graph=step.graph)
    assert 0 < float(step(x, y)[1]) < float("inf")


def test_plan_takes_a_batch_of_one_s_own(models):
    found = invoke("plan", "some_models:with_batch", "-b", "100%", *QUICK)
    assert found.exit_code == 0, found.output


def test_plan_takes_a_compiled_model(models):
    found = invoke("plan", "some_models:compiled", "-b", "100%", *QUICK)
    assert found.exit_code == 0, found.output


def test_plan_takes_a_keras_file(models):
    import keras

    layers = [
        keras.Input((8,)),
        keras.layers.Dense(32),
        keras.layers.Dense(32),
        keras.layers.Dense(3, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.save("Own Model.keras")
    found = invoke("plan", "Own Model.keras", "-b", "100%", *QUICK)
    assert found.exit_code == 0, found.output
    assert Path("own-model-b512.graph.json").exists()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("resnet05", "Did you mean ResNet50"),
        ("missing.keras", "There is no file missing.keras"),
        ("some_models:nothing", "nothing"),
        ("no_such_module:model", "no_such_module"),
        ("some_models:wrong", "must return a model, (model, loss)"),
        ("some_models:asks", "'width'"),
        ("some_models:fails", "OSError: no such data"),
        ("some_models:not_callable", "not callable"),
    ],
)
def test_plan_says_what_is_wrong_with_a_model(models, model, said):
    found = invoke("plan", model, *QUICK)
    assert found.exit_code == 2
    assert said in found.stderr
    assert "Traceback" not in found.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "resnet05"), "Did you mean ResNet50"),
        (("plan", "missing.keras"), "There is no file missing.keras"),
        (("plan", "some_models:small", "--optimizer", "adamm"), "Did you mean 'adam'"),
        (("plan", "some_models:small", "--loss", "mean_square_error"), "'mean_squared_error'"),
    ],
)
def test_unknown_names_are_status_2(models, arguments, said):
    found = invoke(*arguments)
    assert found.exit_code == 2, found.output
    assert said in found.stderr


@pytest.mark.parametrize(
    ("softmax", "loss", "kind"),
    [
        (True, None, "int32"),
        (False, None, "float32"),
        (False, "SparseCategoricalCrossentropy", "int32"),
    ],
)
def test_labels_follow_the_loss(tensorflow, softmax, loss, kind):
    import keras

    from checkmate.tf2.models import _loss, _specified

    model = keras.Sequential(
        [
            keras.Input((5, None, 2)),
            keras.layers.Dense(3, activation="softmax" if softmax else None),
        ]
    )
    work = _specified(model, _loss(model, loss), batch=7, size=4)
    assert work.inputs.shape == (7, 5, 4, 2)
    assert work.labels.dtype == kind
    assert work.labels.shape == ((7, 5, 4) if kind == "int32" else (7, 5, 4, 3))


def test_names_of_applications_in_any_case(tensorflow):
    from checkmate.tf2.models import application

    assert application("mobilenetv2", 32).name == application("MobileNetV2", 32).name
