"""Whether schemas provably exclude each other: by type, by value, or by a property that distinguishes them."""

from __future__ import annotations

import json
from itertools import combinations

from weft.errors import InputError
from weft.generate.schema.document import Document
from weft.generate.schema.keywords import TYPES
from weft.generate.schema.place import Place


def exclusive(options: list[Place], document: Document) -> bool:
    """Whether no value satisfies two of the options; False also where that is not proved."""
    views = [_seen(option, document) for option in options]
    return all(_apart(first, second) for first, second in combinations(views, 2))


class _View:
    """What is known of a schema without solving it: the types and values it allows, and its properties."""

    def __init__(self) -> None:
        self.types = set(TYPES)
        self.values: set[str] | None = None
        self.required: set[str] = set()
        self.properties: dict[str, _View] = {}


def _seen(place: Place, document: Document, depth: int = 0) -> _View:
    view, place = _View(), place.entered()
    if not isinstance(place.node, dict) or depth > 8:
        return view
    node = place.node
    if "type" in node:
        names = [node["type"]] if isinstance(node["type"], str) else node["type"]
        view.types &= {"number" if name == "integer" else name for name in names}
    values = [node["const"]] if "const" in node else node.get("enum")
    if values is not None:
        view.values = {json.dumps(value, sort_keys=True) for value in values if not isinstance(value, float)}
        if any(isinstance(value, float | list | dict) for value in values):  # 1 and 1.0 are equal, their texts differ
            view.values = None
        view.types &= {_type_of(value) for value in values}
    view.required = set(node.get("required", ()))
    view.properties = {
        name: _seen(place.at("properties", name), document, depth + 1) for name in node.get("properties", {})
    }
    also = [place.at("allOf", number) for number in range(len(node.get("allOf", ())))]
    if "$ref" in node:
        also.append(document.found(place, "$ref"))
    for other in also:
        _narrow(view, _seen(other, document, depth + 1))
    for keyword in ("anyOf", "oneOf"):
        if keyword in node:
            options = [_seen(place.at(keyword, number), document, depth + 1) for number in range(len(node[keyword]))]
            view.types &= set().union(*(option.types for option in options))
    return view


def _narrow(view: _View, other: _View) -> None:
    view.types &= other.types
    if other.values is not None:
        view.values = other.values if view.values is None else view.values & other.values
    view.required |= other.required
    view.properties = {**other.properties, **view.properties}


def _type_of(value: object) -> str:
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    if value is not None and type(value) not in kinds:
        raise InputError("json schema", f"JSON has no type for a value of {type(value).__name__}")
    return "null" if value is None else kinds[type(value)]


def _apart(first: _View, second: _View) -> bool:
    if not first.types & second.types:
        return True
    if first.values is not None and second.values is not None:
        return not first.values & second.values
    if first.types & second.types != {"object"}:
        return False
    shared = (first.required | second.required) & first.properties.keys() & second.properties.keys()
    return any(_apart(first.properties[name], second.properties[name]) for name in shared)
