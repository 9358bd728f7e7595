"""The schemas of tool calls: closed, and all tools in one.

JSON Schema lets an object have any keys beside those it names, and a model that is held to such a schema may invent
keys until the limit. Tools mean the keys they name: the schema of a call is closed unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_PLACES = ("$defs", "definitions")
# Keywords with schemas of other values, by key or directly; those with schemas of the same value; those that open it.
_MAPS = ("properties", "patternProperties")
_VALUES = ("items", "prefixItems", "additionalItems", "additionalProperties", "contains", "unevaluatedItems")
_CHOICES = ("anyOf", "oneOf", "allOf")
_SAME_OBJECT = (*_CHOICES, "if", "then", "else", "not")
_OPENING = ("additionalProperties", "patternProperties", "unevaluatedProperties")


def forced_schema(tools: Sequence[Mapping[str, Any]], *, closed: bool = True) -> dict[str, Any]:
    """The schema of one call of one of these tools: {"name": ..., "arguments": {...}}.

    Definitions move to the top level, where references find them, under names unique to each tool. With `closed`,
    objects have only the keys that the tool names, unless it opens them.
    """
    options, definitions = [], {}
    for number, tool in enumerate(tools):
        function = tool["function"]
        parameters = function.get("parameters") or {"type": "object"}
        parameters = closed_schema(parameters) if closed else parameters
        own = {place: dict(parameters.get(place) or {}) for place in _PLACES}
        renamed = {f"#/{place}/{name}": f"#/$defs/t{number}_{name}" for place in _PLACES for name in own[place]}
        body = {"type": "object", **{key: value for key, value in parameters.items() if key not in _PLACES}}
        for place in _PLACES:
            for name, defined in own[place].items():
                definitions[f"t{number}_{name}"] = _renamed(defined, renamed)
        options.append(
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "arguments": _renamed(body, renamed)},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = options[0] if len(options) == 1 else {"anyOf": options}
    return {**schema, "$defs": definitions} if definitions else schema


def closed_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments in which every object that names its properties has no others.

    `additionalProperties`, `patternProperties` and `unevaluatedProperties` open an object, and so does naming no
    properties at all, except at the top: that is a free object. Parts that apply to the same object together
    (`allOf`) are closed together, with `unevaluatedProperties`.
    """
    closing = _Closing(parameters)
    return {**closing.closed(parameters, True, top=True), **closing.definitions()}


class _Closing:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._open: set[str] = set()  # references to definitions that are parts of a larger object

    def definitions(self) -> dict[str, Any]:
        """The definitions, closed but for those that are parts of a larger object, directly or by another one."""
        while True:
            known = len(self._open)
            made = {
                place: {
                    name: self.closed(defined, f"#/{place}/{name}" not in self._open)
                    for name, defined in (self._root.get(place) or {}).items()
                }
                for place in _PLACES
                if place in self._root
            }
            if len(self._open) == known:
                return made

    def closed(self, node: Any, close: bool, *, top: bool = False) -> Any:
        if not isinstance(node, Mapping):
            return node
        alternatives = close and "properties" not in node and self._is_choice(node)
        made = dict(node)
        for key, value in node.items():
            if key in _MAPS and isinstance(value, Mapping):
                made[key] = {name: self.closed(item, True) for name, item in value.items()}
            elif key in _VALUES:
                made[key] = self._each(value, True)
            elif key in _SAME_OBJECT:
                made[key] = self._each(value, alternatives and key in _CHOICES)
            elif key == "dependentSchemas" and isinstance(value, Mapping):
                made[key] = {name: self.closed(item, False) for name, item in value.items()}
        together = any(key in node for key in (*_SAME_OBJECT, "dependentSchemas", "$ref"))
        if isinstance(node.get("$ref"), str) and (not close or any(k in node for k in ("properties", *_SAME_OBJECT))):
            self._open.add(node["$ref"])
        named = "properties" in node or (top and "$ref" not in node and not alternatives)
        if close and named and not any(key in node for key in _OPENING):
            made["unevaluatedProperties" if together else "additionalProperties"] = False
        return made

    def _each(self, value: Any, close: bool) -> Any:
        return [self.closed(item, close) for item in value] if isinstance(value, list) else self.closed(value, close)

    def _is_choice(self, node: Mapping[str, Any]) -> bool:
        """Whether an object satisfies exactly one of the schemas in `node`, so that each can be closed by itself."""
        used = [key for key in (*_SAME_OBJECT, "$ref", "dependentSchemas") if key in node]
        return used in (["anyOf"], ["oneOf"]) or (used == ["allOf"] and len(node["allOf"]) == 1)


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: names.get(value, value) if key == "$ref" and isinstance(value, str) else _renamed(value, names)
            for key, value in schema.items()
        }
    return [_renamed(item, names) for item in schema] if isinstance(schema, list) else schema
