"""The grammar of an answer to a request with tools, or of one whose text has a form of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.generate.grammar.spec import Grammar
from weft.generate.tools.lark import Rules
from weft.generate.tools.rules import HARMONY, Offer, final_channel, start_of
from weft.generate.tools.schemas import forced_schema
from weft.text.calls.events import ToolFormat
from weft.text.calls.formats import formats_of

if TYPE_CHECKING:
    from weft.text.chat import Template
    from weft.text.tokenizer import Tokenizer

GENERIC: ToolFormat = "hermes"  # what the generic prompt asks for
# The marks that grammars name, which are special tokens of some vocabularies and text in others.
_MARKS = (
    *("<tool_call>", "</tool_call>", "<think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"),
)


@frozen
class Held:
    """How an answer is held: the format in which it calls, its grammar (None: it is free), and the tools whose schemas
    the grammar does not enforce in full."""

    form: ToolFormat
    grammar: Grammar | None
    loose: tuple[str, ...] = ()


def format_for(template: Template) -> ToolFormat:
    """The format in which a model with this template is to write calls: its own, or that of the generic prompt."""
    return formats_of(template).tools or GENERIC


def hold(
    tools: Sequence[Mapping[str, Any]],
    template: Template,
    tokenizer: Tokenizer,
    *,
    choice: str = "auto",
    named: str | None = None,
    parallel: bool = True,
) -> Held:
    """How the answer of a model with this template is held.

    `choice` is "none", "auto", "required", or "named" with the tool that must be called. A forced call whose schema
    cannot be enforced in the model's own format is written as a JSON object, `{"name": ..., "arguments": {...}}`.
    """
    form = format_for(template)
    if choice == "none" or not tools:
        return Held(form, None)
    functions = [tool.get("function", tool) for tool in tools]
    chosen = [function for function in functions if named in (None, function["name"])]
    if not chosen:
        raise InputError("tools", f"names {named!r:.80}, which is not among the tools", field="tool_choice")
    text = template if isinstance(template, str) else "".join(template.values())
    forced = choice != "auto"
    tokens = _special_marks(tokenizer)
    try:
        written = json.dumps([{key: function.get(key) for key in ("name", "parameters")} for function in chosen])
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError("tools", f"must be JSON: {error}", field="tools") from None
    return _held(written, form, tokens, forced, parallel and not forced, "[CALL_ID]" in text)


def hold_answer(grammar: Grammar, template: Template, tokenizer: Tokenizer) -> Grammar:
    """The grammar of a whole answer of a model with this template, whose text is to match `grammar`.

    A model that writes in channels (harmony) may reason first, as it likes; `grammar` holds its final channel. Other
    models reason between marks that the engine knows.
    """
    tokens = dict(_special_marks(tokenizer))
    if formats_of(template).tools != "harmony" or not set(HARMONY) <= tokens.keys():
        return grammar
    rules = Rules(tokens, strict=True)
    return rules.grammar_with(final_channel(rules), grammar)


def _special_marks(tokenizer: Tokenizer) -> tuple[tuple[str, int], ...]:
    """The marks that are special tokens of this vocabulary, with their ids."""
    special = tokenizer.special_ids
    return tuple((mark, id) for mark in _MARKS if (id := tokenizer.id(mark)) is not None and id in special)


@lru_cache(maxsize=64)  # an agent sends the same tools with every request
def _held(
    functions: str,
    form: ToolFormat,
    tokens: tuple[tuple[str, int], ...],
    forced: bool,
    parallel: bool,
    with_ids: bool,
) -> Held:
    offer = Offer(json.loads(functions), form, forced, parallel, with_ids)
    names = tuple(function["name"] for function in offer.functions)
    loose: list[str] = []
    try:
        rules = Rules(dict(tokens), strict=forced)
        grammar = rules.grammar(start_of(rules, offer, loose))
    except (UnsupportedError, InputError):
        return Held("llama3", _as_object(offer.functions)) if forced else Held(form, None, names)
    return Held(form, grammar, tuple(dict.fromkeys(loose)))


def _as_object(functions: Sequence[Mapping[str, Any]]) -> Grammar:
    tools = [{"function": function} for function in functions]
    try:
        return Grammar.json_schema(forced_schema(tools), compact=True)
    except UnsupportedError:  # a schema of many alternatives, which can be enforced but not closed
        return Grammar.json_schema(forced_schema(tools, closed=False), compact=True)
