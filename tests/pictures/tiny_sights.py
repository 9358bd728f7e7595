"""Tiny models of several types that see: configs, processors, templates, weights from a seed, for tests and goldens.

The names and shapes of their tensors are those that transformers saves, from tests/golden/vision/sights.json; the
tokenizer, the pictures and the conversations are those of tiny_eyes.
"""

import json
from pathlib import Path
from types import MappingProxyType

import numpy as np
import tiny_eyes
from tiny_towers import write_tensors

VISION = Path(__file__).resolve().parent.parent / "golden" / "vision"
TURN = (
    "{% for message in messages %}OPEN{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}PICTURE"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}CLOSE\n{% endfor %}"
    "{% if add_generation_prompt %}OPENassistant\n{% endif %}"
)


def template(open, close, picture, first=""):
    return first + TURN.replace("OPEN", open).replace("CLOSE", close).replace("PICTURE", picture)


GEMMA_SPECIAL = [
    "<bos>",
    "<end_of_turn>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
    "<start_of_turn>",
]
GEMMA = {
    "special": GEMMA_SPECIAL,
    "template": template("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<bos>"),
    "config": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "vocab_size": 256 + len(GEMMA_SPECIAL),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "max_position_embeddings": 1024,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "num_channels": 3,
            "image_size": 24,
            "patch_size": 4,
            "vision_use_head": False,
        },
        "mm_tokens_per_image": 9,
        "boi_token_index": 258,
        "eoi_token_index": 259,
        "image_token_index": 260,
        "eos_token_id": 257,
        "tie_word_embeddings": True,
    },
    "processor": {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": 24, "width": 24},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 2,
        "do_pan_and_scan": None,
    },
    "picture": 260,
}
PAN = {
    "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 12,
    "pan_and_scan_max_num_crops": 3,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}
QWEN_SPECIAL = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
QWEN_TEXT = {
    "vocab_size": 256 + len(QWEN_SPECIAL),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
QWEN_VISION = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_heads": 3,
    "in_channels": 3,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 25,
}
QWEN = {
    "special": QWEN_SPECIAL,
    "template": template("<|im_start|>", "<|im_end|>", "<|vision_start|><|image_pad|><|vision_end|>"),
    "config": {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": {
            **QWEN_TEXT,
            "model_type": "qwen3_vl_text",
            "num_hidden_layers": 3,
            "head_dim": 12,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [2, 2, 2],
                "mrope_interleaved": True,
            },
        },
        "vision_config": {
            **QWEN_VISION,
            "model_type": "qwen3_vl_vision",
            "depth": 4,
            "deepstack_visual_indexes": [0, 2],
        },
        "image_token_id": 260,
        "video_token_id": 261,
        "vision_start_token_id": 258,
        "vision_end_token_id": 259,
        "eos_token_id": 257,
        "tie_word_embeddings": False,
    },
    "processor": {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": {"shortest_edge": 400, "longest_edge": 2000},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "patch_size": 4,
        "merge_size": 2,
        "temporal_patch_size": 2,
    },
    "picture": 260,
}
QWEN_HYBRID = {
    **QWEN,
    "config": {
        **QWEN["config"],
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": {
            **QWEN_TEXT,
            "model_type": "qwen3_5_text",
            "num_hidden_layers": 4,
            "head_dim": 16,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.75,
                "mrope_section": [2, 2, 2],
                "mrope_interleaved": True,
            },
        },
        "vision_config": {**QWEN_VISION, "model_type": "qwen3_5_vision", "depth": 2},
    },
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 16,
}
QWEN_EXPERTS = {
    **QWEN_HYBRID,
    "config": {
        **QWEN_HYBRID["config"],
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": {**QWEN_HYBRID["config"]["text_config"], **EXPERTS, "model_type": "qwen3_5_moe_text"},
        "vision_config": {**QWEN_HYBRID["config"]["vision_config"], "model_type": "qwen3_5_moe_vision"},
    },
}
QWEN_VL_EXPERTS = {
    **QWEN,
    "config": {
        **QWEN["config"],
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "model_type": "qwen3_vl_moe",
        "text_config": {**QWEN["config"]["text_config"], **EXPERTS, "model_type": "qwen3_vl_moe_text"},
        "vision_config": {**QWEN["config"]["vision_config"], "model_type": "qwen3_vl_moe_vision"},
    },
}
TYPES = {
    "gemma3": GEMMA,
    "qwen3_vl": QWEN,
    "qwen3_vl_moe": QWEN_VL_EXPERTS,
    "qwen3_5": QWEN_HYBRID,
    "qwen3_5_moe": QWEN_EXPERTS,
}


