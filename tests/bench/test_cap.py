"""`bench cap`: the search for the plain step's largest batch, whichever way it runs out of memory."""

import subprocess

import pytest

from checkmate.bench import cap, process
from checkmate.bench.process import ProcessDiedError
from checkmate.errors import CheckmateError


@pytest.mark.parametrize("largest", [0, 1, 5, 8, 21])
def test_the_largest_batch_is_found(monkeypatch, largest):
    def fresh_process(module, arguments, *, cap_bytes):
        if len(arguments) == 2:
            return {"trained": True, "batch": 30, "plain_batch": 8, "step_s": 3.0}
        batch = int(arguments[2])
        if batch > largest + 1:
            raise ProcessDiedError("status -11")
        return {"trained": batch <= largest, "batch": batch, "plain_batch": None, "step_s": batch / 20}

    monkeypatch.setattr(cap, "fresh_process", fresh_process)
    row = cap.measure("unet", 400 << 20, 3)
    assert row["plain_batch"] == largest
    assert (row["plain"] or {"batch": 0})["batch"] == largest
    expected = ("-", "-", "0.100", "-") if not largest else (f"{30 / largest:.2f}", "0.050", "0.100", "2.00")
    assert cap.cells(row)[-4:] == expected


@pytest.mark.parametrize(("status", "kind"), [(-11, ProcessDiedError), (1, CheckmateError)])
def test_a_crash_is_told_from_an_error(monkeypatch, status, kind):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], status, "", "something broke"))
    with pytest.raises(CheckmateError, match="something broke") as info:
        process.fresh_process("some.module", [])
    assert type(info.value) is kind
