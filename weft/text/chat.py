"""Chat templates: messages to text, and to ids in which no message can forge a control token.

A template is code from a model's files. It runs in jinja2's immutable sandbox, with limits on source and output.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from weft.errors import FormatError, InputError, UnsupportedError
from weft.text.tokenizer import Tokenizer

SOURCE_LIMIT = 256 << 10
OUTPUT_LIMIT = 4 << 20

Message = Mapping[str, Any]

# Stand-ins for control tokens written in messages come from here: supplementary private use area B.
_PRIVATE_USE = range(0x100000, 0x10FFFE)


def render(
    template: str,
    messages: Sequence[Message],
    *,
    bos_token: str = "",
    eos_token: str = "",
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **kwargs: Any,
) -> str:
    """The text of a conversation as the model's template writes it; `kwargs` are further variables of the template.

    The template may reject the messages (InputError), be malformed (FormatError), or reach for what the sandbox does
    not allow (UnsupportedError).
    """
    from jinja2.exceptions import SecurityError, TemplateError

    compiled = _compile(template)
    names = dict(kwargs, messages=messages, tools=tools, add_generation_prompt=add_generation_prompt)
    names.update(bos_token=bos_token, eos_token=eos_token)
    try:
        return _joined(compiled.generate(names))
    except SecurityError as error:
        raise UnsupportedError(f"[chat template] the sandbox does not allow this: {error}") from error
    except (
        TemplateError,
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"[chat template] the template cannot render these messages: {error}") from error


def encode_chat(
    tokenizer: Tokenizer,
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **kwargs: Any,
) -> list[int]:
    """The ids of a conversation; arguments as for `render`.

    Control tokens are those the template writes. The same text inside a message is encoded as ordinary text, and so is,
    except in the assistant's own messages, an added token that is not flagged special but that the template writes
    (`<think>`, `<tool_call>`). Without such text the ids are those of the whole rendered string.

    A template that looks for a control token in a message does not find it: it sees a private-use character instead.
    Strings in `kwargs` are trusted: the tokens the template needs (`bos_token`) come that way.
    """
    special = [token for token, _, is_special in tokenizer.added_tokens if is_special]
    structural = [token for token, _, is_special in tokenizer.added_tokens if not is_special and token in template]
    guard = _Guard(special, structural, template, messages, tools)
    rendered = render(template, guard.messages, tools=guard.tools, **kwargs)
    ids: list[int] = []
    for piece, is_text in guard.pieces(rendered):
        ids += tokenizer.encode(piece, add_special=False, parse_special=True, parse_added=not is_text)
    return ids


class _Guard:
    """Messages and tools with private-use characters in the place of control tokens, and the way back."""

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
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise InputError(f"[chat] a message without a role: {message!r:.80}")
        self.messages = [
            self._guarded_message(message, only_special if message["role"] == "assistant" else everything)
            for message in messages
        ]
        self.tools = None if tools is None else self._guarded(tools, everything)

    def pieces(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """The rendered text in pieces; True with those that came from a message and must stay text."""
        if not self._stand_ins:
            yield rendered, False
            return
        back = {stand_in: token for token, stand_in in self._stand_ins.items()}
        for piece in re.split(f"([{''.join(back)}])", rendered):
            if piece:
                yield back.get(piece, piece), piece in back

    def _guarded_message(self, message: Message, tokens: re.Pattern[str] | None) -> dict[str, Any]:
        role = message["role"]
        if tokens and tokens.search(role):
            raise InputError(f"[chat] a role contains a control token: {role!r}")
        parts = message.get("content")
        if tokens and isinstance(parts, Sequence) and not isinstance(parts, str):
            texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
            if len(tokens.findall("".join(texts))) != sum(len(tokens.findall(text)) for text in texts):
                raise InputError(
                    "[chat] a control token is spread over content parts: join the parts or change the text"
                )
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
            free = next((chr(point) for point in _PRIVATE_USE if chr(point) not in self._taken), None)
            if free is None:
                raise InputError("[chat] the messages use every private-use character: none is left to guard them")
            self._taken.add(free)
            self._stand_ins[token] = free
        return self._stand_ins[token]


def _any_of(tokens: list[str]) -> re.Pattern[str] | None:
    """Matches any of the tokens, the longest first; None when there are none."""
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


def _joined(pieces: Iterator[str]) -> str:
    parts, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > OUTPUT_LIMIT:
            raise InputError(f"[chat template] the output is too long: over {OUTPUT_LIMIT} characters")
        parts.append(piece)
    return "".join(parts)


@lru_cache(maxsize=32)
def _compile(source: str) -> Any:
    from jinja2.exceptions import TemplateError

    if len(source.encode("utf-8", "surrogatepass")) > SOURCE_LIMIT:
        raise FormatError(f"[chat template] the source is too long: over {SOURCE_LIMIT} bytes")
    try:
        return _environment().from_string(source)
    except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
        raise FormatError(f"[chat template] malformed: {error}") from error


@lru_cache(maxsize=1)
def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks what the assistant said, for training; here it only holds its body."""

        tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation], autoescape=False
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _reject
    environment.globals["strftime_now"] = _time_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _reject(message: str) -> None:
    raise InputError(f"[chat template] the template rejects these messages: {message}")


def _time_now(form: str) -> str:
    return datetime.now().strftime(form)
