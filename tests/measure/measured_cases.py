"""Two tiny models, of which one has noise in its matrices, and a text, for tests and the script of goldens."""

from pathlib import Path
from typing import Any

import numpy as np
import tiny
from tiny_chat import CONFIG, TEMPLATE, tokenizer_keys
from tiny_gguf import gguf_from_config, gguf_tensors

from weft.weights import TensorView, write_gguf

TEXT = (
    "The loom holds the warp threads under tension, and the weft is drawn through them, over one and under the next. "
    "Größe, façade: letters of two bytes. A weaver who counts 3, 5, 8 and 13 threads makes no mistake twice.\n\n"
    "= Patterns =\n\nTwill goes over two and under one; each row begins one thread later than the row before it."
)
SLIDING = {"standard": (64, 32), "uneven": (50, 17), "one_window": (2048, 256)}
LLAMA = {"llama_64": 64, "llama_33": 33}
NOISE = 0.2  # of a matrix's own spread


def tensors(noise: float = 0.0) -> dict[str, np.ndarray]:
    """The weights by their names in checkpoints, float32."""
    rng, found = np.random.default_rng(5), tiny.weights(CONFIG)
    for name in sorted(found):
        if found[name].ndim > 1 and noise:
            drawn = rng.standard_normal(found[name].shape)
            found[name] = (found[name] + noise * found[name].std() * drawn).astype(np.float32)
    return found


def write_model(path: Path, noise: float = 0.0, **metadata: Any) -> Path:
    """A GGUF file of the model, with a token for each byte of a text."""
    made = gguf_tensors(CONFIG, {name: TensorView.of(values) for name, values in tensors(noise).items()})
    keys = {**gguf_from_config(CONFIG), **tokenizer_keys(), "tokenizer.chat_template": TEMPLATE}
    write_gguf(path, made, {**keys, **{name.replace("__", "."): value for name, value in metadata.items()}})
    return path


def ids() -> np.ndarray:
    """The tokens of TEXT: the places of its bytes in the vocabulary are those of the bytes themselves."""
    return np.frombuffer(TEXT.encode(), np.uint8).astype(np.int64)
