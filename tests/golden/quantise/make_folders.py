"""Make folders.npz: what llama.cpp makes of the GGUF files that weft writes of tiny folders.

PYTHONPATH=. python tests/golden/quantise/make_folders.py

Needs xllamacpp, which carries llama.cpp. Of every case the ids of some texts, and the logits of 60 of their tokens.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "generate"), str(HERE.parent.parent / "models"), str(HERE.parent)]
import tiny  # noqa: E402

LENGTH = 60
TEXTS = [
    "Once upon a time, the weaver's brother said: we'll see 12345 things.\n\n  Then they left.",
    "def f(x):\n\treturn x + 1  # naïve Größe",
]
# A type of model, the tokenizer of tests/golden/text in its folder, and what else its config says.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama-grouped", "llama2", {}),
    "llama3": ("llama-llama3-rope", "llama3", {}),
    "smollm": ("llama-full-tied", "smollm", {}),
    "mistral": ("mistral", "mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", "gpt2", {}),
    "qwen3": ("qwen3", "llama3", {}),
    "gemma2": ("gemma2", "llama2", {}),
    "gemma3": ("gemma3_text", "llama2", {}),
    "phi3": ("phi3", "llama2", {"sliding_window": None}),
    "mixtral": ("mixtral", "mistral", {}),
    "qwen3_moe": ("qwen3_moe", "gpt2", {}),
    "lfm2": ("lfm2", "llama3", {}),
}
NAMED = {
    "llama2": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "mistral": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "llama3": {"bos_token": "<s>", "eos_token": "<|end|>"},
    "unigram": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "word_piece": {f"{word}_token": f"[{word.upper()}]" for word in ("pad", "unk", "cls", "sep", "mask")},
}


def plain_tokenizer(name: str) -> dict[str, Any]:
    """A tokenizer.json of tests/golden/text without what no model's has: odd added tokens, accents that are dropped."""
    content = json.loads((HERE.parent / "text" / f"{name}.json").read_text())["tokenizer"]
    known = ("<unk>", "<s>", "</s>", "<|end|>", "<pad>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in known]
    if name in ("smollm", "llama3", "unigram"):
        content["normalizer"] = None
    if name == "unigram":
        content["pre_tokenizer"] = content["pre_tokenizer"]["pretokenizers"][1]
    if name == "gpt2":
        content["pre_tokenizer"]["add_prefix_space"] = False
        content["post_processor"] = None
    return content


def write_folder(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    """A folder with random weights and a tokenizer; its config, in which `more` is other."""
    kind, tokenizer, changes = CASES[name]
    content = plain_tokenizer(tokenizer)
    added = [token["id"] for token in content["added_tokens"]]
    rows = 3 + max(*added, *content["model"]["vocab"].values())
    cfg = {**tiny.CONFIGS[kind], **changes, **more, "vocab_size": rows}
    tiny.write_folder(folder, cfg)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps(NAMED.get(tokenizer, {})))
    return cfg


def ids_of(tokenize: Any) -> list[int]:
    return [id for text in TEXTS for id in tokenize(text)]


if __name__ == "__main__":
    from made_with import note_versions
    from make_llama_cpp import Llama

    from weft.quantise import Quantising

    found = {}
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder) / "model", name)
            list(Quantising(Path(folder) / "model", Path(folder) / "m.gguf", type="f32"))
            llama = Llama(str(Path(folder) / "m.gguf"))
            ids = ids_of(llama.tokenize)
            found[f"{name}/ids"] = np.int32(ids)
            found[f"{name}/logits"] = llama.decode(ids[:LENGTH], 0, True)
            print(name, len(ids), found[f"{name}/logits"].shape)
    np.savez_compressed(HERE / "folders.npz", **found)
    note_versions(HERE / "folders.npz", "xllamacpp", "numpy")
