"""`registry:NAME@…` loads wherever a model name does: the files that were added, an adapter with its base."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.errors import InputError, InvalidTransitionError, NotFoundError, UnsupportedError
from weft.registry import Registry
from weft.registry.reference import using
from weft.weights.safetensors import write_safetensors
from weft.weights.sources import locate

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))
from tiny_chat import write_chat_model
from tiny_st import write_st_folder


@pytest.fixture
def here(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("WEFT_REGISTRY", str(registry.folder))
    return registry


def write_adapter(folder: Path, modules: dict[str, tuple[int, int]], seed: int) -> Path:
    """An adapter of rank 2 in PEFT's format for modules of (inputs, outputs)."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, (inputs, outputs) in modules.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = rng.normal(size=(2, inputs)).astype(np.float32)
        tensors[f"base_model.model.{name}.lora_B.weight"] = rng.normal(size=(outputs, 2)).astype(np.float32)
    write_safetensors(folder / "adapter_model.safetensors", tensors, {})
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": [n.split(".")[-1] for n in modules]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def generator_modules(path: Path) -> dict[str, tuple[int, int]]:
    from weft.runtime import open_checkpoint

    config = open_checkpoint(path).config
    width = config["hidden_size"]
    return {f"model.layers.{i}.self_attn.q_proj": (width, width) for i in range(config["num_hidden_layers"])}


def test_a_generator_by_alias(here, tmp_path):
    path = write_chat_model(tmp_path / "tiny.gguf")
    here.add("chat", path, "1.0.0", evaluations={"m": 1})
    here.promote("chat@1.0.0")
    model = weft.load("registry:chat", threads=1)
    assert model.info["source"] == "registry:chat@1.0.0"
    assert model.generate("say", max_tokens=8).tokens == weft.load(str(path), threads=1).generate(
        "say", max_tokens=8
    ).tokens  # fmt: skip


def test_an_adapter_answers_with_its_base(here, tmp_path):
    path = write_chat_model(tmp_path / "tiny.gguf")
    adapter = write_adapter(tmp_path / "lora", generator_modules(path), 3)
    here.add("base", path, "1.0.0")
    here.add("chat", adapter, "1.0.0", kind="adapter", base="registry:base@1.0.0")
    own = weft.load("registry:chat@1.0.0", threads=1)
    plain = weft.load(str(path), threads=1)
    plain.adapters.load("it", adapter)
    asked = {"max_tokens": 12, "logprobs": 0}
    with_it, without = plain.generate("say", adapter="it", **asked), plain.generate("say", **asked)
    found = own.generate("say", **asked)
    assert [t.logprob for t in found.logprobs] == [t.logprob for t in with_it.logprobs]
    assert [t.logprob for t in found.logprobs] != [t.logprob for t in without.logprobs]
    assert list(own.stream("say", max_tokens=4))[-1].finish_reason == "length"
    with pytest.raises(UnsupportedError, match="without adapters"):
        own.logits([1, 2])
    with pytest.raises(UnsupportedError, match="adapter with its base"):
        weft.Reranker("registry:chat@1.0.0", method="likelihood")


def test_an_embedder_with_an_adapter_has_a_fingerprint_of_its_own(here, tmp_path):
    folder = write_st_folder(tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    width = config["hidden_size"]
    name = next(
        name.removesuffix(".weight") for name in _tensor_names(folder) if name.endswith("attention.self.query.weight")
    )
    adapter = write_adapter(tmp_path / "lora", {name: (width, width)}, 5)
    here.add("search", adapter, "1.0.0", kind="adapter", base=str(folder))
    own, plain = weft.Embedder("registry:search@1.0.0", threads=1), weft.Embedder(str(folder), threads=1)
    plain.adapters.load("it", adapter)
    texts = ["a cat", "a dog on a log"]
    assert np.array_equal(own.encode(texts), plain.encode(texts, adapter="it"))
    assert not np.array_equal(own.encode(texts), plain.encode(texts))
    assert str(own.fingerprint) == plain.embed(texts, adapter="it").fingerprint != str(plain.fingerprint)
    assert own.lasting_name == "registry:search@1.0.0"
    with pytest.raises(UnsupportedError, match="without adapters"):
        own.hidden_states([1, 2])


def _tensor_names(folder: Path) -> list[str]:
    from weft.runtime import open_checkpoint

    return [name for tensor in open_checkpoint(folder).tensors.items() for name in [tensor[0]]]


def test_what_does_not_load_says_why(here, tmp_path, monkeypatch, caplog):
    folder = write_st_folder(tmp_path / "bert")
    here.add("search", folder, "1.0.0", evaluations={"m": 1})
    with pytest.raises(NotFoundError, match="no production"):
        locate("registry:search")
    here.mark("search@1.0.0", "deprecated")
    locate("registry:search@1.0.0")
    assert "search@1.0.0 is deprecated" in caplog.text
    here.mark("search@1.0.0", "archived")
    with pytest.raises(InvalidTransitionError, match="archived"):
        locate("registry:search@1.0.0")
    here.add("notes", folder, "1.0.0", kind="index")
    with pytest.raises(InputError, match="is an index"):
        locate("registry:notes@1.0.0")
    with pytest.raises(InputError):
        locate("registry:search@")
    monkeypatch.setenv("WEFT_REGISTRY", str(tmp_path / "none"))
    with pytest.raises(NotFoundError, match="no registry"):
        locate("registry:search@1.0.0")
    with using(here.folder), pytest.raises(InvalidTransitionError):
        locate("registry:search@1.0.0")
