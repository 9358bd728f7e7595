"""Tool calls as Qwen3-Coder and Qwen3.5 write them: a tag for the function and one for each parameter.

    <tool_call>
    <function=name>
    <parameter=key>
    value
    </parameter>
    </function>
    </tool_call>

A value is text between two line breaks that do not belong to it; the tool's schema gives it a type (`values.py`).
Strings are emitted as they come, other values when they are complete. A value ends at a `</parameter>` that another
tag follows, so that it may contain one itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.text.calls.values import only_text, value_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from weft.text.calls.scanner import Reading, Scanner

_CLOSING = "</parameter>"
_AFTER = ("<parameter=", "</function>", "</tool_call>")


def wrapped(parser: Scanner, held: list[str]) -> Reading:
    """A function after `<tool_call>`."""
    character = yield from parser.skipped(held)
    parser.back(character, held)
    if not (yield from parser.mark("<function=", held)):
        return False
    return (yield from function(parser, held))


def function(parser: Scanner, held: list[str]) -> Reading:
    """The name, the parameters and the closing tags, after `<function=`."""
    name = yield from parser.until(">", held)
    if not (yield from parser.mark(">", held)) or not parser.known(name):
        return False
    parser.start(name)
    parser.argue("{")
    schema, keys = parser.schemas.get(name), set[str]()
    while True:
        spaces: list[str] = []
        parser.back((yield from parser.skipped(spaces)), spaces)
        if (yield from parser.mark("</function>", [])):
            parser.argue("}")
            parser.end(True)
            yield from parser.optional("</tool_call>")
            return True
        if not (yield from parser.mark("<parameter=", [])):
            break
        key = yield from parser.until(">", [])
        if not (yield from parser.mark(">", [])):
            break
        if not (yield from _value(parser, key, schema, keys)):
            break
    return parser.end(False)


def _value(parser: Scanner, key: str, schema: Any, keys: set[str]) -> Reading:
    """One value, emitted as a member of the arguments; returns whether its closing tag came."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    others = schema.get("additionalProperties", True) if isinstance(schema, Mapping) else True
    own = properties.get(key, others) if isinstance(properties, Mapping) else others
    is_new, streams = key not in keys, only_text(own, schema)
    if is_new:  # of several with one name the first counts
        parser.argue(f"{', ' if keys else ''}{json.dumps(key, ensure_ascii=False)}: ")
        keys.add(key)
    if is_new and streams:
        parser.argue('"')
    yield from parser.mark("\n", [])
    text: list[str] = []
    line_break = ""  # the last one before the closing tag does not belong to the value
    while not (closed := (yield from _closed(parser))):
        character = yield from parser.next()
        if character is None:
            break
        added, line_break = (line_break, character) if character == "\n" else (line_break + character, "")
        text.append(added)
        if is_new and streams:
            parser.argue(json.dumps(added, ensure_ascii=False)[1:-1])
    if is_new and closed:
        whole = '"' if streams else json.dumps(value_of("".join(text), own, schema), ensure_ascii=False)
        parser.argue(whole)
    return closed


def _closed(parser: Scanner) -> Generator[None, str | None, bool]:
    """Read `</parameter>` if it comes next and ends the value."""
    if not (yield from parser.mark(_CLOSING, [])):
        return False
    spaces: list[str] = []
    character = yield from parser.skipped(spaces)
    parser.back(character, spaces)
    if character is None:
        return True
    for tag in _AFTER:
        read: list[str] = []
        if (yield from parser.mark(tag, read)):
            parser.again(read)
            return True
    parser.again(spaces)
    parser.again(_CLOSING)
    return False
