"""`checkmate bench accept`: does all of this work on the device that trains here? A table of
questions, each answered in a process of its own, and two files of the answers.

A line passes, fails, or is not run, because this machine cannot. On a CPU the lines about GPUs are
not run.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from checkmate.bench.accept_lines import LINES, Line
from checkmate.bench.process import fresh_process, last_line
from checkmate.errors import CheckmateError
from checkmate.units import format_bytes
from checkmate.version import __version__

COLUMNS = ("line", "what it asks", "result", "figures", "seconds")
LIMIT_S = 1200
"""The most seconds that a line may take."""

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
FILE = "accept"
"""The name of both files of results, without .json and .md."""


def chosen(names: Sequence[str] | None, *, quick: bool) -> list[str]:
    """Returns the names of the lines to run: those given, else those of a quick run, or all."""
    return list(names or [name for name, line in LINES.items() if line.quick or not quick])


def measure(names: Iterable[str], folder: Path) -> Iterator[dict[str, Any]]:
    """Yields a row per line: line, asks, result, why (empty if it passed), figures, details and
    seconds. Both files of `folder` have the rows so far after each.

    Measured costs are kept for this run only, so that the first line that measures a net shows what
    that takes.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as costs:
        for name in names:
            row = _row(LINES[name], {"CHECKMATE_CACHE_DIR": costs})
            rows.append(row)
            _write(folder, rows)
            yield row


def _row(line: Line, environment: dict[str, str]) -> dict[str, Any]:
    started = time.monotonic()
    row = {"line": line.name, "asks": line.asks, "why": "", "figures": {}, "details": ""}
    try:
        found = fresh_process(
            "checkmate.bench.accept_process",
            [line.name],
            environment={**environment, **line.environment},
            timeout_s=LIMIT_S,
        )
    except CheckmateError as error:
        row |= {"result": FAILED, "why": last_line(error), "details": str(error)}
    else:
        if "not_run" in found:
            row |= {"result": NOT_RUN, "why": f"because {found['not_run']}"}
        else:
            passed = found.pop("passed")
            row |= {"result": PASSED if passed else FAILED, **found}
    return row | {"seconds": round(time.monotonic() - started, 1)}


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    return (row["line"], row["asks"], row["result"], said(row), f"{row['seconds']:.0f}")


def said(row: dict[str, Any]) -> str:
    """Returns the figures of a row as text, or why there are none."""
    figures = [f"{_named(name)} {_shown(name, value)}" for name, value in row["figures"].items()]
    return ", ".join([row["why"], *figures] if row["why"] else figures)


def _named(name: str) -> str:
    if name.endswith(", bytes"):  # the name of a limit, as it is
        return name.removesuffix(", bytes")
    return name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if name.endswith("bytes"):
        return format_bytes(value)
    if isinstance(value, float):
        return f"{value:.3g}{' s' if name.endswith('_s') else ''}"
    return str(value)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the outcome in one sentence."""
    counts = {
        kind: sum(row["result"] == kind for row in rows) for kind in (PASSED, FAILED, NOT_RUN)
    }
    sentence = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    failed = [row["line"] for row in rows if row["result"] == FAILED]
    lines = "1 line" if len(rows) == 1 else f"{len(rows)} lines"
    return f"{lines}: {sentence}{': ' if failed else ''}{', '.join(failed)}."


def machine() -> dict[str, str]:
    """Returns what the answers hold for: versions, processor, operating system."""
    packages = {}
    for name in ("tensorflow", "keras", "numpy"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "checkmate": __version__,
        **packages,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _write(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    facts = machine()
    folder.mkdir(parents=True, exist_ok=True)
    results = {"machine": facts, "summary": summary(rows), "lines": rows}
    text = json.dumps(results, indent=1)
    (folder / f"{FILE}.json").write_text(f"{text}\n", encoding="utf-8")
    (folder / f"{FILE}.md").write_text(page(rows, facts), encoding="utf-8")


def page(rows: Sequence[dict[str, Any]], facts: dict[str, str]) -> str:
    """Returns the table as a page in Markdown."""
    lines = [
        "# Acceptance run",
        "",
        ", ".join(f"{name} {value}" for name, value in facts.items()) + ".",
        "",
        summary(rows),
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for row in rows:
        texts = (" ".join(cell.split()).replace("|", "\\|") for cell in cells(row))
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join([*lines, ""])
