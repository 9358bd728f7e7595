"""The JSON Schema keywords that weft supports and the values each takes. An error names any other keyword."""

import math
from collections.abc import Callable
from typing import Any

from weft.generate.schema.place import Place

ANNOTATIONS = frozenset(
    ("$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$schema", "contentEncoding", "contentMediaType",
     "contentSchema", "default", "definitions", "deprecated", "description", "discriminator", "example", "examples",
     "externalDocs", "id", "readOnly", "title", "writeOnly", "xml")
)  # fmt: skip

# The types of JSON values; "integer" is not one of them but a kind of number.
TYPES = ("null", "boolean", "number", "string", "array", "object")


def is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def is_number(value: Any) -> bool:
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    )


def _is_count(value: Any) -> bool:
    return is_number(value) and value >= 0 and value == int(value) and value < 2**31


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(is_schema, value))


def _is_schemas_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_schema, value.values()))


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return len(names) > 0 and all(isinstance(name, str) and name in (*TYPES, "integer") for name in names)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_HOLDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "$dynamicRef": (_is_text, "a string"),
    "$ref": (_is_text, "a string"),
    "const": (lambda value: True, ""),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "format": (_is_text, "a string"),
    "multipleOf": (lambda value: is_number(value) and value > 0, "a number above 0"),
    "pattern": (_is_text, "a string"),
    "required": (_is_names, "a list of names"),
    "type": (_is_type, "one of null, boolean, number, integer, string, array and object, or a list of them"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "dependentRequired": (
        lambda value: isinstance(value, dict) and all(map(_is_names, value.values())),
        "an object of lists of names",
    ),
    "dependencies": (
        lambda value: isinstance(value, dict) and all(is_schema(v) or _is_names(v) for v in value.values()),
        "an object of schemas or lists of names",
    ),
    "items": (lambda value: is_schema(value) or _is_schemas(value), "a schema or a list of schemas"),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), (is_number, "a number")),
    **dict.fromkeys(
        ("maxContains", "maxItems", "maxLength", "maxProperties",
         "minContains", "minItems", "minLength", "minProperties"),
        (_is_count, "a whole number that is not negative"),
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), (_is_schemas, "a list of schemas")),
    **dict.fromkeys(
        ("dependentSchemas", "patternProperties", "properties"), (_is_schemas_by_name, "an object of schemas")
    ),
    **dict.fromkeys(
        ("additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then",
         "unevaluatedItems", "unevaluatedProperties"),
        (is_schema, "a schema"),
    ),
}  # fmt: skip


def check_keywords(place: Place) -> None:
    """Refuse keywords that weft does not support, and values that a keyword does not take."""
    for keyword, value in place.node.items():
        if keyword in ANNOTATIONS or keyword.startswith("x-"):
            continue
        if keyword not in _HOLDS:
            raise place.unsupported(f"the keyword {keyword[:80]!r} is not supported", keyword)
        fits, what = _HOLDS[keyword]
        if not fits(value):
            raise place.wrong(f"{keyword} must be {what}, not {repr(value)[:80]}", keyword)
