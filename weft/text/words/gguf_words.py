"""Writes the vocabulary of a model's folder as the `tokenizer.ggml.*` metadata of a GGUF file.

GGUF names rules instead of stating them, so each way to say a vocabulary is tried: a tokenizer is made of the metadata,
and the first that splits many texts as the folder's own does is written. None of them: the folder is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import unicodedata
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from weft._core import text as _native
from weft.errors import UnsupportedError, WeftError
from weft.text import word_pieces
from weft.text.gguf_vocab import IDS, PREFIX
from weft.text.settings import NAMES, class_of, json_object, read, settings_beside, with_settings
from weft.text.tokenizer import TOKENIZER_LIMIT, Tokenizer, file_in, merged_json
from weft.text.words.sentence_pieces import read_pieces

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"
# Names of rules for byte-level vocabularies, the usual one first where several stand for the same.
PRES = (
    *("llama-bpe", "qwen2", "gpt-2", "smollm", "tekken", "gpt-4o", "qwen35", "deepseek-v3", "deepseek-llm"),
    *("deepseek-coder", "smaug-bpe", "stablelm2", "olmo", "command-r", "falcon", "default"),
)
TEXTS = (
    *("", " ", "  ", "a", "Hello world", " Hello  World ", "HELLO, world! It's 5 o'clock; we're late, they'LL wait."),
    "one\ntwo\n\nthree\n\n\n four \t five\t\t six\r\nseven   \n  eight",
    "0 1 12 123 1234 12345 3.14159 1,000,000 2026-11-18 0x1F 1e-05 v2.0",
    "def f(x: int) -> list[str]:\n    return [str(i) for i in range(x)]  # comment\n\tif x != 0 && y >= 2 { z++; }",
    "https://example.org/a/b?c=d&e=f#g user@example.org C:\\path\\file.txt snake_case camelCase HTTPServer",
    "Zażółć gęślą jaźń. Größe, naïve café, cafe\u0301, A\u030angstro\u0308m, \u212b \ufb01 \u00bd \u2460 ﬁne",
    "Съешь ещё этих мягких французских булок. Ελληνικά κείμενα 123 שלום עולם مرحبا بالعالم",
    "你好，世界！今天是2026年。これは日本語です。カタカナ 한국어 문장입니다 ไทย हिन्दी",
    "🚀 👍🏽 👨‍👩‍👧 ✓ ∑∫√ ≤≥ → € £ ½ ™ \u00a0non\u2009breaking\u3000spaces\u200bzero",
    "<b>markup</b> &amp; {curly} [square] (round) \"double\" 'single' `back` ~tilde^caret|pipe$dollar+plus=equals",
    "... !!! ??? --- ___ *** ### $$$ @@@ ,,, ;;; ::: '''''' \"\"\"\" ````",
    "THE QUICK brown Fox jumps Over the lazy dog; THEY'RE, you'Ve, I'D, it'S",
)


def gguf_vocabulary(folder: Path, rows: int) -> dict[str, Any]:
    """The metadata of the tokenizer in `folder`, with a name for each of the `rows` of the embedding.

    A folder without a tokenizer gets the word that there is none.
    """
    try:
        path = file_in(folder)
    except WeftError:
        return {f"{PREFIX}model": "no_vocab"}
    own = Tokenizer.from_file(path)
    if own.vocab_size > rows:
        what = f"names {own.vocab_size} tokens, more than the embedding has rows ({rows}), which GGUF cannot say"
        raise UnsupportedError(path.name, what)
    ids = {name: getattr(own, f"{name}_id") for name in NAMES}
    before, after = _around(own)
    if before and ids["bos"] is None:
        ids["bos"] = before[0]
    if after and ids["eos"] is None:
        ids["eos"] = after[0]
    shared: dict[str, Any] = {f"{PREFIX}{IDS[name]}": id for name, id in ids.items() if id is not None}
    nearly: dict[str, Any] | None = None
    for candidate in _candidates(path, own, rows):
        metadata = {**candidate, **shared}
        if metadata[f"{PREFIX}model"] == "bert":
            for name, other in (("bos", "cls"), ("eos", "sep")):  # where llama.cpp looks for them
                metadata.setdefault(f"{PREFIX}{IDS[name]}", ids[other])
        else:
            metadata[f"{PREFIX}add_bos_token"] = bool(before)
            metadata[f"{PREFIX}add_eos_token"] = bool(after)
        metadata = {key: value for key, value in metadata.items() if value is not None}
        if _same(own, metadata):
            return metadata
        if nearly is None and metadata[f"{PREFIX}model"] in ("llama", "t5") and _same(own, metadata, nearly=True):
            nearly = metadata
    if nearly is not None:
        return nearly
    what = "splits texts in a way that GGUF has no words for"
    raise UnsupportedError(path.name, what, advice="weft writes vocabularies that llama.cpp has a name for")


def _around(own: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that are put before and after a text."""
    bare, full = own.encode("a", add_special=False), own.encode("a")
    start = next((at for at in range(len(full) + 1) if full[at : at + len(bare)] == bare), 0)
    return full[:start], full[start + len(bare) :]


