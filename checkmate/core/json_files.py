"""JSON files that hold one object: read with an error that says what was found, and written whole
or not at all."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

from checkmate.errors import PlanFileError

GZIP_MAGIC = b"\x1f\x8b"


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the object of a JSON file, which may be gzipped. Raises `PlanFileError` if the file
    cannot be read, or holds anything else."""
    try:
        content = Path(path).read_bytes()
        data = json.loads(gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content)
    except (OSError, EOFError, zlib.error) as error:
        raise PlanFileError(
            f"Cannot read {path}: {getattr(error, 'strerror', None) or error}."
        ) from error
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or too many digits
        raise PlanFileError(
            f"{path} is not JSON: {error}. The file may be cut short or of another kind."
        ) from error
    if not isinstance(data, dict):
        raise PlanFileError(f"{path} holds a JSON {type(data).__name__}; an object was expected.")
    return data


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
