"""Make adopted.json and adopted.npz: tiny models of types that weft has no file for, and what transformers computes.

python tests/golden/adopt/make_adopted.py        (needs torch and transformers; the package needs neither)
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "models"), str(HERE.parent)]
import tiny  # noqa: E402
import tiny_adopted  # noqa: E402
from made_with import note_versions  # noqa: E402

TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES = {
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 160,
    **TOKENS,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
GPT = {"vocab_size": 59, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 160, **TOKENS}
PART = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
FOUR = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
FFN = {key: value for key, value in SIZES.items() if key != "intermediate_size"}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}

# name -> model_type, class, settings
ADOPTED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "stablelm": ("stablelm", "StableLmForCausalLM", {**GROUPED, **PART, "use_qkv_bias": True}),
    "stablelm-parallel": ("stablelm", "StableLmForCausalLM", {**GROUPED, "use_parallel_residual": True}),
    "starcoder2": ("starcoder2", "Starcoder2ForCausalLM", {**GROUPED, "sliding_window": 37}),
    "cohere": ("cohere", "CohereForCausalLM", {**GROUPED, "logit_scale": 0.25}),
    "cohere2": (
        "cohere2",
        "Cohere2ForCausalLM",
        {**GROUPED, "num_hidden_layers": 4, "layer_types": FOUR, "sliding_window": 20, "head_dim": 8},
    ),
    "gpt_neox": ("gpt_neox", "GPTNeoXForCausalLM", {**SIZES, **PART}),
    "gpt_neox-serial": ("gpt_neox", "GPTNeoXForCausalLM", {**SIZES, "use_parallel_residual": False}),
    "phi": ("phi", "PhiForCausalLM", {**GROUPED, **PART}),
    "gpt2": ("gpt2", "GPT2LMHeadModel", GPT),
    "gpt_bigcode": ("gpt_bigcode", "GPTBigCodeForCausalLM", {**GPT, "multi_query": True}),
    "gptj": ("gptj", "GPTJForCausalLM", {**GPT, "rotary_dim": 4}),
    "gpt_neo": (
        "gpt_neo",
        "GPTNeoForCausalLM",
        {
            **{key: value for key, value in FFN.items() if not key.startswith("num_")},
            "num_layers": 2,
            "num_heads": 6,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 21,
        },
    ),
    "opt": ("opt", "OPTForCausalLM", {**FFN, "ffn_dim": 80, "word_embed_proj_dim": 48}),
    "opt-post": (
        "opt",
        "OPTForCausalLM",
        {**FFN, "ffn_dim": 80, "word_embed_proj_dim": 48, "do_layer_norm_before": False},
    ),
    "xglm": (
        "xglm",
        "XGLMForCausalLM",
        {"d_model": 48, "num_layers": 2, "attention_heads": 6, "ffn_dim": 80, "vocab_size": 59, **TOKENS}
        | {"max_position_embeddings": 160},
    ),
    "biogpt": ("biogpt", "BioGptForCausalLM", SIZES),
    "seed_oss": ("seed_oss", "SeedOssForCausalLM", {**GROUPED, "head_dim": 12}),
    "granite_swa": (
        "granite_swa",
        "GraniteSWAForCausalLM",
        {
            **GROUPED,
            "num_hidden_layers": 4,
            "layer_types": FOUR,
            "sliding_window": 20,
            "layer_rope_theta": [1000.0, 1000.0, 10000.0, 0],
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.25,
            "logits_scaling": 2.0,
        },
    ),
    "helium": ("helium", "HeliumForCausalLM", {**GROUPED, "head_dim": 8}),
    "exaone4": (
        "exaone4",
        "Exaone4ForCausalLM",
        {**GROUPED, "num_hidden_layers": 4, "layer_types": FOUR, "sliding_window": 20, "sliding_window_pattern": 4},
    ),
    "arcee": ("arcee", "ArceeForCausalLM", {**GROUPED, "head_dim": 8}),
    "nemotron": ("nemotron", "NemotronForCausalLM", {**GROUPED, **PART, "head_dim": 8}),
    "olmo": ("olmo", "OlmoForCausalLM", GROUPED),
    "glm": ("glm", "GlmForCausalLM", {**GROUPED, **PART, "head_dim": 8}),
    "gemma": ("gemma", "GemmaForCausalLM", {**GROUPED, "head_dim": 16}),
    "falcon": ("falcon", "FalconForCausalLM", {**FFN, "ffn_hidden_size": 80}),
    "falcon-grouped": (
        "falcon",
        "FalconForCausalLM",
        {**FFN, "ffn_hidden_size": 80, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "persimmon": ("persimmon", "PersimmonForCausalLM", {**SIZES, **PART}),
    "electra": ("electra", "ElectraModel", {**SIZES, "embedding_size": 48}),
    "camembert": ("camembert", "CamembertModel", {**SIZES, "max_position_embeddings": 162, "pad_token_id": 1}),
    "roberta-prelayernorm": (
        "roberta-prelayernorm",
        "RobertaPreLayerNormModel",
        {**SIZES, "max_position_embeddings": 162, "pad_token_id": 1},
    ),
}
# Types that a description does not fit: only config and shapes are kept.
OBSTACLES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deepseek_v3": (
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        {**SIZES, **EXPERTS, **LATENT, "num_key_value_heads": 6, "first_k_dense_replace": 1},
    ),
    "mamba": ("mamba", "MambaForCausalLM", {"vocab_size": 59, "hidden_size": 48, "num_hidden_layers": 2}),
    "t5": (
        "t5",
        "T5ForConditionalGeneration",
        {"vocab_size": 59, "d_model": 48, "d_kv": 8, "d_ff": 80, "num_layers": 2, "num_heads": 6},
    ),
    "deberta-v2": ("deberta-v2", "DebertaV2Model", {**SIZES, **RELATIVE}),
    "bloom": ("bloom", "BloomForCausalLM", {"vocab_size": 59, "hidden_size": 48, "n_layer": 2, "n_head": 6}),
    "falcon-alibi": ("falcon", "FalconForCausalLM", {**FFN, "alibi": True}),
    "apertus": ("apertus", "ApertusForCausalLM", GROUPED),
    "cohere-qk-norm": ("cohere", "CohereForCausalLM", {**GROUPED, "use_qk_norm": True}),
    "electra-narrow": ("electra", "ElectraModel", {**SIZES, "embedding_size": 16}),
    "codegen": ("codegen", "CodeGenForCausalLM", {**GPT, "n_head": 4, "rotary_dim": 4}),
}


def model_of(kind: str, name: str, settings: dict[str, Any]) -> Any:
    config = transformers.AutoConfig.for_model(kind, **settings, attn_implementation="eager")
    made = getattr(transformers, name)
    has_pooler = kind in ("camembert", "roberta-prelayernorm")
    return (made(config, add_pooling_layer=False) if has_pooler else made(config)).eval().float()


def described(model: Any, name: str) -> dict[str, Any]:
    """config.json and the shapes of the file that save_pretrained writes."""
    config = {**model.config.to_diff_dict(), "architectures": [name]}
    tied = {key for group in (getattr(model, "_tied_weights_keys", None) or {},) for key in group}
    drop = tied if model.config.tie_word_embeddings else set()
    shapes = {key: list(value.shape) for key, value in model.state_dict().items() if key not in drop}
    return {"config": config, "shapes": shapes}


def computed(model: Any, kind: str, shapes: dict[str, Any]) -> np.ndarray:
    tensors = {key: torch.from_numpy(value) for key, value in tiny_adopted.weights(shapes).items()}
    _, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected, unexpected
    model.tie_weights()
    ids = torch.from_numpy(tiny.token_ids({"vocab_size": 59}, tiny_adopted.LENGTH).astype(np.int64))[None]
    rest = {}
    if kind in ("camembert", "roberta-prelayernorm"):  # weft counts every token of a text, padding too
        rest["position_ids"] = torch.arange(ids.shape[1])[None] + model.config.pad_token_id + 1
    with torch.no_grad():
        result = model(input_ids=ids, attention_mask=torch.ones_like(ids), **rest)
    values = result.logits if hasattr(result, "logits") else result.last_hidden_state
    return values[0].numpy().astype(np.float32)


if __name__ == "__main__":
    written, arrays = {}, {}
    for case, (kind, name, settings) in {**ADOPTED, **OBSTACLES}.items():
        model = model_of(kind, name, settings)
        written[case] = described(model, name)
        if case in ADOPTED:
            values = computed(model, kind, written[case]["shapes"])
            arrays[case] = values[[row for row in tiny.KEPT if row < len(values)]]
            print(case, values.shape, float(np.abs(values).max()))
    lines = [f"{json.dumps(case)}: {json.dumps(about)}" for case, about in written.items()]
    (HERE / "adopted.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    np.savez_compressed(HERE / "adopted.npz", **arrays)
    for file in ("adopted.json", "adopted.npz"):
        note_versions(HERE / file, "numpy", "torch", "transformers")
