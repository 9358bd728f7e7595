"""Writes the seeds of every fuzz target: `python tests/fuzz/make_seeds.py [folder]`, by default the committed corpus.

A seed is small and well formed, and together they reach every kind of thing that a reader knows. Fuzzing adds to them
what it finds; `tools/fuzz.py --merge` puts the smallest set that reaches as much into the corpus.
"""

import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzzing import CORPUS
from seeds_bundle import bundle_seeds
from seeds_models import python_seeds
from seeds_text import merges_seeds, tekken_seeds

MARK = "\u2581"
VOCAB = ["<unk>", "a", "b", "ab", MARK, MARK + "a", "##b", "\u00e9", "<0x0A>", "!"]
BPE = {
    "type": "BPE",
    "vocab": {t: i for i, t in enumerate(VOCAB)},
    "merges": ["a b", [MARK, "a"]],
    "unk_token": "<unk>",
}
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [[t, -0.5 * i] for i, t in enumerate(VOCAB)], "byte_fallback": True}
WORD_PIECE = {"type": "WordPiece", "vocab": BPE["vocab"], "unk_token": "<unk>", "max_input_chars_per_word": 20}
GPT2_EXPRESSION = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

Seed = tuple[str, bytes]


def double_array(entries: dict[bytes, int]) -> bytes:
    """A trie of `entries` in SentencePiece's units: offset << 10 | leaf << 8 | label, and a value unit for each key."""
    units = {0: 0}

    def place(at: int, keys: dict[bytes, int]) -> None:
        labels = sorted({key[0] if key else 0 for key in keys})
        offset = next(o for o in range(1, 1 << 20) if not any(at ^ o ^ label in units for label in labels))
        units[at] |= offset << 10 | (0 in labels) << 8
        for label in labels:
            units[at ^ offset ^ label] = label if label else 1 << 31 | keys[b""]
        for label in labels:
            if label:
                place(at ^ offset ^ label, {key[1:]: value for key, value in keys.items() if key[:1] == bytes([label])})

    place(0, entries)
    return b"".join(struct.pack("<I", units.get(i, 0)) for i in range(max(units) + 1))


def charsmap() -> bytes:
    """A table that replaces four texts: to one character, to two, to nothing, and e with its accent to one."""
    texts = {
        "\u00c9".encode(): "\u00e9",
        "\ufb01".encode(): "fi",
        b"\x07": "",
        "e\u0301".encode(): "\u00e9",
        b"\t": " ",
    }
    replacements, entries = b"", {}
    for key, text in texts.items():
        entries[key] = len(replacements)
        replacements += text.encode() + b"\0"
    trie = double_array(entries)
    return struct.pack("<I", len(trie)) + trie + replacements


