"""What a newcomer meets first: the metadata, the README's commands and examples, the public
names."""

import ast
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from schemas import SCHEMAS

import checkmate

ROOT = Path(checkmate.__file__).parents[1]
README = ROOT / "README.md"

pytestmark = pytest.mark.skipif(not README.exists(), reason="needs the checkout")


def block(mark: str) -> str:
    """The fenced block of the README that follows `<!-- mark -->`."""
    found = re.findall(
        rf"^<!-- {re.escape(mark)} -->\n```\w+\n(.*?)^```$",
        README.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert len(found) == 1, mark
    return found[0]


def python(*arguments: str, cwd: Path = ROOT) -> str:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=cwd
    ).stdout


@pytest.fixture(scope="module")
def metadata():
    """What setup.py says, as setuptools understands it."""
    name, version, commands, required, python_requires = python(
        "-c",
        "import distutils.core, sys, setuptools; sys.argv = ['setup.py', '--version']\nd ="
        " distutils.core.run_setup('setup.py', stop_after='init')\nprint(d.get_name(),"
        " d.get_version(), d.entry_points['console_scripts'], d.install_requires,"
        " d.python_requires, sep='\\n')",
    ).splitlines()[-5:]
    return {
        "name": name,
        "version": version,
        "commands": commands,
        "required": required,
        "python": python_requires,
    }


def test_version_is_written_in_one_place(metadata):
    assert metadata["version"] == checkmate.__version__
    assert checkmate.__version__ not in (ROOT / "setup.py").read_text(encoding="utf-8")


def test_the_command_exists(metadata):
    assert metadata["commands"] == "['checkmate=checkmate.cli:main']"
    from checkmate.cli import main

    assert {"demo", "plan"} <= set(main.commands)


def test_what_the_wheel_holds(tmp_path):
    """Every module of the package, py.typed for type checkers, and nothing of benchmarks."""
    python("setup.py", "-q", "build_py", "--build-lib", str(tmp_path))
    shipped = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "checkmate").rglob("*.py")}
    here |= {f"checkmate/core/schemas/{name}.schema.json" for name in SCHEMAS}
    assert here | {"checkmate/py.typed"} <= shipped
    assert all(path.startswith("checkmate/") for path in shipped)


def test_what_the_sdist_holds(tmp_path):
    """All that the tests and the documentation are made of, and nothing that Python compiled."""
    python("setup.py", "-q", "egg_info", "--egg-base", str(tmp_path))
    (listed,) = tmp_path.glob("*.egg-info/SOURCES.txt")
    held = set(listed.read_text(encoding="utf-8").splitlines())
    folders = ("benchmarks", "checkmate", "docs", "tests", "tutorials", ".ci", ".github")
    here = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    needed = {"mkdocs.yml", "pyproject.toml", "CHANGELOG.md", "CITATION.cff", "LICENSE"}
    assert here | needed <= held
    assert not [name for name in held if name.endswith((".pyc", ".tmp"))]


@pytest.mark.slow
def test_the_documentation_is_built_from_the_sdist(tmp_path):
    """In a copy, as an sdist is put together in the folder that it is of."""
    copied = tmp_path / "copy"
    left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "*.egg-info")
    shutil.copytree(ROOT, copied, ignore=left_out)
    python("setup.py", "-q", "sdist", "--dist-dir", str(tmp_path), cwd=copied)
    (sdist,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    python(
        "-m",
        "mkdocs",
        "build",
        "-q",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
        cwd=unpacked,
    )
    assert (tmp_path / "site" / "tutorials" / "1_first_model" / "index.html").exists()


def test_every_import_is_required(metadata):
    """Packages that the library imports are in install_requires, except those that come with
    TensorFlow or with the extra "gpu", models of Keras 2, and IPython, which is imported when it
    calls."""
    imported = set()
    for path in (ROOT / "checkmate").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.split(".")[0] for name in names}
    optional = {"pynvml", "IPython", "tf_keras"}
    foreign = imported - sys.stdlib_module_names - {"checkmate", "keras"} - optional
    assert {"tensorflow", "numpy"} <= foreign
    for package in foreign:
        assert re.search(rf"'{package}\b", metadata["required"], re.IGNORECASE), package


def test_the_readme_s_test_command_is_what_ci_runs():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    function = script[script.index("readme_command()") : script.index("\n}\n") + 3]
    extracted = subprocess.run(
        ["bash", "-c", f"{function}readme_command test"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    assert extracted == block("command: test")
    assert 'bash -euo pipefail -c "$command"' in script
    assert "run: .ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["demo", "test"])
def test_commands_of_the_readme_are_one_line(name):
    assert block(f"command: {name}").count("\n") == 1
    assert block(f"command: {name}").startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_the_readme_s_graph_example():
    example = block("example: solve")
    expected = re.search(r"print\(.*  # (.*)", example)[1]
    assert python("-c", example).strip() == expected


@pytest.mark.slow
def test_the_readme_s_training_example():
    report = "print(checkmate.tf2.planned(model).report())"
    assert f"`{report}`" in README.read_text(encoding="utf-8")
    printed = python("-c", block("example: fit") + report)
    assert "trains in" in printed and "measured in 4 steps" in printed


@pytest.mark.parametrize(
    "page", [README, ROOT / "checkmate" / "README.md"], ids=["README.md", "checkmate/README.md"]
)
def test_links_and_files_of_the_pages_exist(page):
    text = page.read_text(encoding="utf-8")
    linked = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    named = re.findall(r"`((?:checkmate|core|solvers|tf2|demo|tests)/[\w/]+\.py)`", text)
    assert linked
    for path in linked:
        assert (page.parent / path).exists(), path
    for path in named:
        assert (ROOT / path).exists() or (ROOT / "checkmate" / path).exists(), path


def test_the_map_is_a_page_that_names_every_room():
    text = (ROOT / "checkmate" / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) < 1500
    rooms = {path.parent for path in (ROOT / "checkmate").rglob("*.py")}
    named = {room.relative_to(ROOT / "checkmate").as_posix() for room in rooms} - {"."}
    assert not [room for room in named if f"{room.removeprefix('solvers/')}/" not in text]


@pytest.mark.parametrize("name", checkmate.__all__)
def test_public_names_are_documented(name):
    own = inspect.getdoc(getattr(checkmate, name))
    assert own
    assert not own.startswith(f"{name}("), f"{name} has only what dataclass writes for it"


def test_a_name_that_is_not_here_is_answered_by_one_that_is():
    with pytest.raises(AttributeError, match=r"Did you mean checkmate.tf2.rematerialize\?"):
        _ = checkmate.rematerialize
    with pytest.raises(AttributeError, match=r"Did you mean checkmate.solve\?"):
        _ = checkmate.solev
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        _ = checkmate.zzz


def test_import_is_clean():
    python("-W", "error", "-c", "import checkmate")
