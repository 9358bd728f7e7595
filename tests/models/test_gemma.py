"""The text part of a larger Gemma 3 is found in folders of either layout, and nothing else of it is read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from weft.errors import FormatError
from weft.runtime import Decoder, open_checkpoint
from weft.weights import write_safetensors

VISION = {"vision_tower.patch.weight": np.ones((4, 4), np.float32)}
LARGER = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 5]}


def old_layout(name: str) -> str:
    return f"language_model.{name}"


def new_layout(name: str) -> str:
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def write_larger(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.mark.parametrize("layout", [old_layout, new_layout])
@pytest.mark.parametrize("name", ["gemma3_text", "gemma3_text-linear-capped"])
def test_a_larger_model_s_text_part_is_the_model_alone(tmp_path: Path, name: str, layout: Any) -> None:
    cfg = tiny.CONFIGS[name]
    config = {**LARGER, "text_config": cfg, "vision_config": {"hidden_size": 4}}
    config["tie_word_embeddings"] = cfg["tie_word_embeddings"]
    tensors = {layout(key): values for key, values in tiny.weights(cfg).items()}
    larger = Decoder(open_checkpoint(write_larger(tmp_path / "larger", config, {**tensors, **VISION})))
    alone = Decoder(open_checkpoint(tiny.write_folder(tmp_path / "alone", cfg)))
    ids = tiny.token_ids(cfg, 130)
    assert np.array_equal(larger.logits(ids), alone.logits(ids))
    assert larger.eos_ids == {1, 5} and set(larger.checkpoint.tensors) == set(alone.checkpoint.tensors)


def test_what_the_text_part_leaves_out_is_upstream_s_default(tmp_path: Path) -> None:
    """The file of the 4B model names five values and a scaling."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    config = {**LARGER, "text_config": {**text, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}}
    decoder = Decoder(open_checkpoint(write_larger(tmp_path / "larger", config, VISION)), bind=False)
    cfg = decoder.config
    assert (cfg.num_attention_heads, cfg.kv_heads, cfg.channels, cfg.vocab_size) == (8, 4, 256, 262_208)
    assert cfg.tie_word_embeddings and decoder.checkpoint.model_type == "gemma3_text"


def test_a_larger_model_without_a_text_part_is_refused(tmp_path: Path) -> None:
    for i, text in enumerate((None, [], "gemma3_text")):
        folder = write_larger(tmp_path / str(i), {**LARGER, "text_config": text}, VISION)
        with pytest.raises(FormatError, match="text_config must be an object in a gemma3"):
            open_checkpoint(folder)
