"""Compare weft's tokenizers with the libraries that models were trained with: one pair of files after another.

    python tests/text/parity.py [--cases 100000] [--wiki wiki.test.raw] PAIR...

A pair is KIND:PATH, or KIND:PATH:MORE:
    json:tokenizer.json                  the tokenizers library
    model:tokenizer.model                sentencepiece
    tiktoken:cl100k_base.tiktoken:NAME   tiktoken; NAME is weft's name of the encoding
    tekken:tekken.json                   tiktoken
    gguf:vocab.gguf:tokenizer.json       the tokenizers library, which reads the second file (same vocabulary; ids only)
    gguf:vocab.gguf                      the tokenizers library, put together from the metadata by published rules; or
                                         sentencepiece, on a model written from it
    merges:tokenizer.json                vocab.json and merges.txt written from it, and the library on the whole

Generated texts are encoded with special tokens found and with them as text, decoded, and where the other side has them
their offsets are compared; the file of English is encoded whole. One line per pair, then its first differences; the
status is 1 when there are any.
"""

import argparse
import functools
import json
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from texts import random_text

from weft.text import ranks
from weft.text.tokenizer import Tokenizer

Ids = list[int]


@dataclass(frozen=True)
class Pair:
    """weft's tokenizer and what the other library says; a function that is None has no counterpart there."""

    ours: Tokenizer
    parsed: Callable[[str], Ids] | None  # special tokens are found
    plain: Callable[[str], Ids] | None  # special tokens are text
    decode: Callable[[Ids], str] | None
    offsets: Callable[[str], list[tuple[int, int]] | None] | None = None  # special tokens are found


def library_pair(ours: Tokenizer, content: str) -> Pair:
    """The tokenizers library, on the text of a tokenizer.json."""
    from tokenizers import Tokenizer as Library
    from tokenizers.models import Unigram

    both = []
    for as_text in (False, True):
        other = Library.from_str(content)
        other.no_truncation()
        other.no_padding()
        other.encode_special_tokens = as_text
        both.append(other)
    parsed, plain = ((lambda text, other=other: other.encode(text, add_special_tokens=False).ids) for other in both)
    # The library's Unigram finds the text of a special token in its vocabulary; weft's does not.
    no_plain = isinstance(both[0].model, Unigram)
    return Pair(
        ours,
        parsed,
        None if no_plain else plain,
        lambda ids: both[0].decode(ids, skip_special_tokens=False),
        library_offsets(both[0]),
    )


def library_offsets(other: Any) -> Callable[[str], list[tuple[int, int]] | None]:
    """Where the library says the tokens lie; None where it loses count.

    That is where SentencePiece's table removes a character at the start of a part, and behind bytes that a vocabulary
    lacks; texts with any such are left out.
    """
    tables = other.normalizer is not None and "Precompiled" in repr(other.normalizer)

    gaps = "ByteLevel" in repr(other.pre_tokenizer) and other.token_to_id("ñ") is None  # 0xF1, the rarest byte

    @functools.cache
    def removed(character: str) -> bool:
        return not other.normalizer.normalize_str(character)

    def offsets(text: str) -> list[tuple[int, int]] | None:
        if tables and any(map(removed, text)):
            return None
        encoded = other.encode(text, add_special_tokens=False)
        if gaps and other.decode(encoded.ids, skip_special_tokens=False) != text:
            return None
        return encoded.offsets

    return offsets


def json_pair(path: Path) -> Pair:
    return library_pair(Tokenizer.from_file(path), path.read_text(encoding="utf-8"))


def model_pair(path: Path) -> Pair:
    from sentencepiece import SentencePieceProcessor

    other = SentencePieceProcessor(model_file=str(path))
    folder = Path(tempfile.mkdtemp())
    (folder / "tokenizer.model").write_bytes(path.read_bytes())
    return Pair(Tokenizer.from_file(folder), None, other.encode, other.decode)


def tiktoken_pair(path: Path, name: str) -> Pair:
    from tiktoken.load import load_tiktoken_bpe

    encoding = ranks.encoding(name)
    return _ranks_pair(Tokenizer.from_tiktoken(path, name), encoding, load_tiktoken_bpe(str(path)))


