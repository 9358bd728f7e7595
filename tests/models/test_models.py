"""Tiny random checkpoints give what transformers computes, in one step, in chunks and token by token."""

from pathlib import Path

import numpy as np
import pytest
import tiny

from weft.errors import TooLongError
from weft.runtime import Decoder, Encoder, Head, open_checkpoint
from weft.runtime.programs import model_module
from weft.weights import write_safetensors

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "models" / "tiny-models.npz")
LIMIT = 2e-4
CONTEXT = 256  # longrope is exact up to the original context only
DECODERS = [name for name, cfg in tiny.CONFIGS.items() if model_module(cfg["model_type"]).KIND == "decoder"]
ENCODERS = [name for name in tiny.CONFIGS if name not in DECODERS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {name: tiny.write_folder(root / name, cfg) for name, cfg in tiny.CONFIGS.items()}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("length", tiny.LENGTHS)
def test_logits_are_those_of_transformers(folders: dict[str, Path], name: str, length: int) -> None:
    decoder = Decoder(open_checkpoint(folders[name]), context=CONTEXT)
    ids = tiny.token_ids(tiny.CONFIGS[name], length)
    whole = decoder.logits(ids)
    assert np.abs(whole - GOLDEN[f"{name}/130"][:length]).max() <= LIMIT
    assert np.array_equal(whole, decoder.logits(ids, chunk=16))
    assert np.array_equal(whole, decoder.logits(ids, chunk=1))
    assert decoder.pages.free_count == decoder.pages.count


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("length", tiny.LENGTHS)
def test_hidden_states_are_those_of_transformers(folders: dict[str, Path], name: str, length: int) -> None:
    encoder = Encoder(open_checkpoint(folders[name]), Head("mean"))
    hidden = encoder.hidden_states(tiny.token_ids(tiny.CONFIGS[name], length))
    assert np.abs(hidden - GOLDEN[f"{name}/{length}"]).max() <= LIMIT


@pytest.mark.parametrize(("name", "limit"), [("bert", 160), ("roberta", 130), ("xlm_roberta", 130)])
def test_a_text_longer_than_the_position_table_is_refused(folders: dict[str, Path], name: str, limit: int) -> None:
    encoder = Encoder(open_checkpoint(folders[name]), Head("mean"))
    assert encoder.hidden_states([5] * limit).shape[0] == limit
    with pytest.raises(TooLongError, match=f"{limit + 1} tokens, the model takes {limit}"):
        encoder.hidden_states([5] * (limit + 1))


@pytest.mark.parametrize("name", ["roberta", "xlm_roberta"])
def test_tensors_saved_inside_a_larger_model_are_found(tmp_path: Path, folders: dict[str, Path], name: str) -> None:
    cfg = tiny.CONFIGS[name]
    ids, folder = tiny.token_ids(cfg, 7), tiny.write_folder(tmp_path / name, cfg)
    write_safetensors(folder / "model.safetensors", {f"roberta.{key}": v for key, v in tiny.weights(cfg).items()})
    inside, alone = (Encoder(open_checkpoint(path), Head("mean")) for path in (folder, folders[name]))
    assert np.array_equal(inside.hidden_states(ids), alone.hidden_states(ids))


@pytest.mark.parametrize("name", ["llama-grouped", "llama-llama3-rope"])
def test_a_half_precision_state_stays_close(folders: dict[str, Path], name: str) -> None:
    decoder = Decoder(open_checkpoint(folders[name]), kv_dtype="f16")
    logits, want = decoder.logits(tiny.token_ids(tiny.CONFIGS[name], 130)), GOLDEN[f"{name}/130"]
    assert np.linalg.norm(logits - want) <= 1e-3 * np.linalg.norm(want)  # keys and values have 11 bits


@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS])
@pytest.mark.parametrize("level", ["scalar", "avx2", "avx512"])
def test_every_level_gives_the_model(folders: dict[str, Path], name: str, level: str) -> None:
    from weft.backends.cpu import levels_present

    if level not in levels_present():
        pytest.skip(f"this machine has no {level}")
    cfg, checkpoint = tiny.CONFIGS[name], open_checkpoint(folders[name])
    if name in DECODERS:
        result = Decoder(checkpoint, context=CONTEXT, level=level).logits(tiny.token_ids(cfg, 40))
        want = GOLDEN[f"{name}/130"][:40]
    else:
        result = Encoder(checkpoint, Head("mean"), level=level).hidden_states(tiny.token_ids(cfg, 40))
        want = GOLDEN[f"{name}/40"]
    assert np.abs(result - want).max() <= LIMIT
