"""Make chat.json: conversations as transformers renders them.

    python tests/golden/text/make_chat.py

Needs the `transformers` package (5.22 made the committed file).
"""

import json
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

TEMPLATES = {
    # As in the metadata of SmolLM2's GGUF files.
    "chatml": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    # Everything else templates use: trimming, loop controls, the generation tag, JSON, block trimming.
    "features": """{{- bos_token }}
{%- for message in messages %}
    {%- if loop.index > 3 %}{% break %}{% endif %}
    {%- set content = message.content | trim %}
    {%- if message.role == 'assistant' %}
        {%- generation %}[A]{{ content }}{{ eos_token }}{% endgeneration %}
    {%- else %}
[{{ message.role | upper }}]{{ content }}
    {%- endif %}
{%- endfor %}
{%- if tools %}
TOOLS {{ tools | tojson }} {{ tools | tojson(indent=2) }}
{%- endif %}
    {% if add_generation_prompt %}
[A]
    {% endif %}
""",
}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Grüße, <b>wie</b> geht's? "},
    {"role": "assistant", "content": 'Gut "danke".'},
    {"role": "user", "content": "日本語\n?"},
]
PARAMETERS = {"type": "object", "properties": {"x": {"type": "number"}}}
FUNCTION = {"name": "größe", "description": "a & b <c> 'd' \"e\"", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
CASES: list[tuple[str, list[dict[str, str]], dict[str, Any]]] = [
    ("chatml", MESSAGES, {}),
    ("chatml", MESSAGES[1:2], {}),
    ("chatml", MESSAGES[1:], {"add_generation_prompt": False}),
    ("features", MESSAGES, {"tools": TOOLS, "bos_token": "<s>", "eos_token": "</s>"}),
    ("features", MESSAGES[:2], {"bos_token": "", "eos_token": ""}),
]


def main() -> None:
    rows = []
    for name, messages, arguments in CASES:
        given = {"add_generation_prompt": True, "tools": None, **arguments}
        texts, _ = render_jinja_template([messages], chat_template=TEMPLATES[name], **given)
        rows.append({"template": name, "messages": messages, "arguments": arguments, "text": texts[0]})
    content = {"templates": TEMPLATES, "cases": rows}
    Path(__file__).with_name("chat.json").write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
