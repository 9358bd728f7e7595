"""Tiny chats that see: configs, weights from a seed, tokenizers, templates, conversations, for tests and goldens."""

import json

import numpy as np
from tiny_towers import write_tensors

TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == "
    "'image' %}{{':'}}{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}"
    "{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
SPECIAL = [
    "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>",
    *(f"<row_{row}_col_{col}>" for row in range(1, 4) for col in range(1, 4)),
]  # fmt: skip
BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]
VOCAB = 256 + len(SPECIAL)
IMAGE = 256 + SPECIAL.index("<image>")
TEXT = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
}
VISION = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_channels": 3,
    "image_size": 24,
    "patch_size": 4,
}
CONFIG = {
    "architectures": ["Idefics3ForConditionalGeneration"],
    "model_type": "idefics3",
    "text_config": TEXT,
    "vision_config": {**VISION, "model_type": "idefics3_vision"},
    "image_token_id": IMAGE,
    "scale_factor": 2,
    "tie_word_embeddings": False,
    "eos_token_id": 257,
}
PROCESSOR = {
    "image_processor_type": "Idefics3ImageProcessor",
    "size": {"longest_edge": 60},
    "max_image_size": {"longest_edge": 24},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 1,
}
PLACES = 9  # tokens of a tile

# Prompts with pictures whose sides are whole tiles of `write_pair`'s model, so that nobody resizes the tiles.
WHOLE_TILES = {
    name: (f"<|im_start|>User:{text}<end_of_utterance>\nAssistant:", [
        np.random.default_rng(seed).integers(0, 256, (rows, cols, 3), np.uint8) for seed, rows, cols in sizes
    ])
    for name, text, sizes in (
        ("square", "<image>What is this?", [(21, 48, 48)]),
        ("two", " First <image> then <image>\n\nWhich is it?", [(22, 24, 48), (23, 48, 24)]),
    )
}  # fmt: skip


def shapes():
    """Tensor name -> shape, as the checkpoints of transformers have them."""
    made = {}
    size, inner, heads = TEXT["hidden_size"], TEXT["intermediate_size"], TEXT["num_key_value_heads"]
    wide = heads * size // TEXT["num_attention_heads"]
    made["model.text_model.embed_tokens.weight"] = (VOCAB, size)
    for i in range(TEXT["num_hidden_layers"]):
        at = f"model.text_model.layers.{i}"
        for part, rows in (("q", size), ("k", wide), ("v", wide), ("o", size)):
            made[f"{at}.self_attn.{part}_proj.weight"] = (rows, size)
        made[f"{at}.mlp.gate_proj.weight"] = made[f"{at}.mlp.up_proj.weight"] = (inner, size)
        made[f"{at}.mlp.down_proj.weight"] = (size, inner)
        made[f"{at}.input_layernorm.weight"] = made[f"{at}.post_attention_layernorm.weight"] = (size,)
    made["model.text_model.norm.weight"] = (size,)
    made["lm_head.weight"] = (VOCAB, size)
    seen, patch = VISION["hidden_size"], VISION["patch_size"]
    at = "model.vision_model"

    def linear(name, rows, cols):
        made[f"{name}.weight"], made[f"{name}.bias"] = (rows, cols), (rows,)

    def norm(name):
        made[f"{name}.weight"] = made[f"{name}.bias"] = (seen,)

    made[f"{at}.embeddings.patch_embedding.weight"] = (seen, 3, patch, patch)
    made[f"{at}.embeddings.patch_embedding.bias"] = (seen,)
    made[f"{at}.embeddings.position_embedding.weight"] = ((VISION["image_size"] // patch) ** 2, seen)
    for i in range(VISION["num_hidden_layers"]):
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(f"{at}.encoder.layers.{i}.self_attn.{part}", seen, seen)
        norm(f"{at}.encoder.layers.{i}.layer_norm1")
        norm(f"{at}.encoder.layers.{i}.layer_norm2")
        linear(f"{at}.encoder.layers.{i}.mlp.fc1", VISION["intermediate_size"], seen)
        linear(f"{at}.encoder.layers.{i}.mlp.fc2", seen, VISION["intermediate_size"])
    norm(f"{at}.post_layernorm")
    made["model.connector.modality_projection.proj.weight"] = (size, seen * CONFIG["scale_factor"] ** 2)
    return made


def weights(seed=11):
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in sorted(shapes().items()):
        values = rng.normal(0, 0.4 if "embed" in name else 0.2, shape)
        is_norm = "norm" in name and name.endswith(".weight")
        made[name] = np.asarray(1 + values if is_norm else values, np.float32)
    return made


def write_folder(folder, config=CONFIG, processor=PROCESSOR, tensors=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_tensors(folder / "model.safetensors", weights() if tensors is None else tensors)
    write_tokenizer(folder)
    return folder


def write_pair(folder):
    """A GGUF file and its mmproj file, which weft writes of a folder whose vocabulary has a token of two ends of lines,
    as SmolVLM's has. -> their paths"""
    from weft.quantise import Quantising

    text = {**TEXT, "vocab_size": VOCAB + 1}
    processor = {**PROCESSOR, "size": {"longest_edge": 48}}
    tensors = weights()
    for name in ("model.text_model.embed_tokens.weight", "lm_head.weight"):
        more = np.random.default_rng(5).normal(0, 0.3, (1, TEXT["hidden_size"])).astype(np.float32)
        tensors[name] = np.concatenate([tensors[name], more])
    source = write_folder(folder / "whole", {**CONFIG, "text_config": text}, processor, tensors)
    write_tokenizer(source, [*SPECIAL, "\n\n"])
    list(Quantising(source, folder / "tiny-f32.gguf", type="f32"))
    list(Quantising(source, folder / "mmproj-tiny-f32.gguf", type="f32", tower=True))
    return folder / "tiny-f32.gguf", folder / "mmproj-tiny-f32.gguf"


def write_tokenizer(folder, special=SPECIAL):
    """A token for every byte, as GPT-2 writes bytes, and the special ones."""
    others = iter(range(256, 512))
    letters = {byte: chr(byte) if byte in BYTES else chr(next(others)) for byte in range(256)}
    added = [
        {"id": 256 + i, "content": word, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, word in enumerate(special)
    ]  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                                            "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []},
    }))  # fmt: skip
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps({**said, "clean_up_tokenization_spaces": False}))


def pictures():
    """Arrays of odd sizes: wide, tall, nearly square, and one that is a single tile when it is not split."""
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, (rows, cols, 3), np.uint8) for rows, cols in [(17, 61), (90, 21), (40, 33), (24, 24)]]


def text(words):
    return {"type": "text", "text": words}


def picture(index):
    return {"type": "image", "image": index}


# Contents of messages, in which a picture is its index.
CONVERSATIONS = {
    "none": [("user", [text("Hello there.")])],
    "one": [("user", [picture(0), text("What is this? Say <image> or\n\n\nnot.")])],
    "after": [("user", [text("Look:"), picture(1)])],
    "several": [("user", [picture(0), picture(3), text("Which?"), picture(2), text(" Or this?")])],
    "turns": [
        ("user", [text("First "), picture(1), text(" then.")]),
        ("assistant", [text("A tall one.")]),
        ("user", [picture(1), picture(0), text("And now?")]),
    ],
}


def messages(name, given):
    """A conversation with `given` for the indices of pictures."""
    return [
        {"role": role, "content": [{**p, "image": given[p["image"]]} if p["type"] == "image" else p for p in content]}
        for role, content in CONVERSATIONS[name]
    ]
