"""Private names of TensorFlow and Keras stand in one file of the eager package."""

import ast
from pathlib import Path

import pytest
import tensorflow as tf

import checkmate
from checkmate.errors import EvictionError
from checkmate.tf2.eager import budget, private_api

FOLDER = Path(checkmate.__file__).parent / "tf2" / "eager"
FENCE = FOLDER / "private_api.py"
OTHERS = sorted(set(FOLDER.glob("*.py")) - {FENCE})


def listed():
    """The names that the fence lists at its top, read from its source: (modules, names)."""
    found = {}
    for node in ast.parse(FENCE.read_text(encoding="utf-8")).body:
        target = getattr(node, "target", None) or getattr(node, "targets", [None])[0]
        if getattr(target, "id", "") in ("PRIVATE", "TENSOR_METHODS", "FIELDS", "KERAS_PRIVATE"):
            found[target.id] = ast.literal_eval(node.value)
    modules = found.pop("PRIVATE")
    names = {name for each in modules.values() for name in each}
    return set(modules), names.union(*found.values())


def violations(source):
    """What in a source is a private name of TensorFlow or Keras, or could be one."""
    _, names = listed()
    # Of the listed names, those that are words say nothing on their own.
    names = {name for name in names if name.startswith("_") or "TFE_" in name}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            imported = []
        for module in imported:
            parts = module.split(".")
            if parts[0] in ("tensorflow", "keras") and ({"python", "src"} & set(parts)):
                yield module
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = node.value
            own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
            if not node.attr.endswith("__") and (not own or node.attr in names):
                yield ast.unparse(node)
        if isinstance(node, ast.FunctionDef) and node.name in names:
            yield node.name
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and (text in names or "tensorflow.python" in text):
            yield text


def test_there_are_files_to_read():
    assert {"runtime.py", "policy.py", "tensors.py", "interception.py"} <= {
        path.name for path in OTHERS
    }


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_no_other_file_names_anything_private(path):
    assert not list(violations(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "source",
    [
        "from tensorflow.python.eager import context",
        "import keras.src.backend",
        "tensor._numpy()",
        "class A:\n    def f(self):\n        return self._id",
        "class A:\n    def _shape_tuple(self):\n        return ()",
        "class A:\n    __slots__ = ('_id',)",
        "getattr(tfe, 'TFE_Py_FastPathExecute')",
        "importlib.import_module('tensorflow.python.eager')",
    ],
)
def test_the_reader_sees_private_names(source):
    assert list(violations(source))


def test_everything_private_in_the_fence_is_listed():
    modules, names = listed()
    own = {"_gone", "_RESOURCE", "_TapeType"}
    for node in ast.walk(ast.parse(FENCE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorflow."):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                assert whole in modules or (node.module in modules and alias.name in names), whole
        name = getattr(node, "attr", None) or (
            node.name if isinstance(node, ast.FunctionDef) else ""
        )
        if name.startswith(("_", "TFE_")) and not name.endswith("__"):
            assert name in names | own, name


@pytest.mark.usefixtures("tensorflow")
def test_loading_changes_no_class():
    assert not any(hasattr(EvictionError, name) for name in private_api.KERAS_PRIVATE)
    error = budget.went_over(1.0, 2.0, "why")
    assert all(hasattr(error, name) for name in private_api.KERAS_PRIVATE)


@pytest.mark.usefixtures("tensorflow")
def test_tensorflow_has_all_that_is_listed():
    assert not private_api.missing()
    tensor = tf.constant(1.0)
    for name in private_api.TENSOR_METHODS:
        assert hasattr(tensor, name), name
