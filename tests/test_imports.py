"""The layers: every import of the package is read and must point down, no files import one another
in a circle, and packages are imported in their own folders.

An import counts wherever it stands: at the top, in a function, under TYPE_CHECKING, as the argument
of `import_module`, or as a text that names a module, as in the table of solvers.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import checkmate

ROOT = Path(checkmate.__file__).parent

DOORS = (
    *("compile", "training_step", "function", "planned_function", "fit", "keras2"),
    *("distribute", "replicas", "max_batch", "max_length", "fits", "out_of_memory", "verify"),
)
"""What people call of tf2, and the files that it consists of. They may import one another, in no
circle."""

LAYERS = {
    "printable": "",
    "unlogged": "",
    "errors": "printable",
    "version": "",
    "units": "errors",
    "progress": "units",
    "core": "units",
    "dtr": "core",
    "plot": "core",
    "solvers.background": "",
    "solvers.search": "core",
    "solvers.result": "core plot",
    "solvers.backends": "core unlogged",
    "solvers.baselines": "solvers.search",  # and one of its files the simulator of DTR: see EXTRA
    "solvers.exact": "solvers.search",
    "solvers.local": "solvers.search",
    "solvers.annealing": "solvers.background solvers.local",
    "solvers.auto": "solvers.annealing solvers.backends solvers.baselines solvers.exact",
    "solvers.ordering": "solvers.auto",
    "solvers.paper": "solvers.auto",
    "solvers.layer_rules": "core",
    "solvers.solve": "solvers.layer_rules solvers.ordering solvers.paper solvers.result",
    "solvers.curve": "solvers.solve",
    "tf2.device": "core",
    "tf2.error_text": "",
    "tf2.ops": "",
    "tf2.graph": "tf2.ops tf2.device tf2.error_text",
    "tf2.axes": "tf2.graph plot",
    "tf2.execution": "tf2.graph",
    "tf2.costs": "tf2.execution tf2.memory",
    # Costs and memory each use the other; files form no circle.
    "tf2.memory": "tf2.execution tf2.costs version unlogged",
    "tf2.report": "tf2.memory solvers.result",
    "tf2.options": "tf2.costs tf2.rewrites solvers.solve",
    "tf2.rewrites": "tf2.axes tf2.memory tf2.deferred_update",
    "tf2.planning": "tf2.options tf2.report tf2.rewrites solvers.curve progress",
    "tf2.deferred_update": "tf2.graph",
    "tf2.eager": "tf2.costs dtr",
    **dict.fromkeys((f"tf2.{door}" for door in DOORS), "tf2.planning tf2.doors tf2.uninitialized"),
    "tf2.uninitialized": "errors",
    "tf2.models": "tf2.doors tf2.uninitialized",
    "tf2.tensorboard": "tf2.doors",
    "tf2.facade": "tf2.doors tf2.models tf2.tensorboard tf2.eager",
    "facade": "solvers.curve dtr plot tf2.facade",
    "demo": "facade progress",
    "commands": "demo",
    "cli": "commands",
    "__main__": "cli",
}
"""What each layer may import besides itself: the layers named here, and what those may import.

