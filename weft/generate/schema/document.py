"""A whole JSON Schema: checks every keyword, counts its size, and resolves references."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from weft.generate.schema.keywords import check_keywords
from weft.generate.schema.place import Place, joined

MAX_PROPERTIES = 2_000
MAX_VALUES = 10_000

# Keywords whose value is a schema, a list of schemas, or an object of schemas.
ONE = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
       "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
SEVERAL = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
BY_NAME = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")

_DIALECTS = ("2020-12/schema", "2019-09/schema", "draft-07/schema", "draft-06/schema", "draft-04/schema")


class Document:
    """A whole schema, with the parts that `$id`, `$anchor` and `$dynamicAnchor` name."""

    def __init__(self, data: Any) -> None:
        self.root = Place(data)
        self.resources: dict[str, Place] = {"": self.root}
        self.anchors: dict[str, Place] = {}
        self.dynamic: list[str] = []
        self._properties = self._values = 0
        self._enter(self.root)

    def _enter(self, place: Place) -> None:
        node = place.node
        if not isinstance(node, dict):
            return
        check_keywords(place)
        self._count(place)
        base = place.base
        if isinstance(node.get("$id"), str):
            base = joined(base, node["$id"])
            self.resources[base.partition("#")[0]] = place
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(keyword), str):
                self.anchors[f"{base.partition('#')[0]}#{node[keyword]}"] = place
        if isinstance(node.get("$dynamicAnchor"), str):
            self.dynamic.append(node["$dynamicAnchor"])
        inside = Place(node, base, place.pointer)
        for keyword, value in node.items():
            if keyword in ONE and isinstance(value, dict):
                self._enter(inside.at(keyword))
            if keyword in SEVERAL and isinstance(value, list):
                for number in range(len(value)):
                    self._enter(inside.at(keyword, number))
            if keyword in BY_NAME and isinstance(value, dict):
                for name in value:
                    self._enter(inside.at(keyword, name))

    def _count(self, place: Place) -> None:
        node = place.node
        for keyword in ("properties", "patternProperties"):
            self._properties += len(node[keyword]) if isinstance(node.get(keyword), dict) else 0
        self._values += len(node["enum"]) if isinstance(node.get("enum"), list) else 0
        if self._properties > MAX_PROPERTIES:
            raise place.wrong(f"the schema has more than {MAX_PROPERTIES} properties")
        if self._values > MAX_VALUES:
            raise place.wrong(f"the schema has more than {MAX_VALUES} enum values")
        dialect = node.get("$schema")
        if dialect is not None and not str(dialect).rstrip("#").endswith(_DIALECTS):
            raise place.unsupported(f"the dialect {str(dialect)[:80]!r} is not supported", "$schema")

    def found(self, place: Place, keyword: str) -> Place:
        """The schema that `$ref` or `$dynamicRef` (`keyword`) of `place` refers to."""
        reference = place.node[keyword]
        if not isinstance(reference, str):
            raise place.wrong(f"{keyword} must be a string", keyword)
        address, _, fragment = joined(place.base, reference).partition("#")
        target = self.resources.get(address)
        if target is None:
            raise place.unsupported(f"references to another document are not supported: {reference[:80]!r}", keyword)
        if keyword == "$dynamicRef" and self.dynamic.count(fragment) > 1:
            raise place.unsupported("$dynamicRef is not supported where several $dynamicAnchor have its name", keyword)
        if fragment and not fragment.startswith("/"):
            target = self.anchors.get(f"{address}#{fragment}")
        elif fragment:
            target = _walked(Place(target.node, address, target.pointer), unquote(fragment))
        if target is None or not isinstance(target.node, dict | bool):
            raise place.wrong(f"{keyword} does not refer to a schema: {reference[:80]!r}", keyword)
        return target


def _walked(place: Place, pointer: str) -> Place | None:
    """The value at a JSON pointer, None if there is none; its base is the URI of the resource that contains it."""
    node, base, path = place.node, place.base, place.pointer
    first = True
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if not first and isinstance(node, dict) and isinstance(node.get("$id"), str):
            base = joined(base, node["$id"])
        first = False
        if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, dict) and part in node:
            node = node[part]
        else:
            return None
        path = Place(None, "", path).path(part)
    return Place(node, base, path)
