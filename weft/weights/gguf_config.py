"""The configuration of a model that came as GGUF, in the words of a Hugging Face config.json."""

import math
import struct
from typing import Any

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

# Layers of the one size of each Gemma whose scores are scaled by a head's share of the embedding and not by the head's
# own width: no key says so, readers know it by this number.
GEMMA_WIDE = {"gemma2": 46, "gemma3": 62}
GEMMA_PATTERN = {"gemma2": 2, "gemma3": 6}  # one layer of so many sees everything, unless a key says otherwise
YARN = {
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "attention_factor": "rope.scaling.yarn_attn_factor",
}
POOLING = ("none", "mean", "cls", "last", "rank")
MODEL_TYPES = {"gemma3": "gemma3_text", "nomic-bert": "nomic_bert"}  # config.json's word, where it is another one
TOKENS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding", "unk_token_id": "unknown"}


def config_from_gguf(file: TensorFile[Metadata]) -> dict[str, Any]:
    """A config.json for the model in `file`, with every number checked against weft's limits.

    Three entries that Hugging Face's have not: `pooling_type` of any, `causal` of a bert, and `factors` in the llama3
    `rope_scaling`: the divisor of each frequency, which GGUF keeps in place of the rule they come from.
    """
    reader = _ConfigReader(file)
    encoders = {"bert": reader.bert, "nomic-bert": reader.nomic_bert}
    return encoders.get(reader.arch, reader.llama)()


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
        values = sorted(set(self.meta.get_array(key, "int").tolist()))
        if len(values) != 1:
            raise UnsupportedError(f"[gguf] {key} differs from layer to layer: {values[:8]}")
        if not 1 <= values[0] <= high:
            self.meta.fail(key, f"is out of range: {values[0]}; 1 to {high}")
        return int(values[0])

    def real(self, name: str, default: float | None = None) -> float:
        """A number above zero, as the shortest decimal that is the same f32: 1e-05, not 9.999999747378752e-06."""
        number = shortest(self.meta.get_float(self.key(name), default))
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
            "model_type": MODEL_TYPES.get(self.arch, self.arch),
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
        keys = {name: f"tokenizer.ggml.{word}_token_id" for name, word in TOKENS.items()}
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
            **({"pooling_type": self.pooling()} if self.key("pooling_type") in self.meta else {}),
            **({} if self.meta.get_bool(self.key("attention.causal"), True) else {"is_causal": False}),
            **(self.phi3(dim) if self.arch == "phi3" else {}),
            **(self.gemma(config, dim) if self.arch in GEMMA_PATTERN else {}),
        }

    def gemma(self, config: dict[str, Any], dim: int) -> dict[str, Any]:
        """What both Gemmas have beside llama's: sliding layers, caps, a scale and an activation of their own."""
        layers, hidden, heads = (config[k] for k in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
        default = 4096 if self.arch == "gemma2" else 0  # without a window no layer of a gemma3 slides
        window = self.meta.get_int(self.key("attention.sliding_window"), default, high=MAX_CONTEXT)
        slides = self.sliding_layers(layers) if window else [False] * layers
        found: dict[str, Any] = {
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": hidden // heads if layers == GEMMA_WIDE[self.arch] else dim,
            "sliding_window": window or None,
            "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        }
        if self.arch == "gemma2":
            found["attn_logit_softcapping"] = self.real("attn_logit_softcapping", 50.0)
            found["final_logit_softcapping"] = self.real("final_logit_softcapping", 30.0)
            return found
        if self.key("final_logit_softcapping") in self.meta:
            found["final_logit_softcapping"] = self.real("final_logit_softcapping")
        return {**found, "rope_local_base_freq": self.real("rope.freq_base_swa", 10_000.0)}

    def sliding_layers(self, layers: int) -> list[bool]:
        """Which layers see a window: a yes or no for each, or how many layers it takes until one sees everything."""
        key = self.key("attention.sliding_window_pattern")
        if self.meta.is_array(key):
            listed = [bool(slide) for slide in self.meta.get_array(key, "bool")]
            if len(listed) != layers:
                self.meta.fail(key, f"has {len(listed)} entries for {layers} layers")
            return listed
        period = self.meta.get_int(key, GEMMA_PATTERN[self.arch], high=MAX_LAYERS)
        return [period == 0 or (layer + 1) % period != 0 for layer in range(layers)]

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
            scaling.update(self.yarn(scaling["factor"]))
        return scaling

    def rope_factors(self, name: str, count: int) -> list[float]:
        factors = self.tensor(name, 1)
        if factors.dtype.name != "f32" or factors.shape != (count,):
            raise WeightError(f"[gguf] {name} must be f32, one for each of {count} frequencies: {factors}")
        values = factors.numpy()
        if not all(0 < value < math.inf for value in values.tolist()):
            raise WeightError(f"[gguf] {name} holds factors that are not above zero and finite")
        return [float(value) for value in values]

    def yarn(self, factor: float) -> dict[str, Any]:
        """Converters write Hugging Face's attention_factor as yarn_attn_factor, in place of the rule's own number;
        attn_factor is what readers multiply that number with."""
        scaling: dict[str, Any] = {}
        if self.key("rope.scaling.original_context_length") in self.meta:
            scaling["original_max_position_embeddings"] = self.count(
                "rope.scaling.original_context_length", MAX_CONTEXT
            )
        for hf, gguf in YARN.items():
            if self.key(gguf) in self.meta:
                scaling[hf] = self.real(gguf)
        if "attention_factor" not in scaling and self.key("rope.scaling.attn_factor") in self.meta:
            product = self.real("rope.scaling.attn_factor") * yarn_magnitude(factor)
            scaling["attention_factor"] = shortest(product)
        return scaling

    def pooling(self) -> str:
        return POOLING[self.meta.get_int(self.key("pooling_type"), 0, high=len(POOLING) - 1)]

    def encoder(self) -> dict[str, Any]:
        """What bert and its relatives share."""
        config = self.common()
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

    def bert(self) -> dict[str, Any]:
        config = self.encoder()
        positions = self.tensor("position_embd.weight", 2).shape[0]
        return {
            **config,
            "architectures": ["BertModel"],
            "hidden_act": "gelu",
            "max_position_embeddings": min(positions, config["max_position_embeddings"]),
            "position_embedding_type": "absolute",
        }

    def nomic_bert(self) -> dict[str, Any]:
        config = self.encoder()
        return {
            **config,
            "architectures": ["NomicBertModel"],
            "hidden_act": "silu",
            "rope_theta": self.real("rope.freq_base", 10_000.0),
            "rope_scaling": self.rope_scaling(config["head_dim"]),
        }

    def token_types(self) -> int:
        """How many kinds of tokens; a table of one row may be stored without its outer dimension."""
        if "token_types.weight" not in self.tensors:
            return 0
        shape = self.tensors["token_types.weight"].shape
        return shape[0] if len(shape) > 1 else 1


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
    """What YaRN multiplies cosine and sine with, by its own rule."""
    return 1.0 + 0.1 * by * math.log(factor) if factor > 1 else 1.0
