"""The rules of an answer with tool calls, in each format.

An answer that may call is free text until a mark that opens a call. Llama 3 has none: there an answer that begins as
the call of a known tool is one. `weft/text/calls` reads what these rules allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.generate.tools import tags
from weft.generate.tools.lark import FREE, Rules, quoted
from weft.generate.tools.schemas import closed_schema
from weft.text.calls.events import ToolFormat

_EMPTY: dict[str, Any] = {"type": "object", "properties": {}}


@frozen
class Offer:
    """The tools that a grammar lets a model call: functions with `name` and `parameters`."""

    functions: Sequence[Mapping[str, Any]]
    form: ToolFormat
    forced: bool
    parallel: bool
    with_ids: bool = False  # calls may have an id between name and arguments: Mistral


def start_of(rules: Rules, offer: Offer, loose: list[str]) -> str:
    """The right side of the start rule; `loose` gets the names of tools whose schemas are not enforced in full."""
    return _STARTS[offer.form](rules, offer, _Arguments(rules, offer, loose))


class _Arguments:
    """The rules of each tool's arguments."""

    def __init__(self, rules: Rules, offer: Offer, loose: list[str]) -> None:
        self._rules, self._offer, self._loose = rules, offer, loose

    def each(self, write: Callable[[str, str], str]) -> str:
        """A choice between the tools: `write` gets a name and the rule of its arguments."""
        made = [write(function["name"], self._of(function)) for function in self._offer.functions]
        return self._rules.rule(" | ".join(made))

    def _of(self, function: Mapping[str, Any]) -> str:
        rules = self._rules
        rules.is_loose = False
        given = function.get("parameters") or _EMPTY
        for schema in (closed_schema(given), given):  # some can be enforced but not closed
            try:
                made = self._written(schema)
            except (UnsupportedError, InputError) as error:
                failure = error
                continue
            if rules.is_loose:
                self._loose.append(function["name"])
            return made
        if rules.strict:
            raise failure
        self._loose.append(function["name"])
        if self._offer.form == "qwen_xml":
            return rules.rule(tags.any_parameters(rules))
        return rules.json({"type": "object"})

    def _written(self, schema: Mapping[str, Any]) -> str:
        if self._offer.form != "qwen_xml":
            return self._rules.json({"type": "object", **schema})
        return self._rules.rule(tags.parameters(self._rules, schema) or '""')


def _object(rules: Rules, arguments: _Arguments, end: str = "") -> str:
    """A call as an object, with other members at its end."""
    key = quoted('"arguments":')
    inner = arguments.each(lambda name, rule: f'{quoted(quoted(name) + ",")} " "? {key} " "? {rule}')
    return rules.rule(f'"{{\\"name\\":" " "? {inner} {end} "}}"')


def _calls(rules: Rules, offer: Offer, opening: str, rest: str) -> str:
    """Calls that begin with a mark: at least one if they are forced, else with free text around them."""
    if offer.forced:
        call = rules.rule(f"{rules.mark(opening)} {rest}")
        return f'{call} ("\\n"? {call})*' if offer.parallel else call
    call, text = rules.rule(f"{rules.after_text(opening)} {rest}"), rules.rule(rules.terminal(FREE))
    thinks = f"{rules.mark('<think>')}? " if rules.is_token("<think>") else ""
    return f"{thinks}{call}* {text}" if offer.parallel else f"{thinks}({call} | {text})"


def _hermes(rules: Rules, offer: Offer, arguments: _Arguments) -> str:
    rules.marks.append("<tool_call>")
    body = f'"\\n"? {_object(rules, arguments)} "\\n"? {rules.mark("</tool_call>")}'
    return _calls(rules, offer, "<tool_call>", body)


def _qwen_xml(rules: Rules, offer: Offer, arguments: _Arguments) -> str:
    each = arguments.each(lambda name, rule: f"{quoted(name + '>' + chr(10))} {rule}")
    rest = rules.rule(f'"\\n<function=" {each} "</function>\\n" {rules.mark("</tool_call>")}')
    return _calls(rules, offer, "<tool_call>", rest)


