"""A JSON Schema as it was given: read within limits, each part with its place."""

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
MAX_LITERAL = 4_096  # characters of one text: each step looks at all that is left of it


@frozen
class Place:
    """A schema, the address against which its references are read, and where it stands (a JSON pointer).

    A schema that was made on the way holds places where others hold schemas.
    """

    node: Any
    base: str = ""
    pointer: str = ""
    made_up: bool = False

    def at(self, *keys: str | int) -> Place:
        """The schema under a keyword, and a name or number in that."""
        node = self.node
        for key in keys:
            node = node[key]
        return node if isinstance(node, Place) else Place(node, self.base, self.path(*keys), self.made_up)

    def path(self, *keys: str | int) -> str:
        if self.made_up:
            return self.pointer
        return self.pointer + "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)

    def made(self, node: Any) -> Place:
        """A schema made from this one."""
        return Place(node, self.base, self.pointer, made_up=True)

    def entered(self) -> Place:
        """This schema with its own address, where it has one, put to use."""
        own = self.node.get("$id") if isinstance(self.node, dict) else None
        if not isinstance(own, str):
            return self
        rest = {keyword: value for keyword, value in self.node.items() if keyword != "$id"}
        return Place(rest, joined(self.base, own), self.pointer, self.made_up)

    def wrong(self, what: str, *keys: str | int) -> InputError:
        return InputError("json schema", f"{what}: at {self.path(*keys) or '/'}")

    def unsupported(self, what: str, *keys: str | int) -> UnsupportedError:
        return UnsupportedError("json schema", f"{what}: at {self.path(*keys) or '/'}")


def joined(base: str, reference: str) -> str:
    if reference.startswith("#"):  # urljoin knows no urn:
        return base.partition("#")[0] + reference
    return urljoin(base, reference)


def parsed(schema: Any) -> Any:
    """A schema given as text or as data, as data that nobody else holds; InputError where it is over a limit."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
            raise InputError("json schema", f"too long: over {MAX_BYTES} bytes")
        data = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        json.dumps(data, ensure_ascii=False).encode()  # half a character cannot be written
    except RecursionError:
        raise InputError("json schema", f"nested too deeply: over {MAX_DEPTH} levels") from None
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, InputError) else InputError("json schema", f"not JSON: {error}") from error
    _check_depth(data)
    return data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    if math.isinf(float(text)):
        raise ValueError(f"a number beyond all bounds: {text[:40]}")
    return float(text)


def _check_depth(data: Any) -> None:
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        level = [item for node in level if isinstance(node, dict | list) for item in _items(node)]
        if not level:
            return
    raise InputError("json schema", f"nested too deeply: over {MAX_DEPTH} levels")


def _items(node: Any) -> Iterator[Any]:
    yield from node.values() if isinstance(node, dict) else node
