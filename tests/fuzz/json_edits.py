"""Edits of JSON trees: a value is replaced by an odd one or by another of the tree, repeated, removed or wrapped."""

import copy
import json
import random
from typing import Any

from fuzzing import BOUNDARIES, odd_bytes

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 0.5, -0.0, 1e-9, 1e30, "", " ", "\0", "x", "..", "/", "é", "\U0001f600"),
    *([], {}, [[]], [None], [1], ["x"], {"": None}, *BOUNDARIES),
)
# Texts that json.dumps would not write.
RAW = (b"NaN", b"Infinity", b"1e999", b"-0", b"01", b'"\\ud800"', b"[" * 70 + b"]" * 70, b'{"a":1,"a":2}', b"1" * 30)
_MARK = "@@weft@@"


def edit_json(data: bytes, rng: random.Random) -> bytes:
    """The document with one or two edits; bytes that are no JSON are edited as bytes."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return odd_bytes(rng, data)
    if rng.random() < 0.1:
        return odd_bytes(rng, data)
    for _ in range(rng.randint(1, 2)):
        tree = _edited(tree, rng)
    raw = json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return raw.replace(json.dumps(_MARK).encode(), rng.choice(RAW))


def _edited(tree: Any, rng: random.Random) -> Any:
    places = [(container, key) for container in _containers(tree) for key in _keys(container)]
    if not places:
        return _odd(rng)
    container, key = rng.choice(places)
    kind = rng.randrange(7)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, list):
        container.insert(key, container[key])
    elif kind == 1:
        container[_other_key(container, key, rng)] = container.pop(key)
    elif kind == 2:
        other, place = rng.choice(places)
        container[key] = json.loads(json.dumps(other[place])) if place in _keys(other) else None
    elif kind == 3:
        container[key] = [container[key]] if rng.random() < 0.5 else {"x": container[key]}
    elif kind == 4:
        container[key] = _MARK
    else:
        container[key] = _near(container[key], rng)
    return tree


def _containers(tree: Any) -> list[Any]:
    found, level = [], [tree]
    while level:
        inside = [item for item in level if isinstance(item, (dict, list))]
        found += inside
        level = [value for item in inside for value in (item.values() if isinstance(item, dict) else item)]
    return found


def _keys(container: Any) -> list[Any]:
    return list(container) if isinstance(container, dict) else list(range(len(container)))


def _other_key(container: dict[str, Any], key: str, rng: random.Random) -> str:
    return rng.choice((*container, key + "x", key[:-1], ""))


def _odd(rng: random.Random) -> Any:
    """An odd value; a copy, which the next edit may change."""
    return copy.deepcopy(rng.choice(ODD_VALUES))


def _near(value: Any, rng: random.Random) -> Any:
    """A value like `value` half the time, else any odd one."""
    if rng.random() < 0.5:
        return _odd(rng)
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + rng.choice((-1, 1, value, -value, 1 << 20))
    if isinstance(value, float):
        return value * rng.choice((-1, 0, 1e30, 0.5))
    if isinstance(value, str):
        return odd_bytes(rng, value.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    return value
