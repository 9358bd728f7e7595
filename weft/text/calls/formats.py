"""How a model writes tool calls and reasoning, by the one rule that decides it: the marks in its chat template."""

from __future__ import annotations

from collections.abc import Mapping

from weft.frozen import frozen
from weft.text.calls.events import ToolFormat

# The first format all of whose marks are in the template; no template of another family has them all. `<tool_call>`
# stands in templates whose calls are neither JSON nor Qwen's tags, so the marks of those exclude it.
_RULES: tuple[tuple[ToolFormat, tuple[str, ...], tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|message|>"), ()),
    ("mistral_named", ("[TOOL_CALLS]", "[ARGS]"), ()),
    ("mistral", ("[TOOL_CALLS]",), ()),
    ("qwen_xml", ("<tool_call>", "<function=", "<parameter="), ()),
    ("hermes", ("<tool_call>",), ("<function=", "<arg_key>")),
    ("llama3", ("<|python_tag|>",), ()),
    ("llama3", ("ipython",), ()),
)
_REASONING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
# Formats whose templates take back one call a message: a second one would have no place in the conversation.
SINGLE: frozenset[ToolFormat] = frozenset(("llama3", "harmony"))
# Tokens that end an answer in a format, whatever the model's files say of them.
_ENDS: dict[ToolFormat, tuple[str, ...]] = {"harmony": ("<|call|>", "<|return|>"), "llama3": ("<|eom_id|>",)}


@frozen
class Formats:
    """How a model writes tool calls, and the marks around its reasoning; None if it does not."""

    tools: ToolFormat | None
    reasoning: tuple[str, str] | None

    @property
    def ends(self) -> tuple[str, ...]:
        """Tokens that end an answer beside the model's own."""
        return _ENDS.get(self.tools, ()) if self.tools is not None else ()

    @property
    def reasons(self) -> bool:
        """Whether answers have reasoning that is separated from their text."""
        return self.reasoning is not None or self.tools == "harmony"


def formats_of(template: str | Mapping[str, str]) -> Formats:
    """The formats that a chat template uses."""
    text = template if isinstance(template, str) else "\n".join(template.values())
    tools = next(
        (
            form
            for form, marks, others in _RULES
            if all(mark in text for mark in marks) and not any(mark in text for mark in others)
        ),
        None,
    )
    return Formats(tools, next((pair for pair in _REASONING if pair[1] in text), None))
