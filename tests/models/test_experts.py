"""Mixtures of experts: each expert is one product, batches change no bit, both layouts of checkpoints are one model."""

from pathlib import Path

import numpy as np
import pytest
import tiny
from tiny_gguf import gguf_from_config, gguf_tensors

from weft.backends.cpu import CpuBackend
from weft.errors import UnsupportedError, WeightError
from weft.graph import Trace
from weft.nn import Scope
from weft.nn.step import TracedStep
from weft.runtime import Decoder, open_checkpoint
from weft.runtime.programs import Programs
from weft.weights import quantise, write_gguf
from weft.weights.files import TensorView

QWEN3_MOE = tiny.CONFIGS["qwen3_moe"]
# 64 and 32 channels: rows of whole 32-blocks
BLOCKED = {**QWEN3_MOE, "hidden_size": 64, "moe_intermediate_size": 32, "num_attention_heads": 4}


def fused(cfg: dict) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint with its experts in one tensor for each layer, as newer ones have them."""
    tensors = tiny.weights(cfg)
    found = {name: value for name, value in tensors.items() if ".experts." not in name}
    for layer in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{layer}.mlp.experts."
        parts = {
            name: np.stack([tensors[f"{at}{expert}.{name}_proj.weight"] for expert in range(cfg["num_experts"])])
            for name in ("gate", "up", "down")
        }
        found[f"{at}gate_up_proj"] = np.concatenate([parts["gate"], parts["up"]], axis=1)
        found[f"{at}down_proj"] = parts["down"]
    return found


def test_experts_one_by_one_and_in_one_tensor_are_the_same_model(tmp_path: Path) -> None:
    ids = tiny.token_ids(QWEN3_MOE, 40)
    folders = (
        tiny.write_folder(tmp_path / "a", QWEN3_MOE),
        tiny.write_folder(tmp_path / "b", QWEN3_MOE, fused(QWEN3_MOE)),
    )
    assert np.array_equal(*(Decoder(open_checkpoint(folder)).logits(ids) for folder in folders))


def test_one_expert_s_tokens_are_one_product(tmp_path: Path) -> None:
    """A layer has three products for all its experts, however many there are, and however many tokens."""
    counted = {}
    for experts in (4, 12):
        cfg = {**QWEN3_MOE, "num_experts": experts}
        checkpoint = open_checkpoint(tiny.write_folder(tmp_path / str(experts), cfg))
        programs = Programs(checkpoint, CpuBackend(), compute="f32")

        def build(trace: Trace, w: Scope, programs: Programs = programs) -> dict:
            return {"y": programs.module.hidden_states(w / "model", programs.config, TracedStep(trace, context=64))}

        program, _ = programs.trace("experts", build)
        grouped = [instr for instr in program.body if instr.op == "matmul" and instr.inputs[3] is not None]
        counted[experts] = len(grouped)
    assert counted == {4: 3 * QWEN3_MOE["num_hidden_layers"], 12: 3 * QWEN3_MOE["num_hidden_layers"]}


@pytest.mark.parametrize("compute", ["f32", "bf16", "f16", "int8"])
def test_a_token_s_bits_do_not_depend_on_the_batch(tmp_path: Path, compute: str) -> None:
    """One token a step has one row for an expert; a whole prompt has many, next to each other."""
    cfg = {**BLOCKED, "hidden_size": 256, "moe_intermediate_size": 256, "vocab_size": 31, "num_experts": 6}
    tensors = {name: TensorView.of(v) if v.ndim == 1 else quantise(v, "q4_0") for name, v in tiny.weights(cfg).items()}
    write_gguf(tmp_path / "m.gguf", gguf_tensors(cfg, tensors), gguf_from_config(cfg))
    decoder = Decoder(open_checkpoint(tmp_path / "m.gguf"), compute=compute)
    ids = tiny.token_ids(cfg, 70)
    whole = decoder.logits(ids, chunk=70)
    for chunk in (1, 16, 33):
        assert np.array_equal(whole, decoder.logits(ids, chunk=chunk))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
@pytest.mark.parametrize("compute", ["f32", "int8"])
def test_quantised_experts_give_what_their_values_give(tmp_path: Path, dtype: str, compute: str) -> None:
    cfg = {**BLOCKED, "num_experts": 4, "num_experts_per_tok": 4}  # no close choice between experts to be upset
    ids, values = tiny.token_ids(cfg, 40), tiny.weights(cfg)
    views = {name: quantise(v, dtype) if v.ndim > 1 else TensorView.of(v) for name, v in values.items()}
    write_gguf(tmp_path / "m.gguf", gguf_tensors(cfg, views), gguf_from_config(cfg))
    rounded = {name: view.numpy().astype(np.float32) for name, view in views.items()}
    want = Decoder(open_checkpoint(tiny.write_folder(tmp_path / "dense", cfg, rounded))).logits(ids)
    found = Decoder(open_checkpoint(tmp_path / "m.gguf"), compute=compute, kv_dtype="f32").logits(ids)
    error = np.linalg.norm(found - want) / np.linalg.norm(want)
    assert error <= (1e-5 if compute == "f32" or dtype in ("f16", "bf16") else 3e-2)


def test_experts_of_several_types_and_missing_ones_are_named(tmp_path: Path) -> None:
    tensors = tiny.weights(QWEN3_MOE)
    name = "model.layers.1.mlp.experts.7.up_proj.weight"
    mixed = {**tensors, name: tensors[name].astype(np.float16)}
    with pytest.raises(WeightError, match=r"experts.7.up_proj.weight is f16, .*experts.0.up_proj.weight is f32"):
        Decoder(open_checkpoint(tiny.write_folder(tmp_path / "mixed", QWEN3_MOE, mixed)))
    del tensors[name]
    with pytest.raises(WeightError, match=r"experts.7.up_proj.weight is missing"):
        Decoder(open_checkpoint(tiny.write_folder(tmp_path / "missing", QWEN3_MOE, tensors)))


def test_a_gguf_file_of_an_architecture_without_experts_is_refused(tmp_path: Path) -> None:
    tensors = {name: TensorView.of(value) for name, value in tiny.weights(tiny.QWEN2).items()}
    metadata = {**gguf_from_config(tiny.QWEN2), "qwen2.expert_count": 8}
    write_gguf(tmp_path / "m.gguf", gguf_tensors(tiny.QWEN2, tensors), metadata)
    with pytest.raises(UnsupportedError, match="no mixture of experts of this architecture"):
        open_checkpoint(tmp_path / "m.gguf")


def test_the_text_part_of_a_model_with_images_is_found(tmp_path: Path) -> None:
    cfg = tiny.CONFIGS["qwen3_5_moe_text"]
    names = {key: key.replace("model.", "model.language_model.", 1) for key in tiny.weights(cfg)}
    tensors = {names[key]: value for key, value in tiny.weights(cfg).items()}
    outer = {"model_type": "qwen3_5_moe", "architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": cfg}
    inside = tiny.write_folder(tmp_path / "inside", {**outer, "tie_word_embeddings": False}, tensors)
    alone, ids = tiny.write_folder(tmp_path / "alone", cfg), tiny.token_ids(cfg, 40)
    assert np.array_equal(*(Decoder(open_checkpoint(path)).logits(ids) for path in (inside, alone)))
