"""What a config becomes in GGUF means the same to its other readers, and what files say is read as they mean it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import config_from_gguf, gguf_from_config, gguf_tensors

from weft.errors import ModelError, UnsupportedError
from weft.models import model_module, model_types
from weft.weights import TensorView, open_gguf, write_gguf

COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "vocab_size": 32,
    "rms_norm_eps": 1e-06,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
}
SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA2: dict[str, Any] = {
    **COMMON,
    "model_type": "gemma2",
    "architectures": ["Gemma2ForCausalLM"],
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "query_pre_attn_scalar": 32,
    "sliding_window": 128,
    "layer_types": [SLIDING, FULL, SLIDING, FULL],
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
GEMMA3: dict[str, Any] = {
    **GEMMA2,
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 20000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING],
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
LLAMA: dict[str, Any] = {**COMMON, "model_type": "llama", "rope_theta": 10000.0, "rope_scaling": None}


def read(folder: Path, config: dict[str, Any], without: tuple[str, ...] = (), **metadata: Any) -> dict[str, Any]:
    """The config read from a GGUF file of this one, after some keys are removed or changed (`__` is a dot)."""
    written = {**gguf_from_config(config), **{key.replace("__", "."): value for key, value in metadata.items()}}
    embedding = {"token_embd.weight": np.zeros((config["vocab_size"], config["hidden_size"]), np.float32)}
    write_gguf(folder / "m.gguf", embedding, {key: value for key, value in written.items() if key not in without})
    return config_from_gguf(open_gguf(folder / "m.gguf"))


@pytest.mark.parametrize("config", [GEMMA2, GEMMA3], ids=["gemma2", "gemma3"])
def test_a_gemma_s_config_survives_the_round_trip(tmp_path: Path, config: dict[str, Any]) -> None:
    assert read(tmp_path, config) == config


def test_gemma2_s_absent_keys_are_the_defaults_of_other_readers(tmp_path: Path) -> None:
    keys = ("attention.sliding_window", "attention.sliding_window_pattern")
    keys = (*keys, "attn_logit_softcapping", "final_logit_softcapping")
    config = read(tmp_path, {**GEMMA2, "sliding_window": 7}, tuple(f"gemma2.{key}" for key in keys))
    assert config == {**GEMMA2, "sliding_window": 4096}


def test_gemma3_without_a_window_slides_nowhere(tmp_path: Path) -> None:
    config = read(tmp_path, GEMMA3, ("gemma3.attention.sliding_window",))
    assert config["layer_types"] == [FULL] * 4 and config["sliding_window"] is None
    keys = ("gemma3.attention.sliding_window_pattern", "gemma3.rope.freq_base_swa")
    config = read(tmp_path, GEMMA3, keys, gemma3__final_logit_softcapping=12.5)
    assert config["layer_types"] == [SLIDING] * 4 and config["rope_local_base_freq"] == 10000.0
    assert config["final_logit_softcapping"] == 12.5


def test_layers_that_slide_may_be_listed(tmp_path: Path) -> None:
    listed = np.array([False, True, True, False])
    config = read(tmp_path, GEMMA3, gemma3__attention__sliding_window_pattern=listed)
    assert config["layer_types"] == [FULL, SLIDING, SLIDING, FULL]
    config = read(tmp_path, GEMMA3, gemma3__attention__sliding_window_pattern=0)
    assert config["layer_types"] == [SLIDING] * 4


@pytest.mark.parametrize(("config", "layers"), [(GEMMA2, 46), (GEMMA3, 62)], ids=["gemma2", "gemma3"])
def test_the_widest_gemma_is_known_by_its_layers(tmp_path: Path, config: dict[str, Any], layers: int) -> None:
    wide = {**config, "num_hidden_layers": layers, "layer_types": None, "query_pre_attn_scalar": 16}
    assert read(tmp_path, wide)["query_pre_attn_scalar"] == 16
    with pytest.raises(UnsupportedError, match="query_pre_attn_scalar that is not 16"):
        gguf_from_config({**wide, "query_pre_attn_scalar": 32})


HOSTILE = [
    ("attention__sliding_window", (1 << 30, -1, 2.0, "x")),
    ("attention__sliding_window_pattern", (4096, -1, 2.0, np.array([True]), [1, 0, 1, 0], ["a"] * 4)),
    ("attn_logit_softcapping", (0.0, -1.0, math.nan, 3, "x")),
    ("final_logit_softcapping", (0.0, -1.0, math.inf, 3, "x")),
]


@pytest.mark.parametrize(("key", "values"), HOSTILE)
def test_a_bad_value_is_refused(tmp_path: Path, key: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ModelError) as caught:
            read(tmp_path, GEMMA2, **{f"gemma2__{key}": value})
        assert key.rpartition("__")[2] in str(caught.value)


def test_a_local_theta_is_above_zero(tmp_path: Path) -> None:
    for value in (0.0, -1.0, math.nan, 7, "x"):
        with pytest.raises(ModelError, match="freq_base_swa"):
            read(tmp_path, GEMMA3, gemma3__rope__freq_base_swa=value)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MAGNITUDE = 1 + 0.1 * math.log(4)  # what the rule itself gives


def test_yarn_s_attention_factor_is_written_for_readers_that_multiply(tmp_path: Path) -> None:
    """Other readers take the rule's own number times attn_factor, and skip yarn_attn_factor."""
    config = {**LLAMA, "rope_scaling": {**YARN, "attention_factor": 1.25}}
    written = gguf_from_config(config)
    assert math.isclose(written["llama.rope.scaling.attn_factor"] * MAGNITUDE, 1.25)
    assert read(tmp_path, config)["rope_scaling"] == config["rope_scaling"]
    plain = gguf_from_config({**LLAMA, "rope_scaling": YARN})
    assert not any("attn_factor" in key for key in plain)


