"""Every file of weft/models holds what ModelModule says, and nothing but its name registers it."""

from dataclasses import is_dataclass
from pathlib import Path

import pytest
import tiny
from tiny_gguf import gguf_from_config, gguf_tensors

from weft.errors import UnsupportedError
from weft.models import find_module, gguf_declaration, model_module, model_types
from weft.runtime import open_checkpoint
from weft.text import render
from weft.weights import Gguf, Names, TensorView, write_gguf


@pytest.mark.parametrize("name", model_types())
def test_a_model_s_file_holds_what_the_protocol_says(name: str) -> None:
    module = model_module(name)
    assert module.KIND in ("decoder", "encoder") and (module.__doc__ or "").partition("\n")[0].endswith(".")
    assert is_dataclass(module.Config) and isinstance(module.NAMES, Names)
    assert callable(module.hidden_states) and (module.KIND == "encoder" or callable(module.forward))
    if module.GGUF is not None:
        assert isinstance(module.GGUF, Gguf)
        assert (
            gguf_declaration(module.GGUF.architecture, module.GGUF.experts).model_type
            == module.GGUF.model_type
            in model_types()
        )
    text_type = getattr(module, "TEXT_TYPE", None)
    assert text_type is None or model_module(text_type).NAMES.part


@pytest.mark.parametrize("name", ["", "_core", "__init__", "nope", "os", "a.b", "../llama", "llama ", "Llama"])
def test_a_type_without_a_file_is_refused(name: str) -> None:
    assert find_module(name) is None
    advice = r"`weft list --models` prints .*; `weft adopt` drafts a description of another"
    with pytest.raises(UnsupportedError, match=rf"is not a type that weft runs: got .*; {advice}") as caught:
        model_module(name)
    assert caught.value.field == "model_type" and caught.value.given == name


@pytest.mark.parametrize("name", ["mamba", "mistral", "modernbert", "nomic_bert", "gemma3_text", "roberta"])
def test_an_architecture_is_what_gguf_calls_it(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"is not an architecture that weft runs: got '{name}'"):
        gguf_declaration(name)


# What SmolLM3's own template does: defaults for variables, a test on a name that may be undefined, the date, a list of
# tools of its own, and marks around what the assistant said.
TEMPLATE = """{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{%- set mode = "/think" if enable_thinking else "/no_think" -%}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}{%- set mode = "/no_think" -%}{%- endif -%}
  {%- set rules = system_message.replace("/no_think", "").rstrip() -%}
{%- endif -%}
{%- if "/system_override" not in system_message -%}
  {%- set today = strftime_now("%Y") -%}{{- "Year: " ~ (today | length) ~ " Mode: " + mode + "\\n" -}}
{%- endif -%}
{%- if rules -%}{{- rules + "\\n" -}}{%- endif -%}
{%- if xml_tools -%}
  {%- set ns = namespace(text="Tools:") -%}
  {%- for tool in xml_tools[:] -%}{%- set ns.text = ns.text ~ " " ~ (tool | string) -%}{%- endfor -%}
  {{- ns.text + "\\n" -}}
{%- endif -%}
{%- for message in messages -%}
  {%- set content = message.content if message.content is string else "" -%}
  {%- if message.role == "user" -%}{{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}
  {%- elif message.role == "assistant" -%}
    {% generation %}{{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}{% endgeneration %}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ "<|im_start|>assistant\\n" if mode == "/think" else "<|im_start|>assistant\\n<think>\\n\\n</think>\\n" }}
{%- endif -%}"""


def test_a_smollm3_has_its_chat_template_in_a_folder_and_in_gguf(tmp_path: Path) -> None:
    cfg = tiny.CONFIGS["smollm3"]
    folder = tiny.write_folder(tmp_path / "smollm3", cfg)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    views = {name: TensorView.of(values) for name, values in tiny.weights(cfg).items()}
    metadata = {**gguf_from_config(cfg), "tokenizer.chat_template": TEMPLATE}
    write_gguf(tmp_path / "smollm3.gguf", gguf_tensors(cfg, views), metadata)
    user = {"role": "user", "content": "hi"}
    said = {"role": "assistant", "content": "\nhello"}
    for path in (folder, tmp_path / "smollm3.gguf"):
        template = open_checkpoint(path).chat_template
        assert template is not None
        assert render(template, [user]) == (
            "Year: 4 Mode: /think\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        )
        text = render(template, [{"role": "system", "content": "Be short. /no_think"}, user, said, user])
        assert text.startswith("Year: 4 Mode: /no_think\nBe short.\n<|im_start|>user\n")
        assert "<|im_start|>assistant\nhello<|im_end|>\n" in text and text.endswith("<think>\n\n</think>\n")
        assert "Tools: a b\n" in render(template, [user], enable_thinking=False, xml_tools=["a", "b"])
