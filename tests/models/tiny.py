"""Tiny random checkpoints: configs and weights that come from a seed alone, the same in the tests and in the scripts
that make goldens, so only the expected outputs are stored."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

LENGTHS = (1, 7, 40, 130, 600)
LONG = (1, 7, 40, 130, 1000)  # of the types in scripts of their own
# Of a long text the goldens keep these rows only: every one of a short text, the edges of pages, windows and contexts.
KEPT = (
    *(*range(9), 16, 31, 32, 33, 38, 39, 64, 99, 127, 128, 129, 200, 255, 256, 257, 333, 400, 511, 512, 544, 598, 599),
    *(640, 767, 768, 801, 999),
)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 640,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 640,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
# Padding ids that tiny.token_ids does not draw: transformers counts no position for padding.
ROBERTA: dict[str, Any] = {
    **BERT,
    "model_type": "roberta",
    "architectures": ["RobertaModel"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 612,
    "type_vocab_size": 1,
    "pad_token_id": 3,
}

# Fewer tokens than LLAMA, which keeps the goldens small.
QWEN2: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 59,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
    "sliding_window": 8,
}
QWEN3: dict[str, Any] = {
    **QWEN2,
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 16,
    "sliding_window": None,
    "attention_bias": False,
}
MISTRAL: dict[str, Any] = {
    **LLAMA,
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "vocab_size": 59,
    "head_dim": 12,
    "sliding_window": 37,
}
PHI3: dict[str, Any] = {
    **LLAMA,
    "model_type": "phi3",
    "architectures": ["Phi3ForCausalLM"],
    "vocab_size": 59,
    "pad_token_id": 0,
    "sliding_window": 45,
    "original_max_position_embeddings": 256,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.25, 2.0],
    "long_factor": [1.0, 8.0, 16.0],
}
# Caps that scores and logits of these weights reach.
GEMMA2: dict[str, Any] = {
    **LLAMA,
    "model_type": "gemma2",
    "architectures": ["Gemma2ForCausalLM"],
    "vocab_size": 59,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 16,
    "sliding_window": 37,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 15.0,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
GEMMA3: dict[str, Any] = {
    **GEMMA2,
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "sliding_window_pattern": 2,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

MODERNBERT: dict[str, Any] = {
    "model_type": "modernbert",
    "architectures": ["ModernBertModel"],
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "max_position_embeddings": 640,
    "local_attention": 38,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
NOMIC_BERT: dict[str, Any] = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 640,
    "type_vocab_size": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "pad_token_id": 0,
}

# Their goldens are in tiny-models.npz. Later types are in scripts of their own, see SCRIPTS.
FIRST: dict[str, dict[str, Any]] = {
    "llama-grouped": LLAMA,
    "llama-full-tied": {**LLAMA, "num_key_value_heads": 6, "tie_word_embeddings": True},
    "llama-llama3-rope": {**LLAMA, "rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE, "tie_word_embeddings": True},
    "llama-linear-rope": {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama-wide-heads-bias": {
        **LLAMA,
        "head_dim": 20,
        "attention_bias": True,
        "mlp_bias": True,
        "num_key_value_heads": 3,
    },
    "llama-yarn": {**LLAMA, "vocab_size": 59, "rope_scaling": YARN},
    "llama-dynamic-rope": {
        **LLAMA,
        "vocab_size": 37,
        "max_position_embeddings": 256,
        "rope_scaling": {"rope_type": "dynamic", "factor": 3.0},
    },
    "qwen2": QWEN2,
    "qwen2-window-tied": {**QWEN2, "use_sliding_window": True, "max_window_layers": 1, "tie_word_embeddings": True},
    "qwen3": QWEN3,
    "qwen3-tied-yarn": {
        **QWEN3,
        "tie_word_embeddings": True,
        "rope_scaling": {**YARN, "beta_fast": 8.0, "attention_factor": 1.25},
    },
    "mistral": MISTRAL,
    "phi3": PHI3,
    "phi3-part-longrope": {
        **PHI3,
        "num_key_value_heads": 6,
        "partial_rotary_factor": 0.75,
        "max_position_embeddings": 1024,
        "sliding_window": None,
        "rope_scaling": LONGROPE,
    },
    "gemma2": GEMMA2,
    "gemma2-listed-bias": {
        **GEMMA2,
        "num_key_value_heads": 6,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        "attention_bias": True,
    },
    "gemma3_text": GEMMA3,
    "gemma3_text-linear-capped": {
        **GEMMA3,
        "num_key_value_heads": 6,
        "sliding_window_pattern": 3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "final_logit_softcapping": 5.0,
        "tie_word_embeddings": False,
    },
    "gemma3_text-both-ways": {
        **GEMMA3,
        "architectures": ["Gemma3TextModel"],
        "use_bidirectional_attention": True,
        "sliding_window": 40,
    },
    "modernbert": MODERNBERT,
    "modernbert-listed-bias": {
        **MODERNBERT,
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        "norm_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "hidden_activation": "silu",
    },
    "nomic_bert": NOMIC_BERT,
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm_roberta": {
        **ROBERTA,
        "model_type": "xlm-roberta",
        "architectures": ["XLMRobertaModel"],
        "hidden_size": 32,
        "max_position_embeddings": 609,
        "pad_token_id": 8,
    },
    "bert-tanh": {**BERT, "hidden_act": "gelu_new", "num_attention_heads": 3, "num_hidden_layers": 3},
}


GEMMAS = ("gemma2", "gemma3_text")  # whose norms are stored less one


def uniform(seed: int, count: int) -> np.ndarray:
    """`count` float32 numbers in [-1, 1): splitmix64 of seed and place, so no library's generator can change them."""
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return ((z >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1.0).astype(np.float32)


def decodes(cfg: dict[str, Any]) -> bool:
    """Whether it has a head that makes logits."""
    return bool(cfg["architectures"][0].endswith("ForCausalLM"))


def recurs(cfg: dict[str, Any]) -> bool:
    """Whether some of its layers have a state in slots, beside pages of keys and values."""
    return getattr(SCRIPTS.get(cfg["model_type"]), "RECURRENT", False)


def lengths(cfg: dict[str, Any]) -> tuple[int, ...]:
    """How long the texts are that transformers computed for it."""
    return LONG if cfg["model_type"] in SCRIPTS else LENGTHS


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every tensor of the checkpoint."""
    if cfg["model_type"] in SCRIPTS:
        return SCRIPTS[cfg["model_type"]].shapes(cfg)
    made = {"modernbert": _modernbert_shapes, "nomic_bert": _nomic_shapes}.get(cfg["model_type"])
    return (made or (_bert_shapes if "layer_norm_eps" in cfg else llama_shapes))(cfg)


def llama_shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, heads = cfg["hidden_size"], cfg["intermediate_size"], cfg["num_attention_heads"]
    dim = cfg.get("head_dim") or hidden // heads
    rows = {
        "q_proj": heads * dim,
        "k_proj": cfg["num_key_value_heads"] * dim,
        "v_proj": cfg["num_key_value_heads"] * dim,
    }
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (cfg["vocab_size"], hidden)}
    for i in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, count in rows.items():
            found[f"{at}self_attn.{name}.weight"] = (count, hidden)
            if cfg.get("attention_bias") or cfg["model_type"] == "qwen2":
                found[f"{at}self_attn.{name}.bias"] = (count,)
        found[f"{at}self_attn.o_proj.weight"] = (hidden, heads * dim)
        if cfg.get("attention_bias"):
            found[f"{at}self_attn.o_proj.bias"] = (hidden,)
        for name, shape in {
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }.items():
            found[f"{at}mlp.{name}.weight"] = shape
            if cfg.get("mlp_bias"):
                found[f"{at}mlp.{name}.bias"] = (shape[0],)
        if cfg["model_type"] in ("qwen3", "gemma3_text"):
            found[f"{at}self_attn.q_norm.weight"] = found[f"{at}self_attn.k_norm.weight"] = (dim,)
        found[f"{at}input_layernorm.weight"] = found[f"{at}post_attention_layernorm.weight"] = (hidden,)
        if cfg["model_type"] in GEMMAS:
            for side in ("pre", "post"):
                found[f"{at}{side}_feedforward_layernorm.weight"] = (hidden,)
        if cfg["model_type"] == "phi3":
            _fuse(found, f"{at}self_attn.", "qkv_proj", ("q_proj", "k_proj", "v_proj"))
            _fuse(found, f"{at}mlp.", "gate_up_proj", ("gate_proj", "up_proj"))
    found["model.norm.weight"] = (hidden,)
    if not cfg["tie_word_embeddings"]:
        found["lm_head.weight"] = (cfg["vocab_size"], hidden)
    return found


def _fuse(found: dict[str, tuple[int, ...]], at: str, name: str, parts: tuple[str, ...]) -> None:
    """One matrix with the rows of all `parts` in their place."""
    stacked = [found.pop(f"{at}{part}.weight") for part in parts]
    found[f"{at}{name}.weight"] = (sum(shape[0] for shape in stacked), stacked[0][1])


def _bert_shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = cfg["hidden_size"], cfg["intermediate_size"]
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (cfg["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (cfg["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (cfg["type_vocab_size"], hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for i in range(cfg["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        parts = {
            "attention.self.query": (hidden, hidden),
            "attention.self.key": (hidden, hidden),
            "attention.self.value": (hidden, hidden),
            "attention.output.dense": (hidden, hidden),
            "intermediate.dense": (inner, hidden),
            "output.dense": (hidden, inner),
        }
        for name, shape in parts.items():
            found[f"{at}{name}.weight"] = shape
            found[f"{at}{name}.bias"] = (shape[0],)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            found[f"{at}{name}.weight"] = found[f"{at}{name}.bias"] = (hidden,)
    return found


def _modernbert_shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = cfg["hidden_size"], cfg["intermediate_size"]
    found: dict[str, tuple[int, ...]] = {"embeddings.tok_embeddings.weight": (cfg["vocab_size"], hidden)}
    norms = ["embeddings.norm", "final_norm"]
    for i in range(cfg["num_hidden_layers"]):
        at = f"layers.{i}."
        for name, shape, bias in (
            ("attn.Wqkv", (3 * hidden, hidden), "attention_bias"),
            ("attn.Wo", (hidden, hidden), "attention_bias"),
            ("mlp.Wi", (2 * inner, hidden), "mlp_bias"),
            ("mlp.Wo", (hidden, inner), "mlp_bias"),
        ):
            found[f"{at}{name}.weight"] = shape
            if cfg.get(bias):
                found[f"{at}{name}.bias"] = shape[:1]
        norms += [f"{at}mlp_norm", *([f"{at}attn_norm"] if i else [])]
    for name in norms:
        found[f"{name}.weight"] = (hidden,)
        if cfg.get("norm_bias"):
            found[f"{name}.bias"] = (hidden,)
    return found


def _nomic_shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = cfg["hidden_size"], cfg["intermediate_size"]
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (cfg["vocab_size"], hidden),
        "embeddings.token_type_embeddings.weight": (cfg["type_vocab_size"], hidden),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(cfg["num_hidden_layers"]):
        at = f"layers.{i}."
        for name in "qkvo":
            found[f"{at}self_attn.{name}_proj.weight"] = (hidden, hidden)
        found[f"{at}mlp.up_proj.weight"] = found[f"{at}mlp.gate_proj.weight"] = (inner, hidden)
        found[f"{at}mlp.down_proj.weight"] = (hidden, inner)
        norms += [f"{at}post_attention_layernorm", f"{at}post_mlp_layernorm"]
    for name in norms:
        found[f"{name}.weight"] = found[f"{name}.bias"] = (hidden,)
    return found


def first_nomic(cfg: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The same nomic_bert with the config and the names of the first checkpoints: fused projections, GPT-2's words."""
    words = {"hidden_size": "n_embd", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer"}
    words |= {"num_attention_heads": "n_head", "max_position_embeddings": "n_positions"}
    words |= {"layer_norm_eps": "layer_norm_epsilon"}
    config = {words.get(key, key): value for key, value in cfg.items() if key not in ("rope_parameters", "hidden_act")}
    config |= {"rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "activation_function": "swiglu"}
    config |= {
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_scaling_factor": None,
        "architectures": ["NomicBertModel"],
    }
    stored = weights(cfg)
    for i in range(cfg["num_hidden_layers"]):
        parts = [stored.pop(f"layers.{i}.self_attn.{name}_proj.weight") for name in "qkv"]
        stored[f"layers.{i}.attn.Wqkv.weight"] = np.concatenate(parts)
    names = {"embeddings.LayerNorm": "emb_ln", "layers.": "encoder.layers.", "self_attn.o_proj": "attn.out_proj"}
    names |= {"up_proj": "fc11", "gate_proj": "fc12", "down_proj": "fc2"}
    names |= {"post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2"}
    renamed = {}
    for name, value in stored.items():
        for native, first in names.items():
            name = name.replace(native, first)
        renamed[name] = value
    return config, renamed


def weights(cfg: dict[str, Any]) -> dict[str, np.ndarray]:
    """Every tensor, float32: matrices near 1/sqrt(inputs), norms near one, biases near zero."""
    made, adjusted = {}, getattr(SCRIPTS.get(cfg["model_type"]), "adjusted", None)
    for seed, (name, shape) in enumerate(sorted(shapes(cfg).items()), 1):
        values = uniform(seed * 1_000_003, int(np.prod(shape))).reshape(shape)
        if len(shape) > 1:
            values = values * np.float32(1.0 if "embed" in name else 2.0 / np.sqrt(shape[1]))
        else:
            values = np.float32(0.1) * values + np.float32(
                1.0 if name.lower().endswith(("norm.weight", "norm_f.weight")) and not _less_one(cfg, name) else 0.0
            )
        made[name] = adjusted(name, values) if adjusted else values
    return made


def _less_one(cfg: dict[str, Any], name: str) -> bool:
    """Whether this norm is stored less one."""
    if cfg["model_type"] in GEMMAS:
        return True
    return getattr(SCRIPTS.get(cfg["model_type"]), "PLUS_ONE", False) and "linear_attn.norm" not in name


def token_ids(cfg: dict[str, Any], length: int, seed: int = 7) -> np.ndarray:
    """Token ids, int32 [length]; a shorter list is a prefix of a longer one."""
    return ((uniform(seed, length) + 1) / 2 * cfg["vocab_size"]).astype(np.int32)


def write_folder(folder: Path, cfg: dict[str, Any], tensors: dict[str, np.ndarray] | None = None) -> Path:
    """A Hugging Face folder without tokenizer files."""
    from weft.weights.safetensors import write_safetensors

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(cfg))
    write_safetensors(folder / "model.safetensors", weights(cfg) if tensors is None else tensors)
    return folder


def _script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# By model_type: the scripts make_<model_type>.py. Each has CONFIGS, shapes, where it has other weights `adjusted`, and
# UNWRITABLE (name -> words of the message, changes that GGUF can say) and REFUSED (changes, field, words).
_GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "models"
SCRIPTS: dict[str, ModuleType] = {
    path.stem.removeprefix("make_"): _script(path)
    for path in sorted(_GOLDEN.glob("make_*.py"))
    if path.stem != "make_models"
}
CONFIGS: dict[str, dict[str, Any]] = {**FIRST}
for _made in SCRIPTS.values():
    CONFIGS.update(_made.CONFIGS)
