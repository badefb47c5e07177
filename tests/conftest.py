"""Shared by all tests. That this file is here also puts `tests/` on the path, so that tests can
import `strategies` and `oracles`.

The settings of TensorFlow make a run exact and its memory counted: the CPU gets the allocator that
GPUs have; one thread and deterministic ops make equal programs give equal bits; without Grappler
and oneDNN the plain step is not fused, which is what "the model's own numbers" means.

Tests see no GPU, so that they find the same on every machine. Those marked `gpu` run alone, by
`pytest -m gpu -n 0`.
"""

import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples on every run: a test that fails, fails again. A loaded machine is no reason to
# fail.
settings.register_profile(
    "checkmate",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("checkmate")

# Machine code of the annealer, apart for each state of its sources: numba looks at one of the files
# only.
_SOURCES = sorted((Path(__file__).parents[1] / "checkmate" / "solvers" / "annealing").glob("*.py"))
_DIGEST = hashlib.sha256(b"".join(file.read_bytes() for file in _SOURCES)).hexdigest()[:12]
os.environ["NUMBA_CACHE_DIR"] = str(
    Path(__file__).parents[1] / ".pytest_cache" / f"numba-{_DIGEST}"
)

OWN_PROCESS = "CHECKMATE_TEST_OWN_PROCESS"

# TensorFlow reads these when it is imported.
if OWN_PROCESS not in os.environ:
    os.environ |= {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}


def selects_gpu(markers: str) -> bool:
    """Whether an expression of `pytest -m` selects the tests marked `gpu`."""
    return re.search(r"(?<!not )\bgpu\b", markers) is not None


def pytest_configure(config):
    """Hides every GPU from TensorFlow, which is not imported yet, or lets the tests have one.

    A test's own process has the environment of the run that started it.
    """
    if not selects_gpu(config.getoption("markexpr")):
        if OWN_PROCESS not in os.environ:
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        return
    if config.getoption("numprocesses", default=None):
        raise pytest.UsageError(
            "Tests marked gpu were asked for in several processes, of which the first would take"
            " the whole GPU. Run them in one: pytest -m gpu -n 0"
        )
    # Tests in processes of their own need memory beside this one.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def pytest_pyfunc_call(pyfuncitem):
    """Runs a test marked `own_process` in a process of its own, with the environment variables that
    are the mark's arguments.

    What the allocator loses hangs on how its pool is cut, and that on all that ran before. Here
    nothing did, in whichever order tests run.
    """
    marker = pyfuncitem.get_closest_marker("own_process")
    if OWN_PROCESS in os.environ or not marker:
        return None
    # This test's own time limit holds; it may be one of the slow ones.
    options = ["-n", "0", "-p", "no:cacheprovider", "--timeout", "0", "-m", ""]
    command = [sys.executable, "-m", "pytest", *options, pyfuncitem.nodeid]
    done = subprocess.run(
        command,
        cwd=pyfuncitem.config.rootpath,
        env=os.environ | {OWN_PROCESS: "1"} | marker.kwargs,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(done.stdout + done.stderr, pytrace=False)
    return True


@pytest.fixture(autouse=True)
def interruptible():
    """SIGINT raises KeyboardInterrupt in tests and in the processes that they start, also where
    the shell that started them has it ignored, as it does in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def notebook(monkeypatch):
    """Called with an object, the outputs that a notebook's cell shows for it: by type, "text/html"
    or "image/png"."""
    import IPython.display
    from IPython.core.formatters import DisplayFormatter

    shown = []
    monkeypatch.setattr(
        IPython.display, "display", lambda each: shown.append(DisplayFormatter().format(each)[0])
    )

    def outputs(found):
        shown.clear()
        if hasattr(found, "_ipython_display_"):
            found._ipython_display_()
        else:
            IPython.display.display(found)
        return [
            {kind: data for kind, data in each.items() if kind != "text/plain"} for each in shown
        ]

    return outputs


@pytest.fixture(scope="session")
def tensorflow(tmp_path_factory):
    """TensorFlow, exact and counted; measured costs go to a folder of the test run."""
    os.environ["CHECKMATE_CACHE_DIR"] = str(tmp_path_factory.mktemp("costs"))
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    return tf