def base64_of(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


def tokenizer_parts() -> Iterator[tuple[str, str, Any]]:
    """Every part of a tokenizer.json: what it is, a name, its JSON."""
    string, regex = {"String": " "}, {"Regex": " {2,}"}
    for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "BertNormalizer"):
        yield "normalizer", kind, {"type": kind}
    yield "normalizer", "Prepend", {"type": "Prepend", "prepend": MARK}
    yield "normalizer", "Replace", {"type": "Replace", "pattern": string, "content": MARK}
    yield "normalizer", "runs", {"type": "Replace", "pattern": regex, "content": " "}
    yield "normalizer", "Precompiled", {"type": "Precompiled", "precompiled_charsmap": base64_of(charsmap())}
    for kind in (
        "BertPreTokenizer",
        "Metaspace",
        "Whitespace",
        "WhitespaceSplit",
        "Punctuation",
        "Digits",
        "ByteLevel",
    ):
        yield "pre_tokenizer", kind, {"type": kind}
    split = {"type": "Split", "pattern": {"Regex": GPT2_EXPRESSION}, "behavior": "Isolated", "invert": False}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    yield "pre_tokenizer", "Split", {"type": "Sequence", "pretokenizers": [split, bytes_]}
    sequence = lambda kind: {"Sequence": {"id": kind, "type_id": int(kind == "B")}}  # noqa: E731
    special = {"SpecialToken": {"id": "<unk>", "type_id": 0}}
    yield (
        "post_processor",
        "TemplateProcessing",
        {
            "type": "TemplateProcessing",
            "single": [special, sequence("A")],
            "pair": [sequence("A"), special, sequence("B")],
            "special_tokens": {"<unk>": {"id": "<unk>", "ids": [0], "tokens": ["<unk>"]}},
        },
    )
    for kind in ("BertProcessing", "RobertaProcessing"):
        yield "post_processor", kind, {"type": kind, "cls": ["a", 1], "sep": ["b", 2]}
    for kind in ("ByteLevel", "WordPiece", "Metaspace", "Fuse"):
        yield "decoder", kind, {"type": kind}
    steps = [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
        *({"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    ]
    yield "decoder", "Sequence", {"type": "Sequence", "decoders": steps}


def tokenizer_seeds() -> Iterator[Seed]:
    added = [
        {"id": 0, "content": "<unk>", "special": True},
        {"id": 10, "content": "<x>", "single_word": True, "lstrip": True, "rstrip": True, "normalized": True},
    ]
    for name, model in (("bpe", BPE), ("unigram", UNIGRAM), ("word_piece", WORD_PIECE)):
        yield name, json.dumps({"added_tokens": added, "model": model}).encode()
    yield "options", json.dumps({"model": {**BPE, "byte_fallback": True, "fuse_unk": True, "dropout": None}}).encode()
    for part, name, value in tokenizer_parts():
        model = WORD_PIECE if "Bert" in name or name == "WordPiece" else UNIGRAM if "Meta" in name else BPE
        yield f"{part}-{name}", json.dumps({"added_tokens": added, part: value, "model": model}).encode()


def field(number: int, value: int | float | bytes) -> bytes:
    """One protobuf field: a varint, a 32-bit float, or bytes."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def sentencepiece_seeds() -> Iterator[Seed]:
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3, "<0x0A>": 6, "<u>": 4}
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "<u>", *VOCAB[1:8]]
    pieces = b"".join(
        field(1, field(1, token.encode()) + field(2, -0.5 * i) + field(3, kinds.get(token, 1)))
        for i, token in enumerate(tokens)
    )
    for name, kind in (("unigram", 1), ("bpe", 2)):
        trainer = field(2, field(3, kind) + field(35, 1) + field(41, 1) + field(42, 2))
        for table in (b"", charsmap()):
            rules = field(2, table) + field(3, 1) + field(4, int(bool(table))) + field(5, 1)
            yield f"{name}-{len(table)}", pieces + trainer + field(3, rules)
    yield "short", field(1, field(1, b"a") + field(2, 0.0)) + field(1, field(1, b"<unk>") + field(3, 2))


def gguf_vocab_seeds() -> Iterator[Seed]:
    text = "ab a\u00e9\u2581<s> the".encode()
    for model in range(3):
        for pre in range(7 if model == 0 else 1):
            ids = bytes([1, 2, 0, 1, 2])
            head = bytes([model, pre, 0b110101, 3 if model == 1 else 2]) + ids + bytes([len(VOCAB), 2])
            tokens = b"".join(bytes([len(t.encode()) | 64 * (i == 0)]) + t.encode() + bytes([3] * (i == 0))
                              for i, t in enumerate(VOCAB))  # fmt: skip
            yield f"{model}-{pre}", head + tokens + bytes([1, 2, 4, 1]) + text


def native_seeds() -> Iterator[tuple[str, Iterator[Seed]]]:
    texts = ["", "the cat", "  h\u00e9 THE\n\n\u4f60\u597d \U0001f469\u200d\U0001f4bb", "<unk> <mask> <|end|> [CLS]"]
    yield "tokenizer_json", tokenizer_seeds()
    yield "sentencepiece", sentencepiece_seeds()
    yield "gguf_vocab", gguf_vocab_seeds()
    vocab = "[UNK]\n[CLS]\n[SEP]\na\nb\n##b\n##\u00e9\n\u4f60\r\n!\n"
    yield "vocab_txt", iter([(str(flags), bytes([flags]) + vocab.encode()) for flags in (0, 15, 31)])
    ranks = b"".join(b"%s %d\n" % (base64_of(bytes([byte])).encode(), byte) for byte in range(256))
    ranks += b"".join(b"%s %d\n" % (base64_of(word).encode(), 256 + i) for i, word in enumerate((b"He", b" w", b"ll")))
    options = (bytes(3), struct.pack("<BhHH", 7, 2, 1, 1), struct.pack("<BhH", 1, 0, 258))
    yield "tiktoken", ((str(i), part + ranks) for i, part in enumerate(options))
    table = charsmap()
    head = [struct.pack("<HBB", len(table), rules, 2) + b"fi" for rules in (0, 7)]
    yield "charsmap", ((str(i), part + table + texts[2].encode() + b"\xef\xac\x81\t") for i, part in enumerate(head))
    yield (
        "round_trip",
        (
            (f"{kind}-{i}", bytes([kind, 3, *range(6)]) + text.encode())
            for kind in range(5)
            for i, text in enumerate(texts)
        ),
    )
    yield "blocks", ((str(kind), bytes([kind, 17]) + bytes(range(1, 90))) for kind in range(31))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else CORPUS
    texts = (("tekken", tekken_seeds()), ("merges_txt", merges_seeds()), ("bundle", bundle_seeds()))
    for target, seeds in (*native_seeds(), *python_seeds(), *texts):
        (folder / target).mkdir(parents=True, exist_ok=True)
        for _, data in seeds:
            (folder / target / hashlib.sha1(data).hexdigest()[:12]).write_bytes(data)


if __name__ == "__main__":
    main()
