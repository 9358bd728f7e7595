"""Chat templates: messages to text, and to ids in which no message can forge a control token.

Messages are rendered as transformers renders them, byte for byte. Templates run in `sandbox.py`, within limits; it and
jinja2 are imported when the first template is rendered.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from weft.errors import InputError, UnsupportedError
from weft.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
# One template, or several by name: "default", and "tool_use" for conversations with tools.
Template = str | Mapping[str, str]

# Names that clients use for a message's reasoning; templates read the first two.
_REASONING = ("reasoning_content", "thinking", "reasoning")

# Stand-ins for control tokens written in messages come from here: supplementary private use area B.
_PRIVATE_USE = range(0x100000, 0x10FFFE)


def choose_template(template: Template, tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The template to use: of several, "tool_use" if tools are given and it exists, else "default"."""
    if isinstance(template, str):
        return template
    name = "tool_use" if tools is not None and "tool_use" in template else "default"
    if name not in template:
        found = ", ".join(sorted(template))
        raise InputError("chat template", f"the model has several templates, but none called default: {found}")
    return template[name]


def render(
    template: Template,
    messages: Sequence[Message],
    *,
    bos_token: str = "",
    eos_token: str = "",
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    **kwargs: Any,
) -> str:
    """The text of a conversation as the model's template writes it; `kwargs` are further variables of the template.

    `continue_final_message` ends the text inside the last message, so that the model continues it; without it the
    header of an answer follows, unless `add_generation_prompt` is False. The template may reject the messages
    (InputError), be malformed (FormatError), or use what the sandbox does not allow (UnsupportedError).
    """
    from weft.text.meter import budget

    chosen = choose_template(template, tools)
    if continue_final_message and add_generation_prompt:
        what = "excludes add_generation_prompt"
        raise InputError("chat", what, field="continue_final_message", advice="set only one of them")
    if not messages:
        raise InputError("chat", "must have at least one message", field="messages", given=messages)
    given = {**kwargs, "tools": tools, "documents": documents, "messages": messages}
    try:
        names = {name: _plain(value) for name, value in given.items()}
    except RecursionError:
        raise InputError("chat", "messages or tools are nested too deeply") from None
    texts = [_with_reasoning(index, message) for index, message in enumerate(names["messages"])]
    names.update(bos_token=bos_token, eos_token=eos_token, messages=texts)
    names["add_generation_prompt"] = (
        not continue_final_message if add_generation_prompt is None else add_generation_prompt
    )
    end = _Continued(names["messages"], chosen) if continue_final_message else None
    with budget():
        text = _run(chosen, names)
    return end.cut(text) if end else text


