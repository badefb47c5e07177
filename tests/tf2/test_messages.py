"""What a stranger gives in the wrong place: one table of calls and of what their refusals say, in
one line, without colours and tracebacks of TensorFlow."""

import dataclasses
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense import BATCH, batch_of, compiled, dense_model, planned, tf_strings

import checkmate
from checkmate import (
    BudgetError,
    GraphError,
    InfeasibleBudgetError,
    PlanFileError,
    TraceError,
)
from checkmate.errors import SolverUnavailableError
from checkmate.tf2.options import PlanKeywords, PlanOptions

# A step that is called with another batch was planned for what it takes alone.
pytestmark = pytest.mark.usefixtures("tensorflow", "alone")

X, Y = batch_of()
GIB = {"budget": "1GiB", "verbose": False}
DOORS = {
    "compile": [None] * 5,
    "function": [lambda x: x],
    "rematerialize": [None],
    "Rematerialize": [],
    "max_batch": [None] * 5,
}


def undefined(labels, prediction):
    return no_such_name  # noqa: F821


def refuses_to_be_called(*arguments):
    raise AssertionError("the step was traced")


def untraced(**options):
    return compiled(loss=refuses_to_be_called, **options)


def door(name, **options):
    """Calls a public function with options; it must refuse them before it looks at its model."""
    return getattr(checkmate.tf2, name)(*DOORS[name], **options)


def fitted(prepare=lambda model: None, x=None, **options):
    """A model under a budget, with what `prepare` does to it before; trained if there is data."""
    model = keras.Sequential([keras.layers.Dense(1)])
    prepare(model)
    checkmate.tf2.rematerialize(model, **{**GIB, **options})
    if x is not None:
        model.fit(tf.data.Dataset.from_tensors((x, [[1.0], [2.0]])), verbose=0)
    return model


def plainly(model):
    model.compile("sgd", "mse", jit_compile=False)


def twice():
    checkmate.tf2.rematerialize(fitted(plainly), **GIB)


def with_its_own_train_function():
    class Own(keras.Sequential):
        def make_train_function(self, force=False):
            return None

    own = Own([keras.layers.Dense(1)])
    plainly(own)
    checkmate.tf2.rematerialize(own, **GIB)


class Broken(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)

    def call(self, inputs):
        return no_such_layer(self.dense(inputs))  # noqa: F821


def broken_fit():
    model = Broken()
    plainly(model)
    checkmate.tf2.rematerialize(model, budget="1GiB").train_on_batch(X, Y)


def frozen():
    model = dense_model()
    model.trainable = False
    return compiled(model)


def function_of(*arguments, step=lambda x: tf.sparse.to_dense(x)):
    return checkmate.tf2.function(step, cost_model="roofline", **GIB)(*arguments)


def largest(inputs=X, labels=Y, **options):
    specs = [
        tf.TensorSpec([None, *each.shape[1:]] if len(each.shape) else [], each.dtype)
        for each in (inputs, labels)
    ]
    return checkmate.tf2.max_batch(
        dense_model(), "mse", "sgd", *specs, **{"cost_model": "roofline", **options}
    )


def called(batch):
    """The step that was planned, called with another batch."""
    return lambda: planned()(*batch(X, Y))


def per_example(labels, prediction):
    return tf.reduce_mean((labels - prediction) ** 2, -1)


NO_BUDGETS = ("a lot", "", "-1", 0, "6 parsecs", None)
NO_SPECS = [(512, 32), [512, 32], (np.int64(512), 32), (None, 32)]
SHARES = {0.6: "Did you mean '60%'?", 60: "Did you mean '60%', '60GiB' or '60 B'?"}
NAN = float("nan")
MEANT = "Did you mean tf.TensorSpec((8, 16))?"
ANOTHER = f"float32[{BATCH}, 16]"

