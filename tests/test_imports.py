"""The layers: every import statement of the package is read, and must point down; and `import
checkmate` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import checkmate

ROOT = Path(checkmate.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
FRAMEWORKS = {"tensorflow", "keras"}
SOLVER_PACKAGES = {"cylp", "ortools", "highspy"}
PACKAGES = ("numpy", "scipy", "networkx", *SOLVER_PACKAGES, *FRAMEWORKS)
# What each layer may use of the layers: design rule "errors, units <- core <- {dtr, plot} <-
# solvers <- tf2".
BELOW = {
    "errors": set(),
    "units": {"errors"},
    "core": {"errors", "units", "core"},
    "dtr": {"errors", "units", "core", "dtr"},
    "plot": {"errors", "units", "core", "plot"},
    "solvers": {"errors", "units", "core", "plot", "solvers"},
}


def layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path):
    """Yields (module, is it inside a function, is it for type checkers only) for every import
    statement of a file."""

    def walk(node, inside, typing):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, inside, typing) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert not child.level, f"{path}: relative import"
                yield child.module, inside, typing
                if child.module == "checkmate":
                    yield from (
                        (f"checkmate.{alias.name}", inside, typing)
                        for alias in child.names
                        if alias.name.islower()
                    )
            elif (
                isinstance(child, ast.Call)
                and getattr(child.func, "attr", "") == "import_module"
                and isinstance(child.args[0], ast.Constant)
            ):
                yield child.args[0].value, inside, typing
            deeper = inside or isinstance(
                child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
            )
            guarded = typing or (
                isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING"
            )
            yield from walk(child, deeper, guarded)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), False, False)


def test_the_reader_sees_imports(tmp_path):
    path = tmp_path / "example.py"
    path.write_text(
        "import a.b\nif TYPE_CHECKING:\n    from c import d\ndef f():\n    import e\n   "
        " importlib.import_module('g')\n"
    )
    assert list(imports(path)) == [
        ("a.b", False, False),
        ("c", False, True),
        ("e", True, False),
        ("g", True, False),
    ]


def test_there_is_something_to_read():
    assert {"core", "solvers", "errors", "units"} <= {layer(path) for path in FILES}


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if layer(path) in BELOW],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_layers_point_down(path):
    here = layer(path)
    for module, _, typing in imports(path):
        parts = module.split(".")
        if parts[0] == "checkmate" and len(parts) > 1 and not typing:
            planner = (
                path.relative_to(ROOT).as_posix() == "solvers/baselines/dtr.py"
                and parts[1] == "dtr"
            )
            assert parts[1] in BELOW[here] or planner, f"{path} imports {module}"


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if layer(path) != "tf2"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_packages_stay_in_their_rooms(path):
    here, name = layer(path), path.relative_to(ROOT).as_posix()
    for module, inside, typing in imports(path):
        package = module.split(".")[0]
        if here != "bench":
            assert package not in FRAMEWORKS or typing, f"{name} imports {module}"
        if package in SOLVER_PACKAGES:
            assert package != "highspy", f"{name}: highspy and OR-tools cannot live in one process"
            assert name.startswith(f"solvers/backends/{'cbc' if package == 'cylp' else package}"), (
                f"{name} imports {module}"
            )
            assert inside, f"{name} imports {module} outside of a function"
        if here in BELOW and package in ("scipy", "networkx", "matplotlib"):
            assert inside or typing, f"{name} imports {module} outside of a function"


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if layer(path) in ("core", "errors", "units")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_core_needs_the_standard_library_and_numpy(path):
    for module, inside, _ in imports(path):
        package = module.split(".")[0]
        allowed = (
            package in sys.stdlib_module_names
            or package in ("numpy", "checkmate")
            or (package == "networkx" and inside)
        )
        assert allowed, f"{path} imports {module}"


def test_import_checkmate_is_light():
    heavy = (*SOLVER_PACKAGES, *FRAMEWORKS, "scipy", "networkx", "numba", "matplotlib", "pandas")
    script = f"import sys, checkmate; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert done.stdout.strip() == "[]"
