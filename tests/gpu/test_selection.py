"""Which tests see a GPU: those marked `gpu`, run by themselves in one process, and no others."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = "tests/gpu/test_training_on_gpu.py"


def pytest_run(*arguments):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, HERE]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run(
        command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("markers", "selected"),
    [
        ("gpu", True),
        ("gpu and not slow", True),
        ("slow or gpu", True),
        ("", False),
        ("slow", False),
        ("not slow and not gpu", False),
    ],
)
def test_which_markers_select_gpu_tests(markers, selected, request):
    plugins = request.config.pluginmanager.get_plugins()
    selects_gpu = next(each.selects_gpu for each in plugins if hasattr(each, "selects_gpu"))
    assert selects_gpu(markers) is selected


def test_other_tests_see_no_gpu():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.slow
def test_gpu_tests_are_left_out_unless_they_are_named():
    usual = pytest_run("-n", "0", "--collect-only")
    assert "no tests collected" in usual.stdout
    named = pytest_run("-n", "0", "--collect-only", "-m", "gpu")
    assert int(re.search(r"(\d+) tests? collected", named.stdout)[1]) > 10


def test_gpu_tests_in_several_processes_are_refused():
    found = pytest_run("-m", "gpu", "-n", "2")
    assert found.returncode == pytest.ExitCode.USAGE_ERROR
    assert "Run them in one: pytest -m gpu -n 0" in found.stderr


@pytest.mark.slow
def test_without_a_gpu_they_are_skipped_with_the_reason():
    done = pytest_run("-n", "0", "-m", "gpu", "-rs", "-k", "reports")
    assert done.returncode == 0, done.stdout
    assert "TensorFlow sees no GPU here" in done.stdout
    assert "1 skipped" in done.stdout
