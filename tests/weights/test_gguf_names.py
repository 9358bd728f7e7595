"""A model in GGUF has the names, the row order and the config.json it had before, and hostile numbers are refused."""

import filecmp
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import config_from_gguf, gguf_from_config, gguf_name, hf_name, row_order, stored_order

from weft.errors import FormatError, ModelError, UnsupportedError, WeightError
from weft.models import gguf_declaration, model_module, model_types
from weft.weights import TensorFile, open_gguf, open_safetensors, quantise, rope_factors, write_gguf, write_safetensors
from weft.weights.gguf_meta import Metadata

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "vocab_size": 32,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_act": "gelu",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
    "vocab_size": 20,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "position_embedding_type": "absolute",
    "pooling_type": "mean",
    "causal": False,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}

QWEN3: dict[str, Any] = {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32}
ALL = pytest.mark.parametrize("config", [LLAMA, BERT, QWEN3], ids=["llama", "bert", "qwen3"])


def weights_of(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """The few tensors a config is read from, and one layer's attention, by their Hugging Face names."""
    rng = np.random.default_rng(4)
    width, layers = config["hidden_size"], range(config["num_hidden_layers"])
    if config["model_type"] == "bert":
        shapes = {"embeddings.word_embeddings.weight": (config["vocab_size"], width)}
        shapes["embeddings.position_embeddings.weight"] = (config["max_position_embeddings"], width)
        shapes["embeddings.token_type_embeddings.weight"] = (config["type_vocab_size"], width)
        shapes["encoder.layer.0.attention.self.query.weight"] = (width, width)
    else:
        q, kv = (config[name] * (config["head_dim"] or 16) for name in ("num_attention_heads", "num_key_value_heads"))
        shapes = {"model.embed_tokens.weight": (config["vocab_size"], width)}
        shapes.update({f"model.layers.{i}.self_attn.q_proj.weight": (q, width) for i in layers})
        shapes.update({f"model.layers.{i}.self_attn.k_proj.weight": (kv, width) for i in layers})
        shapes.update({f"model.layers.{i}.self_attn.v_proj.weight": (kv, width) for i in layers})
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_model(path: Path, config: dict[str, Any], extra: dict[str, Any] | None = None, **metadata: Any) -> None:
    """A GGUF of this config with weights as a converter would store them, quantised to q8_0."""
    arch, tensors = config["model_type"], {}
    for name, values in weights_of(config).items():
        order = stored_order(arch, name, {**LLAMA, **config, "head_dim": config["head_dim"] or 16})
        view = quantise(values, "q8_0")
        tensors[str(gguf_name(arch, name))] = view if order is None else view.take(order)
    written = {**gguf_from_config(config), **{key.replace("__", "."): value for key, value in metadata.items()}}
    write_gguf(path, {**tensors, **(extra or {})}, {k: v for k, v in written.items() if v is not None})


def model(
    folder: Path, config: dict[str, Any], extra: dict[str, Any] | None = None, **metadata: Any
) -> TensorFile[Metadata]:
    write_model(folder / "m.gguf", config, extra, **metadata)
    return open_gguf(folder / "m.gguf")


@ALL
def test_a_config_survives_the_round_trip(tmp_path: Path, config: dict[str, Any]) -> None:
    assert config_from_gguf(model(tmp_path, config)) == config


@ALL
def test_weights_survive_the_round_trip_in_order(tmp_path: Path, config: dict[str, Any]) -> None:
    file = model(tmp_path, config)
    arch = config["model_type"]
    restored = {}
    for name, tensor in file.tensors.items():
        known = str(hf_name(arch, name))
        order = row_order(arch, known, config)
        restored[known] = (tensor if order is None else tensor.take(order)).numpy()
    for name, values in weights_of(config).items():
        assert np.array_equal(restored[name], quantise(values, "q8_0").numpy()), name


def test_the_order_is_that_of_the_usual_converter() -> None:
    """Hugging Face to GGUF reshapes a head to [2, dim/2] and swaps the axes."""
    for name, heads in (("q_proj", 4), ("k_proj", 2)):
        rows = np.arange(heads * 16 * 3).reshape(heads * 16, 3)
        stored = rows.reshape(heads, 2, 8, 3).swapaxes(1, 2).reshape(rows.shape)
        order = row_order("llama", f"model.layers.0.self_attn.{name}.weight", LLAMA)
        back = stored_order("llama", f"model.layers.0.self_attn.{name}.weight", LLAMA)
        assert order is not None and back is not None
        assert np.array_equal(stored[order], rows) and np.array_equal(rows[back], stored)


def test_rotating_neighbours_as_stored_is_rotating_halves_as_restored() -> None:
    heads, dim = LLAMA["num_attention_heads"], LLAMA["head_dim"]
    order = row_order("llama", "model.layers.1.self_attn.q_proj.weight", LLAMA)
    stored = np.random.default_rng(8).standard_normal(heads * dim)
    angle = 3.0 * LLAMA["rope_theta"] ** -(np.arange(dim // 2) * 2 / dim)
    turn = np.cos(angle) + 1j * np.sin(angle)
    pairs = stored.reshape(heads, dim // 2, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
    as_stored = np.stack([turned.real, turned.imag], axis=-1).reshape(-1)
    halves = stored[order].reshape(heads, 2, dim // 2)
    turned = (halves[:, 0] + 1j * halves[:, 1]) * turn
    as_restored = np.stack([turned.real, turned.imag], axis=1).reshape(-1)
    assert np.allclose(as_stored[order], as_restored)


def test_only_rotated_rows_are_reordered() -> None:
    for name in ("model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight", "lm_head.weight"):
        assert row_order("llama", name, LLAMA) is None and stored_order("llama", name, LLAMA) is None
    assert row_order("llama", "model.layers.0.self_attn.q_proj.bias", LLAMA) is not None
    assert row_order("bert", "encoder.layer.0.attention.self.query.weight", BERT) is None


NAMES = [
    ("llama", "token_embd.weight", "model.embed_tokens.weight"),
    ("llama", "output_norm.weight", "model.norm.weight"),
    ("llama", "output.weight", "lm_head.weight"),
    ("llama", "blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight"),
    ("llama", "blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
    ("llama", "blk.12.attn_norm.weight", "model.layers.12.input_layernorm.weight"),
    ("llama", "blk.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight"),
    ("llama", "blk.1.attn_k.bias", "model.layers.1.self_attn.k_proj.bias"),
    ("bert", "token_embd_norm.bias", "embeddings.LayerNorm.bias"),
    ("bert", "token_types.weight", "embeddings.token_type_embeddings.weight"),
    ("bert", "blk.0.attn_output_norm.weight", "encoder.layer.0.attention.output.LayerNorm.weight"),
    ("bert", "blk.0.ffn_up.bias", "encoder.layer.0.intermediate.dense.bias"),
    ("bert", "blk.5.layer_output_norm.weight", "encoder.layer.5.output.LayerNorm.weight"),
    ("gemma2", "blk.0.post_attention_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ("gemma2", "blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"),
    ("gemma2", "blk.0.post_ffw_norm.weight", "model.layers.0.post_feedforward_layernorm.weight"),
    ("gemma3", "blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"),
    ("gemma3", "output.weight", "lm_head.weight"),
    ("olmo2", "blk.0.post_attention_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ("olmo2", "blk.0.post_ffw_norm.weight", "model.layers.0.post_feedforward_layernorm.weight"),
    ("smollm3", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
]


@pytest.mark.parametrize("arch, gguf, hf", NAMES)
def test_names_go_both_ways(arch: str, gguf: str, hf: str) -> None:
    assert hf_name(arch, gguf) == hf and gguf_name(arch, hf) == gguf


DECLARED = [found.architecture for kind in model_types() if (found := model_module(kind).GGUF) is not None]


@pytest.mark.parametrize("arch", sorted(set(DECLARED)))
def test_names_agree_with_the_reference(arch: str) -> None:
    """Where it has a name: dense layers among mixtures, draft heads and Nemotron's blocks are named elsewhere there."""
    gguf = pytest.importorskip("gguf")
    kind = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    reference = gguf.get_tensor_name_map(kind, 4)
    found = {}
    for stored in [f"blk.2.{stem}.weight" for stem in gguf_declaration(arch).layer]:
        name = str(hf_name(arch, stored)).replace(".experts.each.", ".experts.")
        found[stored] = reference.get_name(name, try_suffixes=(".weight",))
    if arch == "granitehybrid":  # one shared expert or the only one: the same name in a folder, two in a file
        assert found.pop("blk.2.ffn_down.weight") == "blk.2.ffn_down_shexp.weight"
    known = {stored: name for stored, name in found.items() if name is not None}
    assert known == {stored: stored for stored in known}
    assert len(known) > len(found) / 2 or arch == "nemotron_h"


def test_unknown_names_are_refused_and_known_absences_are_none() -> None:
    assert hf_name("llama", "rope_freqs.weight") is None
    assert gguf_name("bert", "pooler.dense.weight") is None and gguf_name("bert", "embeddings.position_ids") is None
    with pytest.raises(WeightError):
        gguf_name("gemma2", "lm_head.weight")
    for name in (
        "blk.0.ffn_gate_exps.weight",
        "blk.x.attn_q.weight",
        "blk.00.attn_q.weight",
        "attn_q.weight",
        "",
        "weight",
    ):
        with pytest.raises(WeightError):
            hf_name("llama", name)
    with pytest.raises(WeightError):
        gguf_name("llama", "model.layers.0.mlp.experts.0.w1.weight")
    with pytest.raises(UnsupportedError, match="'mamba'"):
        hf_name("mamba", "token_embd.weight")


def test_an_output_of_its_own_unties_the_embedding(tmp_path: Path) -> None:
    file = model(tmp_path, LLAMA, {"output.weight": np.zeros((32, 64), np.float32)})
    assert config_from_gguf(file)["tie_word_embeddings"] is False


def test_rope_scaling_of_every_kind_is_read(tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "factor": 4.0}
    yarn = {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    for scaling in (linear, yarn):
        assert config_from_gguf(model(tmp_path, {**LLAMA, "rope_scaling": scaling}))["rope_scaling"] == scaling
    old = model(tmp_path, LLAMA, llama__rope__scale_linear=2.0)
    assert config_from_gguf(old)["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    llama3 = config_from_gguf(model(tmp_path, LLAMA, {"rope_freqs.weight": factors}))["rope_scaling"]
    assert llama3 == {"rope_type": "llama3", "factors": factors.tolist()}
    with pytest.raises(UnsupportedError, match="longrope"):
        config_from_gguf(model(tmp_path, LLAMA, llama__rope__scaling__type="longrope"))


def test_llama3_factors_divide_the_frequencies_as_the_rule_says(tmp_path: Path) -> None:
    rule = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = {**LLAMA, "head_dim": 16, "rope_scaling": {**rule, "original_max_position_embeddings": 64}}
    expected = []
    for i in range(8):
        frequency = 500000.0 ** -(i / 8)
        wave = 2 * np.pi / frequency
        if wave < 64 / 4:
            scaled = frequency
        elif wave > 64 / 1:
            scaled = frequency / 8
        else:
            smooth = (64 / wave - 1) / (4 - 1)
            scaled = (1 - smooth) * frequency / 8 + smooth * frequency
        expected.append(frequency / scaled)
    factors = rope_factors(config)
    assert factors is not None and np.allclose(factors, expected, rtol=1e-6) and len(set(expected)) > 2
    read = config_from_gguf(model(tmp_path, config, {"rope_freqs.weight": factors}))
    assert np.array_equal(rope_factors(read), factors) and rope_factors(LLAMA) is None


def test_whole_numbers_in_a_config_become_the_floats_they_stand_for(tmp_path: Path) -> None:
    assert config_from_gguf(model(tmp_path, {**LLAMA, "rope_theta": 500000})) == LLAMA


def test_head_counts_may_be_given_layer_by_layer_if_they_agree(tmp_path: Path) -> None:
    assert config_from_gguf(model(tmp_path, LLAMA, llama__attention__head_count_kv=[2, 2])) == LLAMA
    with pytest.raises(UnsupportedError, match="from layer to layer"):
        config_from_gguf(model(tmp_path, LLAMA, llama__attention__head_count_kv=[2, 1]))


OUT_OF_RANGE = [
    ("llama.block_count", (0, 1025, (1 << 32) - 1)),
    ("llama.embedding_length", (0, 65, 65_537)),
    ("llama.attention.head_count", (0, 1025)),
    ("llama.attention.head_count_kv", (0, 3, 1025, [0, 0], [1025, 1025])),
    ("llama.attention.key_length", (0, 15, 65_537)),
    ("llama.rope.dimension_count", (0, 8)),
    ("llama.attention.value_length", (0, 8)),
    ("llama.context_length", (0, 16_777_217)),
    ("llama.feed_forward_length", (0, (1 << 32) - 1)),
    ("llama.attention.layer_norm_rms_epsilon", (np.float32("nan"), np.float32("inf"))),
    ("llama.rope.freq_base", (np.float32("nan"), np.float32("-inf"), np.float32(0))),
    ("tokenizer.ggml.bos_token_id", (32, (1 << 32) - 1)),
    ("tokenizer.ggml.eos_token_id", (32, -1)),
    ("llama.expert_count", (8,)),
    ("llama.rope.scale_linear", (np.float32("nan"),)),
    ("general.architecture", ("", "gpt2", "x" * 1000)),
    ("tokenizer.ggml.tokens", (["t"] * 33,)),
]


@pytest.mark.parametrize("key, values", OUT_OF_RANGE)
def test_a_number_out_of_range_is_refused(tmp_path: Path, key: str, values: tuple[Any, ...]) -> None:
    for value in values:
        file = model(tmp_path, LLAMA, **{key.replace(".", "__"): value})
        with pytest.raises(ModelError) as caught:
            config_from_gguf(file)
        assert len(str(caught.value)) < 300


ALL_TYPES = [
    *(np.dtype(kind).type(1) for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "?", "u8", "i8", "f8")),
    *("1", ["1"], [1], [1.0], np.array([True])),
]


@pytest.mark.parametrize("key", sorted(gguf_from_config(LLAMA)))
def test_a_value_of_the_wrong_type_is_refused(tmp_path: Path, key: str) -> None:
    right = np.asarray(gguf_from_config(LLAMA)[key]).dtype.kind
    for value in ALL_TYPES:
        if np.asarray(value).dtype.kind.replace("u", "i") != right:
            file = model(tmp_path, LLAMA, **{key.replace(".", "__"): value})
            with pytest.raises(ModelError, match=r"must be|not one of"):
                config_from_gguf(file)


def test_rope_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for scaling in ({"rope_type": "linear", "factor": 0.0}, {"rope_type": "yarn", "factor": -1.0}):
        with pytest.raises(FormatError, match="above zero"):
            config_from_gguf(model(tmp_path, {**LLAMA, "rope_scaling": scaling}))
    for factors in (
        np.zeros(8, np.float32),
        np.full(8, np.nan, np.float32),
        np.ones(8, np.float16),
        np.ones(9, "f4"),
    ):
        with pytest.raises(WeightError, match=r"rope_freqs\.weight"):
            config_from_gguf(model(tmp_path, LLAMA, {"rope_freqs.weight": factors}))
    with pytest.raises(FormatError, match="odd"):
        config_from_gguf(model(tmp_path, LLAMA, **{f"llama__{key}": 15 for key in HEAD_WIDTHS}))
    with pytest.raises(UnsupportedError, match="dynamic"):
        gguf_from_config({**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})


HEAD_WIDTHS = ("attention__key_length", "attention__value_length", "rope__dimension_count")


def test_an_embedding_of_another_shape_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WeightError, match="must have rows of 128: got"):
        config_from_gguf(model(tmp_path, LLAMA, llama__embedding_length=128))
    with pytest.raises(FormatError, match="does not divide the embedding length"):
        config_from_gguf(model(tmp_path, {**LLAMA, "head_dim": None}, llama__attention__head_count=6))
    with pytest.raises(FormatError, match="does not divide the embedding length"):
        config_from_gguf(model(tmp_path, BERT, bert__attention__head_count=3))
    monkeypatch.setattr("weft.weights.gguf_config.MAX_VOCAB", 31)
    with pytest.raises(FormatError, match="32 tokens; weft takes at most 31"):
        config_from_gguf(model(tmp_path, LLAMA))


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"llama\.block_count is missing"):
        config_from_gguf(model(tmp_path, LLAMA, llama__block_count=None))


def test_a_model_without_an_embedding_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {}, gguf_from_config(LLAMA))
    with pytest.raises(WeightError, match=r"token_embd\.weight"):
        config_from_gguf(open_gguf(tmp_path / "m.gguf"))


def checkpoint(variable: str) -> str:
    path = os.environ.get(variable)
    if not path or not os.path.exists(path):
        pytest.skip(f"{variable} names no file")
    return path


@pytest.mark.weights
def test_a_real_llama_has_names_and_a_config() -> None:
    file = open_gguf(checkpoint("WEFT_TEST_GGUF"))
    config = config_from_gguf(file)
    assert config["model_type"] == "llama" and len(file.metadata["tokenizer.ggml.tokens"]) <= config["vocab_size"]
    for name in file.tensors:
        known = hf_name("llama", name)
        assert known is None or gguf_name("llama", known) == name


@pytest.mark.weights
def test_real_files_are_rewritten_byte_for_byte(tmp_path: Path) -> None:
    stored = open_gguf(checkpoint("WEFT_TEST_GGUF"))
    write_gguf(tmp_path / "copy.gguf", stored.tensors, stored.metadata.stored())
    assert filecmp.cmp(tmp_path / "copy.gguf", stored.files[0].path, shallow=False)
    plain = open_safetensors(checkpoint("WEFT_TEST_SAFETENSORS"))
    write_safetensors(tmp_path / "copy.safetensors", plain.tensors, plain.metadata)
    assert filecmp.cmp(tmp_path / "copy.safetensors", plain.files[0].path, shallow=False)


@pytest.mark.weights
def test_a_real_bert_can_be_named_for_gguf() -> None:
    file = open_safetensors(checkpoint("WEFT_TEST_SAFETENSORS"))
    names = [gguf_name("bert", name.removeprefix("bert.")) for name in file.tensors]
    stored = [name for name in names if name is not None]
    assert len(set(stored)) == len(stored) > 16 and "token_embd.weight" in stored
