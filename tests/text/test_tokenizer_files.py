"""Every kind of file that a tokenizer is published in gives the ids that its rules say, and wrong files are named."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from weft.errors import FormatError, InputError, NotFoundError, UnsupportedError
from weft.text import ranks
from weft.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "text"
WORDS = [b"ab", b" a", b" ab", b"abc", b"bc"]


def rank_file(words: list[bytes] = WORDS) -> bytes:
    """tiktoken's lines: 256 bytes, then `words`."""
    tokens = [bytes([byte]) for byte in range(256)] + words
    return b"".join(base64.b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(tokens))


@pytest.fixture
def rank_path(tmp_path: Path) -> Path:
    path = tmp_path / "small.tiktoken"
    path.write_bytes(rank_file())
    return path


def test_ranks_decide_merges_and_a_whole_word_is_its_token(rank_path: Path) -> None:
    tokenizer = Tokenizer.from_tiktoken(rank_path, pattern=ranks.encoding("cl100k_base").pattern)
    assert tokenizer.encode("ab ab") == [256, 258]
    assert tokenizer.encode("abc") == [259]
    assert tokenizer.encode("abcb") == [259, ord("b")]
    assert tokenizer.encode("xbc") == [ord("x"), 260]
    assert tokenizer.decode([258, 259, 0xE2, 0x82, 0xAC]) == " ababc€"


def test_special_tokens_of_ranks_are_given_by_the_caller(rank_path: Path) -> None:
    tokenizer = Tokenizer.from_tiktoken(rank_path, pattern=ranks.encoding("gpt2").pattern, special={"<|end|>": 300})
    assert tokenizer.encode("ab<|end|>", parse_special=True) == [256, 300]
    assert 300 not in tokenizer.encode("ab<|end|>")
    assert tokenizer.vocab_size == 301


def test_white_space_at_the_end_is_one_piece_for_cl100k_alone(rank_path: Path) -> None:
    rank_path.write_bytes(rank_file([b"\n ", b"\n  "]))
    whole = Tokenizer.from_tiktoken(rank_path, pattern=ranks.encoding("cl100k_base").pattern)
    lines = Tokenizer.from_tiktoken(rank_path, pattern=ranks.encoding("llama3").pattern)
    assert whole.encode("a\n  ") == [ord("a"), 257]
    assert lines.encode("a\n  ") == [ord("a"), ord("\n"), ord(" "), ord(" ")]


def test_the_same_expression_means_something_else_to_the_tokenizers_library(tmp_path: Path) -> None:
    """There {1,3}+ repeats what stands before it; weft refuses it rather than cut otherwise."""
    content = json.loads((GOLDEN / "llama3.json").read_text())["tokenizer"]
    pattern = content["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    pattern["Regex"] = ranks.encoding("cl100k_base").pattern
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UnsupportedError, match="expression"):
        Tokenizer.from_file(tmp_path)


@pytest.mark.parametrize(
    "content, match",
    [(b"YQ==\n", "token and its rank"), (b"Y!== 0\n", "base64"), (b"YQ== 0\nYg== 0\n", "twice"), (b"YQ== 0\n", "byte")],
)
def test_a_wrong_file_of_ranks_is_named(content: bytes, match: str, rank_path: Path) -> None:
    rank_path.write_bytes(content)
    with pytest.raises(FormatError, match=match):
        Tokenizer.from_tiktoken(rank_path, pattern=ranks.encoding("gpt2").pattern)


def test_a_file_of_ranks_needs_a_name_or_a_pattern(rank_path: Path) -> None:
    with pytest.raises(InputError, match="pattern"):
        Tokenizer.from_tiktoken(rank_path)
    with pytest.raises(InputError, match="nobody"):
        Tokenizer.from_tiktoken(rank_path, "nobody")
    with pytest.raises(InputError, match="small"):
        Tokenizer.from_file(rank_path)


def tekken(special: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    entries = [line.split() for line in rank_file().decode().splitlines()]
    vocab = [{"rank": int(rank), "token_bytes": token, "token_str": None} for token, rank in entries]
    pattern = ranks.encoding("o200k_base").pattern.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
    config = {"pattern": pattern, "default_vocab_size": 20 + len(vocab) - 1, "default_num_special_tokens": 20}
    return {"config": config, "vocab": vocab} | ({"special_tokens": special} if special is not None else {})


def test_tekken_puts_special_tokens_first_and_leaves_out_what_is_over_its_size(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(tekken()))
    tokenizer = Tokenizer.from_file(tmp_path)
    assert tokenizer.encode("ab 12") == [1, 276, 20 + ord(" "), 20 + ord("1"), 20 + ord("2")]
    assert tokenizer.encode("xbc", add_special=False) == [20 + ord("x"), 20 + ord("b"), 20 + ord("c")]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.id("[INST]")) == (1, 2, 3)
    named = [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "[X]"}]
    (tmp_path / "tekken.json").write_text(json.dumps(tekken(named)))
    assert Tokenizer.from_file(tmp_path).token(3) == "<SPECIAL_3>"