def _mistral(rules: Rules, offer: Offer, arguments: _Arguments) -> str:
    rules.marks.append("[TOOL_CALLS]")
    id = r'("," " "? "\"id\":" " "? /"[A-Za-z0-9]{9}"/)?'
    call = _object(rules, arguments, id)
    several = f'("," " "? {call})*' if offer.parallel else ""
    one_list = Offer(offer.functions, offer.form, offer.forced, parallel=False)  # all calls are in it
    return _calls(rules, one_list, "[TOOL_CALLS]", f'" "? "[" {call} {several} "]"')


def _mistral_named(rules: Rules, offer: Offer, arguments: _Arguments) -> str:
    rules.marks.append("[ARGS]")
    id = rules.rule(f"{rules.mark('[CALL_ID]')} /[A-Za-z0-9]{{9}}/") + "?" if offer.with_ids else ""
    each = arguments.each(lambda name, rule: f"{quoted(name)} {id} {rules.mark('[ARGS]')} {rule}")
    return _calls(rules, offer, "[TOOL_CALLS]", each)


def _llama3(rules: Rules, offer: Offer, arguments: _Arguments) -> str:
    """One call: the template takes no more. The end of a name is where text and a call part."""
    head = r'[ \n]{0,2}\{[ \n]{0,2}("type": ?"function", ?)?"name": ?'
    not_text = r'\s*\{\s*("type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*'

    def one(name: str, rule: str) -> str:
        begun = rules.terminal(f"/{head}{tags.literal(quoted(name))}/")
        return f'{begun} "," " "? "\\"parameters\\":" " "? {rule} "}}"'

    call = arguments.each(one)
    tag = f"{rules.mark('<|python_tag|>')}" if rules.is_token("<|python_tag|>") else ""
    if offer.forced:
        return f"{tag}? {call}" if tag else call
    rules.marks += ["<|python_tag|>"] if tag else []
    names = "|".join(tags.literal(quoted(function["name"])) for function in offer.functions)
    text = rules.rule(rules.terminal(f"{FREE} & ~/{not_text}({names})(?s:.*)/"))
    return f"{text} | {call}" + (f" | {text} {tag} {call}" if tag else "")


HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")


def final_channel(rules: Rules) -> str:
    """The start rule of an answer in the harmony format: free reasoning, then `@answer` in the last channel."""
    start, channel, message, end, _ = map(rules.mark, HARMONY)
    rules.marks.append("final<|message|>")
    thought = rules.rule(f'{channel} "analysis" {message} {rules.terminal(FREE)} {end} {start} "assistant"')
    return f'{thought}* {channel} "final" {message} @answer'


def _harmony(rules: Rules, offer: Offer, arguments: _Arguments) -> str:
    """Messages in channels, then at most one call: it ends an answer."""
    if not all(map(rules.is_token, HARMONY)):
        raise UnsupportedError("tools", "this model's vocabulary lacks the tokens of the harmony format")
    start, channel, message, end, constrain = map(rules.mark, HARMONY)
    rules.marks.append("<|message|>")
    text = rules.terminal(FREE)
    kind = rules.rule(f'" "? {constrain} "json" | " json"')
    after = arguments.each(lambda name, rule: f"{quoted(f' to=functions.{name}')} {kind}? {message} {rule}")
    before = arguments.each(
        lambda name, rule: (
            f"{quoted(f' to=functions.{name}')} {channel} {quoted('commentary')} {kind}? {message} {rule}"
        )
    )
    call = rules.rule(f'{channel} "commentary" {after} | {before}')
    thought = f'{channel} "analysis" {message} {text}'
    if offer.forced:
        return f'({thought} {end} {start} "assistant")? {call}'
    other = rules.rule(f'{channel} ("analysis" | "commentary" | "final") {message} {text}')
    return f'({other} {end} {start} "assistant")* ({other} | {call})'


_STARTS: dict[ToolFormat, Callable[[Rules, Offer, _Arguments], str]] = {
    "hermes": _hermes,
    "qwen_xml": _qwen_xml,
    "llama3": _llama3,
    "mistral": _mistral,
    "mistral_named": _mistral_named,
    "harmony": _harmony,
}
