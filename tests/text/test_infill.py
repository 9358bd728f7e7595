"""Raw prompts are read as the tokenizers library reads them, bos is not doubled, and prompts to fill in the middle have
the ids of the models' own format."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import FormatError, UnsupportedError
from weft.text import Tokenizer
from weft.text.prompts.infill import InfillTokens, Snippet, infill_ids

GOLDEN = json.loads((Path(__file__).resolve().parent.parent / "golden/text/infill.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("infill")
    (folder / "tokenizer.json").write_text(json.dumps(GOLDEN["tokenizer"]), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}), encoding="utf-8")
    return Tokenizer.from_file(folder)


def test_a_raw_prompt_has_the_ids_of_the_tokenizers_library(tokenizer: Tokenizer) -> None:
    for text, ids in GOLDEN["prompts"]:
        assert tokenizer.encode_prompt(text) == ids, text


def test_bos_is_added_once_and_what_the_caller_writes_is_kept(tokenizer: Tokenizer) -> None:
    bos = tokenizer.bos_id
    assert tokenizer.encode("<s>a", parse_special=True)[:2] == [bos, bos]  # as the library does
    assert tokenizer.encode_prompt("<s>a") == tokenizer.encode_prompt("a")
    assert tokenizer.encode_prompt("<s><s>a")[:2] == [bos, bos]
    assert tokenizer.encode_prompt("<s>a", add_special=False) == tokenizer.encode_prompt("a")
    assert bos not in tokenizer.encode_prompt("<s>a", parse_special=False)[1:]


def test_a_prompt_to_fill_in_has_the_ids_of_the_format_that_qwen_documents(tokenizer: Tokenizer) -> None:
    for prefix, suffix, ids in GOLDEN["infill"]:
        assert infill_ids(tokenizer, prefix, suffix) == ids, prefix


def test_special_tokens_in_code_are_text(tokenizer: Tokenizer) -> None:
    ids = infill_ids(tokenizer, 'x = "<|fim_suffix|>"', "<|im_end|>")
    assert ids.count(tokenizer.id("<|fim_suffix|>")) == 1 and tokenizer.id("<|im_end|>") not in ids


def test_other_files_come_first_in_the_repository_format(tokenizer: Tokenizer) -> None:
    extra = [Snippet("a = 1\n", "a.py"), Snippet("b = 2\n", "b.py")]
    text = tokenizer.decode(infill_ids(tokenizer, "c", "d", extra=extra), skip_special=False)
    assert text == (
        "<s><|repo_name|>repository\n<|file_sep|>a.py\na = 1\n<|file_sep|>b.py\nb = 2\n"
        "<|file_sep|>file\n<|fim_prefix|>c<|fim_suffix|>d<|fim_middle|>"
    )


def test_the_text_also_ends_at_the_tokens_that_models_end_it_with(tokenizer: Tokenizer) -> None:
    found = InfillTokens.of(tokenizer)
    names = ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|endoftext|>")
    assert found is not None and set(found.ends) == {tokenizer.id(name) for name in names}


def gguf(**stated: int) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*"abcdef", "<P>", "<S>", "<M>"],
        "tokenizer.ggml.token_type": np.array([1] * 6 + [3] * 3, np.int32),
        **{f"tokenizer.ggml.{name}": id for name, id in stated.items()},
    }


@pytest.mark.parametrize(
    "stated",
    [
        {"fim_pre_token_id": 6, "fim_suf_token_id": 7, "fim_mid_token_id": 8},
        {"prefix_token_id": 6, "suffix_token_id": 7, "middle_token_id": 8},
    ],
)
def test_a_gguf_file_states_the_ids_under_either_name(stated: dict[str, int]) -> None:
    assert infill_ids(Tokenizer.from_gguf(gguf(**stated)), "ab", "c") == [6, 0, 1, 7, 2, 8]


def test_a_model_that_cannot_says_so_and_a_wrong_id_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="can fill in the middle"):
        infill_ids(Tokenizer.from_gguf(gguf()), "a", "b")
    with pytest.raises(FormatError, match="fim_pre_token_id must be one of the 9 ids"):
        Tokenizer.from_gguf(gguf(fim_pre_token_id=9))
