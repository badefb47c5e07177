"""What a stranger gives in the wrong place: the message says what was given and what was meant, in
one line, without colours and tracebacks of TensorFlow."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense import BATCH, batch_of, compiled, dense_model, planned

import checkmate
from checkmate import BudgetError, PlanFileError, TraceError

pytestmark = pytest.mark.usefixtures("tensorflow")


def undefined(labels, prediction):
    return no_such_name  # noqa: F821


def refused(call, error=TraceError):
    """The message of what is refused."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    for noise in ("\x1b", "\n", "in user code", 'File "', "{{node", "Arguments received"):
        assert noise not in message
    return message


@pytest.mark.parametrize("shape", [(512, 32), [512, 32], (np.int64(512), 32), (None, 32)])
@pytest.mark.parametrize("place", ["inputs", "labels"])
def test_a_shape_is_no_spec(shape, place):
    text = f"Did you mean tf.TensorSpec(({shape[0]}, 32))?"
    assert text in refused(lambda: compiled(**{place: shape})).replace("np.int64(512)", "512")


def test_a_tensor_shape_or_one_in_a_nest_is_no_spec():
    meant = "Did you mean tf.TensorSpec((8, 16))?"
    assert meant in refused(lambda: compiled(inputs=tf.TensorShape((8, 16))))
    assert meant in refused(lambda: compiled(inputs={"image": (8, 16)}))
    assert meant in refused(lambda: checkmate.tf2.trace(lambda x: x @ tf.ones((9, 9)), (8, 16)))
    assert meant in refused(lambda: checkmate.tf2.function(lambda x: x, (8, 16)))
    step = checkmate.tf2.function(
        lambda x, sides: tf.reshape(tf.sin(x), sides),
        tf.TensorSpec((8, 16)),
        (16, 8),
        cost_model="roofline",
        budget="1GiB",
    )
    assert step.kinds == 1, "numbers beside a spec are part of the step"


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"labels": batch_of()[1][:, :3]}, ("float32[1024, 3]", "float32[1024, 4]", "3 and 4")),
        ({"labels": batch_of()[1][:7]}, ("float32[7, 4]", "float32[1024, 4]", "7 and 1024")),
        ({"loss": "sparse_categorical_crossentropy"}, ("'sparse_categorical_c", "[1024, 4]")),
        ({"loss": undefined}, ("'undefined'", "NameError", "no_such_name")),
        ({"inputs": batch_of()[0][:, :7]}, ("float32[1024, 7]", "(None, 16)")),
    ],
)
def test_shapes_and_losses_that_do_not_fit(change, parts):
    message = refused(lambda: compiled(**change))
    for part in parts:
        assert part in message


def test_an_error_in_the_user_s_step_says_where():
    message = refused(
        lambda: checkmate.tf2.trace(lambda x: undefined(x, x), tf.TensorSpec((8, 16)))
    )
    line = undefined.__code__.co_firstlineno + 1
    assert (
        f"NameError: name 'no_such_name' is not defined (test_messages.py, line {line})" in message
    )


@pytest.mark.parametrize("door", ["compile", "fit"])
def test_an_error_in_the_user_s_model_says_where(door):
    class Broken(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(4)

        def call(self, inputs):
            return no_such_layer(self.dense(inputs))  # noqa: F821

    def fit():
        model = Broken()
        model.compile("sgd", "mse", jit_compile=False)
        checkmate.tf2.rematerialize(model, budget="1GiB").train_on_batch(*batch_of())

    message = refused(fit if door == "fit" else lambda: compiled(Broken()))
    assert "NameError: name 'no_such_layer' is not defined" in message


class Uncallable:
    """Makes a model of Keras without a `call`."""

    def __new__(cls):
        return type("Empty", (keras.Model,), {})()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("resnet50", "got str"),
        (None, "got NoneType"),
        (lambda x: x, "got function"),
        (dict, "The model given is a class, dict. Did you mean dict()?"),
    ],
)
def test_what_is_no_model(model, said):
    x, y = batch_of()
    for door in ("compile", "max_batch"):
        call = getattr(checkmate.tf2, door)
        assert said in refused(lambda call=call: call(model, "mse", "sgd", x, y, budget="1GiB"))


