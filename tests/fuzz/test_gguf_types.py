"""A GGUF key of another type than it must have is refused by name: every key, every type, alone and in an array."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from seeds_models import LLAMA, vocabulary
from tiny_gguf import config_from_gguf, gguf_from_config

from weft.errors import FormatError, UnsupportedError
from weft.text import Tokenizer
from weft.weights import open_gguf, write_gguf

SCALARS: dict[str, Any] = {
    **{name: np.dtype(name).type(1) for name in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")},
    "bool": np.bool_(True),
    "str": "odd",
}
FAMILIES = {name: "int" for name in SCALARS if name[0] in "ui"} | {
    "f4": "float",
    "f8": "float",
    "bool": "bool",
    "str": "str",
}
# Keys that weft reads only where something else asks for them, or not at all.
UNREAD = {"general.name", "general.file_type", "tokenizer.ggml.token_type_count"}
PHI3 = {**tiny.PHI3, "hidden_size": 32, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1}


def metadata(kind: str) -> dict[str, Any]:
    config = {"llama": LLAMA, "bert": {**tiny.BERT, "hidden_size": 32}, "phi3": PHI3}[kind]
    words = vocabulary("gpt2" if kind == "phi3" else "llama")
    flags = {f"tokenizer.ggml.add_{name}": True for name in ("bos_token", "eos_token", "space_prefix")}
    ids = {
        f"tokenizer.ggml.{name}_token_id": 256
        for name in ("bos", "eos", "unknown", "padding", "cls", "mask", "seperator")
    }
    return {**gguf_from_config(config), **words, **flags, **ids}


def family(value: Any) -> tuple[str, bool]:
    """Which kind of value this is, and whether there are several."""
    if isinstance(value, (list, np.ndarray)):
        return family(value[0])[0], True
    if isinstance(value, (bool, np.bool_)):
        return "bool", False
    if isinstance(value, str):
        return "str", False
    return "int" if isinstance(value, (int, np.integer)) else "float", False


def others(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Values of every other kind."""
    kind, several = family(value)
    per_layer = kind == "int" and not key.startswith("tokenizer")  # one number, or a list of equal ones
    for name, scalar in SCALARS.items():
        if FAMILIES[name] != kind or several:
            yield name, scalar
        if FAMILIES[name] != kind or not (several or per_layer):
            yield f"a list of {name}", ["odd"] * 264 if name == "str" else np.full(264, scalar)


def complaint(path: Path, key: str) -> str | None:
    """What is wrong with how a file is read whose `key` is of another type; None when it is refused by name."""
    try:
        with open_gguf(path) as file:
            config_from_gguf(file)
            Tokenizer.from_gguf(file.metadata)
    except (FormatError, UnsupportedError) as error:
        return None if key in str(error) else str(error)
    except Exception as error:
        return repr(error)
    return "it is taken"


@pytest.mark.parametrize("kind", ["llama", "bert", "phi3"])
def test_a_key_of_another_type_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path, good = tmp_path / "model.gguf", metadata(kind)
    tensors = {"token_embd.weight": np.zeros((264, 32), np.float16), "rope_freqs.weight": np.ones(8, np.float32)}
    tensors |= {"position_embd.weight": np.zeros((160, 32)), "token_types.weight": np.zeros((2, 32))}
    write_gguf(path, tensors, good)
    assert complaint(path, "no key") == "it is taken"
    found, count = [], 0
    for key in good.keys() - UNREAD:
        for name, other in others(key, good[key]):
            write_gguf(path, tensors, {**good, key: other})
            count += 1
            what = complaint(path, key)
            found += [f"{key} as {name}: {what}"] if what else []
    assert found == []
    assert count > 300