def weights(kind, seed=13, shapes=MappingProxyType({})):
    """The tensors of a checkpoint, as transformers names and shapes them; `shapes` are others, by endings of names."""
    usual = json.loads((VISION / "sights.json").read_text(encoding="utf-8"))[kind]
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in sorted(usual.items()):
        shape = next((other for ending, other in shapes.items() if name.endswith(ending)), shape)
        values = rng.normal(0, 0.4 if "embed" in name else 0.2, shape)
        is_norm = "norm" in name and name.endswith(".weight")
        made[name] = np.asarray(1 + values if is_norm else values, np.float32)
    return made


def write_folder(folder, kind, processor=None, config=None, tensors=None):
    """A model's folder; `processor` and `config` are changes to the tiny ones."""
    folder.mkdir(parents=True, exist_ok=True)
    said = TYPES[kind]
    (folder / "config.json").write_text(json.dumps({**said["config"], **(config or {})}))
    if processor is not False:
        (folder / "preprocessor_config.json").write_text(json.dumps({**said["processor"], **(processor or {})}))
    (folder / "chat_template.jinja").write_text(said["template"])
    write_tensors(folder / "model.safetensors", weights(kind) if tensors is None else tensors)
    tiny_eyes.write_tokenizer(folder, said["special"])
    return folder


def noise(seed, rows, cols):
    return np.random.default_rng(seed).integers(0, 256, (rows, cols, 3), np.uint8)


# Prompts for the models of `write_pair`, with pictures of sizes that nobody resizes.
QWEN_TURN = "<|im_start|>user\n<image>What is this? <image>And this?<|im_end|>\n<|im_start|>assistant\n"
OWN_SIZES = {
    "gemma3": (
        "<bos><start_of_turn>user\n<image>What is this?<end_of_turn>\n<start_of_turn>model\n",
        [noise(31, 24, 24)],
    ),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5"), (QWEN_TURN, [noise(32, 24, 32), noise(33, 40, 16)])),
}
PAIR_TEXTS = {
    # llama.cpp takes every sixth layer for one that sees all, so that this model has none.
    "gemma3": {"sliding_window": 512, "layer_types": ["sliding_attention"] * 3},
    # Files have no words for value heads that share a key head, in the order that folders have them.
    "qwen3_5": {"linear_num_key_heads": 4, "rms_norm_eps": 1e-6},
}
MORE_KEYS = {"in_proj_qkv.weight": [96, 32], "conv1d.weight": [96, 1, 4]}  # the shapes with these key heads


def write_pair(folder, kind):
    """A GGUF file of a type and its mmproj file, which weft writes of a folder. -> their paths"""
    from weft.quantise import Quantising

    text = {**TYPES[kind]["config"]["text_config"], **PAIR_TEXTS.get(kind, {})}
    tensors = weights(kind, shapes=MORE_KEYS if kind == "qwen3_5" else {})
    source = write_folder(folder / "whole", kind, config={"text_config": text}, tensors=tensors)
    list(Quantising(source, folder / "tiny-f32.gguf", type="f32"))
    list(Quantising(source, folder / "mmproj-tiny-f32.gguf", type="f32", tower=True))
    return folder / "tiny-f32.gguf", folder / "mmproj-tiny-f32.gguf"