TEKKENS: dict[str, tuple[dict[str, Any], str]] = {
    "no pattern": ({"config": {}}, "config.pattern must be .*: got None"),
    "no list": ({"vocab": {}}, "vocab must be .*: got {}"),
    "no object": ({"vocab": [1]}, r"vocab\[0\] must be .*: got 1"),
    "a rank of infinity": (
        {"vocab": [{"rank": 1e300, "token_bytes": "YQ=="}]},
        r"vocab\[0\].rank must be .*: got 1e\+300",
    ),
    "two lines in a token": (
        {"vocab": [{"rank": 1, "token_bytes": "YQ== 7\nYg=="}]},
        r"vocab\[0\].token_bytes must be base64",
    ),
    "a token without a text": (
        {"special_tokens": [{"rank": 1}]},
        r"special_tokens\[0\].token_str must be .*: got None",
    ),
    "a rank twice": (
        {"special_tokens": [{"rank": 1, "token_str": t} for t in "ab"]},
        r"special_tokens\[1\].rank must be .*: got 1",
    ),
    "a token twice": ({"special_tokens": [{"rank": i, "token_str": "<s>"} for i in (1, 2)]}, "a token twice"),
    "no start": ({"special_tokens": []}, "no <s>"),
    "a byte without a token": ({"vocab": []}, "vocabulary: a byte has no token"),
}


@pytest.mark.parametrize("what", TEKKENS)
def test_a_wrong_tekken_file_is_named_and_so_is_the_field(what: str, tmp_path: Path) -> None:
    change, message = TEKKENS[what]
    (tmp_path / "tekken.json").write_text(json.dumps({**tekken(), **change}))
    with pytest.raises(FormatError, match=rf"^\[tekken.json\] .*{message}"):
        Tokenizer.from_file(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", '{"config": NaN}', '{"config": 1, "config": 2}', '{"x": "\\ud800"}'])
def test_a_tekken_file_that_is_no_json_object_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(content)
    with pytest.raises(FormatError, match=r"^\[tekken.json\]"):
        Tokenizer.from_file(tmp_path)


def write_merges(folder: Path, settings: dict[str, Any], merges: str | None = None) -> dict[str, Any]:
    """GPT-2's small golden as two files; returns it whole."""
    content = json.loads((GOLDEN / "gpt2.json").read_text())
    model = content["tokenizer"]["model"]
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
    text = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in pairs) if merges is None else merges
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    (folder / "merges.txt").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return content


def test_vocab_and_merges_give_what_tokenizer_json_gives(tmp_path: Path) -> None:
    content = json.loads((GOLDEN / "gpt2.json").read_text())
    listed = {token["id"]: token for token in content["tokenizer"]["added_tokens"]}
    settings = {"tokenizer_class": "RobertaTokenizerFast", "add_prefix_space": True, "added_tokens_decoder": listed}
    names = {f"{name}_token": "<s>" for name in ("bos", "eos", "sep", "cls", "unk", "pad", "mask")}
    write_merges(tmp_path, {**settings, **names})
    tokenizer = Tokenizer.from_file(tmp_path)
    for text, ids, plain, decoded, _ in content["cases"]:
        assert tokenizer.encode(text, parse_special=True) == ids, ascii(text)
        assert tokenizer.encode(text) == plain, ascii(text)
        assert tokenizer.decode(ids) == decoded


def test_the_configuration_says_which_tokens_surround_a_text(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "<s>"}
    write_merges(tmp_path, settings)
    plain = Tokenizer.from_file(tmp_path).encode("the river")
    assert 0 not in plain
    write_merges(tmp_path, {**settings, "add_bos_token": True})
    assert Tokenizer.from_file(tmp_path).encode("the river") == [0, *plain]
    write_merges(tmp_path, {**settings, "add_bos_token": True, "add_eos_token": True})
    assert Tokenizer.from_file(tmp_path).encode("the river") == [0, *plain, 0]


