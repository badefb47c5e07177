"""Docstrings of what users call: an example each, every parameter described, and examples that
run."""

import ast
import doctest
import functools
import importlib
import inspect
import pkgutil
import re
import threading
from enum import Enum
from pathlib import Path

import pytest
from strategies import training_chain

import checkmate
from checkmate import plot
from checkmate.dtr.log import OpLog

ROOT = Path(checkmate.__file__).parent
EXAMPLES = sorted(path for path in ROOT.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))


pytestmark = pytest.mark.skipif(not (ROOT.parent / "docs").exists(), reason="needs the checkout")


def public():
    """Name -> each class and function that users call: those that the packages list, and those that
    the pages of `docs/api` show."""
    tf2 = importlib.import_module("checkmate.tf2")
    found = {}
    for module in (checkmate, plot, tf2):
        found |= {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    for page in (ROOT.parent / "docs" / "api").glob("*.md"):
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            found |= members(name)
    return {name: each for name, each in found.items() if callable(each)}


def members(name):
    """What is shown for a name: itself, or if it is a module what that defines."""
    try:  # a function may have the name of the file that defines it
        found = functools.reduce(getattr, name.split(".")[1:], checkmate)
    except AttributeError:
        found = pkgutil.resolve_name(name)
    if not inspect.ismodule(found):
        return {name: found}
    return {
        f"{name}.{key}": each
        for key, each in vars(found).items()
        if not key.startswith("_") and getattr(each, "__module__", "") == name
    }


def callables():
    """(name, what is called, the members of base classes that may describe its parameters)."""
    for name, each in public().items():
        if not inspect.isclass(each):
            yield name, each, ()
            continue
        yield name, each, each.__mro__[1:-1]
        for key, member in vars(each).items():
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function) and not key.startswith("_"):
                yield (
                    f"{name}.{key}",
                    function,
                    [vars(base)[key] for base in each.__mro__[1:] if key in vars(base)],
                )


def section(each, *titles):
    """What is indented below one of these titles of a docstring."""
    text = inspect.getdoc(each) or ""
    found = [
        match[1]
        for title in titles
        for match in re.finditer(rf"^{title}:(.*(?:\n(?: .*)?)*)", text, re.MULTILINE)
    ]
    return "\n".join(found)


def described(each):
    """The parameters that a docstring describes; those of a dataclass are its attributes. Keras
    indents by four."""
    text = section(each, "Args", "Attributes")
    lines = re.findall(r"^(?:  |    )(\w+(?:, \w+)*):", text, re.MULTILINE)
    return {name for line in lines for name in line.split(", ")}


def parameters(each):
    """The names of the parameters that a caller gives; errors are raised by the library."""
    if inspect.isclass(each) and issubclass(each, Exception | Enum):
        return set()
    found = inspect.signature(each).parameters.values()
    # Options that `PlanOptions` describes.
    return {one.name for one in found if one.kind is not one.VAR_KEYWORD} - {"self", "cls"}


@pytest.mark.usefixtures("tensorflow")
def test_every_public_name_has_a_short_example():
    lines = {name: section(each, "Examples").count(">>> ") for name, each in public().items()}
    assert [name for name, count in lines.items() if not 1 <= count <= 4] == []
    assert len(lines) > 70


@pytest.mark.usefixtures("tensorflow")
def test_every_parameter_is_described():
    lacking = {
        name: sorted(missing)
        for name, each, bases in callables()
        if (
            missing := parameters(each) - described(each) - {d for b in bases for d in described(b)}
        )
    }
    assert lacking == {}


def takes_tensorflow(path):
    return "tf2" in path.parts or path.stem == "errors"


of_each = {"argvalues": EXAMPLES, "ids": [str(path.relative_to(ROOT.parent)) for path in EXAMPLES]}


def names(path, source):
    """What an example uses besides what its file has."""
    graph = training_chain(12)
    found = {"checkmate": checkmate, "graph": graph, "result": checkmate.solve(graph, "80%")}
    if not takes_tensorflow(path):
        return found
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(64, activation="tanh") for _ in range(8)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(3)])
    model.compile("adam", "mse")
    images, labels = tf.ones((8192, 64)), tf.zeros((8192, 3))

    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(images) - labels) ** 2)
        return loss, tape.gradient(loss, model.trainable_variables)

    if "step." in source or "(step" in source:
        step = checkmate.tf2.compile(model, "mse", "adam", images, labels, budget="80%")
        found["step"] = step
    own = {"model": model, "images": images, "labels": labels, "train_step": train_step}
    return found | own | {"optimizer": model.optimizer, "keras": keras, "tf": tf}


class Unshown(doctest.OutputChecker):
    """What an example prints may be left out."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow if takes_tensorflow(path) else ())
        for path in EXAMPLES
    ],
    ids=of_each["ids"],
)
def test_examples_run(path, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    OpLog.from_graph(training_chain(4)).save(tmp_path / "resnet.log")
    (tmp_path / "cut.log").write_text("{")
    name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    if takes_tensorflow(path):
        request.getfixturevalue("tensorflow")
    if path.stem == "tensorboard":
        pytest.importorskip("tensorboard")
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(Unshown(), optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module):
        if example.examples:
            example.globs |= names(path, example.docstring)
            runner.run(example)
    assert not runner.failures, f"beside {threading.enumerate()}"


@pytest.mark.parametrize("path", **of_each)
def test_examples_are_python(path):
    """Those too that are shown only, as they need a model or minutes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            for example in doctest.DocTestParser().get_examples(ast.get_docstring(node) or ""):
                compile(example.source, str(path), "single")
