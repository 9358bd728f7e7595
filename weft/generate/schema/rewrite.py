"""Rewrites a JSON Schema with the keywords that llguidance enforces exactly.

Everything generated under the result satisfies the schema, but not everything that satisfies it can be generated:
properties come in the schema's order, and numbers with bounds have no exponent. `if` becomes a choice between two
cases; `dependentRequired` becomes a choice between the property's absence and the properties it needs. A keyword that
cannot be rewritten is an UnsupportedError with its name and place; no keyword is ignored.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from weft.errors import InputError, UnsupportedError
from weft.generate.schema import formats, pattern
from weft.generate.schema.disjoint import exclusive
from weft.generate.schema.document import Document
from weft.generate.schema.evaluated import Evaluation
from weft.generate.schema.keywords import ANNOTATIONS
from weft.generate.schema.negation import negated, opposite_or_none
from weft.generate.schema.place import MAX_LITERAL, Place, parsed

_MAX_PARTS = 20_000  # schemas in the result, counting every case
_MAX_STEP = 50_000
_EXACT = 2**53  # every JSON parser reads integers up to here exactly

Written = dict[str, Any] | bool


def rewritten(schema: Any) -> dict[str, Any]:
    """The schema for llguidance; InputError if it is malformed, UnsupportedError if it cannot be enforced."""
    data = parsed(schema)
    if not isinstance(data, dict | bool):
        raise InputError("json schema", "the schema must be an object, true or false", given=data)
    writer = _Writer(Document(data))
    try:
        root = writer.write(writer.document.root)
    except RecursionError:
        raise UnsupportedError(
            "json schema", "the schema's references nest too deeply", advice="give a simpler schema"
        ) from None
    if root is False:
        raise InputError("json schema", "no value can satisfy the schema")
    whole = {} if root is True else root
    return {**whole, "$defs": writer.definitions} if writer.definitions else whole


def _all(parts: list[Written]) -> Written:
    if False in parts:
        return False
    kept = [part for part in parts if part not in (True, {})]
    return kept[0] if len(kept) == 1 else {"allOf": kept} if kept else True


def _any(parts: list[Written]) -> Written:
    if True in parts or {} in parts:
        return True
    kept = [part for part in parts if part is not False]
    return kept[0] if len(kept) == 1 else {"anyOf": kept} if kept else False


class _Writer:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.definitions: dict[str, Written] = {}
        self._names: dict[int, str] = {}
        self._parts = self._depth = 0

    def write(self, place: Place) -> Written:
        self._parts += 1
        self._depth += 1
        if self._parts > _MAX_PARTS or self._depth > 200:
            raise place.unsupported("the schema is too large: its cases multiply")
        place = place.entered()
        if isinstance(place.node, bool):
            written: Written = place.node
        else:
            plain: dict[str, Any] = {}
            parts: list[Written] = [plain]
            self._write_values(place, plain, parts)
            self._write_arrays(place, plain, parts)
            self._write_objects(place, plain, parts)
            self._write_choices(place, parts)
            self._write_unevaluated(place, parts)
            written = _all(parts)
        self._depth -= 1
        return written

    def made(self, place: Place, node: Any) -> Written:
        return self.write(place.made(node))

    def _write_values(self, place: Place, plain: dict[str, Any], parts: list[Written]) -> None:
        node = place.node
        if "type" in node:
            plain["type"] = node["type"]
        if "multipleOf" in node:
            plain["multipleOf"] = _checked_step(place)
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if key in node:
                if abs(node[key]) > _EXACT:
                    raise place.unsupported(f"{key} beyond 2^53 is not supported: got {node[key]}", key)
                plain[key] = node[key]
        for key in ("minLength", "maxLength"):
            if key in node:
                plain[key] = int(node[key])
        for key in ("const", "enum"):
            if key in node:
                _check_value(node[key], place, key)
                parts.append({key: node[key]} if node[key] != [] or key == "const" else False)
        if "pattern" in node:
            parts.append({"pattern": pattern.translate(node["pattern"], f"json schema {place.path('pattern')}")})
        if "format" in node:
            parts.append(_format(place))

    def _write_arrays(self, place: Place, plain: dict[str, Any], parts: list[Written]) -> None:
        node = place.node
        first, rest = "prefixItems", "items"
        if isinstance(node.get("items"), list):  # before 2020-12
            first, rest = "items", "additionalItems"
        if first in node:
            plain["prefixItems"] = [self.write(place.at(first, number)) for number in range(len(node[first]))]
        if rest in node:
            plain["items"] = self.write(place.at(rest))
        for key in ("minItems", "maxItems"):
            if key in node:
                plain[key] = int(node[key])
        if node.get("uniqueItems") and node.get("maxItems", 2) > 1 and _may_be(place, "array"):
            raise place.unsupported("the keyword 'uniqueItems' is not supported", "uniqueItems")
        if "contains" in node:
            parts.append(self._contains(place))

    def _contains(self, place: Place) -> Written:
        node, wanted = place.node, self.write(place.at("contains"))
        least, most = int(node.get("minContains", 1)), node.get("maxContains")
        if wanted in (True, {}):
            return {"minItems": least} | ({} if most is None else {"maxItems": int(most)})
        if least == 0 and (most is None or node["contains"] is False):
            return True
        if wanted is False:  # no array has such an element, or none can be generated
            return {"type": ["null", "boolean", "number", "string", "object"]}
        if most == 0 and least == 0:
            return self.made(place, {"items": negated(place.at("contains"), self.document)})
        raise place.unsupported("the keyword 'contains' is not supported", "contains")

    def _write_objects(self, place: Place, plain: dict[str, Any], parts: list[Written]) -> None:
        node = place.node
        if "properties" in node:
            plain["properties"] = {name: self.write(place.at("properties", name)) for name in node["properties"]}
        if "patternProperties" in node:
            where = f"json schema {place.path('patternProperties')}"
            plain["patternProperties"] = {
                pattern.translate(name, where): self.write(place.at("patternProperties", name))
                for name in node["patternProperties"]
            }
        if "additionalProperties" in node:
            plain["additionalProperties"] = self.write(place.at("additionalProperties"))
        if node.get("required"):
            plain["required"] = list(dict.fromkeys(node["required"]))
        self._write_counts(place, plain, parts)
        if "propertyNames" in node:
            parts.append(self._names_of(place))
        dependencies = {**node.get("dependencies", {}), **node.get("dependentRequired", {})}
        for name, needed in dependencies.items():
            if isinstance(needed, list):
                parts.append(_any([{"properties": {name: False}}, {"required": [*needed, name]}] if needed else [True]))
        for keyword in ("dependencies", "dependentSchemas"):
            for name in (name for name, needed in node.get(keyword, {}).items() if not isinstance(needed, list)):
                present = _all([{"required": [name]}, self.write(place.at(keyword, name))])
                parts.append(_any([{"properties": {name: False}}, present]))

    def _write_counts(self, place: Place, plain: dict[str, Any], parts: list[Written]) -> None:
        """Write `minProperties` and `maxProperties`. Unnamed keys cannot be counted: one may be written twice."""
        node, names = place.node, place.node.get("properties", {})
        least, most = int(node.get("minProperties", 0)), node.get("maxProperties")
        if least > len(set(node.get("required", ()))) and _may_be(place, "object"):
            if least > 1:
                raise place.unsupported(
                    f"minProperties above the number of required properties is not supported: got {least}",
                    "minProperties",
                )
            none_named: Written = {"properties": dict.fromkeys(names, False), "minProperties": 1}
            free = [] if node.get("additionalProperties") is False and "patternProperties" not in node else [none_named]
            parts.append(_any([*({"required": [name]} for name in names), *free]))
        if most is None or (
            node.get("additionalProperties") is False and not node.get("patternProperties") and most >= len(names)
        ):
            return
        if most == 0:
            parts.append({"properties": dict.fromkeys(names, False), "additionalProperties": False})
        elif set(names) <= set(node.get("required", ())):
            plain["maxProperties"] = int(most)
        else:
            raise place.unsupported(
                "maxProperties is not supported together with properties that are not required", "maxProperties"
            )

    def _names_of(self, place: Place) -> Written:
        names = self._name_rules(place.at("propertyNames").entered())
        if names in (True, {}):
            return True
        if names is False:
            return {"additionalProperties": False}
        return names

    def _name_rules(self, place: Place) -> Written:
        """A schema of the objects whose keys all satisfy `place`."""
        node = place.node
        if isinstance(node, bool):
            return node
        parts: list[Written] = []
        for keyword, value in node.items():
            if keyword in ("const", "enum"):
                names = [name for name in ([value] if keyword == "const" else value) if isinstance(name, str)]
                parts.append({"properties": dict.fromkeys(names, True), "additionalProperties": False})
            elif keyword in ("minLength", "maxLength", "pattern", "format"):
                one = place.made({keyword: value})
                parts.append({"patternProperties": {_name_pattern(one): True}, "additionalProperties": False})
            elif keyword == "type":
                parts.append("string" in ([value] if isinstance(value, str) else value))
            elif keyword not in ANNOTATIONS:
                raise place.unsupported(f"the keyword {keyword!r} is not supported in propertyNames", keyword)
        if sum("patternProperties" in part for part in parts if isinstance(part, dict)) > 1:
            raise place.unsupported("several patterns or lengths in propertyNames are not supported")
        return _all(parts)

    def _write_choices(self, place: Place, parts: list[Written]) -> None:
        node = place.node
        for keyword in ("$ref", "$dynamicRef"):
            if keyword in node:
                parts.append(self._reference(self.document.found(place, keyword)))
        parts += [self.write(place.at("allOf", number)) for number in range(len(node.get("allOf", ())))]
        if "anyOf" in node:
            parts.append(_any([self.write(place.at("anyOf", number)) for number in range(len(node["anyOf"]))]))
        if "oneOf" in node:
            parts.append(self._one(place, [place.at("oneOf", number) for number in range(len(node["oneOf"]))]))
        if "not" in node:
            parts.append(self.write(negated(place.at("not"), self.document)))
        if "if" in node and ("then" in node or "else" in node):
            parts.append(self._conditional(place))

    def _reference(self, target: Place) -> Written:
        if isinstance(target.node, bool):
            return target.node
        name = self._names.get(id(target.node))
        if name is None:
            name = self._names[id(target.node)] = f"d{len(self._names)}"
            self.definitions[name] = self.write(target)
        return {"$ref": f"#/$defs/{name}"}

    def _one(self, place: Place, options: list[Place]) -> Written:
        """Exactly one option: any of them if they exclude each other, else each with the negation of the others."""
        options = [option for option in options if option.node is not False]
        if exclusive(options, self.document):
            return _any([self.write(option) for option in options])
        opposites = [opposite_or_none(option, self.document) for option in options]
        if len(options) > 8 or None in opposites:
            raise place.unsupported(
                "oneOf is not supported unless its options exclude each other by type, by value or by a property",
                "oneOf",
            )
        cases = []
        for number, option in enumerate(options):
            others = [opposite for other, opposite in enumerate(opposites) if other != number]
            cases.append(self.made(place, {"allOf": [option, *others]}))
        return _any(cases)

    def _conditional(self, place: Place) -> Written:
        condition = place.at("if")
        then = place.at("then") if "then" in place.node else True
        other = place.at("else") if "else" in place.node else True
        met, unmet = {"allOf": [condition, then]}, {"allOf": [negated(condition, self.document), other]}
        return _any([self.made(place, met), self.made(place, unmet)])

    def _write_unevaluated(self, place: Place, parts: list[Written]) -> None:
        node = place.node
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword not in node or node[keyword] in (True, {}):
                continue
            rest = self.write(place.at(keyword))
            bare = place.made({key: value for key, value in node.items() if not key.startswith("unevaluated")})
            cases: list[Written] = []
            for way in Evaluation(self.document).ways(bare):
                held = [self.write(part) for part in way.holding]
                if keyword == "unevaluatedItems":
                    seen: dict[str, Any] = {"prefixItems": [True] * way.first_items, "items": rest}
                    cases.append(_all([*held, True if way.all_items else seen]))
                    continue
                where = f"json schema {place.path(keyword)}"
                patterns = {pattern.translate(name, where): True for name in way.patterns}
                seen = {"properties": dict.fromkeys(sorted(way.names), True), "additionalProperties": rest}
                cases.append(
                    _all(
                        [*held, True if way.all_names else seen | ({"patternProperties": patterns} if patterns else {})]
                    )
                )
            parts.append(_any(cases))


def _may_be(place: Place, kind: str) -> bool:
    kinds = place.node.get("type", kind)
    return kind in ([kinds] if isinstance(kinds, str) else kinds)


def _check_value(value: Any, place: Place, keyword: str) -> None:
    """Refuse strings that need the escape \\u or make every step slow, and numbers that llguidance rounds.

    llguidance 1.9.1 crashes for -2^63.
    """
    if isinstance(value, int | float) and abs(value) > _EXACT:
        raise place.unsupported(f"a number beyond 2^53 is not supported: got {str(value)[:40]}", keyword)
    if isinstance(value, str) and len(value) > MAX_LITERAL:
        raise place.unsupported(f"a string of {len(value)} characters is too long (at most {MAX_LITERAL})", keyword)
    if isinstance(value, str) and any((c < " " and c not in "\b\t\n\f\r") or c == "\x7f" for c in value):
        raise place.unsupported("control characters in a string are not supported", keyword)
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_value(item, place, keyword)


def _checked_step(place: Place) -> float:
    """The value of `multipleOf`. Its digits without trailing zeros are the number of states that the parser needs."""
    step = place.node["multipleOf"]
    digits = int("".join(map(str, Decimal(repr(step)).normalize().as_tuple().digits)))
    if digits > _MAX_STEP or step > _EXACT:
        raise place.unsupported(
            f"multipleOf {str(step)[:40]} is not supported: its digits without trailing zeros exceed {_MAX_STEP}",
            "multipleOf",
        )
    return step


def _format(place: Place) -> Written:
    name = place.node["format"]
    if name in formats.NATIVE:
        return {"format": name} | ({"maxLength": 253} if name == "hostname" else {})
    if name in formats.INTEGERS:
        least, most = formats.INTEGERS[name]
        return {"minimum": least, "maximum": most}
    if name in formats.PATTERNS:
        return {"pattern": pattern.translate(formats.PATTERNS[name], f"json schema {place.path('format')}")}
    if name not in formats.NOTES:
        raise place.unsupported(f"the format {name[:80]!r} is not supported", "format")
    return True


def _name_pattern(place: Place) -> str:
    """The pattern of the strings that satisfy the schema's one keyword."""
    [(keyword, value)] = place.node.items()
    if keyword == "pattern":
        return pattern.translate(value, f"json schema {place.path(keyword)}")
    if keyword == "format":
        if value not in formats.PATTERNS:
            raise place.unsupported(f"the format {value!r} is not supported in propertyNames", "format")
        return pattern.translate(formats.PATTERNS[value], f"json schema {place.path(keyword)}")
    if value > pattern.MAX_REPEAT:
        raise place.unsupported(f"{keyword} above {pattern.MAX_REPEAT} is not supported in propertyNames", keyword)
    return f"^(?s:.){{{int(value)},}}$" if keyword == "minLength" else f"^(?s:.){{0,{int(value)}}}$"
