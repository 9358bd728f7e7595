"""A Hugging Face model as GGUF: its config as metadata, and its tensors with the names and the form such files have.

What GGUF has no words for is refused: a file that other readers would run as another model is worse than none.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.errors import UnsupportedError
from weft.weights.files import TensorView
from weft.weights.gguf_config import GEMMA_PATTERN, GEMMA_WIDE, POOLING, TOKENS, YARN, yarn_magnitude
from weft.weights.names import gguf_arch, gguf_name, holds_plus_one, stored_order

_COUNTS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
}
_REALS = {
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base",
}
_HEAD_DIMS = {"qwen3": 128, "gemma2": 256, "gemma3_text": 256}  # of configs that name none; others share the embedding
_ACTIVATIONS = {"bert": "gelu", "gemma2": "gelu_pytorch_tanh", "gemma3": "gelu_pytorch_tanh"}  # others: silu


def gguf_tensors(config: Mapping[str, Any], tensors: Mapping[str, TensorView]) -> dict[str, TensorView]:
    """The tensors of a Hugging Face model as a GGUF file of it holds them, rope factors among them."""
    arch, full = gguf_arch(config["model_type"]), _with_head_dim(_flat_rope(config))
    stored = {}
    for name, view in tensors.items():
        known = gguf_name(arch, name)
        if known is None:
            continue
        order = stored_order(arch, name, full)
        if name == "embeddings.position_embeddings.weight" and _first_position(config):
            order = np.arange(_first_position(config), view.shape[0])  # the rows before it belong to no token
        if holds_plus_one(arch, name):
            view = TensorView.of(view.numpy().astype(np.float32) + np.float32(1))
        stored[known] = view if order is None else view.take(order)
    factors = {name: TensorView.of(np.float32(values)) for name, values in _factor_tensors(full).items()}
    return {**stored, **factors}


def gguf_from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata of a model with this config.json; gguf_tensors has what goes beside it."""
    arch, config = gguf_arch(config["model_type"]), _flat_rope(config)
    if config["model_type"] in _HEAD_DIMS:
        config = _with_head_dim(config)
    _check_writable(arch, config)
    metadata: dict[str, Any] = {"general.architecture": arch}
    metadata.update({f"{arch}.{gguf}": int(config[hf]) for hf, gguf in _COUNTS.items() if config.get(hf) is not None})
    metadata.update({f"{arch}.{gguf}": float(config[hf]) for hf, gguf in _REALS.items() if config.get(hf) is not None})
    if "bert" not in arch and config.get("head_dim") is not None:
        for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            metadata[f"{arch}.{name}"] = config["head_dim"]
    if "pooling_type" in config or "bert" in arch:
        metadata[f"{arch}.pooling_type"] = POOLING.index(config.get("pooling_type", "none"))
    if "bert" in arch:
        metadata[f"{arch}.context_length"] = int(config["max_position_embeddings"]) - _first_position(config)
        metadata[f"{arch}.attention.causal"] = bool(config.get("causal", False))
        metadata["tokenizer.ggml.token_type_count"] = int(config.get("type_vocab_size", 2))  # llama.cpp wants it
    elif config.get("is_causal") is False:
        metadata[f"{arch}.attention.causal"] = False
    if arch == "phi3":
        metadata.update(_written_phi3(config))
    if arch in GEMMA_PATTERN:
        metadata.update(_written_gemma(arch, config))
    metadata.update(_written_scaling(arch, config))
    for name, word in TOKENS.items():
        if isinstance(config.get(name), int):
            metadata[f"tokenizer.ggml.{word}_token_id"] = config[name]
    return metadata


