"""`bench cap`: the search for the largest batch, whichever way a step runs out of memory."""

import subprocess

import pytest

from checkmate.bench import cap, process
from checkmate.bench.process import ProcessDiedError
from checkmate.errors import CheckmateError


@pytest.mark.parametrize(("plain", "planned"), [(0, 0), (0, 3), (1, 1), (5, 4), (8, 21), (19, 100)])
def test_the_largest_batches_are_found(monkeypatch, plain, planned):
    def fresh_process(module, arguments, *, cap_bytes):
        _, kind, _, batch = arguments
        most, batch = {"plain": plain, "planned": planned}[kind], int(batch)
        if batch > most + 1:
            raise ProcessDiedError("status -11")
        return {
            "trained": batch <= most,
            "batch": batch,
            "step_s": batch / {"plain": 20, "planned": 10}[kind],
        }

    monkeypatch.setattr(cap, "fresh_process", fresh_process)
    row = cap.measure("unet", 400 << 20, 3)
    found = [row[kind]["batch"] if row[kind] else 0 for kind in ("plain", "planned")]
    assert found[0] == plain
    # Exact below twice that.
    assert planned - max(0, planned // cap.CLOSE - 1) <= found[1] <= planned
    times, ratio = (f"{found[1] / plain:.2f}", "2.00") if plain and planned else ("-", "-")
    cells = cap.cells(row)
    assert cells[2:5] == (str(plain or "none"), str(found[1] or "none"), times)
    assert cells[5:] == ("0.050" if plain else "-", "0.100" if planned else "-", ratio)


@pytest.mark.parametrize(("status", "kind"), [(-11, ProcessDiedError), (1, CheckmateError)])
def test_a_crash_is_told_from_an_error(monkeypatch, status, kind):
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda *_, **__: subprocess.CompletedProcess([], status, "", "something broke"),
    )
    with pytest.raises(CheckmateError, match="something broke") as info:
        process.fresh_process("some.module", [])
    assert type(info.value) is kind
