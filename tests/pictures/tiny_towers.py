"""Tiny models with pictures: configs, weights from a seed, texts and pictures, the same for tests and goldens."""

import json
import struct

import numpy as np

TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 12,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 63,
}
VISION = {
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_channels": 3,
    "patch_size": 8,
}
CONFIGS = {
    "clip": {
        "projection_dim": 24,
        "text_config": {**TEXT, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "projection_dim": 24},
        "vision_config": {
            **VISION, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "image_size": 24, "projection_dim": 24,
        },
    },
    "siglip": {
        "text_config": {**TEXT, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "projection_size": 40},
        "vision_config": {**VISION, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "image_size": 24},
    },
    "siglip2": {
        "text_config": {**TEXT, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "projection_size": 40},
        "vision_config": {**VISION, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "num_patches": 9},
    },
}  # fmt: skip
PROCESSORS = {
    "clip": {
        "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 26},
        "crop_size": {"height": 24, "width": 24}, "do_convert_rgb": True,
    },
    "siglip": {
        "image_processor_type": "SiglipImageProcessor", "size": {"height": 24, "width": 24}, "do_convert_rgb": True,
    },
    "siglip2": {
        "image_processor_type": "Siglip2ImageProcessor", "patch_size": 8, "max_num_patches": 12,
        "do_convert_rgb": True,
    },
}  # fmt: skip
WORDS = ["<s>", "<pad>", "a", "red", "blue", "green", "square", "disc", "bar", "of", "photo", "the", "cat", "dog"]


def shapes(kind):
    """Tensor name -> shape, as the checkpoints of transformers have them."""
    config, made = CONFIGS[kind], {}

    def norm(name, size):
        made[f"{name}.weight"], made[f"{name}.bias"] = (size,), (size,)

    def linear(name, outputs, inputs, bias=True):
        made[f"{name}.weight"] = (outputs, inputs)
        if bias:
            made[f"{name}.bias"] = (outputs,)

    def layers(tower, cfg):
        size = cfg["hidden_size"]
        for i in range(cfg["num_hidden_layers"]):
            at = f"{tower}.encoder.layers.{i}"
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                linear(f"{at}.self_attn.{part}", size, size)
            norm(f"{at}.layer_norm1", size)
            norm(f"{at}.layer_norm2", size)
            linear(f"{at}.mlp.fc1", cfg["intermediate_size"], size)
            linear(f"{at}.mlp.fc2", size, cfg["intermediate_size"])

    text, vision = config["text_config"], config["vision_config"]
    size, seen, patch = text["hidden_size"], vision["hidden_size"], vision["patch_size"]
    made["text_model.embeddings.token_embedding.weight"] = (text["vocab_size"], size)
    made["text_model.embeddings.position_embedding.weight"] = (text["max_position_embeddings"], size)
    layers("text_model", text)
    norm("text_model.final_layer_norm", size)
    layers("vision_model", vision)
    norm("vision_model.post_layernorm", seen)
    at = "vision_model.embeddings"
    if kind == "clip":
        made[f"{at}.class_embedding"] = (seen,)
        made[f"{at}.patch_embedding.weight"] = (seen, 3, patch, patch)
        made[f"{at}.position_embedding.weight"] = ((vision["image_size"] // patch) ** 2 + 1, seen)
        norm("vision_model.pre_layrnorm", seen)
        linear("visual_projection", config["projection_dim"], seen, bias=False)
        linear("text_projection", config["projection_dim"], size, bias=False)
        return {**made, "logit_scale": ()}
    places = vision.get("num_patches") or (vision["image_size"] // patch) ** 2
    made[f"{at}.patch_embedding.weight"] = (seen, 3 * patch**2) if kind == "siglip2" else (seen, 3, patch, patch)
    made[f"{at}.patch_embedding.bias"] = (seen,)
    made[f"{at}.position_embedding.weight"] = (places, seen)
    linear("text_model.head", text["projection_size"], size)
    head = "vision_model.head"
    made |= {f"{head}.probe": (1, 1, seen), f"{head}.attention.in_proj_weight": (3 * seen, seen)}
    made[f"{head}.attention.in_proj_bias"] = (3 * seen,)
    linear(f"{head}.attention.out_proj", seen, seen)
    norm(f"{head}.layernorm", seen)
    linear(f"{head}.mlp.fc1", vision["intermediate_size"], seen)
    linear(f"{head}.mlp.fc2", seen, vision["intermediate_size"])
    return {**made, "logit_scale": (1,), "logit_bias": (1,)}


def weights(kind, seed=7):
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in sorted(shapes(kind).items()):
        values = rng.normal(0, 0.4 if "embedding" in name else 0.2, shape)
        is_norm = "norm" in name and name.endswith(".weight")
        made[name] = np.asarray(1 + values if is_norm else values, np.float32)
    made["logit_scale"] = np.full(shapes(kind)["logit_scale"], 1.5, np.float32)
    return made


def write_tensors(path, tensors):
    header, data, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, values in tensors.items():
        raw = values.tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(data))


def write_folder(folder, kind, tokenizer=False):
    """The model's folder, with a tokenizer of whole words where one is asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {"clip": "CLIPModel", "siglip": "SiglipModel", "siglip2": "Siglip2Model"}
    config = {"architectures": [names[kind]], "model_type": kind, **CONFIGS[kind]}
    config["text_config"] = {**config["text_config"], "model_type": f"{kind}_text_model"}
    config["vision_config"] = {**config["vision_config"], "model_type": f"{kind}_vision_model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[kind]))
    write_tensors(folder / "model.safetensors", weights(kind))
    if tokenizer:
        write_tokenizer(folder)
    return folder


def write_tokenizer(folder):
    vocab = {**{word: i for i, word in enumerate(WORDS)}, "</s>": 63}
    special = [
        {"id": vocab[word], "content": word, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for word in ("<s>", "<pad>", "</s>")
    ]  # fmt: skip
    ends = {"</s>": {"id": "</s>", "ids": [63], "tokens": ["</s>"]}}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}},
                           {"SpecialToken": {"id": "</s>", "type_id": 0}}], "pair": [], "special_tokens": ends},
        "decoder": None,
        "model": {"type": "WordPiece", "unk_token": "<pad>", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocab},
    }))  # fmt: skip
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"pad_token": "<pad>", "eos_token": "</s>", "model_max_length": 12})
    )


def pictures():
    """Arrays of odd sizes; the second is wide, the third tall."""
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, (rows, cols, 3), np.uint8) for rows, cols in [(24, 24), (17, 61), (90, 21), (40, 33)]]


def texts(kind):
    """Ids that end with the end of the text."""
    rng = np.random.default_rng(5)
    return [[*rng.integers(2, 60, count).tolist(), 63] for count in (1, 4, 11)]


def padded(kind, ids):
    """As the model wants them: SigLIP's filled up with the padding token."""
    return ids if kind == "clip" else ids + [1] * (12 - len(ids))