def tekken_pair(path: Path) -> Pair:
    import base64

    lines, encoding = ranks.read_tekken(path.read_bytes())
    table = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines.splitlines())}
    folder = Path(tempfile.mkdtemp())
    (folder / "tekken.json").write_bytes(path.read_bytes())
    return _ranks_pair(Tokenizer.from_file(folder), encoding, table)


def _ranks_pair(ours: Tokenizer, encoding: ranks.Encoding, table: dict[bytes, int]) -> Pair:
    from unicodedata import normalize

    from tiktoken import Encoding

    first = encoding.first_id
    shifted = {token: rank + first for token, rank in table.items()}
    other = Encoding("other", pat_str=encoding.pattern, mergeable_ranks=shifted, special_tokens=dict(encoding.special))
    prepared: Callable[[str], str] = (lambda text: normalize("NFC", text)) if encoding.nfc else (lambda text: text)
    return Pair(
        ours,
        lambda text: other.encode(prepared(text), allowed_special="all"),
        lambda text: other.encode(prepared(text), disallowed_special=()),
        other.decode,
    )


def gguf_metadata(path: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.ggml.")}


def gguf_pair(path: Path, other: str = "") -> Pair:
    metadata = gguf_metadata(path)
    ours = Tokenizer.from_gguf(metadata)
    if not other and metadata["tokenizer.ggml.model"] == "llama":
        from sentencepiece import SentencePieceProcessor

        pieces = SentencePieceProcessor(model_proto=_sentencepiece_model(metadata))
        return Pair(ours, None, pieces.encode, None)
    if not other:
        return library_pair(ours, json.dumps(_published(metadata)))
    # The second file may name special tokens otherwise and decode a leading space otherwise: ids of text only.
    return Pair(ours, None, library_pair(ours, Path(other).read_text(encoding="utf-8")).plain, None)


def _sentencepiece_model(metadata: dict[str, Any]) -> bytes:
    """A model of SentencePiece's with the pieces, scores and types of a GGUF vocabulary: the wire format by hand."""

    def number(value: int) -> bytes:
        out = bytearray()
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        return bytes([*out, value])

    def field(tag: int, value: int | float | bytes) -> bytes:
        if isinstance(value, int):
            return number(tag << 3) + number(value)
        if isinstance(value, float):
            return number(tag << 3 | 5) + struct.pack("<f", value)
        return number(tag << 3 | 2) + number(len(value)) + value

    keys = ("tokens", "scores", "token_type")
    tokens, scores, kinds = (metadata[f"tokenizer.ggml.{key}"] for key in keys)
    unknown = list(kinds).index(2)  # Phi-3 has several, of which only one can be meant: no text gives the others
    pieces = b"".join(
        field(
            1,
            field(1, token.encode())
            + field(2, float(score))
            + field(3, 3 if kind == 2 and id != unknown else int(kind)),
        )
        for id, (token, score, kind) in enumerate(zip(tokens, scores, kinds))
    )
    bpe, byte_fallback = field(3, 2), field(35, 1)
    prefix = int(metadata.get("tokenizer.ggml.add_space_prefix", True))
    return pieces + field(2, bpe + byte_fallback) + field(3, field(1, b"identity") + field(3, prefix) + field(4, 0))


def _split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _byte_level(regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def _published(metadata: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json from GGUF metadata with the pre-tokenizer that the model was published with."""
    digits = {"type": "Digits", "individual_digits": True}
    ideographs = "[一-龥ࠀ-一가-퟿]+"
    suffixes = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    qwen35 = (
        suffixes + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    letters = qwen35.replace(r"[\p{L}\p{M}]", r"\p{L}").replace(r"\p{M}", "")
    chains = {
        "gpt-2": [_byte_level(True)],
        "llama-bpe": [_split(letters.replace(r"|\p{N}|", r"|\p{N}{1,3}|")), _byte_level(False)],
        "qwen2": [_split(letters), _byte_level(False)],
        "mpt": [_byte_level(True)],
        "starcoder": [digits, _byte_level(True)],
        "refact": [digits, _byte_level(True)],
        "smollm": [digits, _byte_level(True)],
        "command-r": [digits, _byte_level(True)],
        "falcon": [
            {"type": "Punctuation", "behavior": "Contiguous"},
            _byte_level(True),
            {"type": "Digits", "individual_digits": False},
            _split("[0-9][0-9][0-9]"),
        ],
        "deepseek-coder": [
            *map(_split, ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", ideographs]), digits, _byte_level(False),
        ],
        "qwen35": [_split(qwen35), _byte_level(False)],
    }  # fmt: skip
    name, tokens = metadata["tokenizer.ggml.pre"], metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"]
    merges = [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]]
    added = [
        {"id": id, "content": token, "special": kind != 4, "normalized": False, "lstrip": False, "rstrip": False,
         "single_word": False}
        for id, (token, kind) in enumerate(zip(tokens, kinds)) if kind in (2, 3, 4)
    ]  # fmt: skip
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if name in ("command-r", "qwen2", "qwen35", "mpt") else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": chains[name]},
        "post_processor": None,
        "decoder": _byte_level(True),
        "model": {
            "type": "BPE",
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": merges,
            "ignore_merges": name == "llama-bpe",
        },
    }


def merges_pair(path: Path) -> Pair:
    content = json.loads(path.read_text(encoding="utf-8"))
    folder = Path(tempfile.mkdtemp())
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in content["model"]["merges"]]
    (folder / "vocab.json").write_text(json.dumps(content["model"]["vocab"]), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in pairs), encoding="utf-8")
    listed = {str(token["id"]): token for token in content["added_tokens"]}
    kind = "Qwen2Tokenizer" if content["normalizer"] else "GPT2Tokenizer"
    settings = {"tokenizer_class": kind, "added_tokens_decoder": listed}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return library_pair(Tokenizer.from_file(folder), path.read_text(encoding="utf-8"))


KINDS: dict[str, Callable[..., Pair]] = {
    "json": json_pair,
    "model": model_pair,
    "tiktoken": tiktoken_pair,
    "tekken": tekken_pair,
    "gguf": gguf_pair,
    "merges": merges_pair,
}


def differences(pair: Pair, text: str) -> list[str]:
    """What differs on one text, in words."""
    ours, found = pair.ours, []
    shown = ours.encode(text, add_special=False, parse_special=True)
    plain = ours.encode(text, add_special=False)
    if pair.parsed is not None and (theirs := pair.parsed(text)) != shown:
        found.append(f"parsed {text!a}: {shown} instead of {theirs}")
    if pair.plain is not None and (theirs := pair.plain(text)) != plain:
        found.append(f"plain {text!a}: {plain} instead of {theirs}")
    ids = plain if pair.parsed is None else shown
    if pair.decode is not None and (theirs := pair.decode(ids)) != (mine := ours.decode(ids, skip_special=False)):
        found.append(f"decode {ids}: {mine!a} instead of {theirs!a}")
    if pair.offsets is not None and (theirs := pair.offsets(text)) is not None:
        mine = [*map(tuple, ours.encode_offsets(text, add_special=False, parse_special=True).offsets.tolist())]
        if mine != theirs:
            at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), -1)
            found.append(f"offsets {text!a}: token {at} at {mine[at]} instead of {theirs[at]}")
    return found


def compare(pair: Pair, cases: int, wiki: Path | None, seed: int) -> tuple[int, list[str]]:
    """How many texts differ, and the first differences."""
    rng, wrong, first = random.Random(seed), 0, []
    specials = [token for token, _, _ in pair.ours.added_tokens][:16] if pair.parsed is not None else []
    for _ in range(cases):
        found = differences(pair, random_text(rng, specials))
        wrong += bool(found)
        if len(first) < 5:
            first += found
    if wiki is not None and (found := differences(pair, wiki.read_text(encoding="utf-8"))):
        wrong += 1
        first += [line[:200] for line in found]
    return wrong, first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--wiki", type=Path)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    status = 0
    for name in options.pairs:
        start = time.perf_counter()
        kind, path, *more = name.split(":")
        try:
            pair = KINDS[kind](Path(path), *more)
            wrong, first = compare(pair, options.cases, options.wiki, options.seed)
        except Exception as error:
            wrong, first = -1, [f"{type(error).__name__}: {str(error)[:300]}"]
        took = time.perf_counter() - start
        print(f"{wrong if wrong else 'equal'} of {options.cases} {name} {took:.0f} s", flush=True)
        for line in first:
            print("   ", line[:600], flush=True)
        status |= wrong != 0
    return status


if __name__ == "__main__":
    sys.exit(main())
