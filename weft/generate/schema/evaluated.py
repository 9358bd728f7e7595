"""Which properties and items a schema evaluates, for `unevaluatedProperties` and `unevaluatedItems`.

That depends on which subschemas a value satisfies. `ways` lists the cases: the subschemas that hold, and what they
evaluate. A case may be left out, so that the grammar allows less, but none may be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.generate.schema.document import Document
from weft.generate.schema.negation import negated
from weft.generate.schema.place import Place

_MAX_WAYS = 32


@frozen
class Way:
    """One case: the subschemas that must hold too, and the properties and items that are then evaluated."""

    holding: tuple[Any, ...] = ()
    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    all_names: bool = False
    first_items: int = 0
    all_items: bool = False

    def __or__(self, other: Way) -> Way:
        return Way(
            self.holding + other.holding,
            self.names | other.names,
            self.patterns | other.patterns,
            self.all_names or other.all_names,
            max(self.first_items, other.first_items),
            self.all_items or other.all_items,
        )


@dataclass
class Evaluation:
    """The cases of one schema of a document."""

    document: Document
    depth: int = 0
    following: list[int] = field(default_factory=list)

    def ways(self, place: Place) -> list[Way]:
        place = place.entered()
        if isinstance(place.node, bool):
            return [Way()]
        parts = [[self._own(place)], *self._applicators(place)]
        found = []
        for chosen in product(*parts):
            way = Way()
            for part in chosen:
                way |= part
            found.append(way)
            if len(found) > _MAX_WAYS:
                raise place.unsupported(
                    f"unevaluated properties or items are not supported for more than {_MAX_WAYS} cases"
                )
        return found

    def _own(self, place: Place) -> Way:
        node = place.node
        items, first = node.get("items"), node.get("prefixItems", [])
        if isinstance(items, list):
            first, items = items, node.get("additionalItems")
        return Way(
            names=frozenset(node.get("properties", {})),
            patterns=frozenset(node.get("patternProperties", {})),
            all_names="additionalProperties" in node or "unevaluatedProperties" in node,
            first_items=len(first),
            all_items=items is not None or "unevaluatedItems" in node,
        )

    def _applicators(self, place: Place) -> Iterator[list[Way]]:
        """For each keyword that applies schemas to the same value, its cases."""
        node = place.node
        for keyword in ("$ref", "$dynamicRef"):
            if keyword in node:
                yield self._followed(self.document.found(place, keyword))
        for number in range(len(node.get("allOf", ()))):
            yield self.ways(place.at("allOf", number))
        if "anyOf" in node:
            yield self._any(place)
        if "oneOf" in node:
            yield [way for number in range(len(node["oneOf"])) for way in self._held(place.at("oneOf", number))]
        if "if" in node:
            yield self._conditional(place)
        for name in node.get("dependentSchemas", {}):
            present = {"required": [name]}
            absent = Way((place.made({"properties": {name: False}}),))
            yield [absent, *(Way((place.made(present),)) | w for w in self._held(place.at("dependentSchemas", name)))]

    def _followed(self, target: Place) -> list[Way]:
        if id(target.node) in self.following:
            return [Way()]  # a cycle: it evaluates nothing that the schema does not evaluate already
        self.following.append(id(target.node))
        try:
            return self.ways(target)
        finally:
            self.following.pop()

    def _held(self, place: Place) -> list[Way]:
        return [Way((place,)) | way for way in self.ways(place)]

    def _any(self, place: Place) -> list[Way]:
        """One option holds, or several do and everything that any of them evaluates counts."""
        count = len(place.node["anyOf"])
        options = [self._held(place.at("anyOf", number)) for number in range(count)]
        together = range(2, count + 1) if count <= 3 else ()
        found = [way for option in options for way in option]
        for chosen in (group for size in together for group in combinations(options, size)):
            for ways in product(*chosen):
                way = Way()
                for part in ways:
                    way |= part
                found.append(way)
        return found

    def _conditional(self, place: Place) -> list[Way]:
        then = self._held(place.at("then")) if "then" in place.node else [Way()]
        other = self._held(place.at("else")) if "else" in place.node else [Way()]
        found = [condition | way for condition in self._held(place.at("if")) for way in then]
        try:
            opposite = Way((negated(place.at("if"), self.document),))
        except UnsupportedError:
            return found
        return found + [opposite | way for way in other]
