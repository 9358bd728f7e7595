"""compute="auto" takes int8 where its vectors stay near those of f32, by measurement, and not where they do not."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from tiny_st import TEXTS, TOKENIZER

import weft
from weft.embed import computing
from weft.errors import UnsupportedError
from weft.weights import write_safetensors

SIZES = {"vocab_size": 221, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4}


def nomic_folder(folder: Path, outliers: int, factor: float = 100.0) -> Path:
    """A random nomic_bert. In each layer `outliers` channels of the gated product are `factor` times as large, and
    their columns of the next matrix are smaller by as much: in exact arithmetic the model is the same."""
    cfg = {**tiny.NOMIC_BERT, **SIZES}
    stored, rng = tiny.weights(cfg), np.random.default_rng(5)
    for layer in range(cfg["num_hidden_layers"]):
        up, down = (f"layers.{layer}.mlp.{name}_proj.weight" for name in ("up", "down"))
        channels = rng.choice(cfg["intermediate_size"], outliers, replace=False)
        stored[up], stored[down] = stored[up].copy(), stored[down].copy()
        stored[up][channels] *= np.float32(factor)
        stored[down][:, channels] /= np.float32(factor)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(cfg))
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(TOKENIZER.read_text())["tokenizer"]))
    write_safetensors(folder / "model.safetensors", stored)
    return folder


def loaded(folder: Path, compute: str) -> weft.Embedder:
    return weft.Embedder(str(folder), pooling="mean", normalise=True, compute=compute)


def lowest(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum(axis=1).min())


@pytest.mark.parametrize("outliers", [0, 1])
def test_int8_is_taken_where_it_stays_near(tmp_path: Path, outliers: int) -> None:
    """One large activation of a token has room beside the others: decision 0011."""
    folder = nomic_folder(tmp_path / "model", outliers)
    made = loaded(folder, "auto")
    assert made.info["compute"] == "int8" and made.info["compute_errors"].keys() == {"int8"}
    assert made.info["compute_errors"]["int8"] < 1 - computing.LEAST_COSINE
    assert made.fingerprint == loaded(folder, "int8").fingerprint
    assert lowest(made.encode(TEXTS), loaded(folder, "f32").encode(TEXTS)) > 0.995


def test_several_large_activations_of_a_token_are_too_many_for_int8(tmp_path: Path) -> None:
    folder = nomic_folder(tmp_path / "model", 16)
    exact, made, rounded = (loaded(folder, compute) for compute in ("f32", "auto", "int8"))
    assert made.info["compute_errors"]["int8"] > 1 - computing.LEAST_COSINE
    assert made.info["compute"] != "int8" and "auto" not in repr(made)
    assert lowest(rounded.encode(TEXTS), exact.encode(TEXTS)) < 0.995
    assert lowest(made.encode(TEXTS), exact.encode(TEXTS)) > 0.999


def test_a_pickle_has_what_was_chosen(tmp_path: Path) -> None:
    import pickle

    made = loaded(nomic_folder(tmp_path / "model", 0), "auto")
    again = pickle.loads(pickle.dumps(made))
    assert again.info["compute"] == "int8" and again.fingerprint == made.fingerprint


def test_where_nothing_is_faster_f32_is_taken(tiny_folder: Path) -> None:
    made = weft.Embedder(str(tiny_folder), compute="auto", backend="reference")
    assert made.info["compute"] == "f32" and made.info["compute_errors"] == {}
    assert "compute_errors" not in weft.Embedder(str(tiny_folder)).info
    with pytest.raises(UnsupportedError, match=r"compute must be one of .*auto: got 'fast'"):
        weft.Embedder(str(tiny_folder), compute="fast")
