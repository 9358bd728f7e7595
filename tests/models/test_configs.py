"""Values that a model does not know are refused by name; both spellings of rope settings mean the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from weft.errors import InputError, ModelError, UnsupportedError, WeightError
from weft.nn import read_config, rope
from weft.runtime import Decoder, Encoder, Head, open_checkpoint
from weft.runtime.programs import model_module

REFUSED = [
    ({**tiny.QWEN2, "hidden_act": "swish7"}, "qwen2", "hidden_act", "got 'swish7'; weft knows silu, gelu"),
    (
        {**tiny.QWEN3, "layer_types": ["full_attention", "chunked_attention"]},
        *("qwen3", "layer_types", "got 'chunked_attention'; weft knows full_attention, sliding_attention"),
    ),
    (
        {**tiny.QWEN3, "layer_types": ["full_attention"]},
        "qwen3",
        "layer_types",
        "for each of 2 layers: got '1 entries'",
    ),
    ({**tiny.LLAMA, "head_dim": 7}, "llama", "head_dim", "must be even and above zero: got 7"),
    ({**tiny.LLAMA, "hidden_size": 2}, "llama", "hidden_size", r"num_attention_heads \(6\) an even number .*: got 2"),
    ({**tiny.MISTRAL, "num_key_value_heads": 4}, "mistral", "num_attention_heads", r"num_key_value_heads \(4\): got 6"),
    (
        {**tiny.LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
        *("config", "rope_parameters", "differs by layer type, .*: got 'full_attention'"),
    ),
    (
        {**tiny.GEMMA3, "rope_parameters": {"chunked_attention": {}}},
        *("config", "rope_parameters", "differs by layer type, .*: got 'chunked_attention'"),
    ),
    ({**tiny.GEMMA2, "hidden_activation": "gelu_9"}, "gemma2", "hidden_activation", "got 'gelu_9'; weft knows silu"),
    ({**tiny.GEMMA2, "layer_types": ["full_attention"]}, "gemma2", "layer_types", "each of 3 layers: got '1 entries'"),
    ({**tiny.GEMMA2, "use_bidirectional_attention": True}, "gemma2", "use_bidirectional_attention", "runs .* causally"),
    (
        {**tiny.GEMMA2, "sliding_window": None},
        "gemma2",
        "sliding_window",
        "must not be null: some layers have a window",
    ),
    ({**tiny.MODERNBERT, "layer_types": ["full_attention"]}, "modernbert", "layer_types", "for each of 4 layers"),
    ({**tiny.MODERNBERT, "classifier_pooling": "max"}, "modernbert", "classifier_pooling", "got 'max'; weft knows cls"),
    ({**tiny.MODERNBERT, "hidden_activation": "gelu_9"}, "modernbert", "hidden_activation", "got 'gelu_9'; weft knows"),
    (
        {**tiny.MODERNBERT, "num_attention_heads": 16},
        "modernbert",
        "hidden_size",
        r"num_attention_heads \(16\): got 48",
    ),
    (
        {**tiny.NOMIC_BERT, "activation_function": "gelu"},
        *("nomic_bert", "activation_function", "got 'gelu'; weft knows only swiglu"),
    ),
    ({**tiny.NOMIC_BERT, "num_experts": 8}, "nomic_bert", "num_experts", "is not supported: got 8"),
    ({**tiny.NOMIC_BERT, "head_dim": 10}, "nomic_bert", "hidden_size", r"even head_dim \(10\): got 48"),
    ({**tiny.GEMMA3, "attn_logit_softcapping": 50.0}, "gemma3_text", "attn_logit_softcapping", "got 50.0"),
    ({**tiny.BERT, "is_decoder": True}, "bert", "is_decoder", "with bidirectional attention"),
    ({**tiny.ROBERTA, "is_decoder": True}, "roberta", "is_decoder", "with bidirectional attention"),
]


for kind, script in tiny.SCRIPTS.items():
    REFUSED += [({**script.CONFIGS[kind], **changes}, kind, field, words) for changes, field, words in script.REFUSED]


def config_of(raw: dict[str, Any]) -> Any:
    return read_config(model_module(raw["model_type"]).Config, raw)


@pytest.mark.parametrize(("raw", "where", "field", "message"), REFUSED)
def test_unknown_values_are_refused_by_name(raw: dict[str, Any], where: str, field: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        config_of(raw)
    assert (caught.value.where, caught.value.field) == (where, field)


def test_a_model_that_reads_both_ways_does_not_generate(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "gemma", tiny.CONFIGS["gemma3_text-both-ways"])
    with pytest.raises(UnsupportedError, match="it embeds and does not generate"):
        Decoder(open_checkpoint(folder))
    for cfg in (tiny.LLAMA, tiny.QWEN3, tiny.GEMMA2, tiny.GEMMA3):
        folder = tiny.write_folder(tmp_path / cfg["model_type"], {**cfg, "is_causal": False})
        with pytest.raises(UnsupportedError, match="it embeds and does not generate"):
            Decoder(open_checkpoint(folder))


@pytest.mark.parametrize(("name", "same"), [("swish", "silu"), ("gelu_python", "gelu"), ("gelu_fast", "gelu_new")])
def test_an_activation_has_several_names(tmp_path: Path, name: str, same: str) -> None:
    found = [
        Encoder(open_checkpoint(tiny.write_folder(tmp_path / act, {**tiny.BERT, "hidden_act": act})), Head("mean"))
        for act in (name, same)
    ]
    assert np.array_equal(*(encoder.hidden_states([1, 2, 3]) for encoder in found))


LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.0, 2.0, 2.0], "long_factor": [4.0] * 4}
SCALINGS = [
    ({"rope_type": "spiral"}, "rope_type is not supported: got 'spiral'; weft knows default"),
    ({"rope_type": "linear"}, "factor must be a number above zero: got None"),
    ({"rope_type": "yarn", "factor": -1.0}, "factor must be .*: got -1.0"),
    ({"rope_type": ["linear"]}, "rope_type is not supported"),
    ({"rope_type": "linear", "factor": True}, "factor must be .*: got True"),
    ({"rope_type": "linear", "factor": 10**30}, "factor must be .*: got 1000"),
    ({"rope_type": "linear", "factor": 1e-300}, "factor must be .*: got 1e-300"),
    ({"rope_type": "dynamic"}, "factor must be .*: got None"),
    (
        {"rope_type": "llama3", "factors": [1.0, 2.0]},
        "factors must have one .* of 4 pairs: got '2 numbers'",
    ),
    ({"rope_type": "llama3", "factors": 4.0}, "each of 4 pairs: got '0 numbers'"),
    ({**tiny.LLAMA3_ROPE, "low_freq_factor": 4.0}, r"low_freq_factor must be below high_freq_factor \(4.0\): got 4.0"),
    ({"rope_type": "longrope", "short_factor": [1.0] * 4}, "long_factor must have one number .*: got '0 numbers'"),
    (
        {"rope_type": "longrope", "short_factor": [1.0, 2.0, None, 4.0], "long_factor": [1.0] * 4},
        "short_factor must",
    ),
    (
        {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, "2", 3.0, 4.0]},
        "long_factor must hold",
    ),
    (
        {**LONG, "original_max_position_embeddings": 1},
        "embeddings must be above 1 for longrope: got 1",
    ),
    (
        {**LONG, "original_max_position_embeddings": 0},
        "embeddings must be a number above zero: got 0",
    ),
]


@pytest.mark.parametrize(("scaling", "message"), SCALINGS)
def test_a_scaling_that_cannot_be_is_refused(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        rope(8, 10_000.0, scaling, positions=256)


def test_rope_parameters_are_theta_and_scaling() -> None:
    old = config_of({**tiny.LLAMA, "rope_theta": 5e5, "rope_scaling": tiny.LLAMA3_ROPE})
    raw = {key: value for key, value in tiny.LLAMA.items() if key != "rope_theta"}
    new = config_of({**raw, "rope_parameters": {**tiny.LLAMA3_ROPE, "rope_theta": 5e5}})
    turns = [rope(8, cfg.rope_theta, cfg.rope_scaling).frequencies for cfg in (old, new)]
    assert new.rope_theta == 5e5 and np.array_equal(*turns)


def test_an_absent_window_is_the_default_and_null_is_none() -> None:
    absent = {key: value for key, value in tiny.MISTRAL.items() if key != "sliding_window"}
    assert config_of(absent).window(0) == 4096
    assert config_of({**absent, "sliding_window": None}).window(0) == 0


def test_listed_layer_types_go_before_the_rule() -> None:
    raw = {**tiny.QWEN2, "use_sliding_window": True, "max_window_layers": 1}
    assert [config_of(raw).window(layer) for layer in (0, 1)] == [0, 8]
    listed = config_of({**raw, "layer_types": ["sliding_attention", "full_attention"]})
    assert [listed.window(layer) for layer in (0, 1)] == [8, 0]


def test_a_fused_tensor_of_another_size_is_refused(tmp_path: Path) -> None:
    """The rows that the model wants are there, but not at these places."""
    folder = tiny.write_folder(tmp_path / "phi3", tiny.PHI3)
    (folder / "config.json").write_text(json.dumps({**tiny.PHI3, "num_key_value_heads": 1}))
    with pytest.raises(WeightError, match=r"qkv_proj.weight has shape \(80, 48\), the model wants \(64, 48\)"):
        Decoder(open_checkpoint(folder))


NO_NUMBERS = (0, -1, float("nan"), float("inf"), True, "8", [8], {})
NO_COUNTS = (0, -1, 1 << 40, 2.5, True, "8", [8])
HOSTILE: list[tuple[str, tuple[Any, ...]]] = [
    ("query_pre_attn_scalar", NO_NUMBERS),
    ("attn_logit_softcapping", NO_NUMBERS),
    ("final_logit_softcapping", NO_NUMBERS),
    ("rope_theta", NO_NUMBERS),
    ("rope_local_base_freq", NO_NUMBERS),
    ("rms_norm_eps", NO_NUMBERS),
    ("sliding_window", NO_COUNTS),
    ("sliding_window_pattern", NO_COUNTS),
    ("hidden_activation", (1, "", [], {})),
    ("layer_types", ("full_attention", [1, 2, 3], [None] * 3, {}, [])),
    ("use_bidirectional_attention", (1, "no")),
    ("rope_parameters", ({"full_attention": {"rope_theta": -1.0}}, {"sliding_attention": {"rope_theta": "x"}})),
    ("rope_parameters", ({"full_attention": {}, "sliding_attention": 5}, {"full_attention": [1], "x": {}})),
]


@pytest.mark.parametrize(("name", "values"), HOSTILE)
def test_a_bad_value_is_an_error_of_the_model(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ModelError) as caught:
            config_of({**tiny.GEMMA3, name: value})
        assert name.partition("_p")[0] in str(caught.value) or "hidden_act" in str(caught.value)


def test_theta_of_a_rotation_is_at_least_one() -> None:
    for theta in (0.0, -1.0, 0.99, float("nan"), float("inf")):
        with pytest.raises(UnsupportedError, match="rope_theta"):
            rope(8, theta)
    with pytest.raises(UnsupportedError, match="rope_theta must be above 1 for yarn"):
        rope(8, 1.0, tiny.YARN, positions=256)


def test_layers_that_slide_turn_by_their_own_theta() -> None:
    old = config_of({**tiny.GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    raw = {key: value for key, value in tiny.GEMMA3.items() if not key.startswith("rope")}
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    new = config_of({**raw, "rope_parameters": parameters})
    for cfg in (old, new):
        turns = [cfg.rotation(layer, 0) for layer in range(3)]
        assert [turn.name for turn in turns] == ["rope.local.inv_freq", "rope.inv_freq", "rope.local.inv_freq"]
        assert np.array_equal(turns[0].frequencies, rope(16, 1e4).frequencies)
        assert np.array_equal(turns[1].frequencies * np.float32(8), rope(16, 1e6).frequencies)
    both = {kind: {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4} for kind in parameters}
    turns = [config_of({**raw, "rope_parameters": both}).rotation(layer, 0).frequencies for layer in (0, 1)]
    assert np.array_equal(*turns) and np.array_equal(turns[0], rope(16, 1e4).frequencies / np.float32(2))


def test_every_sixth_layer_sees_everything_unless_said_otherwise() -> None:
    raw = {key: value for key, value in tiny.GEMMA3.items() if key != "sliding_window_pattern"}
    cfg = config_of({**raw, "num_hidden_layers": 8})
    assert [cfg.window(layer) for layer in range(8)] == [37] * 5 + [0] + [37] * 2
    assert [config_of(tiny.GEMMA2).window(layer) for layer in range(3)] == [37, 0, 37]


def test_a_context_is_by_default_one_that_reads_short_texts_as_ever(tmp_path: Path) -> None:
    longrope = open_checkpoint(tiny.write_folder(tmp_path / "phi3", tiny.CONFIGS["phi3-part-longrope"]))
    dynamic = open_checkpoint(tiny.write_folder(tmp_path / "llama", tiny.CONFIGS["llama-dynamic-rope"]))
    for checkpoint, most in ((longrope, 1024), (dynamic, 768)):
        assert Decoder(checkpoint, bind=False).max_context == 256
        assert Decoder(checkpoint, context=most, bind=False).max_context == most
        with pytest.raises(InputError, match=f"context must be 1 to {most}"):
            Decoder(checkpoint, context=most + 1, bind=False)


def test_the_context_decides_once_how_far_dynamic_rope_is_stretched() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    plain = rope(8, 1e4).frequencies
    for context in (1, 256):
        assert np.array_equal(rope(8, 1e4, scaling, positions=256, context=context).frequencies, plain)
    theta = 1e4 * (2.0 * 512 / 256 - 1.0) ** (8 / 6)
    assert np.array_equal(rope(8, 1e4, scaling, positions=256, context=512).frequencies, rope(8, theta).frequencies)
