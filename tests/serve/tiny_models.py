"""Models for tests of the server: a chat model whose template knows tools and reasoning, and an embedder."""

from pathlib import Path
from typing import Any

from tiny_chat import write_chat_model
from tiny_st import write_st_folder

# ChatML with tools in Hermes' way, as Qwen's and SmolLM's templates have it, in short.
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {% for t in tools %}{{ t | tojson }}{% endfor %}"
    "Call with <tool_call>{...}</tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_models(folder: Path, **metadata: Any) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "tiny": write_chat_model(folder / "tiny.gguf", template=TOOL_TEMPLATE, **metadata),
        "plain": write_chat_model(folder / "plain.gguf"),
        "bert": write_st_folder(folder / "bert"),
    }
