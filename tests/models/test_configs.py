"""Values that a model does not know are refused by name; both spellings of rope settings mean the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from weft.errors import UnsupportedError, WeightError
from weft.nn import read_config, rope
from weft.runtime import Decoder, open_checkpoint
from weft.runtime.programs import model_module

REFUSED = [
    ({**tiny.QWEN2, "hidden_act": "swish7"}, r"\[qwen2\] hidden_act 'swish7'"),
    (
        {**tiny.QWEN3, "layer_types": ["full_attention", "chunked_attention"]},
        r"\[qwen3\] layer_types chunked_attention",
    ),
    ({**tiny.QWEN3, "layer_types": ["full_attention"]}, r"\[qwen3\] 1 layer_types for 2 layers"),
    ({**tiny.MISTRAL, "num_key_value_heads": 4}, r"\[mistral\] 6 heads do not share 4"),
    ({**tiny.LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differ from layer to layer"),
]


def config_of(raw: dict[str, Any]) -> Any:
    return read_config(model_module(raw["model_type"]).Config, raw)


@pytest.mark.parametrize(("raw", "message"), REFUSED)
def test_unknown_values_are_refused_by_name(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        config_of(raw)


SCALINGS = [
    ({"rope_type": "spiral"}, "unknown rope scaling: 'spiral'"),
    ({"rope_type": "linear"}, "factor is None"),
    ({"rope_type": "yarn", "factor": -1.0}, "factor is -1.0"),
    ({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}, "past 64 positions and 256"),
    ({"rope_type": "llama3", "factors": [1.0, 2.0]}, "2 rope factors for 4 pairs"),
]


@pytest.mark.parametrize(("scaling", "message"), SCALINGS)
def test_a_scaling_that_cannot_be_exact_is_refused(scaling: dict[str, Any], message: str) -> None:
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


def test_longrope_past_the_original_context_names_the_context_to_ask_for(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny.write_folder(tmp_path / "phi3", tiny.CONFIGS["phi3-part-longrope"]))
    with pytest.raises(UnsupportedError, match="give a context of at most 256"):
        Decoder(checkpoint)
