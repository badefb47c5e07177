"""JSON files that hold one object: read with an error that says what was found, and written whole
or not at all."""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

from checkmate.errors import PlanFileError

GZIP_MAGIC = b"\x1f\x8b"

MAX_BYTES = 1 << 29
"""No file is unpacked to more: a graph of 100,000 ops has some 100 MB."""


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the object of a JSON file, which may be gzipped. Raises `PlanFileError` if the file
    cannot be read, or holds anything else."""
    content = b""
    try:
        content = Path(path).read_bytes()
        content = _unpacked(content, path) if content.startswith(GZIP_MAGIC) else content
        data = json.loads(content)
    except (OSError, EOFError, zlib.error) as error:
        raise PlanFileError(
            f"Cannot read {path}: {getattr(error, 'strerror', None) or error}."
        ) from error
    except MemoryError as error:
        raise PlanFileError(
            f"{path} does not fit in memory, with {len(content):,} bytes."
        ) from error
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or too many digits
        raise PlanFileError(
            f"{path} is not JSON: {error}. The file may be cut short or of another kind."
        ) from error
    if not isinstance(data, dict):
        raise PlanFileError(f"{path} holds a JSON {type(data).__name__}; an object was expected.")
    return data


def _unpacked(content: bytes, path: str | os.PathLike) -> bytes:
    with gzip.open(io.BytesIO(content)) as file:
        found = file.read(MAX_BYTES + 1)
    if len(found) > MAX_BYTES:
        raise PlanFileError(
            f"{path} holds more than {MAX_BYTES:,} bytes when it is unpacked, from"
            f" {len(content):,}. No graph or plan is that large."
        )
    return found


def write_json(path: str | os.PathLike, data: dict[str, Any]) -> None:
    """Writes a temporary file in the same folder and renames it, so that no half-written file is
    left. Raises `PlanFileError` if the file cannot be written."""
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"
        )
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(data, file, separators=(",", ":"))
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise PlanFileError(f"Cannot write {path}: {error.strerror or error}.") from error
