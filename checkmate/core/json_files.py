"""JSON files that hold one object: read with an error that says what was found, and written whole
or not at all."""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
import tempfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from checkmate.errors import PlanFileError
from checkmate.units import format_bytes

GZIP_MAGIC = b"\x1f\x8b"

MOST_BYTES = 2**29
"""The largest file that is read, unpacked: some ten times that of a graph of 100,000 ops. The
objects of a file take several times its bytes."""


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the object of a JSON file, which may be gzipped. Raises `PlanFileError` if the file
    cannot be read, is larger than `MOST_BYTES`, or holds anything else."""
    try:
        data = parse_json(_content(path))
    except (OSError, EOFError, zlib.error) as error:
        raise PlanFileError(
            f"Cannot read {path}: {getattr(error, 'strerror', None) or error}."
        ) from error
    except MemoryError as error:
        raise PlanFileError(f"Cannot read {path}: there is not enough memory for it.") from error
    except PlanFileError:
        raise
    except ValueError as error:  # not JSON, not UTF-8, or too many digits
        raise PlanFileError(
            f"{path} is not JSON: {error}. The file may be cut short or of another kind."
        ) from error
    if not isinstance(data, dict):
        raise PlanFileError(f"{path} holds a JSON {type(data).__name__}; an object was expected.")
    return data


def parse_json(text: str | bytes | bytearray) -> Any:
    """Returns the value of a JSON text. Raises `ValueError` if it is none, is nested too deeply, or
    has the numbers Infinity or NaN, which Python reads and JSON does not have."""
    odd: list[str] = []

    def noted(constant: str) -> float:
        odd.append(constant)
        return float(constant)

    try:
        data = json.loads(text, parse_constant=noted)
    except RecursionError as error:
        raise ValueError("its lists and objects are nested too deeply") from error
    if odd:
        raise ValueError(
            f"its {_key_of_a_constant(data)} is {odd[0]}; a finite number was expected"
        )
    return data


def open_file(path: str | os.PathLike) -> BinaryIO:
    """Opens a file for reading. Raises `OSError` for a pipe or a device, which may never end and
    cannot be read twice."""
    if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
        raise OSError("it is a pipe or a device; write what it has to a file first")
    return open(path, "rb")


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
                json.dump(data, file, separators=(",", ":"), allow_nan=False)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PlanFileError(f"Cannot write {path}: {reason}.") from error


def _content(path: str | os.PathLike) -> bytes | bytearray:
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        file.seek(0)
        if packed:
            content, unpacked = bytearray(), gzip.GzipFile(fileobj=file)
            while len(content) <= MOST_BYTES and (chunk := unpacked.read(2**20)):
                content += chunk
            if len(content) <= MOST_BYTES:
                return content
        elif size <= MOST_BYTES:
            return file.read()
    raise PlanFileError(
        f"{path} of {format_bytes(size)} has more than {format_bytes(MOST_BYTES)}"
        f"{' when unpacked' if packed else ''}, the most of a graph or a plan. It is of another"
        " kind."
    )


def _key_of_a_constant(data: Any) -> str:
    """The key of the first number in a JSON value that is not finite."""
    rest: list[tuple[str, Any]] = [("value", data)]
    while rest:
        key, value = rest.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return repr(key)
        if isinstance(value, dict):
            rest += reversed(value.items())
        elif isinstance(value, list):
            rest += [(key, each) for each in reversed(value)]
    return "number"  # of a key that is given twice
