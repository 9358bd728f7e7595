"""Which models can be rotated, and the tensors of one that is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.errors import InputError, UnsupportedError
from weft.models import model_module
from weft.nn.config import read_config
from weft.ops.hadamard import LARGEST, split
from weft.weights.rotation import Rotation
from weft.weights.rotation.tensors import RotatedTensors

# Decoders whose residual stream is only added to and read through norms that divide by a length: Llama and relatives.
ROTATED = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
NORMS_SUMS = "norms what a layer adds to the stream"
WHY = {
    **dict.fromkeys(("gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text"), NORMS_SUMS),
    **dict.fromkeys(("olmo2", "olmo3", "glm4"), NORMS_SUMS),
    **dict.fromkeys(("bert", "roberta", "xlm_roberta", "distilbert", "mpnet"), "subtracts means in its norms"),
    **dict.fromkeys(("modernbert", "nomic_bert", "eurobert"), "is an encoder, whose vectors would be rotated too"),
}
PARTS = ("inner", "all")  # values and what output and down projections read; the residual stream as well
MOST_PARTS = 256  # of a turn at run time: each costs two operations an element


def rotated(
    folder: Path, tensors: Mapping[str, Any], config: Mapping[str, Any], parts: str, seed: int = 0
) -> RotatedTensors:
    """The tensors of the model in `folder`, rotated; `parts` is one of PARTS. UnsupportedError where that cannot be."""
    if parts not in PARTS:
        raise InputError("quantize", f"must be one of {', '.join(PARTS)}", field="rotate", given=parts)
    if not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise InputError("quantize", "must be a whole number from 0 on", field="seed", given=seed)
    kind = str(config.get("model_type"))
    if kind not in ROTATED:
        why = WHY.get(kind, "is not known to be a plain decoder")
        advice = f"leave --rotate out; it works for {', '.join(ROTATED)}"
        raise UnsupportedError("quantize", f"{kind} {why}, so it cannot be rotated", field="rotate", advice=advice)
    if (folder / "modules.json").is_file() or config.get("is_causal") is False:
        what = f"{folder.name} is an embedder, whose vectors would be rotated too"
        raise UnsupportedError("quantize", what, field="rotate", advice="leave --rotate out")
    cfg: Any = read_config(model_module(kind).Config, config)
    for width, stride, field in (
        (cfg.num_attention_heads * cfg.channels, cfg.channels, "num_attention_heads"),
        (cfg.intermediate_size, 1, "intermediate_size"),
    ):
        count, size = split(width // stride)
        if count > MOST_PARTS or width > LARGEST:
            what = (
                f"{width // stride} is {count} times a power of two ({size}); at most {MOST_PARTS} times can be turned"
            )
            raise UnsupportedError("quantize", what, field=field, advice="leave --rotate out")
    return RotatedTensors(tensors, Rotation(seed, cfg.channels, stream=parts == "all"), tied=cfg.tie_word_embeddings)
