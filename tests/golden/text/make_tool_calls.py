"""Make tool_calls.json: tool calls as transformers renders them with the chat templates of the families.

    python tests/golden/text/make_tool_calls.py FOLDER

FOLDER holds the templates, as llama.cpp keeps them in models/templates. They are not copied: of each the golden has the
marks that decide its format, and its hash. Needs the `transformers` package. weft must render the same, which this
script checks.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parents[2]))
from made_with import note_versions  # noqa: E402

from weft.text.chat import render  # noqa: E402

TEMPLATES = {
    "qwen2.5": "Qwen-Qwen2.5-7B-Instruct",
    "qwen3": "Qwen-Qwen3-0.6B",
    "hermes3": "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "qwen3-coder": "Qwen3-Coder",
    "qwen3.5": "Qwen3.5-4B",
    "llama3.1": "meta-llama-Llama-3.1-8B-Instruct",
    "llama3.2": "meta-llama-Llama-3.2-3B-Instruct",
    "mistral-nemo": "mistralai-Mistral-Nemo-Instruct-2407",
    "mistral-small-3.2": "Mistral-Small-3.2-24B-Instruct-2506",
    "ministral-3": "mistralai-Ministral-3-14B-Reasoning-2512",
    "gpt-oss": "openai-gpt-oss-120b",
}
ONE_CALL = ("llama3.1", "llama3.2", "gpt-oss")  # templates that write one call of a message
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "26 Jul 2024"}
MARK = re.compile(r"</?\|?[a-z_]{3,20}[=|]?>?|\[/?[A-Z_]{3,16}\]|ipython")

PLACE = {"type": "object", "properties": {"lat": {"type": "number"}, "name": {"type": "string"}}}
PROPERTIES = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "on": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "place": {"$ref": "#/$defs/place"},
    "maybe": {"type": ["string", "null"]},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "size": {"enum": ["1", "2"]},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "note_it",
            "description": "Keeps a note.",
            "parameters": {"type": "object", "properties": PROPERTIES, "$defs": {"place": PLACE}},
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
    },
]
CALLS: list[list[tuple[str, dict[str, Any]]]] = [
    [("now", {})],
    [("note_it", {"text": 'Grüße, 東京 🌦 "quoted" \\ back'})],
    [("note_it", {"text": "12", "count": 12, "ratio": 1.5, "on": True, "size": "1"})],
    [("note_it", {"text": "true", "count": -7, "ratio": 2, "on": False})],
    [("note_it", {"text": "two\nlines\n\n  indented\n", "tags": ["a", "b\nc", "</x>"]})],
    [("note_it", {"text": "\nbegins and ends with line breaks\n\n", "tags": []})],
    [("note_it", {"text": "", "place": {"lat": -0.5, "name": 'x {"y": [1]}'}})],
    [("note_it", {"text": "<b>tags</b> <parameter> </parameter> and < or >", "count": 0})],
    [("note_it", {"maybe": None, "either": 5})],
    [("note_it", {"maybe": "some", "either": "five"})],
    [("note_it", {"text": '{"looks": "like JSON"}', "size": "2"})],
    [("now", {}), ("note_it", {"text": "a", "count": 1}), ("note_it", {"text": "b"})],
]
SAID = [{"role": "user", "content": "Note it."}]


def messages_of(calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """A turn of calls, and their results."""
    made = [
        {"type": "function", "id": f"abcdef{number:03d}", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    results = [
        {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"], "content": f"done {number}"}
        for number, call in enumerate(made)
    ]
    return [{"role": "assistant", "content": "", "tool_calls": made}, *results]


def rendered(template: str, messages: list[dict[str, Any]], answer: bool) -> str:
    """The text, which weft must render too. With `answer` the header of an answer follows."""
    tools = TOOLS[1:] if "json_to_python_type" in template else TOOLS  # which wants a type in every schema
    arguments = {"tools": tools, "add_generation_prompt": answer, **TOKENS}
    texts, _ = render_jinja_template([messages], chat_template=template, **arguments)
    assert render(template, messages, **arguments) == texts[0]
    return texts[0]


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    for name, file in TEMPLATES.items():
        template = (folder / f"{file}.jinja").read_text(encoding="utf-8")
        cases = []
        for calls in CALLS:
            if len(calls) > 1 and name in ONE_CALL:
                continue
            called, *results = messages_of(calls)
            prompt = rendered(template, SAID, True)
            whole = rendered(template, [*SAID, called], False)
            assert whole.startswith(prompt), (name, prompt[-80:], whole[len(prompt) - 80 :][:160])
            back = rendered(template, [*SAID, called, *results], True)
            cases.append({"answer": whole[len(prompt) :], "calls": calls, "results": back[len(whole) - 60 :]})
        found[name] = {
            "sha256": hashlib.sha256(template.encode()).hexdigest(),
            "marks": sorted(set(MARK.findall(template))),
            "prompt_ends": prompt[-24:],
            "cases": cases,
        }
    path = HERE / "tool_calls.json"
    path.write_text(
        json.dumps({"tools": TOOLS, "templates": found}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
    note_versions(path, "transformers", "jinja2")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