TABLE = {
    "a call with another batch than planned": [
        (called(lambda x, y: batch_of(2 * BATCH)), TraceError, f"batch of {BATCH}", f"{2 * BATCH}"),
        (called(lambda x, y: (x[:, :7], y)), TraceError, f"[{BATCH}, 16]", f"[{BATCH}, 7]"),
        (called(lambda x, y: (x[..., None], y)), TraceError, f"[{BATCH}, 16, 1]"),
        (called(lambda x, y: ({"x": x}, y)), TraceError, ANOTHER, "structure"),
        (called(lambda x, y: (x,)), TraceError, f"called with ({ANOTHER},), which has another st"),
        (called(lambda x, y: (x, y, y)), TraceError, "planned for", "structure"),
        (called(lambda x, y: (np.full(x.shape, "word"), y)), TraceError, ANOTHER),
        (called(lambda x, y: (tf_strings(x.shape), y)), TraceError, ANOTHER, "string"),
    ],
    "specs": [
        (partial(compiled, inputs=tf.TensorSpec((BATCH, 7))), TraceError, f"float32[{BATCH}, 7]"),
        (partial(compiled, inputs=tf.TensorSpec((BATCH,))), TraceError, f"float32[{BATCH}]"),
        (partial(compiled, inputs=tf.TensorSpec((None, 16))), TraceError, "exact shapes"),
        (partial(compiled, inputs="float32"), TraceError, "'float32'"),
        *(
            (partial(compiled, **{place: given}), TraceError, f"TensorSpec(({given[0]}, 32))?")
            for given in NO_SPECS
            for place in ("inputs", "labels")
        ),
        (lambda: compiled(inputs=tf.TensorShape((8, 16))), TraceError, MEANT),
        (lambda: compiled(inputs={"image": (8, 16)}), TraceError, MEANT),
        (lambda: checkmate.tf2.trace(lambda x: x @ tf.ones((9, 9)), (8, 16)), TraceError, MEANT),
        (lambda: checkmate.tf2.function(lambda x: x, (8, 16)), TraceError, MEANT),
    ],
    "labels and losses": [
        (partial(compiled, labels=Y[:, :3]), TraceError, "[1024, 3]", "[1024, 4]", "3 and 4"),
        (partial(compiled, labels=Y[:, :3]), TraceError, "cannot be computed for labels"),
        (partial(compiled, labels=Y[:7]), TraceError, "float32[7, 4]", "[1024, 4]", "7 and 1024"),
        (lambda: compiled(loss="sparse_categorical_crossentropy"), TraceError, "'sparse_categ"),
        (partial(compiled, loss=undefined), TraceError, "'undefined'", "NameError", "no_such_name"),
        (partial(compiled, inputs=X[:, :7]), TraceError, "float32[1024, 7]", "(None, 16)"),
        (partial(compiled, loss=3.0), TraceError, "A loss is a keras"),
        (partial(compiled, loss=object()), TraceError, "A loss is a keras"),
        (partial(compiled, loss=per_example), TraceError, "one number per batch; got shape"),
        (partial(compiled, loss="nonesuch"), TraceError, "no loss 'nonesuch'", "keras.losses"),
        (partial(compiled, optimizer="nonesuch"), TraceError, "no optimizer 'nonesuch'"),
        (partial(compiled, optimizer="adamm"), TraceError, "Did you mean 'adam'"),
        (partial(compiled, loss="mean_square_error"), TraceError, "mean 'mean_squared_error'"),
    ],
    "what is left out": [
        *(
            (partial(call, None, *given, budget="1GiB"), TypeError, said)
            for call in (checkmate.tf2.compile, checkmate.tf2.max_batch)
            for given, said in (
                (("adam", X, Y), "is missing its loss: it takes a model, a loss"),
                (("mse", X, Y), "is missing its optimizer"),
                (("mse", "adam", X), "is missing its label_spec"),
            )
        ),
        (lambda: checkmate.tf2.compile(None, keras.optimizers.Adam(), X, Y), TypeError, "its loss"),
    ],
    "what is no model or no step": [
        *(
            (partial(call, given, "mse", "sgd", X, Y, budget="1GiB"), TraceError, said)
            for call in (checkmate.tf2.compile, checkmate.tf2.max_batch)
            for given, said in (
                ("resnet50", "got str"),
                (None, "got NoneType"),
                (undefined, "got function"),
                (dict, "The model given is a class, dict. Did you mean dict()?"),
            )
        ),
        *(
            (partial(compiled, **{what: given}), TraceError, f"The {what} given is a class", meant)
            for what, given, meant in (
                ("loss", keras.losses.MeanSquaredError, "Did you mean MeanSquaredError()?"),
                ("optimizer", keras.optimizers.Adam, "Did you mean Adam()?"),
                ("model", keras.Sequential, "Did you mean Sequential()?"),
            )
        ),
        (lambda: compiled(type("E", (keras.Model,), {})()), TraceError, "not have a `call()`"),
        (frozen, TraceError, "'dense_model' has no trainable variables", "trainable=True"),
        (lambda: checkmate.tf2.verify(dense_model(), (X, Y)), TraceError, "got Functional"),
        (lambda: checkmate.tf2.function("6GiB"), TraceError, "A step is a function"),
        (lambda: checkmate.tf2.function(**GIB)(3), TraceError, "A step is a function; got 3"),
        (lambda: function_of(tf.sparse.from_dense([[1.0]])), TraceError, "SparseTens", "to_dense"),
        (lambda: function_of(tf.ragged.constant([[1.0], []])), TraceError, "Ragged", "to_tensor"),
        (lambda: function_of(tf.constant(["a", "b"])), TraceError, "those of text"),
        (lambda: function_of(np.array(["a", "b"])), TraceError, "those of text"),
        (lambda: compiled(labels=np.array(["a"] * BATCH)), TraceError, "those of text"),
    ],
    "errors of the user's own": [
        (
            lambda: checkmate.tf2.trace(lambda x: undefined(x, x), tf.TensorSpec((8, 16))),
            TraceError,
            "NameError: name 'no_such_name' is not defined (test_messages.py, line "
            f"{undefined.__code__.co_firstlineno + 1})",
        ),
        (lambda: compiled(Broken()), TraceError, "name 'no_such_layer' is not defined"),
        (broken_fit, TraceError, "NameError: name 'no_such_layer' is not defined"),
    ],
    "budgets": [
        *((partial(untraced, budget=given), BudgetError, "") for given in NO_BUDGETS),
        *(
            (partial(call, budget=given), BudgetError, meant)
            for given, meant in SHARES.items()
            for call in (untraced, partial(door, "rematerialize"), partial(door, "Rematerialize"))
        ),
        *((partial(checkmate.tf2.dtr, given), BudgetError, SHARES[given]) for given in SHARES),
        (partial(compiled, budget=1000), InfeasibleBudgetError, "Raise the budget"),
        (partial(largest, budget="50%"), BudgetError, ""),
        (partial(largest, budget="6MiB", overhead_limit="some"), BudgetError, ""),
        (partial(largest, budget="6MiB", overhead_limit=0.2), BudgetError, ""),
        (partial(largest, budget="6MiB", largest=10.5), BudgetError, "whole number of at least 1"),
        (lambda: largest(labels=tf.TensorSpec([]), budget="6MiB"), (BudgetError, TraceError), ""),
    ],
    "options": [
        *(
            (partial(untraced, time_limit_s=each), BudgetError, "time_limit_s is a number of sec")
            for each in (-1, NAN, "3")
        ),
        (partial(door, "max_batch", max_overhead=1), TypeError, "Did you mean 'overhead_limit'?"),
        (partial(untraced, keep=""), GraphError, "Layers are named by text"),
        *((partial(door, n, bugdet=1), TypeError, f"{n}() has no option 'bugdet'") for n in DOORS),
        *((partial(door, n, budget="6 apples"), BudgetError, "6 apples") for n in DOORS),
        *((partial(door, n, time_limit_s=-1), BudgetError, "number of seconds") for n in DOORS),
        (partial(door, "compile", batch_size=8), TypeError, "not take batch_size: ", "input_spec"),
        (partial(door, "max_batch", batch_size=8), TypeError, "batch_size: ", "finds the batch"),
        (partial(door, "max_batch", plan="plans"), TypeError, "not take plan: ", "each batch"),
        *((partial(untraced, solver=s), SolverUnavailableError, "state_space") for s in ("gu", 7)),
        (partial(compiled, cost_model="flops"), BudgetError, "profile, roofline, unit"),
        *(
            (partial(PlanOptions, micro_batches=each), TraceError, "is the number of slices")
            for each in (0, 1.5, "many", True)
        ),
        (partial(compiled, micro_batches=BATCH + 1), TraceError, "1024 cannot run in 1025"),
        (partial(untraced, plan="none.json"), PlanFileError, "There is no plan file"),
        (partial(fitted, plainly, plan="none.json"), PlanFileError, "There is no plan file"),
    ],
    "fit": [
        (fitted, TraceError, "not compiled"),
        (partial(fitted, lambda m: m.compile("sgd", run_eagerly=True)), TraceError, "run_eagerly"),
        *(
            (call, error, "")
            for options, error in (
                ({"budget": "a lot"}, BudgetError),
                ({"solver": "gurobi"}, SolverUnavailableError),
                ({"batch_size": 0}, TraceError),
            )
            for call in (
                partial(fitted, plainly, **options),
                partial(checkmate.tf2.Rematerialize, **options),
            )
        ),
        (lambda: checkmate.tf2.release(dense_model()), TraceError, "not under a budget"),
        (lambda: checkmate.tf2.rematerialize(undefined), TraceError, "Did you mean undefined()?"),
        (twice, TraceError, "already"),
        (with_its_own_train_function, TraceError, "itself"),
        (lambda: fitted(plainly, tf.ragged.constant([[1.0], [1.0, 2.0]])), TraceError, "to_tensor"),
        (lambda: fitted(plainly, tf.sparse.from_dense(np.eye(2))), TraceError, "to_dense"),
        (lambda: fitted(plainly, tf.constant([["a"], ["b"]])), TraceError, "those of text"),
    ],
}
"""Group -> (call, error, parts of what it says)."""