@pytest.mark.parametrize("ends", [False, True])
def test_a_flag_of_eos_alone_leaves_bos_to_the_file(ends: bool, tmp_path: Path) -> None:
    content = json.loads((GOLDEN / "llama2.json").read_text())["tokenizer"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_eos_token": ends}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.from_file(tmp_path)
    bos, eos = tokenizer.id("<s>"), tokenizer.id("</s>")
    assert tokenizer.encode("a b") == [bos, *tokenizer.encode("a b", add_special=False), *[eos] * ends]
    content["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert Tokenizer.from_file(tmp_path).encode("a b")[0] != bos


def test_merges_that_weft_cannot_read_are_named(tmp_path: Path) -> None:
    write_merges(tmp_path, {"tokenizer_class": "CLIPTokenizer"})
    with pytest.raises(UnsupportedError, match="CLIP"):
        Tokenizer.from_file(tmp_path)
    write_merges(tmp_path, {}, merges="#version: 0.2\na b c\n")
    with pytest.raises(FormatError, match="two tokens"):
        Tokenizer.from_file(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(NotFoundError):
        Tokenizer.from_file(tmp_path / "vocab.json")


BESIDE_MERGES: dict[str, tuple[dict[str, str], str]] = {
    "a merge of absent tokens": (
        {"merges.txt": "#version: 0.2\nq w\n"},
        r"\[merges.txt\] line 2 must be .*: got 'q w'",
    ),
    "bytes that are no text": ({"merges.txt": "\udcff"}, r"\[merges.txt\] malformed UTF-8 at byte 0"),
    "an id that is none": ({"vocab.json": '{"a": "0"}'}, r"\[vocab.json\] the id of 'a' must be a number: got '0'"),
    "an id twice": ({"vocab.json": '{"a": 0, "b": 0}', "merges.txt": ""}, r"\[vocab.json\] vocabulary: an id is used"),
    "no separator": (
        {"tokenizer_config.json": '{"tokenizer_class": "RobertaTokenizer"}'},
        r"the sep token '</s>' is missing",
    ),
    "a class that is none": ({"tokenizer_config.json": '{"tokenizer_class": 5}'}, "tokenizer_class must be .*: got 5"),
    "no decoder": (
        {"tokenizer_config.json": '{"added_tokens_decoder": []}'},
        r"added_tokens_decoder must be .*: got \[\]",
    ),
    "no id": (
        {"tokenizer_config.json": '{"added_tokens_decoder": {"x": {}}}'},
        "a key of added_tokens_decoder must be an id: got 'x'",
    ),
    "no content": (
        {"tokenizer_config.json": '{"added_tokens_decoder": {"1": {}}}'},
        r"added_tokens_decoder\.1 must be .*: got {}",
    ),
    "no tokens": (
        {"tokenizer_config.json": '{"additional_special_tokens": [[]]}'},
        r"special_tokens\[0\] must be .*: got \[\]",
    ),
    "a map of no tokens": (
        {"special_tokens_map.json": '{"eos_token": 5}'},
        r"\[special_tokens_map.json\] eos_token must be .*: got 5",
    ),
    "added tokens without ids": (
        {"added_tokens.json": '{"<x>": null}'},
        r"\[added_tokens.json\] the id of '<x>' must be a number: got None",
    ),
    "too many added tokens": (
        {"added_tokens.json": "{}".ljust(2 << 20)},
        r"\[added_tokens.json\] the file is too large",
    ),
    "too many settings": ({"tokenizer_config.json": f'{{"x": [{"0," * 200_000}0]}}'}, "holds too many values: about 2"),
}


@pytest.mark.parametrize("what", BESIDE_MERGES)
def test_each_file_beside_merges_is_named_with_the_field(what: str, tmp_path: Path) -> None:
    files, message = BESIDE_MERGES[what]
    write_merges(tmp_path, {})
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(FormatError, match=message):
        Tokenizer.from_file(tmp_path)


def test_a_text_is_cut_to_a_length_and_the_result_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(json.loads((GOLDEN / "word_piece.json").read_text())["tokenizer"])
    )
    tokenizer = Tokenizer.from_file(tmp_path)
    whole = tokenizer.encode("the old river ran", add_special=False)
    right = tokenizer.encode_within(4, "the old river ran")
    assert (right.ids, right.dropped) == ([2, *whole[:2], 3], (len(whole) - 2, 0))
    assert tokenizer.encode_within(4, "the old river ran", side="left").ids == [2, *whole[-2:], 3]
    assert tokenizer.encode_within(99, "the old river ran").ids == tokenizer.encode("the old river ran")
    pair = tokenizer.encode_within(7, "the old river ran", "the")
    assert len(pair.ids) == 7 and pair.dropped == (len(whole) - 3, 0)
    assert pair.types == [0, 0, 0, 0, 0, 1, 1]
    with pytest.raises(InputError, match="limit must be 2 or more"):
        tokenizer.encode_within(1, "the")
