"""Reads JSON that came with a model: duplicate keys, lone surrogates, odd numbers and deep nesting are refused.

The standard library's decoder accepts more than the JSON standard does (NaN, lone surrogates, a key twice with the last
one winning), and every such difference lets one file mean two things to two readers.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

MAX_DEPTH = 64
MAX_VALUES = 1 << 17  # Gemma 3 has 45,000 in its tokenizer_config.json; Python needs up to 200 bytes for one
_SPACE = re.compile(r"[ \t\n\r]*")
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|[^\s\[\]{}:,"]+')
_MAX_DIGITS = 20  # of an unsigned 64-bit integer
_NO_LIMIT = str(int(1e30))  # what transformers writes as model_max_length where there is none


class JsonError(ValueError):
    """What is wrong and at which character; readers turn it into a FormatError that names their file."""


class CrowdError(JsonError):
    """More values than a reader accepts; the text was not parsed, and may be valid JSON."""


class _OddError(JsonError):
    """A literal that is not allowed; `_value` finds its place and raises a JsonError."""

    def __init__(self, what: str, literal: str) -> None:
        super().__init__(what)
        self.literal = literal


def text_of(raw: bytes) -> str:
    """`raw` as text, which must be UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8 at byte {error.start}") from None


def limit_values(text: str, limit: int) -> None:
    """Raise CrowdError if a text may hold more than `limit` values, before any of them takes memory."""
    count = text.count(",") + text.count("[") + text.count("{")  # an upper bound
    if count > limit:
        raise CrowdError(f"the document holds too many values: about {count}; the limit is {limit}")


def parse(text: str, max_values: int = MAX_VALUES, *, infinity: bool = False) -> Any:
    """The value that `text` is. Raises JsonError if it is not strictly JSON, CrowdError above `max_values`.

    With `infinity` that word is a number, as transformers writes it in config.json where there is no limit.
    """
    limit_values(text, max_values)
    value, end = _value(text, _skip(text, 0), _DECODERS[infinity])
    if _skip(text, end) != len(text):
        raise JsonError(f"something follows the value at character {end}")
    return value


def members(text: str) -> Iterator[tuple[str, Any, int]]:
    """Name, value and position of each member of the object that `text` is, parsed one at a time.

    A reader that counts members can stop a hostile object early, before all of it is in memory. Only spaces may follow
    the object. The caller refuses duplicate names.
    """
    if not text.startswith("{"):
        raise JsonError("the object does not start with '{' at character 0")
    at = _skip(text, 1)
    more = text[at : at + 1] != "}"
    while more:
        if text[at : at + 1] != '"':
            raise JsonError(f"no member name at character {at}")
        start = at
        name, at = _value(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise JsonError(f"no ':' at character {at}")
        value, at = _value(text, _skip(text, at + 1))
        yield name, value, start
        at = _skip(text, at)
        more = text[at : at + 1] == ","
        if more:
            at = _skip(text, at + 1)
    if text[at : at + 1] != "}":
        raise JsonError(f"the object does not end at character {at}")
    if text[at + 1 :].strip(" "):
        raise JsonError(f"something follows the object at character {at + 1}")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _value(text: str, at: int, decoder: json.JSONDecoder | None = None) -> tuple[Any, int]:
    try:
        value, end = (decoder or _DECODERS[False]).raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg.removesuffix(' at')} at character {error.pos}") from None
    except _OddError as error:
        literal = error.literal
        raise JsonError(f"{error} at character {_find(text, at, lambda token, _: token == literal)}") from None
    except RecursionError:
        raise _too_deep(text, at) from None
    # The walk is needed only if the text has enough brackets to be too deep, or an escape that may be a surrogate.
    if text.count("[", at, end) + text.count("{", at, end) > MAX_DEPTH or text.find("\\u", at, end) >= 0:
        _check(value, text, at)
    return value, end


def _find(text: str, at: int, wrong: Callable[[str, int], bool]) -> int:
    """The position of the first token from `at` on for which `wrong(token, depth)` is true."""
    depth = 0
    for match in _TOKEN.finditer(text, at):
        depth += (match[0] in ("[", "{")) - (match[0] in ("]", "}"))
        if wrong(match[0], depth):
            return match.start()
    return at


def _too_deep(text: str, at: int) -> JsonError:
    place = _find(text, at, lambda _, depth: depth > MAX_DEPTH)
    return JsonError(f"nested deeper than {MAX_DEPTH} at character {place}")


def _check(value: Any, text: str, at: int) -> None:
    """Raise JsonError for a lone surrogate or too deep nesting in `value`, which `text` has at `at`."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if not item.isascii() and _is_lone(item):
                    place = _find(text, at, lambda token, _: token.startswith('"') and _is_lone(json.loads(token)))
                    raise JsonError(f"a lone surrogate in the string at character {place}")
            elif isinstance(item, dict):
                below.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return
        level = below
    raise _too_deep(text, at)


def _is_lone(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise JsonError(f"the key {twice[:80]!r} is given twice")
    return result


def _int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS and digits != _NO_LIMIT:
        raise _OddError(f"a number of {len(digits)} digits", digits)
    if digits == "-0":  # a float in strict readers; as an integer it would be one more way to write zero
        raise _OddError("the number -0", digits)
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise _OddError("a number out of range", digits)
    return value


def _constant(name: str) -> float:
    raise _OddError(f"{name} is not JSON", name)


def _constant_or_infinity(name: str) -> float:
    return float("inf") if name == "Infinity" else _constant(name)


_DECODERS = {
    infinity: json.JSONDecoder(object_pairs_hook=_pairs, parse_int=_int, parse_float=_float, parse_constant=constant)
    for infinity, constant in ((False, _constant), (True, _constant_or_infinity))
}
