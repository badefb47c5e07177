"""The language models of docs/models.md: each step traced without weights is the ordinary one, and
one of them is planned at its real size."""

import ast
import json
import re
import resource
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from tracing_on_paper import definitions, traced

from checkmate.tf2 import models

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
HEADS = {"num_query_heads": 4, "num_key_value_heads": 1}
SMALL = {
    "gemma_2b": {**HEADS, "head_dim": 16},
    "llama3_8b": HEADS,
    "gpt2_xl": {"num_heads": 4, "max_sequence_length": 32},
}

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs the checkout")


def module_of_the_page():
    text = PAGE.read_text(encoding="utf-8").partition("Save this as `my_models.py`")[2]
    return re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def my_models(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(module_of_the_page())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_models", None)


def test_the_page_has_a_function_for_each_model():
    names = {node.name for node in ast.parse(module_of_the_page()).body if hasattr(node, "name")}
    assert names >= {*SMALL, *(f"{name}_lora" for name in SMALL)}


@pytest.mark.slow
@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("name", SMALL)
def test_the_step_without_weights_is_the_ordinary_one(
    tensorflow, my_models, monkeypatch, name, rank
):
    pytest.importorskip("keras_hub")
    import my_models as module

    sizes = {"vocabulary_size": 512, "num_layers": 2, "hidden_dim": 64, "intermediate_dim": 128}
    make = getattr(module, name)
    module.small = lambda: make(32, rank, **sizes, **SMALL[name])
    found = traced("my_models:small")
    monkeypatch.setattr(models, "uninitialized_variables", nullcontext)
    expected = traced("my_models:small")
    assert found.graph == expected.graph
    assert definitions(found) == definitions(expected)


@pytest.mark.slow
def test_a_model_is_planned_at_its_real_size_without_its_weights(my_models):
    """Gemma's 2.5 billion weights take 5 GB in bfloat16."""
    pytest.importorskip("keras_hub")
    arguments = ["my_models:gemma_2b_lora", "--batch", "8", "--budget", "24GiB", "--json"]
    command = [sys.executable, "-m", "checkmate", "plan", *arguments, "--costs", "roofline"]
    done = subprocess.run(command, cwd=my_models, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["peak_bytes"] <= 24 * 2**30 < facts["plain_peak_bytes"]
    assert facts["gap"] <= 0.01
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < 3e9
