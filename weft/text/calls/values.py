"""Typed values from plain text: Qwen's tags hold text, and a tool's schema says what it means."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from typing import Any

ALL = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))
_WORDS = {"True": True, "False": False, "None": None}  # as Python, and so some templates, write them
_MAX_DEPTH = 32


def types_of(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows; `root` is the schema in which its references are found."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return ALL
    found = ALL
    if "type" in schema:
        stated = schema["type"]
        found &= frozenset([stated] if isinstance(stated, str) else stated if isinstance(stated, list) else ALL)
    for values in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
        if isinstance(values, list):
            found &= frozenset(_type_of(value) for value in values) | (
                {"number"} if any(_type_of(value) == "integer" for value in values) else frozenset()
            )
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            found &= frozenset[str]().union(*(types_of(part, root, depth + 1) for part in schema[key]))
    for part in schema.get("allOf") or ():
        found &= types_of(part, root, depth + 1)
    if isinstance(schema.get("$ref"), str):
        found &= types_of(_referred(schema["$ref"], root), root, depth + 1)
    return found


def value_of(text: str, schema: Any, root: Any) -> Any:
    """The value that `text` stands for under a schema.

    Where the schema allows nothing but strings, the text itself, whatever it looks like. Otherwise what it is as JSON
    (or as Python writes it), if the schema allows that type, and else the text.
    """
    allowed = types_of(schema, root)
    if allowed <= {"string"}:
        return text
    found = _parsed(text.strip())
    if isinstance(found, float) and found.is_integer() and not allowed & {"number"}:
        found = int(found)
    kind = _type_of(found)
    fits = kind in allowed or (kind == "integer" and "number" in allowed)
    return found if fits and kind != "string" else text


def only_text(schema: Any, root: Any) -> bool:
    """Whether a schema allows nothing but strings."""
    return types_of(schema, root) <= {"string"}


def _parsed(text: str) -> Any:
    """The value of JSON or a Python literal; the text itself if it is neither."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        pass
    if text[:1] not in ("{", "["):
        return text
    try:
        found = ast.literal_eval(text)
        json.dumps(found, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
    return found


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or (math.isfinite(value) and value.is_integer()) else "number"
    return "string" if isinstance(value, str) else "object" if isinstance(value, Mapping) else "array"


def _referred(reference: str, root: Any) -> Any:
    """The schema at a reference within the document; None, which allows all, for any other."""
    node = root
    if not reference.startswith("#"):
        return None
    for part in reference[1:].split("/")[1:]:
        node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
    return node
