"""Adapters on the experts of mixtures: PEFT's logits, from every layout of checkpoints, for each sequence its own."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_expert_adapters as cases
from test_experts import fused
from tiny_gguf import gguf_from_config, gguf_tensors

from weft.errors import UnsupportedError, WeightError
from weft.generate import Engine, Request
from weft.runtime import Decoder, open_checkpoint
from weft.weights import quantise, write_gguf, write_safetensors
from weft.weights.files import TensorView

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "adapters" / "tiny-expert-adapters.npz")
TOKENS, LIMIT = 17, 2e-4
QWEN3_MOE = tiny.CONFIGS["qwen3_moe"]


def decoder_of(tmp_path: Path, name: str, **options: object) -> Decoder:
    return Decoder(open_checkpoint(tiny.write_folder(tmp_path / name, tiny.CONFIGS[name])), **options)


@pytest.mark.parametrize("name", cases.CASES)
def test_logits_are_those_of_peft(tmp_path: Path, name: str) -> None:
    decoder = decoder_of(tmp_path, cases.CASES[name][0])
    ids = tiny.token_ids(tiny.CONFIGS[cases.CASES[name][0]], TOKENS)
    adapter = decoder.adapters.load("a", cases.write_case(tmp_path / "a", name))
    got = decoder.logits(ids, adapter=adapter)
    assert np.abs(got - GOLDEN[name]).max() <= LIMIT
    assert np.abs(got - decoder.logits(ids)).max() > 100 * LIMIT  # the adapter does something
    assert np.array_equal(got, decoder.logits(ids, adapter=adapter, chunk=5))
    assert adapter.rank == max(cases.CASES[name][1].get("rank_pattern", {"": 3}).values())


@pytest.mark.parametrize("name", ["qwen3_moe-parameters", "qwen3_moe-each"])
def test_every_layout_of_a_checkpoint_takes_the_same_adapters(tmp_path: Path, name: str) -> None:
    """Experts one by one, in one tensor for each layer, and stacked in a GGUF file."""
    views = {key: TensorView.of(value) for key, value in tiny.weights(QWEN3_MOE).items()}
    write_gguf(tmp_path / "m.gguf", gguf_tensors(QWEN3_MOE, views), gguf_from_config(QWEN3_MOE))
    paths = (tiny.write_folder(tmp_path / "fused", QWEN3_MOE, fused(QWEN3_MOE)), tmp_path / "m.gguf")
    adapter, ids = cases.write_case(tmp_path / "a", name), tiny.token_ids(QWEN3_MOE, TOKENS)
    for path in paths:
        decoder = Decoder(open_checkpoint(path), compute="f32", kv_dtype="f32")
        assert np.abs(decoder.logits(ids, adapter=decoder.adapters.load("a", adapter)) - GOLDEN[name]).max() <= LIMIT


def test_the_reference_computes_the_same(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, "qwen3_moe", backend="reference")
    adapter = decoder.adapters.load("a", cases.write_case(tmp_path / "a", "qwen3_moe-parameters"))
    got = decoder.logits(tiny.token_ids(QWEN3_MOE, TOKENS), adapter=adapter)
    assert np.abs(got - GOLDEN["qwen3_moe-parameters"]).max() <= LIMIT


def test_sequences_of_one_batch_have_adapters_of_their_own(tmp_path: Path) -> None:
    """Tokens are those of each request alone, with few experts in memory too; without an adapter nothing changes."""
    cfg = {**QWEN3_MOE, "hidden_size": 64, "moe_intermediate_size": 32, "num_attention_heads": 4}
    views = {k: quantise(v, "q8_0") if v.ndim > 1 else TensorView.of(v) for k, v in tiny.weights(cfg).items()}
    write_gguf(tmp_path / "m.gguf", gguf_tensors(cfg, views), gguf_from_config(cfg))
    folders = {}
    for seed in (1, 2):
        folders[f"a{seed}"] = cases.each(tmp_path / f"a{seed}", cfg, seed, range(cfg["num_experts"]))
    folders["some"] = cases.each(tmp_path / "some", cfg, 3, (1, 4))  # the other experts stay as they are

    def run(engine: Engine, names: list[str | None]) -> list[list[int]]:
        prompts = [tiny.token_ids(cfg, 9, seed=place).tolist() for place in range(len(names))]
        handles = [engine.submit(Request(p, max_tokens=6, adapter=n)) for p, n in zip(prompts, names)]
        while engine.running or engine.waiting:
            engine.step()
        return [list(handle.result().tokens) for handle in handles]

    names: list[str | None] = ["a1", None, "a2", "some", "a1", None]
    found = {}
    for limit in (None, 0):
        decoder = Decoder(open_checkpoint(tmp_path / "m.gguf"), kv_tokens=1024, expert_bytes=limit)
        engine = Engine(decoder)
        for name, folder in folders.items():
            decoder.adapters.load(name, folder)
        found[limit] = run(engine, names)
    assert found[None] == found[0]
    decoder = Decoder(open_checkpoint(tmp_path / "m.gguf"), kv_tokens=1024)
    assert [run(Engine(decoder), [None] * 6)[place] for place in (1, 5)] == [found[None][1], found[None][5]]
    loaded = {name: decoder.adapters.load(name, folder) for name, folder in folders.items()}
    for place, name in enumerate(names):
        ids = [*tiny.token_ids(cfg, 9, seed=place).tolist(), *found[None][place]]
        alone = decoder.logits(ids, adapter=None if name is None else loaded[name])
        assert alone[8:-1].argmax(axis=1).tolist() == found[None][place]


@pytest.mark.parametrize("kind", ["dora", "blend"])
def test_dora_and_blends_are_those_of_weights_that_they_are_merged_into(tmp_path: Path, kind: str) -> None:
    dora = {"use_dora": True} if kind == "dora" else {}
    decoder, ids = decoder_of(tmp_path, "qwen3_moe"), tiny.token_ids(QWEN3_MOE, TOKENS)
    folders = [cases.each(tmp_path / f"a{seed}", QWEN3_MOE, seed, (0, 2, 3, 7), **dora) for seed in (1, 2)]
    adapters = [decoder.adapters.load(f"a{place}", folder) for place, folder in enumerate(folders)]
    shares = [1.0] if kind == "dora" else [0.75, -0.5]
    merged = tiny.weights(QWEN3_MOE)
    for folder, share in zip(folders, shares):
        made = {key: view.numpy() for key, view in _tensors(folder).items()}
        for key in [key for key in made if key.endswith("lora_A.weight")]:
            at = key.removesuffix(".lora_A.weight")
            weight = merged[f"{at.removeprefix('base_model.model.')}.weight"]
            weight += np.float32(2 * share) * (made[f"{at}.lora_B.weight"] @ made[key])
            if dora:
                weight *= (made[f"{at}.lora_magnitude_vector"] / np.linalg.norm(weight, axis=1))[:, None]
    want = Decoder(open_checkpoint(tiny.write_folder(tmp_path / "merged", QWEN3_MOE, merged))).logits(ids)
    adapter = adapters[0] if dora else decoder.adapters.blend("both", {"a0": 0.75, "a1": -0.5})
    assert np.abs(decoder.logits(ids, adapter=adapter) - want).max() <= LIMIT


def _tensors(folder: Path) -> dict:
    from weft.weights import open_safetensors

    return dict(open_safetensors(folder / "adapter_model.safetensors").tensors)


def rewritten(folder: Path, name: str, change: object, **settings: object) -> Path:
    """A case with its tensors changed, and some of its settings."""
    cases.write_case(folder, name)
    (folder / "adapter_config.json").write_text(json.dumps({**cases.CASES[name][1], **settings}))
    write_safetensors(folder / "adapter_model.safetensors", change(cases.tensors(name)))
    return folder


def test_what_does_not_fit_the_experts_is_named(tmp_path: Path) -> None:
    decoder = decoder_of(tmp_path, "qwen3_moe")
    down = {"target_parameters": ["experts.down_proj"]}
    same = dict
    for place, (name, change, settings, error, said) in enumerate(
        [
            ("qwen3_moe-parameters", same, {**down}, WeightError, "tensors for 2 parameters, but 1 of them"),
            ("qwen3_moe-parameters", same, {"r": 6, "lora_alpha": 6}, WeightError, "q_proj has rank 3"),
            ("qwen3_moe-down-router", same, {"r": 4}, WeightError, "has rank"),
            ("qwen3_moe-gate-up", same, {"rank_pattern": {}}, WeightError, "24 matrices, the model's of 12"),
            ("qwen3_moe-gate-up", same, {"target_parameters": ["gate_up_proj", "x"]}, WeightError, "'x', for which"),
            ("qwen3_moe-each", _further, {}, WeightError, r"has no module model.layers.0.mlp.experts.12.up_proj"),
            ("mixtral-each", same, {}, WeightError, "has no module model.layers.0.block_sparse_moe.experts.0.w1|shape"),
            ("qwen3_moe-gate-up", same, {"use_dora": True}, WeightError, "has no magnitude"),
        ]
    ):
        folder = rewritten(tmp_path / f"wrong{place}", name, change, **settings)
        with pytest.raises(error, match=said):
            decoder.adapters.load("a", folder)
    folder = rewritten(tmp_path / "pattern", "qwen3_moe-gate-up", same, rank_pattern={".*(gate|up)_proj": 6})
    with pytest.raises(UnsupportedError, match="rank_pattern"):
        decoder.adapters.load("a", folder)


def _further(tensors: dict) -> dict:
    """With an expert that the model does not have."""
    at = "base_model.model.model.layers.0.mlp.experts."
    more = {k.replace(f"{at}3.up", f"{at}12.up"): v for k, v in tensors.items() if k.startswith(f"{at}3.up")}
    return {**tensors, **more}