def _same(own: Tokenizer, metadata: Mapping[str, Any], *, nearly: bool = False) -> bool:
    """Whether a tokenizer of this metadata splits texts as `own` does.

    `nearly` is without texts that begin with a space or have added tokens inside: around these newer files of models
    with pieces put no space, where GGUF's readers, as the models' first tokenizers, always put one.
    """
    try:
        made = Tokenizer.from_gguf(metadata)
    except WeftError:
        return False
    special = sorted(own.special_ids)[:4]
    texts = [*TEXTS, *(f"one {own.token(id)}two {own.token(id)} three" for id in special)]
    if nearly:
        added = [token for token, _, _ in own.added_tokens]
        texts = [text for text in TEXTS if not text.startswith(" ") and not any(token in text for token in added)]
    return all(own.encode(text) == made.encode(text) for text in texts)


def _candidates(path: Path, own: Tokenizer, rows: int) -> Iterator[dict[str, Any]]:
    """Every way to say the vocabulary."""
    if path.suffix == ".model":
        yield from _of_pieces(read_pieces(read(path, TOKENIZER_LIMIT)), own, rows)
        return
    content = _json(path)
    if content is None:
        what = "cannot be written to GGUF: the file has ranks instead of merges"
        advice = "put the model's tokenizer.json beside it"
        raise UnsupportedError(path.name, what, advice=advice)
    model = content.get("model") or {}
    kind = model.get("type") or ("WordPiece" if "continuing_subword_prefix" in model else "BPE")
    if kind == "WordPiece":
        tokens, types = _tokens(own, rows)
        yield {**_said("bert", tokens, types), f"{PREFIX}tokens": [_phantom(token) for token in tokens]}
    elif kind == "Unigram":
        yield from _of_unigram(model, content, own, rows)
    elif _splits_bytes(content):
        tokens, types = _tokens(own, rows)
        said = {**_said("gpt2", tokens, types), f"{PREFIX}merges": _merges(model)}
        yield from ({**said, f"{PREFIX}pre": pre} for pre in _pres(content))
    else:
        yield from _of_characters(model, own, rows)


def _json(path: Path) -> dict[str, Any] | None:
    """The tokenizer as the content of a tokenizer.json; None for files of ranks."""
    settings = settings_beside(path)
    if path.name == "tokenizer.json":
        return json_object(with_settings(read(path, TOKENIZER_LIMIT), settings), path.name, None)
    if path.name in ("vocab.json", "merges.txt"):
        return dict(json.loads(merged_json(path, settings)))
    if path.suffix == ".txt" and class_of(settings) == "MPNetTokenizer":
        return dict(json.loads(word_pieces.tokenizer_json(read(path, TOKENIZER_LIMIT), settings)))
    return {"model": {"type": "WordPiece"}} if path.suffix == ".txt" else None


def _said(model: str, tokens: list[str], types: list[int]) -> dict[str, Any]:
    return {
        f"{PREFIX}model": model,
        f"{PREFIX}pre": "default",
        f"{PREFIX}tokens": tokens,
        f"{PREFIX}token_type": np.asarray(types, np.int32),
    }


def _tokens(own: Tokenizer, rows: int) -> tuple[list[str], list[int]]:
    """Every token as the vocabulary writes it, and its type; rows without one are called [PADn]."""
    found = [own.token(id) for id in range(min(rows, own.vocab_size))]
    tokens = [f"[PAD{id}]" if token is None else token for id, token in enumerate(found)]
    types = [UNUSED if token is None else NORMAL for token in found]
    special = own.special_ids
    for text, id, _ in own.added_tokens:
        tokens[id], types[id] = text, CONTROL if id in special else USER_DEFINED
    more = range(len(tokens), rows)
    return [*tokens, *(f"[PAD{id}]" for id in more)], [*types, *(UNUSED for _ in more)]


def _phantom(token: str) -> str:
    """GGUF marks the start of a word where WordPiece marks its continuation."""
    if token.startswith("##"):
        return token[2:]
    return token if token.startswith("[") and token.endswith("]") else SPACE + token


def _pres(content: Mapping[str, Any]) -> list[str]:
    """The names of rules, those first that cut texts as this tokenizer.json does.

    A vocabulary hides most cuts. One that would merge any two neighbours in the texts, were there no cut, shows them.
    """
    forms = [form for text in TEXTS for form in (text, unicodedata.normalize("NFC", text))]
    letters = [BYTES[byte] for byte in range(256)]
    pairs = {(BYTES[a], BYTES[b]) for form in forms for a, b in pairwise(form.encode())}
    merges = sorted(pairs, key=lambda pair: hashlib.sha256("".join(pair).encode()).digest())
    vocab = {token: id for id, token in enumerate(dict.fromkeys((*letters, *map("".join, merges))))}
    model = {"type": "BPE", "vocab": vocab, "merges": [" ".join(pair) for pair in merges]}
    bare = {key: content.get(key) for key in ("normalizer", "pre_tokenizer")}
    whole: dict[str, Any] = {
        **bare,
        "added_tokens": [],
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": model,
    }
    own = Tokenizer(_native.Tokenizer.from_json(json.dumps(whole).encode(), "tokenizer.json", None), {})
    said = {**_said("gpt2", list(vocab), [NORMAL] * len(vocab)), f"{PREFIX}merges": model["merges"]}
    said[f"{PREFIX}add_bos_token"] = False
    fit = [pre for pre in PRES if _same(own, {**said, f"{PREFIX}pre": pre})]
    return [*fit, *(pre for pre in PRES if pre not in fit)]


