"""Side files as large or as crowded as they may be, and more: taken or refused, in bounded time and memory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sidecars import Case
from tiny_folders import NAMES

from weft.runtime.checkpoint import LARGER, MAX_BYTES
from weft.text.settings import SIDE_FILE_LIMIT
from weft.weights.safetensors import MAX_INDEX_VALUES
from weft.weights.strict_json import MAX_VALUES

INDEX = "model.safetensors.index.json"
LIMITS = {**LARGER, "special_tokens_map.json": SIDE_FILE_LIMIT}
OBJECT = '{"":0}'  # takes the most memory of all texts of its length
COUNT = ("the limit is",)


def large(folder: Path) -> Iterator[Case]:
    """Well-formed files of 10^5 members or very long texts, one at a time: together they are larger than the limit."""
    for model, files in NAMES.items():
        for file in files:
            tree = json.loads((folder / model / file).read_bytes())
            if file == INDEX:
                yield from _indexes(model, file)
            else:
                yield from _full(model, file, tree, LIMITS.get(file, MAX_BYTES))
    entries = json.loads((folder / "encoder" / "modules.json").read_bytes()) * 25_000
    yield Case("modules.json: 10^5 entries", "encoder", "modules.json", json.dumps(entries).encode(), COUNT)
    many: dict[str, dict[str, Any]] = {"keys": {f"k{i}": i for i in range(100_000)}}
    many["keys in a field"] = {"x": {f"k{i}": [] for i in range(100_000)}}
    for file in ("config.json", "tokenizer_config.json"):
        tree = json.loads((folder / "decoder" / file).read_bytes())
        for what, more in many.items():
            yield Case(f"{file}: 10^5 {what}", "decoder", file, json.dumps({**tree, **more}).encode(), COUNT, False)


def _full(model: str, file: str, tree: Any, limit: int) -> Iterator[Case]:
    """One byte too many; as many objects, and as long a text, as fit."""
    text = json.dumps(tree)
    yield Case(f"{file}: too large", model, file, text.encode().ljust(limit + 1), COUNT)
    room = limit - len(text) - 20
    crowd = "[" + ",".join([OBJECT] * (room // (len(OBJECT) + 1))) + "]"
    fits = "[" + ",".join([OBJECT] * min(room // (len(OBJECT) + 1), MAX_VALUES // 2 - 500)) + "]"
    wide = json.dumps("x" * (room - 4) + "\U0001f600", ensure_ascii=False)
    for what, value in (("full of objects", crowd), ("objects to the limit", fits), ("a long text", wide)):
        inside = f'{text[:-1]}, "x": {value}}}' if isinstance(tree, dict) else f"{text[:-1]}, {value}]"
        certain = isinstance(tree, list) or (crowd.count(OBJECT) * 2 > MAX_VALUES and value is crowd)
        yield Case(f"{file}: {what}", model, file, inside.encode(), (*COUNT, "entry 4"), certain)


def _indexes(model: str, file: str) -> Iterator[Case]:
    """Tensors that are not there; values that say nothing."""
    tensors = {"weight_map": {f"t{i}": "model-1.safetensors" for i in range(20_000)}}
    yield Case(f"{file}: 20,000 tensors", model, file, json.dumps(tensors).encode(), ("tensor 't0'",))
    for what, count in (("objects to the limit", MAX_INDEX_VALUES // 2 - 1), ("full of objects", MAX_INDEX_VALUES)):
        data = "[" + ",".join([OBJECT] * count) + "]"
        yield Case(f"{file}: {what}", model, file, data.encode(), (*COUNT, "the document"))
