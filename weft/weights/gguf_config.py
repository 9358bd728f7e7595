"""The configuration of a model that came as GGUF, in the words of a Hugging Face config.json, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.errors import FormatError, UnsupportedError, WeightError
from weft.weights.files import TensorFile, TensorInfo
from weft.weights.gguf_meta import Metadata
from weft.weights.names import name_map

MAX_LAYERS = 1_024
MAX_EMBEDDING = 65_536
MAX_FEED_FORWARD = 16 * MAX_EMBEDDING
MAX_HEADS = 1_024
MAX_VOCAB = 4_194_304
MAX_CONTEXT = 16_777_216

POOLING = ("none", "mean", "cls", "last", "rank")
_TOKENS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding", "unk_token_id": "unknown"}


def config_from_gguf(file: TensorFile[Metadata]) -> dict[str, Any]:
    """A config.json for the model in `file`, with every number checked against weft's limits.

    Two entries that Hugging Face's have not: `pooling_type` and `causal` of a bert, and `factors` in the llama3
    `rope_scaling`: the divisor of each frequency, which GGUF keeps in place of the rule they come from.
    """
    reader = _ConfigReader(file)
    return reader.bert() if reader.arch == "bert" else reader.llama()


class _ConfigReader:
    """Reads a config out of metadata and the shapes of a few tensors, checking as it goes."""

    def __init__(self, file: TensorFile[Metadata]) -> None:
        self.meta = file.metadata
        self.tensors = file.tensors
        self.arch = self.meta.get_str("general.architecture")
        name_map(self.arch)  # an architecture weft has no names for is refused here

    def key(self, name: str) -> str:
        return f"{self.arch}.{name}"

    def count(self, name: str, high: int, default: int | None = None) -> int:
        """A number of at least one. Where a file has one for each layer, they must agree."""
        key = self.key(name)
        if not self.meta.is_array(key):
            return self.meta.get_int(key, default, low=1, high=high)
        values = np.unique(self.meta.get_array(key, "int"))
        if values.size != 1:
            raise UnsupportedError(f"[gguf] {key} differs from layer to layer: {values[:8].tolist()}")
        if not 1 <= int(values[0]) <= high:
            self.meta.fail(key, f"is out of range: {values[0]}; 1 to {high}")
        return int(values[0])

    def real(self, name: str, default: float | None = None) -> float:
        """A number above zero, as the shortest decimal that is the same f32: 1e-05, not 9.999999747378752e-06."""
        number = float(str(np.float32(self.meta.get_float(self.key(name), default))))
        if number <= 0:
            self.meta.fail(self.key(name), f"must be above zero: {number}")
        return number

    def tensor(self, name: str, rank: int) -> TensorInfo:
        tensor = self.tensors.get(name)
        if tensor is None or len(tensor.shape) != rank:
            raise WeightError(f"[gguf] {self.meta.file_name} has no tensor {name!r} of {rank} dimensions")
        return tensor

    def common(self) -> dict[str, Any]:
        hidden = self.count("embedding_length", MAX_EMBEDDING)
        heads = self.count("attention.head_count", MAX_HEADS)
        embedding = self.tensor("token_embd.weight", 2)
        vocab = embedding.shape[0]
        if embedding.shape[1] != hidden:
            raise WeightError(f"[gguf] token_embd.weight has shape {embedding.shape}, the model wants (…, {hidden})")
        if vocab > MAX_VOCAB:
            raise FormatError(f"[gguf] {self.meta.file_name}: {vocab} tokens; at most {MAX_VOCAB}")
        config = {
            "model_type": self.arch,
            "hidden_size": hidden,
            "num_hidden_layers": self.count("block_count", MAX_LAYERS),
            "num_attention_heads": heads,
            "intermediate_size": self.count("feed_forward_length", MAX_FEED_FORWARD),
            "max_position_embeddings": self.count("context_length", MAX_CONTEXT),
            "vocab_size": vocab,
        }
        return {**config, **self.special_tokens(vocab)}

    def special_tokens(self, vocab: int) -> dict[str, int]:
        tokens = self.meta.get_array("tokenizer.ggml.tokens", "str", ())
        if len(tokens) > vocab:
            self.meta.fail(
                "tokenizer.ggml.tokens", f"has more tokens than the embedding has rows: {len(tokens)}, {vocab}"
            )
        keys = {name: f"tokenizer.ggml.{word}_token_id" for name, word in _TOKENS.items()}
        return {name: self.meta.get_int(key, high=vocab - 1) for name, key in keys.items() if key in self.meta}

    def llama(self) -> dict[str, Any]:
        """Llama and its relatives: the same keys below the architecture's name."""
        if self.meta.get_int(self.key("expert_count"), 0):
            raise UnsupportedError(f"[gguf] {self.meta.file_name} is a mixture of experts, which weft does not run yet")
        config = self.common()
        heads = config["num_attention_heads"]
        kv_heads = self.count("attention.head_count_kv", MAX_HEADS, heads)
        if heads % kv_heads:
            self.meta.fail(self.key("attention.head_count_kv"), f"does not divide {heads} heads: {kv_heads}")
        dim = self.head_dim(config)
        return {
            **config,
            **(self.phi3(dim) if self.arch == "phi3" else {}),
            "architectures": [f"{self.arch.capitalize()}ForCausalLM"],
            "hidden_act": "silu",
            "num_key_value_heads": kv_heads,
            "head_dim": dim,
            "rms_norm_eps": self.real("attention.layer_norm_rms_epsilon"),
            "rope_theta": self.real("rope.freq_base", 10_000.0),
            "rope_scaling": self.rope_scaling(dim),
            "attention_bias": "blk.0.attn_q.bias" in self.tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in self.tensors,
            "tie_word_embeddings": "output.weight" not in self.tensors,
        }

    def phi3(self, dim: int) -> dict[str, Any]:
        """What phi3 has beside llama's: a window, heads rotated in part, the context it was trained on."""
        context = self.count("context_length", MAX_CONTEXT)
        window = self.meta.get_int(self.key("attention.sliding_window"), 0, high=MAX_CONTEXT)
        return {
            "sliding_window": window or None,
            "partial_rotary_factor": self.count("rope.dimension_count", dim, dim) / dim,
            "original_max_position_embeddings": self.count(
                "rope.scaling.original_context_length", MAX_CONTEXT, context
            ),
        }

    def longrope(self, pairs: int) -> dict[str, Any]:
        scaling: dict[str, Any] = {"rope_type": "longrope"}
        for kind in ("short", "long"):
            scaling[f"{kind}_factor"] = self.rope_factors(f"rope_factors_{kind}.weight", pairs)
        if self.key("rope.scaling.attn_factor") in self.meta:
            scaling["attention_factor"] = self.real("rope.scaling.attn_factor")
        return scaling

    def even_split(self, config: dict[str, Any]) -> int:
        """The width of a head when the heads share the embedding."""
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        if hidden % heads:
            self.meta.fail(self.key("attention.head_count"), f"does not divide the embedding length: {heads}, {hidden}")
        return int(hidden // heads)

    def head_dim(self, config: dict[str, Any]) -> int:
        """The width of a head, the same for keys, values and the rotation: only phi3 rotates a part of it."""
        given = self.key("attention.key_length") in self.meta
        dim = self.count("attention.key_length", MAX_EMBEDDING) if given else self.even_split(config)
        for name in ("attention.value_length", *(() if self.arch == "phi3" else ("rope.dimension_count",))):
            if self.count(name, MAX_EMBEDDING, dim) != dim:
                raise UnsupportedError(
                    f"[gguf] {self.key(name)} is not the head's width of {dim}; weft runs no such model"
                )
        if dim % 2:
            self.meta.fail(self.key("attention.key_length"), f"is odd, which cannot be rotated in pairs: {dim}")
        return dim

    def rope_scaling(self, dim: int) -> dict[str, Any] | None:
        if "rope_freqs.weight" in self.tensors:
            return {"rope_type": "llama3", "factors": self.rope_factors("rope_freqs.weight", dim // 2)}
        if self.arch == "phi3" and "rope_factors_long.weight" in self.tensors:
            return self.longrope(self.count("rope.dimension_count", dim, dim) // 2)
        kind = self.meta.get_str(self.key("rope.scaling.type"), "none")
        if kind == "none":
            factor = self.real("rope.scale_linear", 1.0)  # what files had before there were kinds
            return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
        if kind not in ("linear", "yarn"):
            raise UnsupportedError(
                f"[gguf] {self.key('rope.scaling.type')} is {kind[:40]!r}; weft knows linear and yarn"
            )
        scaling: dict[str, Any] = {"rope_type": kind, "factor": self.real("rope.scaling.factor")}
        if kind == "yarn":
            scaling.update(self.yarn())
        return scaling

    def rope_factors(self, name: str, count: int) -> list[float]:
        factors = self.tensor(name, 1)
        if factors.dtype.name != "f32" or factors.shape != (count,):
            raise WeightError(f"[gguf] {name} must be f32, one for each of {count} frequencies: {factors}")
        values = factors.numpy()
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise WeightError(f"[gguf] {name} holds factors that are not above zero and finite")
        return [float(value) for value in values]

    def yarn(self) -> dict[str, Any]:
        scaling: dict[str, Any] = {}
        if self.key("rope.scaling.original_context_length") in self.meta:
            scaling["original_max_position_embeddings"] = self.count(
                "rope.scaling.original_context_length", MAX_CONTEXT
            )
        for hf, gguf in _YARN.items():
            if self.key(gguf) in self.meta:
                scaling[hf] = self.real(gguf)
        return scaling

    def bert(self) -> dict[str, Any]:
        config = self.common()
        positions = self.tensor("position_embd.weight", 2).shape[0]
        pooling = self.meta.get_int(self.key("pooling_type"), 0, high=len(POOLING) - 1)
        return {
            **config,
            "architectures": ["BertModel"],
            "hidden_act": "gelu",
            "head_dim": self.even_split(config),
            "num_key_value_heads": config["num_attention_heads"],
            "max_position_embeddings": min(positions, config["max_position_embeddings"]),
            "layer_norm_eps": self.real("attention.layer_norm_epsilon"),
            "type_vocab_size": self.token_types(),
            "position_embedding_type": "absolute",
            "pooling_type": POOLING[pooling],
            "causal": self.meta.get_bool(self.key("attention.causal"), False),
            "tie_word_embeddings": True,
        }

    def token_types(self) -> int:
        """How many kinds of tokens; a table of one row may be stored without its outer dimension."""
        if "token_types.weight" not in self.tensors:
            return 0
        shape = self.tensors["token_types.weight"].shape
        return shape[0] if len(shape) > 1 else 1


_YARN = {
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "attention_factor": "rope.scaling.yarn_attn_factor",
}

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


def gguf_from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata of a model with this config.json; see rope_factors for what goes beside the weights."""
    arch = config["model_type"]
    name_map(arch)
    metadata: dict[str, Any] = {"general.architecture": arch}
    metadata.update({f"{arch}.{gguf}": int(config[hf]) for hf, gguf in _COUNTS.items() if config.get(hf) is not None})
    metadata.update({f"{arch}.{gguf}": float(config[hf]) for hf, gguf in _REALS.items() if config.get(hf) is not None})
    if arch != "bert" and config.get("head_dim") is not None:
        for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            metadata[f"{arch}.{name}"] = config["head_dim"]
    if arch == "bert":
        metadata["bert.pooling_type"] = POOLING.index(config.get("pooling_type", "none"))
        metadata["bert.attention.causal"] = bool(config.get("causal", False))
    if arch == "phi3":
        metadata.update(_written_phi3(config))
    if config.get("use_sliding_window"):
        raise UnsupportedError(f"[gguf] use_sliding_window cannot be written; GGUF has no key for it in {arch}")
    metadata.update(_written_scaling(arch, config.get("rope_scaling") or {}))
    for name, word in _TOKENS.items():
        if isinstance(config.get(name), int):
            metadata[f"tokenizer.ggml.{word}_token_id"] = config[name]
    return metadata


def _written_phi3(config: Mapping[str, Any]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if config.get("sliding_window") is not None:
        metadata["phi3.attention.sliding_window"] = int(config["sliding_window"])
    if config.get("original_max_position_embeddings") is not None:
        metadata["phi3.rope.scaling.original_context_length"] = int(config["original_max_position_embeddings"])
    if config.get("head_dim") is not None:
        metadata["phi3.rope.dimension_count"] = int(config["head_dim"] * config.get("partial_rotary_factor", 1.0))
    return metadata


def rope_factors(config: Mapping[str, Any]) -> np.ndarray | None:
    """The divisors of the rotary frequencies, f32 [head_dim / 2], that a llama3 model keeps as `rope_freqs.weight`.

    Where a wave is short against the original context nothing changes, where it is long the frequency is divided by
    `factor`, and in between the two are mixed. None for a model without this scaling.
    """
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) != "llama3":
        return None
    if "factors" in scaling:
        return np.asarray(scaling["factors"], np.float32)
    dim, factor = config["head_dim"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    waves = 2 * np.pi * config["rope_theta"] ** (np.arange(0, dim, 2) / dim)  # in tokens
    share = np.clip((scaling["original_max_position_embeddings"] / waves - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / factor + share)).astype(np.float32)


def _written_scaling(arch: str, scaling: Mapping[str, Any]) -> dict[str, Any]:
    kind = scaling.get("rope_type", scaling.get("type", "llama3"))
    if kind in ("llama3", "default"):
        return {}
    if kind not in ("linear", "yarn"):
        raise UnsupportedError(f"[gguf] rope_scaling of type {kind!r} cannot be written; weft knows linear and yarn")
    prefix = f"{arch}.rope.scaling"
    metadata: dict[str, Any] = {f"{prefix}.type": kind, f"{prefix}.factor": float(scaling["factor"])}
    if "original_max_position_embeddings" in scaling:
        metadata[f"{prefix}.original_context_length"] = scaling["original_max_position_embeddings"]
    return {**metadata, **{f"{arch}.{gguf}": float(scaling[hf]) for hf, gguf in _YARN.items() if hf in scaling}}