ROWS = [
    pytest.param(*row[:2], row[2:], id=f"{name}-{k}")
    for name, rows in TABLE.items()
    for k, row in enumerate(rows)
]


@pytest.mark.parametrize(("call", "error", "parts"), ROWS)
def test_refused(call, error, parts):
    message = refused(call, error).replace("np.int64(512)", "512")
    for part in parts:
        assert part in message


def refused(call, error=TraceError):
    """The message of what is refused."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    for noise in ("\x1b", "\n", "in user code", 'File "', "{{node", "Arguments received"):
        assert noise not in message
    return message


def test_a_call_without_arguments_names_the_function_as_its_user_does():
    @checkmate.tf2.function(**GIB)
    def train_step(images):
        return images

    message = refused(train_step)
    assert message.endswith(": train_step() missing 1 required positional argument: 'images'.")


def test_a_file_of_something_else_is_refused_before_anything_is_traced(tmp_path):
    (tmp_path / "other.json").write_text('{"format": "something"}')
    message = refused(lambda: untraced(plan=tmp_path / "other.json"), PlanFileError)
    assert 'format is "something"; "checkmate-plan" was expected' in message


def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(TypeError, match=r"budget, .*verbose"):
        door("compile", bugdet="1GiB")


def test_numbers_beside_a_spec_are_part_of_the_step():
    step = checkmate.tf2.function(
        lambda x, sides: tf.reshape(tf.sin(x), sides),
        tf.TensorSpec((8, 16)),
        (16, 8),
        cost_model="roofline",
        budget="1GiB",
    )
    assert step.kinds == 1


def test_the_steps_that_verify_is_said_to_take():
    model = dense_model()
    plainly(model)
    options = {"budget": "1GiB", "cost_model": "roofline"}
    checkmate.tf2.rematerialize(model, **options).train_on_batch(X, Y)
    assert checkmate.tf2.verify(checkmate.tf2.planned(model).steps[0], (X, Y)).ok
    step = checkmate.tf2.function(lambda x: tf.reduce_sum(tf.sin(x)), X, **options)
    for one in (step, step.steps[0]):
        assert checkmate.tf2.verify(one, (X,)).ok


def test_a_plan_of_another_step_says_which_part_differs(tmp_path):
    path = tmp_path / "plan.json"
    compiled().save(path)
    x, y = batch_of(8)
    for change, other, same in (
        ({"optimizer": "adam"}, "its optimizer's update is another", "pass"),
        ({"loss": "cosine_similarity"}, "its forward pass is another", "update"),
        ({"inputs": x, "labels": y}, "float32[8, 16]", "pass is another"),
    ):
        message = refused(lambda change=change: compiled(plan=path, **change), PlanFileError)
        assert other in message and same not in message


def test_editors_see_the_options_that_exist():
    declared = {each.name: each.type for each in dataclasses.fields(PlanOptions)}
    keywords = {
        name: getattr(kind, "__forward_arg__", kind)
        for name, kind in PlanKeywords.__annotations__.items()
    }
    assert {"budget": declared["budget"], **keywords} == declared