def test_yarn_s_magnitudes_are_written_as_their_quotient() -> None:
    scaling = {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}
    written = gguf_from_config({**LLAMA, "rope_scaling": scaling})
    quotient = MAGNITUDE / (1 + 0.05 * math.log(4))
    assert math.isclose(written["llama.rope.scaling.yarn_attn_factor"], quotient)
    assert math.isclose(written["llama.rope.scaling.attn_factor"] * MAGNITUDE, quotient)


def test_a_factor_that_readers_multiply_with_is_read_so(tmp_path: Path) -> None:
    config = {**LLAMA, "rope_scaling": YARN}
    scaling = read(tmp_path, config, llama__rope__scaling__attn_factor=0.5)["rope_scaling"]
    assert math.isclose(scaling["attention_factor"], 0.5 * MAGNITUDE, rel_tol=1e-7)
    scaling = read(tmp_path, config, llama__rope__scaling__yarn_attn_factor=1.5)["rope_scaling"]
    assert scaling["attention_factor"] == 1.5


def test_a_width_of_heads_that_a_config_leaves_out_is_upstream_s(tmp_path: Path) -> None:
    for kind, dim in (("llama", 16), ("qwen3", 128), ("phi3", 16)):
        config = {**LLAMA, "model_type": kind, "partial_rotary_factor": 0.75}
        assert read(tmp_path, {key: v for key, v in config.items() if key != "head_dim"})["head_dim"] == dim
    assert gguf_from_config({k: v for k, v in config.items() if k != "head_dim"})["phi3.rope.dimension_count"] == 12
    raw = {key: value for key, value in GEMMA2.items() if key not in ("head_dim", "query_pre_attn_scalar")}
    assert read(tmp_path, raw)["head_dim"] == 256


def test_rope_that_gguf_cannot_say_is_refused() -> None:
    for scaling in ({**YARN, "truncate": False}, {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "longrope"}):
        with pytest.raises(UnsupportedError, match="cannot be written"):
            gguf_from_config({**LLAMA, "rope_scaling": scaling})
    with pytest.raises(UnsupportedError, match="'llama3'"):
        gguf_from_config({**LLAMA, "model_type": "qwen2", "rope_scaling": {"rope_type": "llama3"}})