A layer is a folder or a file directly below `checkmate`, `checkmate/solvers` or `checkmate/tf2`.
The `__init__` of the package and that of tf2 are facades, which name what others have.
"""

EXTRA = {"solvers/baselines/dtr.py": "dtr"}
"""What a single file may import besides."""

ONLY_IN = {
    "tensorflow": ("tf2/", "demo/"),
    "keras": ("tf2/", "demo/"),
    "numba": ("solvers/annealing/",),
    "cylp": ("solvers/backends/cbc.py",),
    "ortools": ("solvers/backends/ortools.py", "solvers/backends/ortools_intervals.py"),
    "highspy": (),  # cannot live in one process with OR-tools
    "scipy.optimize": ("solvers/backends/",),
    "matplotlib": ("plot/",),
    "tensorflow.python": (
        *("tf2/device.py", "tf2/graph/grappler.py", "tf2/graph/bodies.py"),
        *(
            "tf2/graph/variables.py",
            "tf2/graph/xla.py",
            "tf2/uninitialized.py",
            "tf2/eager/private_api.py",
        ),
    ),
}
"""The files and folders that may import a package. `tensorflow.python` is what TensorFlow keeps
private, and may change from version to version: each of its files says what it does without."""

LIGHT = ("printable", "errors", "version", "units", "core")
"""Layers that need the standard library and NumPy only."""

IN_FUNCTIONS = ("cylp", "ortools", "scipy", "networkx", "matplotlib", "numba")
"""Packages that `import checkmate` must not load: a file that it reads imports them late."""


def module_of(path: Path) -> str:
    parts = ["checkmate", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}
every_module = pytest.mark.parametrize("module", MODULES)


def imports(tree: ast.AST):
    """Yields (module, whether it is imported only when a function is called) for every import."""

    def walk(node: ast.AST, late: bool):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, late) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert not child.level, "an import names the whole path"
                for alias in child.names:
                    inner = f"{child.module}.{alias.name}"
                    yield (inner if is_module(inner) else child.module), late
            elif isinstance(child, ast.Constant) and is_module(child.value):
                yield child.value, True
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            typing = isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING"
            yield from walk(child, late or inside or typing)

    yield from walk(tree, False)


def is_module(name: object) -> bool:
    """Whether a text is the dotted name of a module of ours, or of a package in `ONLY_IN`."""
    if not isinstance(name, str) or "." not in name:
        return False
    private = name.startswith("tensorflow.python.") and all(map(str.isidentifier, name.split(".")))
    return name in MODULES or name in ONLY_IN or private


@cache
def read(module: str) -> tuple[tuple[str, bool], ...]:
    return tuple(imports(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


def layer(module: str) -> str:
    parts = module.split(".")[1:]
    if not parts:
        return "facade"
    if parts == ["tf2"]:
        return "tf2.facade"
    if parts[0] in ("solvers", "tf2"):
        return ".".join(parts[:2])
    return parts[0]


@cache
def allowed(name: str) -> frozenset[str]:
    """What a layer may import: itself, what `LAYERS` names, and what those may."""
    graph = nx.DiGraph((here, below) for here in LAYERS for below in LAYERS[here].split())
    graph.add_edges_from(("tf2.doors", f"tf2.{door}") for door in DOORS)
    return frozenset({name} | (nx.descendants(graph, name) if name in graph else set()))


def own(module: str) -> set[str]:
    """The modules of ours that a module imports."""
    return {name for name, _ in read(module) if name in MODULES} - {module}


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_the_reader_sees_every_kind_of_import():
    text = """
import a.b
from checkmate import units
from scipy import optimize
if TYPE_CHECKING:
    from c import d
def f():
    import e
    importlib.import_module("checkmate.core.plan")
TABLE = {"auto": ("checkmate.core.graph", "tensorflow.python.eager")}
"""
    assert sorted(imports(ast.parse(text))) == [
        *(("a.b", False), ("c", True), ("checkmate.core.graph", True)),
        *(("checkmate.core.plan", True), ("checkmate.units", False), ("e", True)),
        *(("scipy.optimize", False), ("tensorflow.python.eager", True)),
    ]


def test_every_layer_is_listed_and_points_down():
    """A new folder is given its place in `LAYERS`; `solvers/__init__` has nothing to import."""
    assert {layer(module) for module in MODULES} - {"solvers"} - LAYERS.keys() == set()
    assert not own("checkmate.solvers")
    mutual = {
        (a, b) for a in LAYERS for b in LAYERS if a < b if b in allowed(a) and a in allowed(b)
    }
    doors = {f"tf2.{door}" for door in DOORS}
    assert {pair for pair in mutual if not doors >= {*pair}} == {("tf2.costs", "tf2.memory")}


@every_module
def test_layers_point_down(module):
    path = MODULES[module].relative_to(ROOT).as_posix()
    may = allowed(layer(module)) | {EXTRA.get(path, "")}
    wrong = sorted(name for name in own(module) if layer(name) not in may)
    assert not wrong, f"{path} must not import {wrong}"


def test_no_files_import_one_another_in_a_circle():
    graph = nx.DiGraph((module, name) for module in MODULES for name in own(module))
    circles = [sorted(each) for each in nx.strongly_connected_components(graph) if len(each) > 1]
    assert not circles


@every_module
def test_packages_stay_in_their_folders(module):
    path = MODULES[module].relative_to(ROOT).as_posix()
    for name, _ in read(module):
        for package, places in ONLY_IN.items():
            if is_within(name, package):
                assert path.startswith(places), f"{path} imports {name}"


@every_module
def test_what_import_checkmate_reads_loads_no_large_package(module):
    light = allowed("facade") - {name for name in LAYERS if name.startswith("tf2")}
    late = layer(module) in light and layer(module) != "solvers.annealing"
    for name, inside in read(module):
        if late and name.split(".")[0] in IN_FUNCTIONS:
            assert inside, f"{module} imports {name} outside of a function"


@pytest.mark.parametrize("module", [each for each in MODULES if layer(each) in LIGHT])
def test_core_needs_the_standard_library_and_numpy(module):
    allowed_here = (*sys.stdlib_module_names, "numpy", "checkmate")
    for name, inside in read(module):
        package = name.split(".")[0]
        assert package in allowed_here or (package == "networkx" and inside), name


def test_import_checkmate_is_light():
    heavy = (*ONLY_IN, "scipy", "networkx", "pandas", "rich")
    script = f"import sys, checkmate; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert done.stdout.strip() == "[]"
