"""Gemma 4's layers have heads of their own sizes, and some read another's pages: nothing else in weft knows of it."""

from pathlib import Path
from typing import Any

import numpy as np
import tiny

from weft.generate import Engine, Request
from weft.runtime import Decoder, open_checkpoint

CONFIG: dict[str, Any] = tiny.CONFIGS["gemma4_text"]
IDS = tiny.token_ids(CONFIG, 130)


def logits(folder: Path) -> np.ndarray:
    return Decoder(open_checkpoint(folder)).logits(IDS)


def test_sizes_by_layer_and_those_of_layers_without_a_window_are_the_same(tmp_path: Path) -> None:
    """Newer files list the layers that differ."""
    newer = {key: value for key, value in CONFIG.items() if key != "global_head_dim"}
    newer["per_layer_config"] = {"2": {"head_dim": 32}, "5": {"head_dim": 32}}
    weights = tiny.weights(CONFIG)
    folders = [tiny.write_folder(tmp_path / str(i), cfg, weights) for i, cfg in enumerate((CONFIG, newer))]
    assert np.array_equal(*map(logits, folders))


def test_the_text_part_of_a_model_with_images_is_found(tmp_path: Path) -> None:
    outer = {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "text_config": CONFIG}
    inside = {name.replace("model.", "model.language_model.", 1): v for name, v in tiny.weights(CONFIG).items()}
    inside["model.vision_tower.patch.weight"] = np.ones((4, 4), np.float32)
    larger = tiny.write_folder(tmp_path / "larger", {**outer, "tie_word_embeddings": True}, inside)
    assert np.array_equal(logits(larger), logits(tiny.write_folder(tmp_path / "alone", CONFIG)))


def test_only_layers_with_keys_and_values_of_their_own_have_pages(tmp_path: Path) -> None:
    """And sharing, preemption and going on after a hit change no bit."""
    checkpoint = open_checkpoint(tiny.write_folder(tmp_path / "m", CONFIG))
    decoder = Decoder(checkpoint, context=256, kv_tokens=256)
    states = {state.name: state.spec.shape for state in decoder.program.states}
    assert states == {"kv.0": (2, 16), "kv.1": (2, 16), "kv.2": (2, 32)}
    small = Engine(decoder, step_tokens=64)
    plain = Engine(Decoder(checkpoint, context=256), prefix_cache=False, speculate=False)
    begun = tuple(IDS[:70].tolist())
    requests = [Request((*begun, seed, seed + 1), max_tokens=50, ignore_eos=True, logprobs=1) for seed in range(6)]
    found = [handle.result() for handle in [small.submit(request) for request in requests]]
    for result, request in zip(found, requests):
        alone = plain.submit(request).result()
        assert (result.tokens, result.logprobs) == (alone.tokens, alone.logprobs)
    assert small.preemptions and small.stats().cached_tokens
