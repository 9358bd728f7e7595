"""Tools in the form that templates read, and the schema of a forced tool call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_PLACES = ("$defs", "definitions")


def template_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools in the form that chat templates expect: without fields that are null."""
    shown = []
    for tool in tools:
        function = {name: value for name, value in tool["function"].items() if value is not None and name != "strict"}
        function.setdefault("parameters", {"type": "object", "properties": {}})
        shown.append({"type": "function", "function": function})
    return shown


def forced_schema(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of one call of one of these tools: {"name": ..., "arguments": {...}}.

    Definitions move to the top level, where references find them, under names unique to each tool.
    """
    options, definitions = [], {}
    for number, tool in enumerate(tools):
        function = tool["function"]
        parameters = function.get("parameters") or {"type": "object"}
        own = {place: dict(parameters.get(place) or {}) for place in _PLACES}
        renamed = {f"#/{place}/{name}": f"#/$defs/t{number}_{name}" for place in _PLACES for name in own[place]}
        body = {key: value for key, value in parameters.items() if key not in _PLACES}
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


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: names.get(value, value) if key == "$ref" and isinstance(value, str) else _renamed(value, names)
            for key, value in schema.items()
        }
    return [_renamed(item, names) for item in schema] if isinstance(schema, list) else schema
