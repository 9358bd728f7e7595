"""Make infill.json: raw prompts with special tokens, and prompts to fill in the middle, as the tokenizers library reads
them.

    python tests/golden/text/make_infill.py

Needs the `tokenizers` package. The tokenizer is that of llama3.json with the special tokens of Qwen2.5-Coder. A row of
`prompts` is a text and its ids; one of `infill` is a prefix, a suffix and the ids of the prompt that Qwen documents.
"""

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from made_with import note_versions  # noqa: E402

SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
]
PROMPTS = [
    "<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\n",
    "<s>the old river",
    "<s><s>the old river",
    "the old <s>river",
    "<|endoftext|>",
    " <|im_start|> naïve  <|im_end|>",
    "no special tokens, <|im_start and <im_end|>",
    "",
]
TEXTS = [
    ("def add(a, b):\n    ", "\n    return total\n"),
    ("", "the end"),
    ("the beginning", ""),
    ("x = [", "]"),
    ("naïve 日本語 ", " x += 1;\n"),
]


def main() -> None:
    base = json.loads((HERE / "llama3.json").read_text(encoding="utf-8"))["tokenizer"]
    tokenizer = Tokenizer.from_str(json.dumps(base))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    made = {
        "tokenizer": json.loads(tokenizer.to_str()),
        # a prompt that begins with bos keeps it as it is
        "prompts": [[text, tokenizer.encode(text, add_special_tokens=text[:3] != "<s>").ids] for text in PROMPTS],
        "infill": [
            [before, after, tokenizer.encode(f"<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>").ids]
            for before, after in TEXTS
        ],
    }
    path = HERE / "infill.json"
    path.write_text(json.dumps(made, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    note_versions(path, "tokenizers")


if __name__ == "__main__":
    main()
