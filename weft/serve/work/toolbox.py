"""Tools in the form that templates read."""

from collections.abc import Mapping, Sequence
from typing import Any


def template_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools in the form that chat templates expect: without fields that are null."""
    shown = []
    for tool in tools:
        function = {name: value for name, value in tool["function"].items() if value is not None and name != "strict"}
        function.setdefault("parameters", {"type": "object", "properties": {}})
        shown.append({"type": "function", "function": function})
    return shown
