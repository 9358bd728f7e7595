"""The negation of a schema, or the part of it that a schema can express.

The result never allows what the schema allows. A keyword whose negation cannot be expressed is an UnsupportedError.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from weft.errors import UnsupportedError
from weft.generate.schema.document import Document
from weft.generate.schema.keywords import ANNOTATIONS, TYPES
from weft.generate.schema.place import Place

_MAX_LITERALS = 200  # characters of all the strings that a string must differ from


def negated(place: Place, document: Document, depth: int = 0) -> Place:
    """The negation of a schema; UnsupportedError if it cannot be expressed."""
    place, depth = place.entered(), depth + 1
    if depth > 16:
        raise place.unsupported("the negation of a recursive schema is not supported")
    if isinstance(place.node, bool):
        return place.made(not place.node)
    options: list[Any] = []
    for keyword in place.node:
        options += _failing(place, keyword, document, depth)
    return place.made({"anyOf": options} if options else False)


def _failing(place: Place, keyword: str, document: Document, depth: int) -> list[Any]:
    """Schemas of values that fail one keyword."""
    node, value = place.node, place.node[keyword]
    if keyword in ANNOTATIONS or keyword.startswith("x-") or (keyword in ("then", "else") and "if" not in node):
        return []
    if keyword in ("$ref", "$dynamicRef"):
        return [negated(document.found(place, keyword), document, depth)]
    if keyword == "not":
        return [place.at(keyword)]
    if keyword == "allOf":
        return [negated(place.at(keyword, number), document, depth) for number in range(len(value))]
    if keyword == "anyOf":
        return [{"allOf": [negated(place.at(keyword, number), document, depth) for number in range(len(value))]}]
    if keyword == "required":
        return [{"type": "object", "properties": {name: False}} for name in value]
    if keyword == "properties":
        opposite = {name: negated(place.at(keyword, name), document, depth) for name in value}
        return [
            {"type": "object", "required": [n], "properties": {n: o}}
            for n, o in opposite.items()
            if o.node is not False
        ]
    if keyword == "prefixItems":
        opposites = [negated(place.at(keyword, number), document, depth) for number in range(len(value))]
        return [
            {"type": "array", "minItems": number + 1, "prefixItems": [True] * number + [opposite]}
            for number, opposite in enumerate(opposites)
        ]
    return _failing_value(place, keyword, value)


def _failing_value(place: Place, keyword: str, value: Any) -> list[Any]:
    if keyword == "type":
        names = [value] if isinstance(value, str) else list(value)
        allowed = {"number" if name == "integer" else name for name in names}  # "not an integer" cannot be expressed
        rest = [name for name in TYPES if name not in allowed]
        return [{"type": rest}] if rest else []
    if keyword in ("const", "enum"):
        return _other_values(place, keyword, [value] if keyword == "const" else value)
    opposites = {
        "minimum": ("number", "exclusiveMaximum", 0),
        "maximum": ("number", "exclusiveMinimum", 0),
        "exclusiveMinimum": ("number", "maximum", 0),
        "exclusiveMaximum": ("number", "minimum", 0),
        "minLength": ("string", "maxLength", -1),
        "maxLength": ("string", "minLength", 1),
        "minItems": ("array", "maxItems", -1),
        "maxItems": ("array", "minItems", 1),
        "minProperties": ("object", "maxProperties", -1),
        "maxProperties": ("object", "minProperties", 1),
    }
    if keyword not in opposites:
        raise place.unsupported(f"the negation of {keyword} is not supported", keyword)
    kind, opposite, step = opposites[keyword]
    if step == -1 and value < 1:
        return []
    return [{"type": kind, opposite: value + step}]


def _other_values(place: Place, keyword: str, values: list[Any]) -> list[Any]:
    if any(isinstance(value, list | dict) for value in values):
        raise place.unsupported(f"the negation of {keyword} is not supported for arrays and objects", keyword)
    texts = [value for value in values if isinstance(value, str)]
    flags = [value for value in values if isinstance(value, bool)]
    numbers = sorted(value for value in values if isinstance(value, int | float) and not isinstance(value, bool))
    options: list[Any] = [{"type": ["array", "object"] + ([] if None in values else ["null"])}]
    options += [{"const": flag} for flag in (True, False) if flag not in flags]
    options.append({"type": "string", "pattern": _no_text_of(texts, place, keyword)} if texts else {"type": "string"})
    edges = [None, *numbers, None]
    for low, high in pairwise(edges):
        bounds = {"exclusiveMinimum": low, "exclusiveMaximum": high}
        options.append({"type": "number"} | {name: bound for name, bound in bounds.items() if bound is not None})
    return options


def _no_text_of(texts: list[str], place: Place, keyword: str) -> str:
    """A pattern that matches every string except `texts`."""
    if sum(map(len, texts)) > _MAX_LITERALS or any(len(text) > 60 for text in texts):
        raise place.unsupported(f"the negation of {keyword} is not supported for long strings", keyword)
    return f"^{_beside(sorted(set(texts)), 0)}$"


def _beside(texts: list[str], position: int) -> str:
    """A pattern for the rest of a string that begins like `texts` up to `position` and is none of them."""
    by_letter: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > position:
            by_letter.setdefault(text[position], []).append(text)
    letters = "".join(f"\\u{{{ord(letter):x}}}" for letter in by_letter)
    options = [f"[^{letters}][^]*" if letters else "[^][^]*"]
    options += [f"\\u{{{ord(letter):x}}}{_beside(rest, position + 1)}" for letter, rest in by_letter.items()]
    if all(len(text) > position for text in texts):
        options.append("")
    return f"(?:{'|'.join(options)})"


def opposite_or_none(place: Place, document: Document) -> Place | None:
    """The negation of a schema, or None if it cannot be expressed."""
    try:
        return negated(place, document)
    except UnsupportedError:
        return None
