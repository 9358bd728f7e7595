"""A model's chat templates are found in all the places where folders and GGUF files keep them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from tiny_gguf import gguf_from_config, gguf_name

from weft.errors import FormatError
from weft.runtime import open_checkpoint
from weft.weights import write_gguf, write_safetensors

SEVERAL = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]


def opened(folder: Path, **files: Any) -> Any:
    """The template of a folder with these files; `__` stands for a dot, `_dir_` for a slash."""
    (folder / "config.json").write_text(json.dumps(tiny.LLAMA))
    write_safetensors(folder / "model.safetensors", {"x": np.zeros(1, np.float32)})
    for name, content in files.items():
        path = folder / name.replace("_dir_", "/").replace("__", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return open_checkpoint(folder).chat_template


@pytest.mark.parametrize(
    "files, template",
    [
        ({}, None),
        ({"tokenizer_config__json": {"chat_template": "a"}}, "a"),
        ({"tokenizer_config__json": {"chat_template": None}}, None),
        ({"tokenizer_config__json": {"chat_template": SEVERAL}}, {"default": "plain", "tool_use": "tools"}),
        ({"tokenizer_config__json": {"chat_template": SEVERAL[:1]}}, "plain"),
        ({"tokenizer_config__json": {"chat_template": SEVERAL[1:]}}, {"tool_use": "tools"}),
        ({"tokenizer_config__json": {"chat_template": [{"name": "default"}]}}, None),
        ({"chat_template__json": {"chat_template": "b"}}, "b"),
        ({"chat_template__jinja": "c é\n", "tokenizer_config__json": {"chat_template": SEVERAL}}, "c é\n"),
        (
            {"chat_template__jinja": "c", "additional_chat_templates_dir_tool_use__jinja": "d"},
            {"default": "c", "tool_use": "d"},
        ),
        ({"additional_chat_templates_dir_rag__jinja": "e"}, {"rag": "e"}),
    ],
)
def test_templates_of_a_folder(tmp_path: Path, files: dict[str, Any], template: Any) -> None:
    assert opened(tmp_path, **files) == template


@pytest.mark.parametrize("template", [7, [7], [{"name": "default", "template": 7}], [{"name": 7, "template": "a"}]])
def test_a_template_of_another_type_is_refused(tmp_path: Path, template: Any) -> None:
    with pytest.raises(FormatError, match=r"tokenizer_config\.json"):
        opened(tmp_path, tokenizer_config__json={"chat_template": template})


def test_a_template_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="UTF-8"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "keys, template",
    [
        ({}, None),
        ({"tokenizer.chat_template": "a"}, "a"),
        (
            {
                "tokenizer.chat_template": "a",
                "tokenizer.chat_template.tool_use": "b",
                "tokenizer.chat_templates": ["tool_use"],
            },
            {"tool_use": "b", "default": "a"},
        ),
    ],
)
def test_templates_of_a_gguf_file(tmp_path: Path, keys: dict[str, Any], template: Any) -> None:
    path = tmp_path / "tiny.gguf"
    tensors = {gguf_name("llama", name): values for name, values in tiny.weights(tiny.LLAMA).items()}
    write_gguf(path, tensors, {**gguf_from_config(tiny.LLAMA), **keys})
    assert open_checkpoint(path).chat_template == template
