"""Make chat.json: the conversations of chat_cases.py under every template of templates/, as transformers renders them.

    python tests/golden/text/make_chat.py

Needs the `transformers` package.
"""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2.exceptions
from chat_cases import CASES, FEATURE_ARGUMENTS, FEATURE_MESSAGES, FEATURE_TEMPLATES, NOW, TOKENS
from transformers.utils import chat_template_utils

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from made_with import note_versions  # noqa: E402


class Clock(datetime):
    """The time at which every golden was made."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return NOW


def rendered(template: str, messages: Any, arguments: dict[str, Any]) -> dict[str, str]:
    """The text, or what the template says where it rejects the messages, or the kind of any other failure."""
    if "add_generation_prompt" not in arguments:
        arguments = {**arguments, "add_generation_prompt": not arguments.get("continue_final_message")}
    try:
        texts, _ = chat_template_utils.render_jinja_template([messages], chat_template=template, **arguments)
    except Exception as error:
        rejected = type(error) is jinja2.exceptions.TemplateError  # what raise_exception raises; others derive from it
        return {"rejects": str(error)} if rejected else {"fails": type(error).__name__}
    return {"text": texts[0]}


def main() -> None:
    chat_template_utils.datetime = Clock
    found: dict[str, dict[str, dict[str, str]]] = {}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        template, tokens = path.read_bytes().decode(), TOKENS[path.stem]
        found[path.stem] = {
            name: rendered(template, case["messages"], {**tokens, **case.get("arguments", {})})
            for name, case in CASES.items()
        }
    found["features"] = {
        name: rendered(template, FEATURE_MESSAGES, FEATURE_ARGUMENTS.get(name, {}))
        for name, template in FEATURE_TEMPLATES.items()
    }
    (HERE / "chat.json").write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    note_versions(HERE / "chat.json", "transformers", "jinja2")


if __name__ == "__main__":
    main()
