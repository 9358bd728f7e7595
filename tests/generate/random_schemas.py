"""Random JSON Schemas, small and with every kind of keyword, for tests of what is generated under them."""

import random
from typing import Any

NAMES = ("a", "b", "ab", "k1")
PATTERNS = ("^a", "b$", "^[a-c]{1,3}$", "k[0-9]", "^.{2}$", "a|b", r"^\S*$", "[0-9][a-z]")
VALUES = (None, True, False, 0, 1, -3, 2.5, "", "a", "ab", "k1", [], [1], {}, {"a": 1})


def random_schema(rng: random.Random, depth: int = 3) -> Any:
    if depth == 0 or rng.random() < 0.08:
        return rng.choice([True, {}, {"type": rng.choice(["string", "integer", "null", "boolean"])}])
    keywords = rng.sample(sorted(_KEYWORDS), rng.choice([1, 1, 2, 2, 3, 4]))
    schema: dict[str, Any] = {keyword: _KEYWORDS[keyword](rng, depth - 1) for keyword in keywords}
    if "if" in schema:
        schema["then"] = random_schema(rng, depth - 1)
    if rng.random() < 0.6 and "type" not in schema:
        schema["type"] = _types(rng, 0)
    return schema


def _types(rng: random.Random, _: int) -> Any:
    names = ["null", "boolean", "integer", "number", "string", "array", "object", "object"]
    return rng.choice(names) if rng.random() < 0.7 else rng.sample(names[:7], 2)


def _number(rng: random.Random, _: int) -> Any:
    return rng.choice([0, 1, -2, 3.5, 10, -0.5])


def _count(rng: random.Random, _: int) -> int:
    return rng.choice([0, 1, 1, 2, 3])


def _one(rng: random.Random, depth: int) -> Any:
    return random_schema(rng, depth)


def _several(rng: random.Random, depth: int) -> list[Any]:
    return [random_schema(rng, depth) for _ in range(rng.choice([1, 2, 2, 3]))]


def _named(rng: random.Random, depth: int) -> dict[str, Any]:
    return {name: random_schema(rng, depth) for name in rng.sample(NAMES, rng.choice([1, 2, 3]))}


def _patterned(rng: random.Random, depth: int) -> dict[str, Any]:
    return {rng.choice(PATTERNS): random_schema(rng, depth)}


def _names(rng: random.Random, _: int) -> list[str]:
    return rng.sample(NAMES, rng.choice([1, 1, 2]))


_KEYWORDS = {
    "type": _types,
    "const": lambda rng, _: rng.choice(VALUES),
    "enum": lambda rng, _: rng.sample(VALUES, rng.choice([1, 3, 5])),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    "multipleOf": lambda rng, _: rng.choice([1, 2, 0.5, 3]),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
    "pattern": lambda rng, _: rng.choice(PATTERNS),
    **dict.fromkeys(("properties", "dependentSchemas"), _named),
    "patternProperties": _patterned,
    **dict.fromkeys(("required",), _names),
    "dependentRequired": lambda rng, depth: {rng.choice(NAMES): _names(rng, depth)},
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _several),
    **dict.fromkeys(("not", "if", "items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems"), _one),
    "propertyNames": lambda rng, _: rng.choice([{"enum": list(NAMES[:2])}, {"pattern": "^a"}, {"maxLength": 1}]),
    "contains": _one,
    "minContains": _count,
    "uniqueItems": lambda rng, _: rng.random() < 0.3,
}