def test_rope_parameters_of_newer_configs_are_written(tmp_path: Path) -> None:
    raw = {key: value for key, value in GEMMA3.items() if not key.startswith("rope")}
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0}
    local = {"rope_type": "default", "rope_theta": 20000.0}
    parameters = {"full_attention": full, "sliding_attention": local}
    assert read(tmp_path, {**raw, "rope_parameters": parameters}) == GEMMA3
    stretched = {**parameters, "sliding_attention": {**local, "rope_type": "linear", "factor": 2.0}}
    with pytest.raises(UnsupportedError, match="of layers that slide"):
        gguf_from_config({**raw, "rope_parameters": stretched})
    read_back = read(tmp_path, {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}})
    assert read_back["rope_scaling"] == {"rope_type": "linear", "factor": 2.0} and read_back["rope_theta"] == 5e5


def test_a_mistral_is_written_as_a_llama_if_it_sees_everything(tmp_path: Path) -> None:
    """A llama file has no window: no reader would apply one."""
    config = {**LLAMA, "model_type": "mistral"}
    for window in (None, 512):
        assert read(tmp_path, {**config, "sliding_window": window})["model_type"] == "llama"
    with pytest.raises(UnsupportedError, match="a sliding_window of 511"):
        gguf_from_config({**config, "sliding_window": 511})
    assert "sliding_window" not in read(tmp_path, LLAMA, llama__attention__sliding_window=7)


def test_a_roberta_is_written_as_a_bert_without_the_rows_before_its_first_position() -> None:
    config = {**COMMON, "model_type": "roberta", "hidden_act": "gelu", "pad_token_id": 1}
    table = np.arange(512 * 2, dtype=np.float32).reshape(512, 2)
    stored = gguf_tensors(config, {"embeddings.position_embeddings.weight": TensorView.of(table)})
    assert np.array_equal(stored["position_embd.weight"].numpy(), table[2:])
    assert gguf_from_config(config)["bert.context_length"] == 510


OLMO2: dict[str, Any] = {**LLAMA, "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "hidden_act": "silu"}
SMOLLM3: dict[str, Any] = {**OLMO2, "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"]}
SMOLLM3 |= {"no_rope_layer_interval": 4, "rope_theta": 5000000.0}


@pytest.mark.parametrize("config", [OLMO2, SMOLLM3], ids=["olmo2", "smollm3"])
def test_an_olmo2_s_and_a_smollm3_s_config_survive_the_round_trip(tmp_path: Path, config: dict[str, Any]) -> None:
    assert read(tmp_path, config) == config


def test_an_olmo2_file_with_a_window_is_an_olmo3(tmp_path: Path) -> None:
    windowed = {"model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], "sliding_window": 128}
    assert read(tmp_path, OLMO2, olmo2__attention__sliding_window=128) == {**OLMO2, **windowed}
    assert read(tmp_path, OLMO2, olmo2__attention__sliding_window=0) == OLMO2


def test_a_smollm3_is_written_if_every_fourth_layer_does_not_rotate() -> None:
    plain = {key: value for key, value in SMOLLM3.items() if key not in ("no_rope_layer_interval", "rope_theta")}
    assert gguf_from_config(plain)["smollm3.rope.freq_base"] == 2000000.0
    gguf_from_config({**plain, "no_rope_layers": [1, 1, 1, 0]})
    for changes in ({"no_rope_layers": [1, 0, 1, 0]}, {"no_rope_layer_interval": 2}):
        with pytest.raises(UnsupportedError, match="no_rope_layers other than every fourth"):
            gguf_from_config({**plain, **changes})


def test_only_the_pairs_of_a_llama_and_its_nearest_lie_side_by_side() -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    paired = {kind for kind in model_types() if (g := model_module(kind).GGUF) and g.row_order(name, LLAMA) is not None}
    assert paired == {"granite", "granitemoehybrid", "llama", "mistral", "mixtral", "smollm3"}