def _byte_letters() -> list[str]:
    """The letter that byte-level vocabularies write for each byte: its own where that can be seen."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(others)) for byte in range(256)]


BYTES = _byte_letters()


def _merges(model: Mapping[str, Any]) -> list[str]:
    return [pair if isinstance(pair, str) else " ".join(pair) for pair in model.get("merges") or ()]


def _splits_bytes(content: Mapping[str, Any]) -> bool:
    return '"ByteLevel"' in json.dumps([content.get("pre_tokenizer"), content.get("normalizer")])


def _piece_types(tokens: list[str], types: list[int], own: Tokenizer) -> list[int]:
    """The types with those of bytes and of the unknown token."""
    for id, token in enumerate(tokens):
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            types[id] = BYTE
    if own.unk_id is not None:
        types[own.unk_id] = UNKNOWN
    return types


def _unknown(model: Mapping[str, Any], own: Tokenizer) -> dict[str, Any]:
    """The id of the unknown token where only the model itself names it."""
    token = model.get("unk_token")
    id = model.get("unk_id") if token is None else own.id(token)
    return {} if id is None else {f"{PREFIX}{IDS['unk']}": id}


def _of_characters(model: Mapping[str, Any], own: Tokenizer, rows: int) -> Iterator[dict[str, Any]]:
    """Merges of characters: SentencePiece's, which prefers what is merged first, or Gemma 4's own."""
    tokens, types = _tokens(own, rows)
    types = _piece_types(tokens, types, own)
    lines = _merges(model)
    first: dict[str, int] = {}
    for rank, line in enumerate(lines):
        first.setdefault(line.replace(" ", ""), rank)
    scores = np.asarray([-float(first.get(token, len(lines))) for token in tokens], np.float32)
    scored = {f"{PREFIX}scores": scores, **_unknown(model, own)}
    for space in (True, False):
        yield {**_said("llama", tokens, types), **scored, f"{PREFIX}add_space_prefix": space}
    # Gemma's runs of spaces are tokens of their own, looked for before all else, and such are written as spaces.
    runs = {id for id, token in enumerate(tokens) if len(token) > 1 and not token.strip(SPACE)}
    apart = [" " * len(token) if id in runs else token for id, token in enumerate(tokens)]
    kinds = [USER_DEFINED if id in runs else kind for id, kind in enumerate(types)]
    yield {**_said("llama", apart, kinds), **scored, f"{PREFIX}add_space_prefix": False}
    yield {**_said("gemma4", tokens, types), **scored, f"{PREFIX}merges": lines}


def _of_unigram(
    model: Mapping[str, Any], content: Mapping[str, Any], own: Tokenizer, rows: int
) -> Iterator[dict[str, Any]]:
    tokens, types = _tokens(own, rows)
    types = _piece_types(tokens, types, own)
    scores = np.zeros(rows, np.float32)
    for id, (_, score) in enumerate(model.get("vocab") or ()):
        scores[id] = score
    for said in _unigrams(tokens, types, scores, _charsmap(content.get("normalizer"))):
        yield {**said, **_unknown(model, own)}


def _unigrams(tokens: list[str], types: list[int], scores: np.ndarray, charsmap: bytes) -> Iterator[dict[str, Any]]:
    more = {f"{PREFIX}precompiled_charsmap": np.frombuffer(charsmap, np.uint8)} if charsmap else {}
    for space in (True, False):
        for collapse in (True, False):
            flags = {f"{PREFIX}add_space_prefix": space, f"{PREFIX}remove_extra_whitespaces": collapse}
            yield {**_said("t5", tokens, types), f"{PREFIX}scores": scores, **more, **flags}


def _charsmap(normalizer: Any) -> bytes:
    if not isinstance(normalizer, dict):
        return b""
    if normalizer.get("type") == "Precompiled":
        return base64.b64decode(normalizer.get("precompiled_charsmap") or "")
    return next((found for part in normalizer.get("normalizers") or () if (found := _charsmap(part))), b"")


def _of_pieces(pieces: Any, own: Tokenizer, rows: int) -> Iterator[dict[str, Any]]:
    """A SentencePiece file says all of it."""
    tokens, types = _tokens(own, rows)
    scores = np.zeros(rows, np.float32)
    for id, (text, score, type) in enumerate(pieces.pieces):
        tokens[id], scores[id], types[id] = text, score, type
    if pieces.unigram:
        yield from _unigrams(tokens, types, scores, pieces.charsmap)
        return
    for space in (True, False):
        yield {**_said("llama", tokens, types), f"{PREFIX}scores": scores, f"{PREFIX}add_space_prefix": space}
