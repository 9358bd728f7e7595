"""The text files beside a model's weights, made wrong field by field: (what is wrong, which file, its new bytes).

Each case changes one file of one of the two tiny folders (`tiny_folders.py`). A file may be wrong as a document (not
JSON, or JSON that two readers could read differently), in a field (another type, a number out of range), or in what it
says (a shard outside the folder, a merge of tokens that are not there).
"""

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny_folders import NAMES, write_models

import weft
from weft.errors import WeftError
from weft.nn.config import LIMITS


@dataclass(frozen=True)
class Case:
    """`places`: the message names the file and one of these, or where in it JSON ends. `refused` is False where either
    answer is right."""

    what: str
    model: str  # "decoder" or "encoder"
    file: str
    data: bytes
    places: tuple[str, ...]
    refused: bool = True

    def named_by(self, message: str) -> bool:
        """Whether `message` says which file is wrong and where."""
        malformed = re.search(r"malformed (JSON|UTF-8): .*\b(byte|character) \d+", message)
        return self.file in message and (malformed is not None or any(place in message for place in self.places))


def all_cases(folder: Path) -> list[Case]:
    """Every case for the models below `folder`."""
    cases = []
    for model, files in {"decoder": (*NAMES["decoder"], "tokenizer.json"), "encoder": NAMES["encoder"]}.items():
        for file in files:
            good = (folder / model / file).read_bytes()
            tree = json.loads(good)
            cases += [*documents(model, file, good), *other_types(model, file, tree), *long_texts(model, file, tree)]
    return [*cases, *at_the_limits(folder), *shard_names(folder), *module_paths(folder), *vocabularies(folder)]


def write_linked_models(root: Path) -> Path:
    """The two folders below `root`, with a shard and a folder outside them that links point to."""
    decoder, encoder = write_models(root)
    (root / "model-1.safetensors").write_bytes((decoder / "model-1.safetensors").read_bytes())
    (decoder / "linked.safetensors").symlink_to(root / "model-1.safetensors")
    for folder in (decoder, encoder):
        (folder / "out").symlink_to(root)
    return root


def use(folder: Path) -> None:
    """Load the model and ask it for something, as a user would."""
    if folder.name == "decoder":
        weft.load(str(folder), threads=1).generate("the", max_tokens=1)
    else:
        weft.Embedder(str(folder), threads=1).encode("the cat")


def outcome(models: Path, case: Case) -> str | None:
    """The message of weft's error, None when there is none; the file is put back. Other exceptions come through."""
    file = models / case.model / case.file
    good = file.read_bytes()
    file.write_bytes(case.data)
    try:
        use(models / case.model)
    except WeftError as error:
        return str(error)
    finally:
        file.write_bytes(good)
    return None