def _run(template: str, names: dict[str, Any]) -> str:
    """The template's output; every way to fail is one of weft's errors."""
    from jinja2.exceptions import SecurityError, TemplateError

    from weft.text import sandbox
    from weft.text.meter import SIZE_LIMIT

    compiled = sandbox.compiled(template)
    pieces, size = [], 0
    try:
        for piece in compiled.generate(names):
            piece = str(piece)  # a filter block may yield other values
            size += len(piece)
            if size > SIZE_LIMIT:
                raise InputError("chat template", f"the output is too long: over {SIZE_LIMIT} characters")
            pieces.append(piece)
    except InputError:
        raise
    except SecurityError as error:
        raise UnsupportedError("chat template", f"the sandbox does not allow this: {error}") from error
    except (
        TemplateError,
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        raise InputError("chat template", f"the template cannot render these messages: {error}") from error
    return "".join(pieces)


def _plain(value: Any) -> Any:
    """A copy made of JSON's types only: a template could call the methods of any other object."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(item) for item in value]
    raise InputError("chat", "messages and tools may hold only JSON values", given=value)


def _with_reasoning(index: int, message: Any) -> Any:
    """The message with its reasoning, whatever it is called, under the names that templates read."""
    if not isinstance(message, dict):
        raise InputError("chat", "must be an object with a role", field=f"messages[{index}]", given=message)
    found = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if found is None else {"thinking": found, **message, "reasoning_content": found}


class _Continued:
    """Puts a mark at the end of the last message's text, and cuts the rendered text off there."""

    def __init__(self, messages: list[dict[str, Any]], template: str) -> None:
        taken = "\0".join([template, *_strings(messages)])
        self.mark = "CONTINUED"  # letters, which no template escapes
        while self.mark in taken:
            self.mark += "D"
        content = messages[-1].get("content")
        parts = content if isinstance(content, list) else []
        texts = [part for part in parts if isinstance(part, dict) and "text" in part]
        holder, key = (texts[-1], "text") if texts else (messages[-1], "content")
        text = holder.get(key)
        if not isinstance(text, str):
            what = "needs a last message with text"
            raise InputError("chat", what, field="continue_final_message", given=text)
        self.text = text
        holder[key] = f"{text}{self.mark} "  # the space shows whether the template trims texts

    def cut(self, rendered: str) -> str:
        place = rendered.rfind(self.mark)
        if place < 0 or self.text.strip() not in rendered:
            what = "is not possible: the template does not write the last message unchanged"
            raise InputError("chat", what, field="continue_final_message")
        before, after = rendered[:place], rendered[place + len(self.mark) :]
        return before if after.startswith(" ") else before.rstrip()


def encode_chat(
    tokenizer: Tokenizer,
    template: Template,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    rewrite: Callable[[str], str] | None = None,
    **kwargs: Any,
) -> list[int]:
    """The ids of a conversation; arguments as for `render`. `rewrite` changes the rendered text before it is encoded.

    Only the template can write control tokens. The same text inside a message is encoded as ordinary text. So are added
    tokens that are not flagged special but that the template writes (`<think>`, `<tool_call>`), except in the
    assistant's own messages. Without such text the ids are those of the whole rendered string.

    A template that looks for a control token in a message does not find it: it sees a private-use character instead.
    Strings in `kwargs` are trusted: they pass the tokens that the template needs (`bos_token`).
    """
    chosen = choose_template(template, tools)
    guard = guarded(tokenizer, chosen, messages, tools)
    rendered = render(chosen, guard.messages, tools=guard.tools, **kwargs)
    rendered = rendered if rewrite is None else rewrite(rendered)
    ids: list[int] = []
    for position, (piece, is_text) in enumerate(guard.pieces(rendered)):
        encode = partial(tokenizer.encode, add_special=False, parse_special=True, parse_added=not is_text)
        ids += encode_inside(encode, piece) if position else encode(piece)
    return ids


def guarded(
    tokenizer: Tokenizer, template: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
) -> "Guard":
    """The messages and tools without the control tokens of this tokenizer and template."""
    special = [token for token, _, is_special in tokenizer.added_tokens if is_special]
    structural = [token for token, _, is_special in tokenizer.added_tokens if not is_special and token in template]
    structural = [token for token in structural if not token.isspace()]  # a line break controls nothing
    try:
        return Guard(special, structural, template, messages, tools)
    except RecursionError:
        raise InputError("chat", "messages or tools are nested too deeply") from None


def encode_inside(encode: Callable[[str], list[int]], piece: str) -> list[int]:
    """The ids of a piece inside a text, without the space that some tokenizers put before a text."""
    line = encode("\n")
    if encode("\na")[len(line) :] == encode("a"):
        return encode(piece)
    both = encode("\n" + piece)
    return both[len(line) :] if both[: len(line)] == line else encode(piece)


class Guard:
    """Replaces control tokens in messages and tools by private-use characters, and restores them."""

    def __init__(
        self,
        special: list[str],
        structural: list[str],
        template: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        self._stand_ins: dict[str, str] = {}
        self._taken = set(template) | {character for text in _strings([messages, tools]) for character in text}
        everything, only_special = _any_of(special + structural), _any_of(special)
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise InputError("chat", "must be an object with a role", field=f"messages[{index}]", given=message)
        self.messages = [
            self._guarded_message(index, message, only_special if message["role"] == "assistant" else everything)
            for index, message in enumerate(messages)
        ]
        self.tools = None if tools is None else self._guarded(tools, everything)

    def free_characters(self, count: int) -> list[str]:
        """Characters that neither the template nor a message has."""
        found = []
        for _ in range(count):
            found.append(_free_character(self._taken))
            self._taken.add(found[-1])
        return found

    def pieces(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """The rendered text in pieces, each with True if it came from a message and must stay text."""
        if not self._stand_ins:
            yield rendered, False
            return
        back = {stand_in: token for token, stand_in in self._stand_ins.items()}
        for piece in re.split(f"([{''.join(back)}])", rendered):
            if piece:
                yield back.get(piece, piece), piece in back

    def _guarded_message(self, index: int, message: Message, tokens: re.Pattern[str] | None) -> dict[str, Any]:
        role = message["role"]
        if tokens and tokens.search(role):
            what = "must not contain a control token"
            raise InputError("chat", what, field=f"messages[{index}].role", given=role)
        parts = message.get("content")
        if tokens and isinstance(parts, Sequence) and not isinstance(parts, str):
            texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
            if len(tokens.findall("".join(texts))) != sum(len(tokens.findall(text)) for text in texts):
                what, advice = (
                    "has a control token that is spread over content parts",
                    "join the parts or change the text",
                )
                raise InputError("chat", what, field=f"messages[{index}]", advice=advice)
        rest = {key: self._guarded(value, tokens) for key, value in message.items() if key != "role"}
        return {"role": role, **rest}

    def _guarded(self, value: Any, tokens: re.Pattern[str] | None) -> Any:
        if tokens is None or isinstance(value, bytes) or not isinstance(value, str | Mapping | Sequence):
            return value
        if isinstance(value, str):
            return tokens.sub(lambda match: self._stand_in(match.group()), value)
        if isinstance(value, Mapping):
            return {self._guarded(key, tokens): self._guarded(item, tokens) for key, item in value.items()}
        return [self._guarded(item, tokens) for item in value]

    def _stand_in(self, token: str) -> str:
        if token not in self._stand_ins:
            self._stand_ins[token] = self.free_characters(1)[0]
        return self._stand_ins[token]


def _free_character(taken: set[str]) -> str:
    """A private-use character that is not `taken`."""
    free = next((chr(point) for point in _PRIVATE_USE if chr(point) not in taken), None)
    if free is None:
        what = "use every private-use character, so that none is left to replace control tokens"
        raise InputError("chat", what, field="messages")
    return free


def _any_of(tokens: list[str]) -> re.Pattern[str] | None:
    """A pattern that matches any of the tokens, the longest first; None if there are none."""
    ordered = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _strings(value: Any) -> Iterator[str]:
    """Every string in nested messages, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings([*value.keys(), *value.values()])
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            yield from _strings(item)
