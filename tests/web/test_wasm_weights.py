"""Quantised weights in weft.wasm: the tokens of Python's scalar level; other types are refused by name."""

import ast
from pathlib import Path

import numpy as np
import pytest
import tiny
from soaking import times
from static_site import ROOT
from test_low_bit import CONFIG, packed
from tiny_chat import tokenizer_keys
from tiny_gguf import gguf_from_config, gguf_tensors

import weft
from weft.backends.cpu import levels_present
from weft.export import export
from weft.weights import write_gguf
from weft.weights.files import TensorView

TYPES = ast.literal_eval((ROOT / "tools" / "build_wasm.py").read_text().split("\nTYPES = ")[1].split("\n")[0])
SUBJECTS = ["rain", "a loom", "the sea", "prime numbers", "bread"]
ASKED = ["Tell me about {}.", "Write a short poem about {}.", "Why do people care about {}?", "{} is"]


@pytest.fixture
def scalar(monkeypatch: pytest.MonkeyPatch) -> None:
    if "scalar" not in levels_present():
        pytest.skip("the scalar level was not built: `make test` builds it")
    monkeypatch.setenv("WEFT_ISA", "scalar")


def write(path: Path, kind: str) -> str:
    config = {**CONFIG, "vocab_size": 258, "bos_token_id": 256, "eos_token_id": 257, "max_position_embeddings": 256}
    rng = np.random.default_rng(3)
    views = {
        name: TensorView.of(value) if value.ndim == 1 else packed(rng, kind, value.shape)
        for name, value in tiny.weights(config).items()
    }
    write_gguf(path, gguf_tensors(config, views), {**gguf_from_config(config), **tokenizer_keys()})
    return str(path)


@pytest.mark.parametrize("compute", ["f32", "int8"])
@pytest.mark.parametrize("kind", TYPES)
def test_tokens_of_every_type_are_those_of_python(in_node, scalar, tmp_path: Path, kind: str, compute: str) -> None:
    path = write(tmp_path / "m.gguf", kind)
    bundle = export(path, tmp_path / "b.weft", compute=compute).path
    (said,) = in_node(bundle, prompts=["Once upon"], options={"maxTokens": 12})["written"]
    wanted = weft.load(path, compute=compute, threads=1, draft="none").generate("Once upon", max_tokens=12)
    assert said["ids"] == list(wanted.tokens)


@pytest.mark.parametrize("kind", ["q5_1", "q3_k", "iq4_nl"])
def test_other_types_are_refused_by_name(in_node, tmp_path: Path, kind: str) -> None:
    bundle = export(write(tmp_path / "m.gguf", kind), tmp_path / "b.weft", compute="int8").path
    error = in_node(bundle, prompts=["Once"])["error"]
    assert error["code"] == "unsupported"
    assert kind in error["message"]


@pytest.mark.soak
@pytest.mark.parametrize("compute", ["int8", "f32"] if times(2, 1) == 2 else ["int8"])
def test_greedy_text_of_a_real_model(in_node, scalar, smollm2: Path, tmp_path: Path, compute: str) -> None:
    """20 prompts x 64 tokens in a soak run."""
    prompts = [words.format(subject) for subject in SUBJECTS for words in ASKED][: times(20, 1)]
    tokens = times(64, 6)
    bundle = export(str(smollm2), tmp_path / "b.weft", compute=compute, context=256).path
    said = in_node(bundle, prompts=prompts, options={"maxTokens": tokens})["written"]
    model = weft.load(str(smollm2), compute=compute, threads=1, draft="none", context=256)
    for prompt, one in zip(prompts, said, strict=True):
        assert one["ids"] == list(model.generate(prompt, max_tokens=tokens).tokens), prompt
