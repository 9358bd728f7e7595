"""On generated texts the ids and decoded texts are those of the tokenizers library, for every tokenizer at hand.

The small committed tokenizers are always compared. WEFT_TOKENIZERS may name more, separated like PATH: tokenizer.json
files and GGUF files with SmolLM's vocabulary. WEFT_TOKENIZER_CASES sets the number of texts (600). WEFT_VOCABS may be
a folder of vocabulary-only GGUF files with llama.cpp's pairs beside them. parity.py compares more kinds of file.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from soaking import times
from texts import random_texts

from weft.text.tokenizer import Tokenizer

library = pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: nothing to compare with")

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "text"
SHARED = Path(os.environ.get("WEFT_SHARED", ROOT.parent / "shared"))
CASES = int(os.environ.get("WEFT_TOKENIZER_CASES", times(30_000, 600)))
SMALL = [
    GOLDEN / f"{name}.json"
    for name in ("word_piece", "gpt2", "llama3", "nemo", "falcon", "smollm", "llama2", "mistral", "unigram")
]
# The pairs of qwen35 come from llama.cpp itself, which does not normalise as the model's own tokenizer does.
VOCABS = [
    path
    for folder in (SHARED / "data" / "vocabs", Path(os.environ.get("WEFT_VOCABS", "vocabs")))
    for path in sorted(folder.glob("*.gguf"))
    if path.with_name(path.name + ".inp").is_file() and "qwen35" not in path.name
] or [pytest.param(Path("none"), marks=pytest.mark.skip("no vocabularies in the shared data or in WEFT_VOCABS"))]
NAMED = [Path(path) for path in os.environ.get("WEFT_TOKENIZERS", "").split(os.pathsep) if path]


def name_of(path: Path) -> str:
    return path.stem if path in SMALL else f"{path.parent.name}-{path.stem}"


@pytest.fixture(params=SMALL + NAMED, ids=name_of, scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    """weft's tokenizer and the library's."""
    path: Path = request.param
    if path.suffix == ".gguf":
        return smollm_from_gguf(path)
    if path in SMALL:
        text = json.dumps(json.loads(path.read_text())["tokenizer"])
        path = tmp_path_factory.mktemp("parity") / "tokenizer.json"
        path.write_text(text)
    other = library.Tokenizer.from_file(str(path))
    other.no_truncation()
    other.no_padding()
    return Tokenizer.from_file(path), other


def gguf_metadata(path: Path) -> dict[str, Any]:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed: cannot read the vocabulary")
    fields = gguf.GGUFReader(path).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}


def smollm_from_gguf(path: Path) -> tuple[Tokenizer, Any]:
    """The library's tokenizer put together as SmolLM2's tokenizer.json does, from the same vocabulary."""
    metadata = gguf_metadata(path)
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    pairs = [tuple(merge.split(" ")) for merge in merges]
    other = library.Tokenizer(library.models.BPE({token: id for id, token in enumerate(tokens)}, pairs))
    parts = library.pre_tokenizers
    other.pre_tokenizer = parts.Sequence(
        [parts.Digits(individual_digits=True), parts.ByteLevel(add_prefix_space=False)]
    )
    other.decoder = library.decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, metadata["tokenizer.ggml.token_type"]) if kind == 3]
    other.add_special_tokens([library.AddedToken(token, normalized=False, special=True) for token in control])
    return Tokenizer.from_gguf(metadata), other


@pytest.mark.soak
def test_generated_texts_agree(both: tuple[Tokenizer, Any]) -> None:
    tokenizer, other = both
    specials, special = [token for token, _, _ in tokenizer.added_tokens][:16], tokenizer.special_ids
    for text in random_texts(5, CASES, specials):
        encoded = other.encode(text)
        ids = encoded.ids
        located = tokenizer.encode_offsets(text, parse_special=True)
        assert tokenizer.encode(text, parse_special=True) == located.ids == ids, ascii(text)
        assert [*map(tuple, located.offsets.tolist())] == encoded.offsets, ascii(text)
        shown = [id for id in ids if id not in special]  # the library prints special tokens that are normalised
        assert tokenizer.decode(ids) == other.decode(shown, skip_special_tokens=False), ascii(text)
        stream = tokenizer.stream(skip_special=False)
        streamed = "".join(stream.add(id) for id in ids) + stream.finish()
        assert streamed == other.decode(ids, skip_special_tokens=False), ascii(text)


@pytest.mark.soak
def test_generated_texts_agree_with_special_tokens_as_text(both: tuple[Tokenizer, Any]) -> None:
    tokenizer, other = both
    # The library's Unigram still finds the text of a special token in its vocabulary; weft's does not.
    unigram = isinstance(other.model, library.models.Unigram)
    sprinkled = [token for token, _, special in tokenizer.added_tokens if not (unigram and special)][:16]
    other.encode_special_tokens = True
    try:
        for text in random_texts(6, CASES // 4, sprinkled):
            assert tokenizer.encode(text, add_special=False) == other.encode(text, add_special_tokens=False).ids, ascii(
                text
            )
    finally:
        other.encode_special_tokens = False


EXPRESSIONS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt2_short": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?"
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "lines": "[\r\n]",
    "spaced_letters": r"\s?\p{L}+",
    "spaced_marks": r"\s?\p{P}+",
    "spaced_ranges": r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    "spaces_at_end": r"\s+$",
    "old_ideographs": "[一-龥ࠀ-一가-퟿]+",
    "escapes": r"[\p{P}\$\+<=>\^~\|]+",
    "triples": "[0-9][0-9][0-9]",
    "numbers": r"\p{N}{1,3}",
    "number": r"\p{N}",
    "ideographs": "[一-龥぀-ゟ゠-ヿ]+",
}
PRE_TOKENIZERS = {
    "digits": lambda parts: parts.Digits(individual_digits=False),
    "single_digits": lambda parts: parts.Digits(individual_digits=True),
    "punctuation": lambda parts: parts.Punctuation(),
    "punctuation_runs": lambda parts: parts.Punctuation("contiguous"),
    "whitespace": lambda parts: parts.Whitespace(),
    "whitespace_split": lambda parts: parts.WhitespaceSplit(),
    "bert": lambda parts: parts.BertPreTokenizer(),
}


@pytest.mark.parametrize("name", [*EXPRESSIONS, *PRE_TOKENIZERS])
def test_pre_tokenizers_cut_alike(name: str, tmp_path: Path) -> None:
    """A space is put before each piece, so that ids of single bytes show the cuts."""
    parts = library.pre_tokenizers
    if name in EXPRESSIONS:
        cut = parts.Split(library.Regex(EXPRESSIONS[name]), "isolated")
    else:
        cut = PRE_TOKENIZERS[name](parts)
    bytes_only = {character: id for id, character in enumerate(sorted(parts.ByteLevel.alphabet()))}
    other = library.Tokenizer(library.models.BPE(bytes_only, []))
    other.pre_tokenizer = parts.Sequence([cut, parts.ByteLevel(add_prefix_space=True, use_regex=False)])
    other.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(tmp_path)
    for text in random_texts(8, CASES // 4):
        assert tokenizer.encode(text) == other.encode(text).ids, ascii(text)


def test_numbers_behind_bytes_are_cut_alike(tmp_path: Path) -> None:
    """Falcon's chain: bytes such as 0xB2 stand as characters that are digits. Merges of digits show the cuts."""
    parts = library.pre_tokenizers
    tokens = {character: id for id, character in enumerate(sorted(parts.ByteLevel.alphabet()))}
    pairs = [(a, b) for a in "0123456789²" for b in "0123456789²"]
    tokens |= {a + b: 256 + i for i, (a, b) in enumerate(pairs)}
    other = library.Tokenizer(library.models.BPE(tokens, pairs))
    cut = parts.Split(library.Regex("[0-9][0-9][0-9]"), "isolated")
    level = parts.ByteLevel(add_prefix_space=False)
    other.pre_tokenizer = parts.Sequence([parts.Punctuation("contiguous"), level, parts.Digits(False), cut])
    other.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(tmp_path)
    for text in [*random_texts(9, CASES // 4), "1234567", "a12²34 ²²5", "0.1234,56789"]:
        assert tokenizer.encode(text) == other.encode(text).ids, ascii(text)


@pytest.mark.shared
def test_wiki_text_agrees(both: tuple[Tokenizer, Any]) -> None:
    path = SHARED / "data" / "wikitext-2" / "wiki.test.raw"
    if not path.is_file():
        pytest.skip("no wikitext-2 in the shared data")
    tokenizer, other = both
    text = path.read_text(encoding="utf-8")
    assert tokenizer.encode(text, parse_special=True) == other.encode(text).ids


@pytest.mark.shared
@pytest.mark.parametrize("path", VOCABS, ids=lambda path: path.stem)
def test_published_vocabulary_tests_pass(path: Path) -> None:
    """Pairs of texts and ids that come with llama.cpp's vocabularies, computed there by the models' own tokenizers."""
    tokenizer = Tokenizer.from_gguf(gguf_metadata(path))
    texts = path.with_name(path.name + ".inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")[:-1]
    lines = path.with_name(path.name + ".out").read_text().splitlines()
    assert len(texts) == len(lines) > 30
    for text, line in zip(texts, lines):
        assert tokenizer.encode(text, add_special=False) == [int(id) for id in line.split()], ascii(text)