def documents(model: str, file: str, good: bytes) -> Iterator[Case]:
    """Files that are not one JSON document of the right kind."""
    text = good.decode()
    inside = text.rstrip()[:-1]  # room for one more member or element
    first = next(iter(json.loads(text))) if text.startswith("{") else None
    broken = {
        "empty": b"",
        "spaces": b"  \n",
        "null": b"null",
        "a number": b"1",
        "a string": b'"x"',
        "the other container": b"[]" if text.startswith("{") else b"{}",
        "cut in half": good[: len(good) // 2],
        "without its end": good[:-1],
        "text behind it": good + b" x",
        "two documents": good + good,
        "a byte order mark": b"\xef\xbb\xbf" + good,
        "UTF-16": text.encode("utf-16"),
        "not UTF-8": good[:-1] + b'"\xff"' + good[-1:],
        "a NUL": good + b"\0",
        "comment": b"/* */" + good,
        "single quotes": good.replace(b'"', b"'"),
        "very deep": b"[" * 100_000,
    }
    odd = {
        "deep": "[" * 100 + "]" * 100,
        "NaN": "NaN",
        "Infinity": "-Infinity",
        "out of range": "1e999",
        "lone surrogate": '"\\ud800"',
        "control character": '"\x01"',
        "bad escape": '"\\x41"',
        "leading zero": "01",
        "unquoted word": "yes",
    }
    for what, value in odd.items():
        broken[what] = f'{inside}, "odd": {value}}}'.encode() if first else f"{inside}, {value}]".encode()
    if first is not None:
        broken["a key twice"] = f"{inside}, {json.dumps(first)}: null}}".encode()
    for what, data in broken.items():
        yield Case(f"{file}: {what}", model, file, data, ("the document", "the key", "is empty"))


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value below the root, of long lists and objects to the first ones."""
    items = list(tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ())
    for key, value in items[:12] if len(items) > 40 else items:
        yield (*path, key)
        yield from places(value, (*path, key))


def _place(path: tuple[Any, ...]) -> str:
    """A path as messages write it: `entry 1` of a list that is the document, `a.b[1]` elsewhere."""
    if isinstance(path[0], int):
        return f"entry {path[0]}"
    return path[0] + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path[1:])


def _words(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(word for key in path if key in WORDS for word in WORDS[key])


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> bytes:
    changed = copy.deepcopy(tree)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(changed).encode()


# Keys that weft does not read: any value of theirs is ignored.
IGNORED = {
    *("architectures", "initializer_range", "metadata", "total_size", "temperature", "do_sample", "bos_token_id"),
    *(
        "pad_token_id",
        "tokenizer_class",
        "model_max_length",
        "do_lower_case",
        "idx",
        "name",
        "add_bos_token",
        "version",
    ),
    *("word_embedding_dimension", "truncation", "padding", "trim_offsets", "tokens", "special"),
}
# Parts of tokenizer.json that say nothing: options of a decoder for bytes, names beside the ids of tokens.
UNREAD = ("decoder.", "post_processor.")
# What the core calls a part of tokenizer.json when its value, not its type, is wrong.
WORDS = {
    "added_tokens": ("an added token", "vocabulary: "),
    "decoder": ("the decoder",),
    "merges": ("merge",),
    "normalizer": ("normaliser", "charsmap", "base64"),
    "post_processor": ("the post-processor",),
    "pre_tokenizer": ("Split expression", "the pre-tokenizer"),
    "type": ("the model '",),
    "unk_token": ("the unknown token",),
    "vocab": ("vocabulary: ",),
}
ODD: tuple[Any, ...] = ("\0odd", -1, 1.5, 1 << 70, True, [], {}, [[None]], {"odd": 1})


def other_types(model: str, file: str, tree: Any) -> Iterator[Case]:
    """Every field of the file with a value of another type, or a number that cannot be right."""
    for number_of_path, path in enumerate(places(tree)):
        value = tree
        for key in path:
            value = value[key]
        where = ".".join(str(key) for key in path)
        names = [str(key) for key in path if isinstance(key, str)]
        ignored = bool(IGNORED & set(names))
        # A tokenizer has hundreds of fields of few kinds: each meets some of the values.
        chosen = ODD[number_of_path % 4 :: 4] if file == "tokenizer.json" else ODD
        for odd in chosen:
            number = isinstance(odd, int | float) and isinstance(value, int | float) and not isinstance(value, bool)
            if type(odd) is type(value) and not number:
                continue
            certain = not ignored and not number and value is not None and not where.startswith(UNREAD)
            certain &= (names[-1:], odd) not in (
                (["eos_token_id"], []),
                (["chat_template"], ODD[0]),
                (["eos_token"], ODD[0]),
            )
            yield Case(
                f"{file}: {where} is {odd!r:.30}",
                model,
                file,
                replaced(tree, path, odd),
                (_place(path), *names[-1:], *_words(path)),
                certain,
            )


def long_texts(model: str, file: str, tree: Any) -> Iterator[Case]:
    """Every text of the file made too long to be repeated in a message."""
    for path in places(tree):
        value = tree
        for key in path:
            value = value[key]
        if isinstance(value, str):
            data, named = replaced(tree, path, "x" * 5000), (_place(path), str(path[-1]), *_words(path))
            yield Case(f"{file}: {_place(path)} is long", model, file, data, named, False)


def at_the_limits(folder: Path) -> Iterator[Case]:
    """A config that asks for as much as any may: more than the files hold, known before much is done about it."""
    for model in ("decoder", "encoder"):
        config = json.loads((folder / model / "config.json").read_bytes())
        for name, limit in LIMITS.items():
            if name in config and name != "max_position_embeddings":  # memory for positions is taken as they come
                data = json.dumps({**config, name: limit}).encode()
                yield Case(
                    f"config.json: {name} at its limit", model, "config.json", data, (name, ".weight ", ".bias ")
                )


ESCAPES = (
    *("..", ".", "", "../model-1.safetensors", "a/../../model-1.safetensors", "/etc/passwd", "./model-1.safetensors"),
    *("C:\\model-1.safetensors", "C:model-1.safetensors", "\\\\host\\model-1.safetensors", "//host/x.safetensors"),
    *("a\\..\\x.safetensors", "model-1.safetensors\0", "model-1.safetensors.", "model-1.safetensors ", "CON", "nul.x"),
    *("com1.safetensors", "x\n", "a//model-1.safetensors", "model-1.safetensors/", "~/x", "file:///etc/passwd", "out"),
    *("linked.safetensors", "tokenizer.json", "config.json", "model.safetensors.index.json", "absent.safetensors"),
)


def shard_names(folder: Path) -> Iterator[Case]:
    """An index whose shards lie elsewhere, or are no shards. `linked.safetensors` is a link out of the folder."""
    file = "model.safetensors.index.json"
    index = json.loads((folder / "decoder" / file).read_bytes())
    for shard in ESCAPES:
        index["weight_map"]["model.norm.weight"] = shard
        yield Case(f"{file}: shard {shard!r}", "decoder", file, json.dumps(index).encode(), ("weight_map",))


def module_paths(folder: Path) -> Iterator[Case]:
    """A modules.json that sends the reader out of the folder."""
    modules = json.loads((folder / "encoder" / "modules.json").read_bytes())
    for number in (1, 2):
        for path in (
            "..",
            "../..",
            "/etc",
            "1_Pooling/../..",
            "out",
            "absent",
            "1_Pooling\0",
            "modules.json",
            "x" * 5000,
        ):
            changed = copy.deepcopy(modules)
            changed[number]["path"] = path
            data = json.dumps(changed).encode()
            yield Case(
                f"modules.json: {number} at {path!r:.30}",
                "encoder",
                "modules.json",
                data,
                (f"entry {number} has a path",),
            )


def vocabularies(folder: Path) -> Iterator[Case]:
    """A tokenizer.json whose vocabulary, merges, added tokens or template name what is not there."""
    tree = json.loads((folder / "decoder" / "tokenizer.json").read_bytes())
    token = next(iter(tree["model"]["vocab"]))
    edits: dict[str, tuple[tuple[Any, ...], Any]] = {
        **{f"id {id}": (("model", "vocab", token), id) for id in (-1, 1, 1 << 22, 1 << 31, 1 << 63, 1.5, "0", None)},
        **{
            f"merge {merge!r:.20}": (("model", "merges"), [merge])
            for merge in (
                "absent tokens",
                "a",
                "",
                "a b c",
                ["a"],
                ["a", "b", "c"],
                [],
                ["a", 1],
                5,
                None,
                [["a"], "b"],
            )
        },
        **{f"added id {id}": (("added_tokens", 0, "id"), id) for id in (-1, 5, 1 << 22, 1 << 40, "1", None)},
        **{f"added content {text!r}": (("added_tokens", 0, "content"), text) for text in (None, 1, "absent", ["x"])},
        "no vocabulary": (("model", "vocab"), {}),
        "a list of added tokens of no kind": (("added_tokens",), [1, 2]),
        "an unknown model": (("model", "type"), "Odd"),
        "charsmap of no base64": (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "!!!"}),
        "charsmap of garbage": (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}),
        "charsmap too short": (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "AA=="}),
        "charsmap of no trie": (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
        "17 normalisers": (("normalizer",), {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 17}),
        "nested normalisers": (("normalizer",), nested(40)),
        "an expression of its own": (
            ("pre_tokenizer",),
            {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"},
        ),
    }
    for what, (path, value) in edits.items():
        certain, named = not what.startswith(("id 1", "nested")), (_place(path), *_words(path))
        yield Case(f"tokenizer.json: {what}", "decoder", "tokenizer.json", replaced(tree, path, value), named, certain)


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "NFC"}
    for _ in range(depth // 2):
        inner = {"type": "Sequence", "normalizers": [inner]}
    return inner
