"""The tokenizer's own rules: special text, streaming, ids out of range, long inputs, all kinds of vocabulary."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import FormatError, InputError, NotFoundError, UnsupportedError
from weft.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "text"


def golden_json(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())["tokenizer"]


def load(content: dict[str, Any], folder: Path) -> Tokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return Tokenizer.from_file(folder / "tokenizer.json")


def byte_text(byte: int) -> str:
    """The character that stands for a byte in a byte-level vocabulary."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return chr(byte) if byte in shown else chr(0x100 + hidden.index(byte))


def gguf_bpe(**extra: Any) -> dict[str, Any]:
    """256 bytes, four merges of 'a', and a control and a user-defined token."""
    tokens = [byte_text(b) for b in range(256)] + ["aa", "aaaa", "aaaaaaaa", "ab", "<|end|>", "<think>"]
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "merges": ["a a", "aa aa", "aaaa aaaa", "a b"],
        "token_type": [1] * 260 + [3, 4],
        "eos_token_id": 260,
        **extra,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def test_special_text_stays_text_unless_asked_for() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_bpe())
    text = "b<|end|>b"
    assert 260 not in tokenizer.encode(text)
    assert tokenizer.encode(text, parse_special=True) == [98, 260, 98]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_added_tokens_that_are_not_special_are_found_unless_told_not_to() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_bpe())
    assert tokenizer.encode("<think>") == [261]
    assert tokenizer.encode("<think>", parse_added=False) == [*b"<think>"]


def test_decoding_skips_special_tokens_only_when_asked() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_bpe())
    assert tokenizer.decode([98, 260, 261]) == "b<think>"
    assert tokenizer.decode([98, 260, 261], skip_special=False) == "b<|end|><think>"


def test_a_stream_never_emits_half_a_character() -> None:
    stream = Tokenizer.from_gguf(gguf_bpe()).stream()
    pieces = [stream.add(byte) for byte in "a€𝄞".encode()]
    assert pieces == ["a", "", "", "€", "", "", "", "𝄞"]
    assert stream.finish() == ""


@pytest.mark.parametrize(
    "data",
    [b"\xe2\x82", b"\xe2\x82a", b"\xff\xfe", b"\xf0\x9f\x92", b"\xc3\xc3\xa9", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"],
)
def test_broken_utf8_decodes_as_python_does(data: bytes) -> None:
    tokenizer = Tokenizer.from_gguf(gguf_bpe())
    stream = tokenizer.stream()
    streamed = "".join(stream.add(byte) for byte in data) + stream.finish()
    assert tokenizer.decode([*data]) == streamed == data.decode(errors="replace")


def test_the_bytes_of_tokens_make_up_the_text() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_bpe())
    tokens = tokenizer.token_bytes()
    assert len(tokens) == tokenizer.vocab_size
    text = "hello é 😀\n"
    assert b"".join(tokens[id] for id in tokenizer.encode(text, add_special=False)) == text.encode()


def test_an_id_outside_the_vocabulary_is_an_error() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_bpe())
    for wrong in (-1, 262, 2**31 - 1):
        with pytest.raises(InputError, match="outside the vocabulary"):
            tokenizer.decode([wrong])
        with pytest.raises(InputError, match="outside the vocabulary"):
            tokenizer.stream().add(wrong)
    with pytest.raises(InputError):
        tokenizer.decode([2**40])


def test_a_lone_surrogate_is_an_input_error() -> None:
    with pytest.raises(InputError, match="surrogate"):
        Tokenizer.from_gguf(gguf_bpe()).encode("\ud800")


