"""The configuration of a model that came as GGUF, in the words of a Hugging Face config.json."""

from __future__ import annotations

import math
import struct
from typing import Any, NoReturn, TypeVar

from weft.errors import FormatError, UnsupportedError, WeightError
from weft.weights.files import TensorFile, TensorInfo
from weft.weights.gguf_meta import Metadata
from weft.weights.names import Gguf

T = TypeVar("T")

MAX_LAYERS = 1_024
MAX_EMBEDDING = 65_536
MAX_FEED_FORWARD = 16 * MAX_EMBEDDING
MAX_HEADS = 1_024
MAX_VOCAB = 4_194_304
MAX_CONTEXT = 16_777_216

YARN = {
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "attention_factor": "rope.scaling.yarn_attn_factor",
}
POOLING = ("none", "mean", "cls", "last", "rank")
TOKENS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding", "unk_token_id": "unknown"}


def config_from_gguf(file: TensorFile[Metadata], gguf: Gguf) -> dict[str, Any]:
    """A config.json for the model in `file`, whose architecture is `gguf`'s; every number is within weft's limits.

    Three entries are not Hugging Face's: `pooling_type`, `causal` of encoders, and `factors` in the llama3
    `rope_scaling`, the divisor of each frequency, which GGUF stores instead of the rule that they come from.
    """
    reader = _ConfigReader(file, gguf)
    config = reader.encoder() if gguf.encoder else reader.decoder()
    return {**config, **(gguf.read(reader, config) if gguf.read is not None else {})}