def rope_factors(config: Mapping[str, Any]) -> np.ndarray | None:
    """The divisors of the rotary frequencies, f32 [head_dim / 2], that a llama3 model keeps as `rope_freqs.weight`.

    Where a wave is short against the original context nothing changes, where it is long the frequency is divided by
    `factor`, and in between the two are mixed. None for a model without this scaling.
    """
    scaling = _scaling(config)
    if scaling.get("rope_type") != "llama3":
        return None
    if "factors" in scaling:
        return np.asarray(scaling["factors"], np.float32)
    dim, factor = config["head_dim"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    plain = float(config.get("rope_theta", 10_000.0)) ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)  # within the original context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / (blend + (1.0 - blend) / factor)).astype(np.float32)


def _factor_tensors(config: Mapping[str, Any]) -> dict[str, Any]:
    arch, scaling = gguf_arch(config["model_type"]), _scaling(config)
    if arch == "phi3" and scaling.get("rope_type") == "longrope":
        return {f"rope_factors_{kind}.weight": scaling[f"{kind}_factor"] for kind in ("short", "long")}
    factors = rope_factors(config) if arch == "llama" else None
    return {} if factors is None else {"rope_freqs.weight": factors}


def _scaling(config: Mapping[str, Any]) -> dict[str, Any]:
    """rope_scaling with its kind under one name; older files call phi3's longrope su or yarn."""
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if config["model_type"] == "phi3" and kind in ("su", "yarn"):
        kind = "longrope"
    return {**scaling, "rope_type": kind}