def test_a_megabyte_of_one_letter_is_merged_right() -> None:
    """Quadratic merging would take hours."""
    tokenizer = Tokenizer.from_gguf(gguf_bpe())
    size = 1 << 20
    ids = tokenizer.encode("a" * (size + 3))
    assert ids == [258] * (size // 8) + [256, 97]


def test_a_long_word_of_word_pieces_is_one_unknown(tmp_path: Path) -> None:
    tokenizer = load(golden_json("word_piece"), tmp_path)
    assert tokenizer.encode("a" * (1 << 20), add_special=False) == [tokenizer.id("[UNK]")]


def test_merging_by_heap_and_by_scan_agree() -> None:
    """Words of up to 48 bytes are scanned, longer ones go through a heap; the first 40 bytes decide alike here."""
    tokenizer = Tokenizer.from_gguf(gguf_bpe())
    for count in (40, 47, 48, 49, 56, 64):
        assert tokenizer.encode("a" * count) == [258] * (count // 8) + tokenizer.encode("a" * (count % 8))
        assert tokenizer.encode("ab" * count) == [259] * count


def test_gguf_strings_may_come_as_bytes_and_offsets() -> None:
    metadata = gguf_bpe()
    packed = dict(metadata)
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
        parts = [text.encode() for text in metadata[key]]
        offsets = np.cumsum([0, *map(len, parts)]).astype(np.uint64)
        packed[key] = (np.frombuffer(b"".join(parts), np.uint8), offsets)
    assert Tokenizer.from_gguf(packed).encode("aaab ä") == Tokenizer.from_gguf(metadata).encode("aaab ä")
    offsets[-1] += 1
    with pytest.raises(FormatError, match="offsets"):
        Tokenizer.from_gguf(packed)


def test_gguf_adds_the_tokens_it_says() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_bpe(add_bos_token=True, add_eos_token=True, bos_token_id=261))
    assert tokenizer.encode("b") == [261, 98, 260]
    assert tokenizer.encode("b", add_special=False) == [98]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (261, 260, None)


@pytest.mark.parametrize(
    "extra, error, match",
    [
        ({"model": "rwkv"}, UnsupportedError, "rwkv"),
        ({"model": "llama"}, FormatError, "scores"),
        ({"pre": "nobody-knows"}, UnsupportedError, "nobody-knows"),
        ({"merges": ["a z z"]}, FormatError, "not in the vocabulary"),
        ({"merges": ["a"]}, FormatError, "two tokens"),
        ({"tokens": ["a", "a"], "token_type": None}, FormatError, "twice"),
        ({"tokens": None}, FormatError, "tokens"),
        ({"token_type": [1]}, FormatError, "token_type"),
        ({"eos_token_id": 262}, FormatError, "eos_token_id"),
        ({"add_bos_token": True}, FormatError, "bos_token_id"),
    ],
)
def test_gguf_metadata_that_is_wrong_is_named(extra: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Tokenizer.from_gguf(gguf_bpe(**extra))


@pytest.mark.parametrize(
    "part, value",
    [
        ("normalizer", {"type": "Nmt"}),
        ("pre_tokenizer", {"type": "Metaspace", "replacement": "_"}),
        ("post_processor", {"type": "Sequence", "processors": [{"type": "Nothing"}]}),
        ("decoder", {"type": "CTC"}),
        ("model", {"type": "WordLevel", "vocab": {"a": 0}}),
    ],
)
def test_a_part_weft_does_not_know_is_named(part: str, value: dict[str, Any], tmp_path: Path) -> None:
    content = golden_json("word_piece") | {part: value}
    name = value.get("processors", [value])[0]["type"]
    with pytest.raises(UnsupportedError, match=name):
        load(content, tmp_path)


def test_an_unknown_split_expression_is_printed(tmp_path: Path) -> None:
    content = golden_json("llama3")
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a+)+b"
    with pytest.raises(UnsupportedError, match=r"\(a\+\)\+b"):
        load(content, tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"model": {}}', '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}']
)
def test_a_malformed_file_is_a_format_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises((FormatError, UnsupportedError)):
        Tokenizer.from_file(tmp_path)


def test_a_truncated_file_is_a_format_error_wherever_it_is_cut(tmp_path: Path) -> None:
    whole = json.dumps(golden_json("word_piece")).encode()
    for cut in range(0, len(whole) - 1, 97):
        (tmp_path / "tokenizer.json").write_bytes(whole[:cut])
        with pytest.raises(FormatError):
            Tokenizer.from_file(tmp_path)


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        with pytest.raises(NotFoundError):
            Tokenizer.from_file(path)


def test_vocab_txt_gives_what_tokenizer_json_gives(tmp_path: Path) -> None:
    content = golden_json("word_piece")
    vocab = content["model"]["vocab"]
    whole = load(content | {"added_tokens": [t for t in content["added_tokens"] if t["content"] in vocab]}, tmp_path)
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.__getitem__)) + "\n", encoding="utf-8")
    plain = Tokenizer.from_file(folder)
    for text in ["The façade, QUICKLY!", "weaver [SEP] 日本", "", "x" * 30]:
        assert plain.encode(text) == whole.encode(text)
        assert plain.encode(text, parse_special=True) == whole.encode(text, parse_special=True)


def test_the_config_beside_vocab_txt_is_followed(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\nÉ\ne\n", encoding="utf-8")
    assert Tokenizer.from_file(tmp_path).encode("É", add_special=False) == [4]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "sep_token": {"content": "[SEP]"}}')
    cased = Tokenizer.from_file(tmp_path)
    assert cased.encode("É", add_special=False) == [3]
    assert cased.sep_id == 2 and cased.bos_id is None


WORD_PIECES = {
    "model": "bert",
    "tokens": ["[UNK]", "[CLS]", "[SEP]", "▁un", "able", "▁able"],
    "token_type": [3, 3, 3, 1, 1, 1],
    "unknown_token_id": 0,
    "cls_token_id": 1,
    "seperator_token_id": 2,
}


def test_bert_from_gguf_reads_word_starts() -> None:
    tokenizer = Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in WORD_PIECES.items()})
    assert tokenizer.encode("Unable able zzz") == [1, 3, 4, 5, 0, 2]
    assert tokenizer.decode([3, 4, 5]) == "unable able"
    assert tokenizer.token(4) == "##able" and tokenizer.id("##able") == 4 and tokenizer.token(99) is None


@pytest.mark.parametrize("missing", [("cls_token_id",), ("seperator_token_id",), ("unknown_token_id", "cls_token_id")])
def test_bert_from_gguf_finds_special_tokens_by_bos_and_by_name(missing: tuple[str, ...]) -> None:
    """nomic-embed-text's file has [CLS] as bos_token_id and no cls_token_id."""
    keys = {key: value for key, value in WORD_PIECES.items() if key not in missing}
    for more in ({}, {"bos_token_id": 1}):
        tokenizer = Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in {**keys, **more}.items()})
        assert tokenizer.encode("Unable able zzz") == [1, 3, 4, 5, 0, 2]
        assert (tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id) == (1, 2, 0)


def test_bert_from_gguf_without_its_special_tokens_is_refused() -> None:
    keys = {**WORD_PIECES, "tokens": ["[UNK]", "<s>", "</s>", "▁un", "able", "▁able"]}
    del keys["cls_token_id"]
    what = r"tokenizer.ggml.cls_token_id is missing, and so is tokenizer.ggml.bos_token_id and a token \[CLS\]"
    with pytest.raises(FormatError, match=what):
        Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
