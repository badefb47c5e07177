"""The JSON schemas that the package has."""

import json
from pathlib import Path

from jsonschema import Draft202012Validator

import checkmate

SCHEMAS = {
    path.name.removesuffix(".schema.json"): json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(checkmate.__file__).parent / "core" / "schemas").glob("*.json"))
}


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(SCHEMAS[name])


def refused(name: str, data: object) -> bool:
    return not validator(name).is_valid(data)