def _flat_rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Newer files keep theta and scaling in `rope_parameters`, for layers that slide apart."""
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict):
        return config
    full, local = (rope.get(f"{kind}_attention") for kind in ("full", "sliding"))
    flat: dict[str, Any] = {**config, "rope_scaling": full or rope, "rope_local_scaling": local}
    for name, part in (("rope_theta", full or rope), ("rope_local_base_freq", local)):
        if part and "rope_theta" in part:
            flat[name] = part["rope_theta"]
    return flat


def _with_head_dim(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    return {
        **config,
        "head_dim": config.get("head_dim") or _HEAD_DIMS.get(config["model_type"]) or config["hidden_size"] // heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
    }


def _first_position(config: Mapping[str, Any]) -> int:
    """The first row of the position table that a token takes."""
    return config.get("pad_token_id", 1) + 1 if config["model_type"] in ("roberta", "xlm-roberta") else 0


def _check_writable(arch: str, config: Mapping[str, Any]) -> None:
    wanted, act = _ACTIVATIONS.get(arch, "silu"), config.get("hidden_activation") or config.get("hidden_act")
    if act is not None and act != wanted:
        raise _unwritable(arch, f"the activation {act}")
    if config.get("use_sliding_window"):
        raise _unwritable(arch, "use_sliding_window")
    window = config.get("sliding_window", 4096) if config["model_type"] == "mistral" else None
    if window is not None and window < config["max_position_embeddings"]:
        raise _unwritable(arch, f"a sliding_window of {window}")
    if arch in GEMMA_WIDE:
        _check_gemma(arch, config)


def _check_gemma(arch: str, config: Mapping[str, Any]) -> None:
    layers, hidden, heads = (config[k] for k in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    scalar = hidden // heads if layers == GEMMA_WIDE[arch] else config["head_dim"]
    for name in ("attention_bias", "use_bidirectional_attention"):
        if config.get(name):
            raise _unwritable(arch, name)
    if config.get("query_pre_attn_scalar", 256) != scalar:
        raise _unwritable(arch, f"a query_pre_attn_scalar that is not {scalar}")
    caps = (config.get("attn_logit_softcapping", 50.0), config.get("final_logit_softcapping", 30.0))
    if arch == "gemma2" and None in caps:
        raise _unwritable(arch, "the absence of a cap")
    local = config.get("rope_local_scaling") or {}
    if local.get("rope_type", "default") != "default":
        raise _unwritable(arch, "a rope_scaling of layers that slide")


def _unwritable(arch: str, what: str) -> UnsupportedError:
    return UnsupportedError(f"[gguf] {what} cannot be written; GGUF has no key for it in {arch}")


def _written_phi3(config: Mapping[str, Any]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if config.get("sliding_window") is not None:
        metadata["phi3.attention.sliding_window"] = int(config["sliding_window"])
    metadata["phi3.rope.scaling.original_context_length"] = _phi3_original(config)
    rotated = _with_head_dim(config)["head_dim"] * config.get("partial_rotary_factor", 1.0)
    return {**metadata, "phi3.rope.dimension_count": int(rotated)}


def _phi3_original(config: Mapping[str, Any]) -> int:
    return int(config.get("original_max_position_embeddings") or 4096)


def _written_gemma(arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    window, layers = config.get("sliding_window", 4096), config["num_hidden_layers"]
    period = GEMMA_PATTERN[arch] if arch == "gemma2" else config.get("sliding_window_pattern") or GEMMA_PATTERN[arch]
    slides = [(layer + 1) % period != 0 for layer in range(layers)]
    if config.get("layer_types") is not None:
        slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    metadata: dict[str, Any] = {}
    if any(slides):
        metadata[f"{arch}.attention.sliding_window"] = int(window)
        metadata[f"{arch}.attention.sliding_window_pattern"] = _period(arch, slides)
    elif arch == "gemma2":
        raise _unwritable(arch, "a list of layer_types in which none slides")
    for name, default in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)):
        cap = config.get(name, default if arch == "gemma2" else None)
        if cap is not None:
            metadata[f"{arch}.{name}"] = float(cap)
    if arch == "gemma3":
        metadata["gemma3.rope.freq_base"] = float(config.get("rope_theta", 1_000_000.0))
        metadata["gemma3.rope.freq_base_swa"] = float(config.get("rope_local_base_freq", 10_000.0))
    return metadata


def _period(arch: str, slides: list[bool]) -> int:
    """How many layers it takes until one sees everything; 0 where none does."""
    period = slides.index(False) + 1 if False in slides else 0
    if slides != [period == 0 or (layer + 1) % period != 0 for layer in range(len(slides))]:
        raise _unwritable(arch, "a list of layer_types in which not every n-th layer sees everything")
    return period


def _written_scaling(arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    scaling, prefix = _scaling(config), f"{arch}.rope.scaling"
    kind = scaling["rope_type"]
    if kind == "default" or (kind == "llama3" and arch == "llama"):
        return {}
    if kind == "longrope" and arch == "phi3":
        return {f"{prefix}.type": kind, f"{prefix}.attn_factor": _longrope_magnitude(config, scaling)}
    if kind not in ("linear", "yarn") or scaling.get("truncate") is False:
        raise _unwritable(arch, f"rope_scaling of type {kind!r}")
    metadata: dict[str, Any] = {f"{prefix}.type": kind, f"{prefix}.factor": float(scaling["factor"])}
    if "original_max_position_embeddings" in scaling:
        metadata[f"{prefix}.original_context_length"] = scaling["original_max_position_embeddings"]
    return {**metadata, **(_written_yarn(arch, scaling) if kind == "yarn" else {})}


def _written_yarn(arch: str, scaling: Mapping[str, Any]) -> dict[str, Any]:
    """attention_factor twice: as converters write it, and as what readers multiply the rule's own number with."""
    given, magnitude = dict(scaling), yarn_magnitude(scaling["factor"])
    if given.get("attention_factor") is None:
        given.pop("attention_factor", None)
        if given.get("mscale") and given.get("mscale_all_dim"):
            parts = (yarn_magnitude(scaling["factor"], given[name]) for name in ("mscale", "mscale_all_dim"))
            given["attention_factor"] = next(parts) / next(parts)
    metadata = {f"{arch}.{gguf}": float(given[hf]) for hf, gguf in YARN.items() if given.get(hf) is not None}
    if "attention_factor" in given:
        metadata[f"{arch}.rope.scaling.attn_factor"] = given["attention_factor"] / magnitude
    return metadata


def _longrope_magnitude(config: Mapping[str, Any], scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    original = _phi3_original(config)
    factor = scaling.get("factor") or config["max_position_embeddings"] / original
    return math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
