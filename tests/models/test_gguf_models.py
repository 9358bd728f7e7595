"""The same weights through a GGUF file written by weft give the same bits; quantised ones run without being widened."""

from pathlib import Path

import numpy as np
import pytest
import tiny
from tiny_gguf import gguf_from_config, gguf_tensors

from weft.errors import UnsupportedError
from weft.runtime import Decoder, Encoder, Head, open_checkpoint
from weft.runtime.programs import model_module
from weft.weights import open_gguf, quantise, write_gguf
from weft.weights.files import TensorView


def write_model(path: Path, cfg: dict, dtype: str = "f32") -> Path:
    """The tiny checkpoint as a GGUF file, matrices in `dtype`."""
    tensors = tiny.first_nomic(cfg)[1] if cfg["model_type"] == "nomic_bert" else tiny.weights(cfg)
    views = {
        name: quantise(values, dtype) if values.ndim > 1 else TensorView.of(values) for name, values in tensors.items()
    }
    write_gguf(path, gguf_tensors(cfg, views), gguf_from_config(cfg))
    return path


def outputs(path: Path, length: int = 600) -> np.ndarray:
    """Logits of a decoder, hidden states of an encoder."""
    checkpoint = open_checkpoint(path)
    ids = np.arange(length) * 7 % checkpoint.config["vocab_size"]
    if model_module(checkpoint.model_type).KIND == "encoder":
        return Encoder(checkpoint, Head("mean")).hidden_states(ids)
    return Decoder(checkpoint, context=length).logits(ids, chunk=length)


# What GGUF has no words for, and the same model without it.
REFUSED: dict[str, tuple[str, dict]] = {
    "llama-dynamic-rope": ("'dynamic'", {"rope_scaling": None, "max_position_embeddings": 640}),
    "qwen2-window-tied": ("use_sliding_window", {"use_sliding_window": False}),
    "mistral": ("a sliding_window of 37", {"sliding_window": None}),
    "gemma2-listed-bias": (
        "attention_bias",
        {
            "attention_bias": False,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 15.0,
            "layer_types": ["sliding_attention"] * 3,
        },
    ),
    "bert-tanh": ("the activation gelu_new", {"hidden_act": "gelu"}),
    "gemma3_text-both-ways": ("use_bidirectional_attention", {"use_bidirectional_attention": None}),
}
for script in tiny.SCRIPTS.values():
    REFUSED |= script.UNWRITABLE
WRITTEN = [name for name, cfg in tiny.CONFIGS.items() if model_module(cfg["model_type"]).GGUF is not None]


def test_a_gguf_file_says_that_a_decoder_reads_both_ways(tmp_path: Path) -> None:
    cfg = {**tiny.QWEN3, "is_causal": False}
    found = [
        Encoder(open_checkpoint(path), Head("mean")).hidden_states(np.arange(9))
        for path in (write_model(tmp_path / "m.gguf", cfg), tiny.write_folder(tmp_path / "m", cfg))
    ]
    assert np.array_equal(*found)
    one_way = Encoder(open_checkpoint(write_model(tmp_path / "n.gguf", tiny.QWEN3)), Head("mean"))
    assert np.abs(one_way.hidden_states(np.arange(9)) - found[0]).max() > 1e-3


@pytest.mark.parametrize("name", WRITTEN)
def test_a_gguf_file_and_a_folder_give_the_same_bits(tmp_path: Path, name: str) -> None:
    cfg = {**tiny.CONFIGS[name], **REFUSED.get(name, ("", {}))[1]}
    folder = outputs(tiny.write_folder(tmp_path / name, cfg))
    assert np.array_equal(folder, outputs(write_model(tmp_path / f"{name}.gguf", cfg)))


@pytest.mark.parametrize("scaling", [None, tiny.YARN])
def test_an_olmo2_file_with_a_window_is_an_olmo3(tmp_path: Path, scaling: dict | None) -> None:
    """As llama.cpp has it: three of four layers have the window, and only the fourth is stretched."""
    cfg = {**tiny.CONFIGS["olmo3"], "rope_scaling": scaling}
    alike = {**cfg, "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"]}
    views = {name: TensorView.of(values) for name, values in tiny.weights(cfg).items()}
    metadata = {**gguf_from_config(alike), "olmo2.attention.sliding_window": cfg["sliding_window"]}
    write_gguf(tmp_path / "olmo3.gguf", gguf_tensors(alike, views), metadata)
    assert open_checkpoint(tmp_path / "olmo3.gguf").model_type == "olmo3"
    found = outputs(tmp_path / "olmo3.gguf"), outputs(tiny.write_folder(tmp_path / "olmo3", cfg))
    assert np.array_equal(*found)


