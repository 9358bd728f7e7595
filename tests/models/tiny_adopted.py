"""Tiny random checkpoints of types that weft has no file for: configs and shapes as transformers makes them
(tests/golden/adopt/adopted.json), and weights that come from a seed alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "adopt"
LENGTH = 130  # tokens of the one text whose results are kept


def made() -> dict[str, dict[str, Any]]:
    """Name -> config, and the shape of every tensor of the file."""
    found: dict[str, dict[str, Any]] = json.loads((GOLDEN / "adopted.json").read_text(encoding="utf-8"))
    return found


def weights(shapes: dict[str, Any]) -> dict[str, np.ndarray]:
    """Every tensor, float32: matrices near 1/sqrt(inputs), weights of norms near one, biases near zero."""
    tensors = {}
    for seed, (name, shape) in enumerate(sorted(shapes.items()), 1):
        values = tiny.uniform(seed * 1_000_003, int(np.prod(shape))).reshape(shape)
        if len(shape) > 1:
            tensors[name] = values * np.float32(2.0 / np.sqrt(shape[-1]))
        else:
            tensors[name] = np.float32(0.1) * values + np.float32(name.endswith("weight"))
    return tensors


def write(folder: Path, name: str) -> Path:
    """The folder of a tiny model, without tokenizer files."""
    model = made()[name]
    return tiny.write_folder(folder, model["config"], weights(model["shapes"]))