def test_a_model_that_cannot_be_called():
    assert "does not have a `call()`" in refused(lambda: compiled(Uncallable()))


def test_a_class_in_the_place_of_an_object():
    for what, given in (
        ("loss", keras.losses.MeanSquaredError),
        ("optimizer", keras.optimizers.Adam),
        ("model", keras.Sequential),
    ):
        message = refused(lambda what=what, given=given: compiled(**{what: given}))
        assert f"The {what} given is a class" in message
        assert f"Did you mean {given.__name__}()?" in message


def test_names_that_keras_does_not_know():
    assert "Did you mean 'adam'" in refused(lambda: compiled(optimizer="adamm"))
    meant = refused(lambda: compiled(loss="mean_square_error"))
    assert "Did you mean 'mean_squared_error'" in meant
    assert "names are those of keras.losses" in refused(lambda: compiled(loss="xyz"))


def test_verify_takes_a_planned_step():
    assert "got Functional" in refused(lambda: checkmate.tf2.verify(dense_model(), batch_of()))


def test_the_steps_that_verify_is_said_to_take():
    x, y = batch_of()
    model = dense_model()
    model.compile("sgd", "mse", jit_compile=False)
    options = {"budget": "1GiB", "cost_model": "roofline"}
    checkmate.tf2.rematerialize(model, **options).train_on_batch(x, y)
    assert checkmate.tf2.verify(checkmate.tf2.planned(model).steps[0], (x, y)).ok
    step = checkmate.tf2.function(lambda x: tf.reduce_sum(tf.sin(x)), x, **options)
    assert "got PlannedFunction" in refused(lambda: checkmate.tf2.verify(step, (x,)))
    assert checkmate.tf2.verify(step.steps[0], (x,)).ok


def test_a_call_of_another_structure_shows_no_values():
    x, _ = batch_of()
    message = refused(lambda: planned()(x))
    assert f"called with (float32[{BATCH}, 16],), which has another structure" in message


@pytest.mark.parametrize(("budget", "meant"), [(0.6, "'60%'"), (60, "'60%' or '60GiB'")])
def test_a_share_without_a_percent_sign(budget, meant):
    calls = (
        lambda: compiled(loss=undefined, budget=budget),
        lambda: checkmate.tf2.rematerialize(None, budget=budget),
        lambda: checkmate.tf2.Rematerialize(budget=budget),
        lambda: checkmate.tf2.dtr(budget),
    )
    for call in calls:
        assert f"Did you mean {meant}?" in refused(call, BudgetError)


def test_a_plan_file_that_is_not_there_is_missed_before_anything_is_traced(tmp_path):
    path = tmp_path / "none.json"
    for call in (
        lambda: compiled(loss=undefined, plan=path),
        lambda: checkmate.tf2.rematerialize(dense_model(), plan=path),
    ):
        assert "There is no plan file" in refused(call, PlanFileError)
    path.write_text('{"format": "something"}')
    assert "format 'something'" in refused(
        lambda: compiled(loss=undefined, plan=path), PlanFileError
    )


@pytest.mark.parametrize(
    ("change", "other", "same"),
    [
        ({"optimizer": "adam"}, "its optimizer's update is another", "pass"),
        ({"optimizer": "rmsprop"}, "its optimizer's update is another", "pass"),
        ({"loss": "cosine_similarity"}, "its forward pass is another", "update"),
        ({"inputs": batch_of(8)[0], "labels": batch_of(8)[1]}, "float32[8, 16]", "pass is another"),
    ],
)
def test_a_plan_of_another_step_says_which_part_differs(tmp_path, change, other, same):
    path = tmp_path / "plan.json"
    compiled().save(path)
    message = refused(lambda: compiled(plan=path, **change), PlanFileError)
    assert other in message
    assert same not in message
