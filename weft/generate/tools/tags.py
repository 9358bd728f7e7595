"""The parameters of a tool in Qwen's tags, as rules of a grammar.

A value is plain text, and `weft/text/calls/values.py` gives it a type by the schema. A value whose schema allows only
strings is free text within the schema's bounds; one that allows no string is JSON; one that allows both must be free of
any bound, because what it is read as depends on what it looks like.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from weft.errors import InputError, UnsupportedError
from weft.generate.schema import pattern
from weft.generate.schema.keywords import ANNOTATIONS
from weft.generate.tools.lark import Rules, quoted
from weft.text.calls.values import types_of

_END = '"\\n</parameter>\\n"'
_NO_END = r"~/(?s:.*)<\/parameter>(?s:.*)/"
_PLACES = ("$defs", "definitions")
_OBJECT = {"type", "properties", "required", "additionalProperties", *ANNOTATIONS}
_STRING = {"type", "const", "enum", "minLength", "maxLength", "pattern", *ANNOTATIONS}
_FREE = {"type", "anyOf", "oneOf", *ANNOTATIONS}
_BOOLEAN = '("true" | "false" | "True" | "False")'


def parameters(rules: Rules, schema: Mapping[str, Any]) -> str:
    """The parameters of a tool in the order of its schema, as the right side of a rule.

    UnsupportedError where the schema says more than tags can be held to.
    """
    beyond = [key for key in schema if key not in _OBJECT]
    if beyond or schema.get("type", "object") != "object":
        raise _unsupported(beyond[0] if beyond else "type")
    properties = dict(schema.get("properties") or {})
    required = list(schema.get("required") or ())
    properties |= {key: True for key in required if key not in properties}
    parts = []
    for key, own in properties.items():
        value = rules.rule(f"{quoted(f'<parameter={key}>' + chr(10))} {_held(rules, key, own, schema)}")
        parts.append(value if key in required else f"{value}?")
    others = schema.get("additionalProperties", True)
    if others is not False:
        taken = "|".join(map(literal, properties)) or "(?:)"
        name = rules.terminal(f"/[A-Za-z_][A-Za-z0-9_.\\-]{{0,40}}/ & ~/{taken}/")
        parts.append(rules.rule(f'"<parameter=" {name} ">\\n" {_held(rules, None, others, schema)}') + "*")
    return " ".join(parts)


def any_parameters(rules: Rules) -> str:
    """Parameters of any name and value, for a tool whose schema cannot be enforced."""
    name = rules.terminal("/[A-Za-z_][A-Za-z0-9_.\\-]{0,60}/")
    return rules.rule(f'"<parameter=" {name} ">\\n" {_text(rules, "/(?s:.*)/")}') + "*"


def _held(rules: Rules, key: str | None, schema: Any, root: Mapping[str, Any]) -> str:
    """`_value`; free text where its schema cannot be enforced and need not be."""
    try:
        return _value(rules, key, schema, root)
    except (UnsupportedError, InputError):
        if rules.strict:
            raise
        rules.is_loose = True
        return _text(rules, "/(?s:.*)/")


def _value(rules: Rules, key: str | None, schema: Any, root: Mapping[str, Any]) -> str:
    """A value and its closing tag."""
    types = types_of(schema, root)
    given = {} if schema is True else schema
    if not isinstance(given, Mapping):
        raise _unsupported(str(key))
    if types <= {"string"}:
        return _string(rules, _resolved(given, root))
    if "string" in types:
        if not _is_free(given):
            raise _unsupported(f"a choice between bounded strings and others ({key})")
        return _text(rules, "/(?s:.*)/")
    if key is not None:
        rules.marks.append(f"<parameter={key}>")
    if types == {"boolean"} and not {"enum", "const"} & given.keys():
        return f"{_BOOLEAN} {_END}"
    places = {place: root[place] for place in _PLACES if place in root}
    return f"{rules.json({**given, **places})} {_END}"


def _string(rules: Rules, schema: Mapping[str, Any]) -> str:
    beyond = [key for key in schema if key not in _STRING]
    if beyond:
        raise _unsupported(beyond[0])
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is not None:
        found = [text for text in choices if isinstance(text, str)]
        if not found or len(schema.keys() & {"minLength", "maxLength", "pattern"}) > 0:
            raise _unsupported("enum")
        return f"({' | '.join(quoted(text) + ' ' + _END for text in dict.fromkeys(found))})"
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
    if max(least, most or 0) > pattern.MAX_REPEAT:
        raise _unsupported("maxLength")
    size = f"{{{least},{'' if most is None else int(most)}}}"
    text = "/(?s:.*)/" if (least, most) == (0, None) else f"/(?s:.{size})/"
    if "pattern" in schema:
        text += f" & /{_whole(schema['pattern'])}/"
    return _text(rules, text)


def _text(rules: Rules, text: str) -> str:
    value = rules.terminal(f"{text} & {_NO_END}")
    return rules.rule(f"{value} {_END}", lazy=True)


def _whole(given: str) -> str:
    """An expression for the whole text from one that is searched for in it."""
    found = pattern.translate(given, "json schema")
    body = found.removeprefix("^")
    ending = body.removesuffix("$")
    before, after = ("" if body != found else "(?s:.*)"), ("" if ending != body else "(?s:.*)")
    plain = re.sub(r"\[\^", "[", ending)
    if "^" in plain or "$" in plain or (("|" in _outer(ending)) and (not before or not after)):
        raise _unsupported("pattern")
    return f"{before}(?:{ending}){after}"


def _outer(expression: str) -> str:
    """The part of an expression that is in no group and no class."""
    kept, depth, inside = [], 0, False
    for character in re.sub(r"\\.", "", expression):
        if inside or character == "[":
            inside = character != "]"
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif not depth:
            kept.append(character)
    return "".join(kept)


def _is_free(schema: Mapping[str, Any]) -> bool:
    """Whether a schema names only types, so that any value of them satisfies it."""
    parts = [part for key in ("anyOf", "oneOf") for part in schema.get(key) or ()]
    return schema.keys() <= _FREE and all(isinstance(part, Mapping) and _is_free(part) for part in parts)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference stands for, with the annotations beside it."""
    for _ in range(8):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not schema.keys() - {"$ref"} <= ANNOTATIONS:
            break
        node: Any = root
        for part in reference.removeprefix("#").split("/")[1:]:
            node = node.get(part) if isinstance(node, Mapping) else None
        if not isinstance(node, Mapping):
            break
        schema = node
    return schema


def literal(text: str) -> str:
    return "".join(
        f"\\x{ord(character):02x}" if character.isascii() and not character.isalnum() else character
        for character in text
    )


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError("tools", f"{what} cannot be enforced in the tags of this model's calls")