class _ConfigReader:
    """Reads a config out of metadata and the shapes of a few tensors, checking as it goes. It is a `GgufKeys`."""

    def __init__(self, file: TensorFile[Metadata], gguf: Gguf) -> None:
        self.meta = file.metadata
        self.tensors = file.tensors
        self.gguf = gguf

    def key(self, name: str) -> str:
        return f"{self.gguf.architecture}.{name}"

    def __contains__(self, name: str) -> bool:
        return self.key(name) in self.meta

    def fail(self, name: str, what: str, given: Any) -> NoReturn:
        raise FormatError(self.meta.file_name, what, field=self.key(name), given=given)

    def refuse(self, name: str, what: str) -> NoReturn:
        raise UnsupportedError(self.meta.file_name, what, field=self.key(name))

    def count(self, name: str, default: int | None = None, *, high: int = MAX_CONTEXT) -> int:
        """A number of at least one; where a file has one for each layer, they must agree."""
        key = self.key(name)
        if not self.meta.is_array(key):
            return self.meta.get_int(key, default, low=1, high=high)
        values = sorted(set(self.meta.get_array(key, "int").tolist()))
        if name in ("attention.head_count_kv", "feed_forward_length") and self.gguf.some_attend:
            values = [value for value in values if value] or [1]  # a file without such a layer has no use for it
        if len(values) != 1:
            self.refuse(name, f"differs from layer to layer ({values[:8]}), which weft does not support")
        if not 1 <= values[0] <= high:
            self.fail(name, f"must be 1 to {high}", values[0])
        return int(values[0])

    def size(self, name: str, default: int, *, high: int = MAX_CONTEXT) -> int:
        """A number that may be 0."""
        return self.meta.get_int(self.key(name), default, high=high)

    def real(self, name: str, default: float | None = None) -> float:
        """A number above zero, as the shortest decimal that is the same f32: 1e-05, not 9.999999747378752e-06."""
        number = shortest(self.meta.get_float(self.key(name), default))
        if number <= 0:
            self.fail(name, "must be above zero", number)
        return number

    def flag(self, name: str, default: bool) -> bool:
        """A yes or no."""
        return self.meta.get_bool(self.key(name), default)

    def counts(self, name: str, count: int) -> list[int] | None:
        """A number for each of `count` layers, which may be 0; None where the file has no such list."""
        key = self.key(name)
        if not self.meta.is_array(key):
            return None
        return self.listed(name, [int(entry) for entry in self.meta.get_array(key, "int")], count)

    def flags(self, name: str, count: int) -> list[bool] | None:
        """A yes or no for each of `count` layers; None where the file has no such list."""
        key = self.key(name)
        if not self.meta.is_array(key):
            return None
        return self.listed(name, [bool(entry) for entry in self.meta.get_array(key, "bool")], count)

    def listed(self, name: str, values: list[T], count: int) -> list[T]:
        if len(values) != count:
            self.fail(name, f"must have one entry for each of {count} layers", f"{len(values)} entries")
        return values

    def tensor(self, name: str, rank: int) -> TensorInfo:
        tensor = self.tensors.get(name)
        if tensor is None or len(tensor.shape) != rank:
            raise WeightError(self.meta.file_name, f"the file has no tensor {name} of {rank} dimensions")
        return tensor

    def rows(self, tensor: str) -> int:
        """How many rows the matrix `tensor` has."""
        return self.tensor(tensor, 2).shape[0]

    def has(self, tensor: str) -> bool:
        """Whether the file has this tensor."""
        return tensor in self.tensors

    def shared(self) -> dict[str, Any]:
        """What encoders and decoders have in common."""
        hidden = self.count("embedding_length", high=MAX_EMBEDDING)
        heads = self.count("attention.head_count", high=MAX_HEADS)
        embedding = self.tensor("token_embd.weight", 2)
        vocab = embedding.shape[0]
        if embedding.shape[1] != hidden:
            raise WeightError(
                self.meta.file_name, f"token_embd.weight must have rows of {hidden}", given=tuple(embedding.shape)
            )
        if vocab > MAX_VOCAB:
            raise FormatError(self.meta.file_name, f"the vocabulary has {vocab} tokens; weft takes at most {MAX_VOCAB}")
        config = {
            "model_type": self.gguf.model_type,
            "architectures": [self.gguf.class_name],
            "hidden_act": self.gguf.activation,
            "hidden_size": hidden,
            "num_hidden_layers": self.count("block_count", high=MAX_LAYERS),
            "num_attention_heads": heads,
            "intermediate_size": self.count("feed_forward_length", self.expert_width(), high=MAX_FEED_FORWARD),
            "max_position_embeddings": self.count("context_length"),
            "vocab_size": vocab,
        }
        return {**config, **self.special_tokens(vocab)}

    def expert_width(self) -> int | None:
        """The width of an expert, where a file has no other feed-forward part."""
        name = "expert_feed_forward_length"
        return self.count(name, high=MAX_FEED_FORWARD) if self.gguf.experts and name in self else None

    def special_tokens(self, vocab: int) -> dict[str, int]:
        tokens = self.meta.get_array("tokenizer.ggml.tokens", "str", ())
        if len(tokens) > vocab:
            raise FormatError(
                self.meta.file_name,
                f"lists more tokens than the embedding has rows ({vocab})",
                field="tokenizer.ggml.tokens",
                given=len(tokens),
            )
        keys = {name: f"tokenizer.ggml.{word}_token_id" for name, word in TOKENS.items()}
        return {name: self.meta.get_int(key, high=vocab - 1) for name, key in keys.items() if key in self.meta}

    def decoder(self) -> dict[str, Any]:
        """What all decoders have: the same keys below the architecture's name."""
        if self.meta.get_int(self.key("expert_count"), 0) and not self.gguf.experts:
            what = f"is not 0: weft runs no mixture of experts of this architecture ({self.gguf.architecture})"
            self.refuse("expert_count", what)
        config = self.shared()
        heads = config["num_attention_heads"]
        kv_heads = self.count("attention.head_count_kv", heads, high=MAX_HEADS)
        if heads % kv_heads:
            self.fail("attention.head_count_kv", f"does not divide {heads} heads", kv_heads)
        dim = self.head_dim(config)
        epsilon = "attention.layer_norm_rms_epsilon"
        if epsilon not in self and "attention.layer_norm_epsilon" in self:  # in some files of Nemotron-H
            epsilon = "attention.layer_norm_epsilon"
        return {
            **config,
            "num_key_value_heads": kv_heads,
            "head_dim": dim,
            "rms_norm_eps": self.real(epsilon),
            "rope_theta": self.real("rope.freq_base", 10_000.0),
            "rope_scaling": self.rope_scaling(dim),
            "attention_bias": "blk.0.attn_q.bias" in self.tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in self.tensors,
            "tie_word_embeddings": "output.weight" not in self.tensors,
            **({"pooling_type": self.pooling()} if "pooling_type" in self else {}),
            **({} if self.meta.get_bool(self.key("attention.causal"), True) else {"is_causal": False}),
        }

    def encoder(self) -> dict[str, Any]:
        """What BERT and its relatives have."""
        config = self.shared()
        return {
            **config,
            "head_dim": self.even_split(config),
            "num_key_value_heads": config["num_attention_heads"],
            "layer_norm_eps": self.real("attention.layer_norm_epsilon"),
            "type_vocab_size": self.token_types(),
            "pooling_type": self.pooling(),
            "causal": self.meta.get_bool(self.key("attention.causal"), False),
            "tie_word_embeddings": True,
        }

    def token_types(self) -> int:
        """How many kinds of tokens; a table of one row may be stored without its outer dimension."""
        if "token_types.weight" not in self.tensors:
            return 0
        shape = self.tensors["token_types.weight"].shape
        return shape[0] if len(shape) > 1 else 1

    def pooling(self) -> str:
        return POOLING[self.meta.get_int(self.key("pooling_type"), 0, high=len(POOLING) - 1)]

    def even_split(self, config: dict[str, Any]) -> int:
        """The width of a head where the heads share the embedding."""
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        if hidden % heads:
            self.fail("attention.head_count", f"does not divide the embedding length of {hidden}", heads)
        return int(hidden // heads)

    def head_dim(self, config: dict[str, Any]) -> int:
        """The width of a head, the same for keys, values and, unless part of it rotates, the rotation."""
        given = "attention.key_length" in self
        dim = self.count("attention.key_length", high=MAX_EMBEDDING) if given else self.even_split(config)
        for name in ("attention.value_length", *(() if self.gguf.part_rotates else ("rope.dimension_count",))):
            if self.count(name, dim, high=MAX_EMBEDDING) != dim:
                self.refuse(name, f"is not the head's width of {dim}, which weft does not support")
        if dim % 2:
            self.fail("attention.key_length", "is odd, so that channels cannot be rotated in pairs", dim)
        return dim

    def rope_scaling(self, dim: int) -> dict[str, Any] | None:
        """The config's rope_scaling of heads of `dim` channels."""
        if "rope_freqs.weight" in self.tensors:
            return {"rope_type": "llama3", "factors": self.rope_factors("rope_freqs.weight", dim // 2)}
        if self.gguf.factors == "longrope" and "rope_factors_long.weight" in self.tensors:
            return self.longrope(self.count("rope.dimension_count", dim, high=dim) // 2)
        kind = self.meta.get_str(self.key("rope.scaling.type"), "none")
        if kind == "none":
            factor = self.real("rope.scale_linear", 1.0)  # what files had before there were kinds
            return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
        if kind not in ("linear", "yarn"):
            self.refuse("rope.scaling.type", f"is {kind[:40]!r}; weft knows linear and yarn")
        scaling: dict[str, Any] = {"rope_type": kind, "factor": self.real("rope.scaling.factor")}
        if kind == "yarn":
            scaling.update(self.yarn(scaling["factor"]))
        return scaling

    def rope_factors(self, name: str, count: int) -> list[float]:
        factors = self.tensor(name, 1)
        if factors.dtype.name != "f32" or factors.shape != (count,):
            what = f"{name} must be f32, one divisor for each of {count} frequencies"
            raise WeightError(self.meta.file_name, what, given=factors)
        values = factors.numpy()
        if not all(0 < value < math.inf for value in values.tolist()):
            raise WeightError(self.meta.file_name, f"{name} holds divisors that are not above zero and finite")
        return [float(value) for value in values]

    def longrope(self, pairs: int) -> dict[str, Any]:
        scaling: dict[str, Any] = {"rope_type": "longrope"}
        for kind in ("short", "long"):
            scaling[f"{kind}_factor"] = self.rope_factors(f"rope_factors_{kind}.weight", pairs)
        if "rope.scaling.attn_factor" in self:
            scaling["attention_factor"] = self.real("rope.scaling.attn_factor")
        return scaling

    def yarn(self, factor: float) -> dict[str, Any]:
        """YaRN's other settings.

        Converters write Hugging Face's attention_factor as yarn_attn_factor, in place of the rule's own number;
        attn_factor is what readers multiply that number by.
        """
        scaling: dict[str, Any] = {}
        if "rope.scaling.original_context_length" in self:
            scaling["original_max_position_embeddings"] = self.count("rope.scaling.original_context_length")
        for hf, gguf in YARN.items():
            if gguf in self:
                scaling[hf] = self.real(gguf)
        if "attention_factor" not in scaling and "rope.scaling.attn_factor" in self:
            product = self.real("rope.scaling.attn_factor") * yarn_magnitude(factor)
            scaling["attention_factor"] = shortest(product)
        return scaling


def shortest(number: float) -> float:
    """The number of fewest digits that is the same f32: 1e-05 for 9.999999747378752e-06."""
    try:
        stored = struct.pack("<f", number)
    except OverflowError:
        return math.inf
    exact = struct.unpack("<f", stored)[0]
    digits = (float(f"{exact:.{count}g}") for count in range(1, 10))  # nine are always enough
    return next(value for value in digits if struct.pack("<f", value) == stored)


def yarn_magnitude(factor: float, by: float = 1.0) -> float:
    """What YaRN multiplies cosine and sine by, where the config does not say."""
    return 1.0 + 0.1 * by * math.log(factor) if factor > 1 else 1.0
