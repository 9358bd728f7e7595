"""Parses a JSON Schema within size limits; a Place is a part of it together with its JSON pointer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen

MAX_BYTES = 256 << 10
MAX_DEPTH = 64
MAX_LITERAL = 4_096  # characters of one string: each step scans the rest of it


@frozen
class Place:
    """A schema, the base URI of its references, and its JSON pointer in the document.

    `made_up` marks a schema that the rewriting made: its subschemas may be Places, and its pointer is its origin's.
    """

    node: Any
    base: str = ""
    pointer: str = ""
    made_up: bool = False

    def at(self, *keys: str | int) -> Place:
        """The subschema at these keys: a keyword, and the name or number in it if any."""
        node = self.node
        for key in keys:
            node = node[key]
        return node if isinstance(node, Place) else Place(node, self.base, self.path(*keys), self.made_up)

    def path(self, *keys: str | int) -> str:
        if self.made_up:
            return self.pointer
        return self.pointer + "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)

    def made(self, node: Any) -> Place:
        """A new schema derived from this one; errors in it report this place."""
        return Place(node, self.base, self.pointer, made_up=True)

    def entered(self) -> Place:
        """This schema with its `$id`, if any, resolved into the base URI."""
        own = self.node.get("$id") if isinstance(self.node, dict) else None
        if not isinstance(own, str):
            return self
        rest = {keyword: value for keyword, value in self.node.items() if keyword != "$id"}
        return Place(rest, joined(self.base, own), self.pointer, self.made_up)

    def wrong(self, what: str, *keys: str | int) -> InputError:
        return InputError("json schema", f"{what} (at {self.path(*keys) or '/'})")

    def unsupported(self, what: str, *keys: str | int) -> UnsupportedError:
        what = f"{what} (at {self.path(*keys) or '/'})"
        return UnsupportedError("json schema", what, advice="rewrite this part of the schema")


def joined(base: str, reference: str) -> str:
    if reference.startswith("#"):  # urljoin does not resolve fragments against urn: URIs
        return base.partition("#")[0] + reference
    return urljoin(base, reference)


def parsed(schema: Any) -> Any:
    """A schema, given as text or as data, as a private copy of the data; InputError if it exceeds a limit."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
            raise InputError("json schema", f"the schema has more than {MAX_BYTES} bytes")
        data = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        json.dumps(data, ensure_ascii=False).encode()  # fails for a lone surrogate
    except RecursionError:
        raise _too_deep() from None
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError("json schema", f"the schema is not JSON: {error}") from error
    _check_depth(data)
    return data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    if math.isinf(float(text)):
        raise ValueError(f"the number {text[:40]} is too large")
    return float(text)


def _check_depth(data: Any) -> None:
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        level = [item for node in level if isinstance(node, dict | list) for item in _items(node)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> InputError:
    return InputError("json schema", f"the schema is nested too deeply: more than {MAX_DEPTH} levels")


def _items(node: Any) -> Iterator[Any]:
    yield from node.values() if isinstance(node, dict) else node