def test_the_draft_head_of_a_nemotron_is_left_out(tmp_path: Path) -> None:
    """It is one more block, with attention and experts, in the counts of blocks and in every list by block."""
    cfg = tiny.CONFIGS["nemotron_h-experts"]
    views = {name: TensorView.of(values) for name, values in tiny.weights(cfg).items()}
    tensors, metadata = gguf_tensors(cfg, views), gguf_from_config(cfg)
    head = {name.replace("blk.2.", "blk.5."): view for name, view in tensors.items() if name.startswith("blk.2.")}
    head |= {name.replace("blk.1.", "blk.5."): view for name, view in tensors.items() if name.startswith("blk.1.")}
    one = TensorView.of(np.ones(cfg["hidden_size"], np.float32))
    names = ("enorm", "hnorm", "shared_head_norm")
    head |= {f"blk.5.nextn.{name}.weight": one for name in names} | {"blk.5.post_attention_norm.weight": one}
    head["blk.5.nextn.eh_proj.weight"] = TensorView.of(
        np.ones((cfg["hidden_size"], 2 * cfg["hidden_size"]), np.float32)
    )
    at = "nemotron_h_moe."
    lists = {f"{at}{key}": metadata[f"{at}{key}"] for key in ("attention.head_count_kv", "feed_forward_length")}
    more = {key: [*values, max(values)] for key, values in lists.items()}
    more |= {f"{at}block_count": 6, f"{at}nextn_predict_layers": 1}
    write_gguf(tmp_path / "head.gguf", {**tensors, **head}, {**metadata, **more})
    assert np.array_equal(outputs(tmp_path / "head.gguf"), outputs(tiny.write_folder(tmp_path / "folder", cfg)))


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_gguf_has_no_words_for_is_not_written(name: str) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED[name][0]):
        gguf_from_config(tiny.CONFIGS[name])


def test_layers_that_slide_by_no_period_are_not_written() -> None:
    types = ["sliding_attention", "full_attention", "full_attention"]
    with pytest.raises(UnsupportedError, match="not every n-th layer sees everything"):
        gguf_from_config({**tiny.GEMMA3, "layer_types": types})
    gguf_from_config({**tiny.GEMMA3, "layer_types": ["full_attention"] * 3})
    with pytest.raises(UnsupportedError, match="in which none slides"):
        gguf_from_config({**tiny.GEMMA2, "layer_types": ["full_attention"] * 3})


def test_a_gemma_file_holds_norms_with_the_one_added(tmp_path: Path) -> None:
    """As other readers expect, which multiply with what is stored."""
    for cfg in (tiny.GEMMA2, tiny.GEMMA3):
        file = open_gguf(write_model(tmp_path / "gemma.gguf", cfg))
        stored, values = file.tensors["blk.1.post_ffw_norm.weight"].numpy(), tiny.weights(cfg)
        assert np.array_equal(stored, values["model.layers.1.post_feedforward_layernorm.weight"] + np.float32(1))


def test_the_context_chooses_between_longrope_s_factors_in_a_gguf_file_too(tmp_path: Path) -> None:
    cfg = tiny.CONFIGS["phi3-part-longrope"]
    paths = tiny.write_folder(tmp_path / "folder", cfg), write_model(tmp_path / "model.gguf", cfg)
    ids = tiny.token_ids(cfg, 130)
    short, long = (
        [Decoder(open_checkpoint(path), context=context).logits(ids) for path in paths] for context in (256, 257)
    )
    assert np.array_equal(*short) and np.array_equal(*long) and not np.array_equal(short[0], long[0])


# 64 channels: rows of whole 32-blocks
BLOCKED = {**tiny.LLAMA, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}


# Fused projections: a range of rows of a quantised matrix is quantised rows
FUSED = {**BLOCKED, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}
CAPPED = {**tiny.GEMMA2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
@pytest.mark.parametrize("compute", ["f32", "int8"])
@pytest.mark.parametrize("cfg", [BLOCKED, FUSED, CAPPED], ids=["llama", "phi3", "gemma2"])
def test_quantised_weights_give_what_their_values_give(tmp_path: Path, cfg: dict, dtype: str, compute: str) -> None:
    """f32 activations: the model of the dequantised weights; int8 activations: close to it."""
    ids = tiny.token_ids(cfg, 40)
    stored = Decoder(
        open_checkpoint(write_model(tmp_path / "stored.gguf", cfg, dtype)), compute=compute, kv_dtype="f32"
    )
    values = {
        name: quantise(value, dtype).numpy().astype(np.float32) if value.ndim > 1 else value
        for name, value in tiny.weights(cfg).items()
    }
    dense = tiny.write_folder(tmp_path / "dense", cfg)
    from weft.weights import write_safetensors

    write_safetensors(dense / "model.safetensors", values)
    want = Decoder(open_checkpoint(dense)).logits(ids)
    error = np.linalg.norm(stored.logits(ids) - want) / np.linalg.norm(want)
    assert error <= (1e-5 if compute == "f32" or dtype in ("f16", "bf16") else 2e-2)
