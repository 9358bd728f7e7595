"""A chat template as data: pieces of text around each message, for hosts that run no templates.

The pieces are found by rendering conversations with marked contents. They hold if other conversations that are written
from them are the template's own text, byte for byte: contents with white space, quotes, braces, and with every string
that the template itself contains, since a template can only look for what it names. Strings in a message that change
more than the text around it are listed (`special`); a host refuses such messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from weft.errors import WeftError

ROLES = ("system", "user", "assistant")
# Contents that no template has.
_FIRST, _SECOND, _THIRD = "\ue000one\ue001", "\ue000two\ue001", "\ue000three\ue001"
_CHECKED = (
    "Hello!",
    "  spaces around \u3000",
    "two\nlines\n",
    "<b>&amp;</b> 'q' \"d\"",
    "日本語 é",
    "{{ x }} {% y %}",
    "",
)
_MOST_SPECIAL = 64
_LITERAL = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_CLOCK = ("strftime_now", "strftime", "now(")

Messages = list[dict[str, str]]


class Render(Protocol):
    """The template's text of a conversation, with the beginning of an answer behind it unless `asks` is False."""

    def __call__(self, messages: Sequence[Mapping[str, str]], asks: bool = True, /) -> str: ...


def pieces_of(template: str, render: Render) -> tuple[dict[str, Any] | None, str]:
    """What the manifest says of the template, or None and why its messages are not pieces of text."""
    if any(word in template for word in _CLOCK):
        return None, "the chat template writes the date"
    try:
        found = _found(render)
    except (WeftError, ValueError) as error:
        return None, f"the chat template does not write messages one after another: {error}"
    if not all(_same(render, found, said) for said in _conversations(found, _CHECKED)):
        return None, "the chat template does more than put text around messages"
    for role, about in found["roles"].items():
        about["special"] = _special(template, render, found, role)
        if len(about["special"]) > _MOST_SPECIAL:
            return None, "the chat template makes other things than text of many words in messages"
    found["any_order"] = all(_same(render, found, said) for said in _unordered(found))
    return found, ""


def written(pieces: Mapping[str, Any], messages: Sequence[Mapping[str, str]]) -> str:
    """The text of a conversation, as a host writes it from the pieces."""
    text: str = "" if messages[0]["role"] == "system" else pieces["without_system"]
    for message in messages:
        around, content = pieces["roles"][message["role"]], message["content"]
        text += around["before"] + (content.strip() if around["trim"] else content) + around["after"]
    return text + str(pieces["answer"])


def _said(*contents: tuple[str, str]) -> Messages:
    return [{"role": role, "content": content} for role, content in contents]


def _found(render: Render) -> dict[str, Any]:
    """The pieces, from conversations of one to three messages."""
    user = render(_said(("user", _FIRST)))
    twice = render(_said(("user", _FIRST), ("assistant", _SECOND), ("user", _THIRD)))
    head, rest = _split(twice, _FIRST)
    between, rest = _split(rest, _SECOND)
    after_assistant, tail = _split(rest, _THIRD)
    if (head, tail) != _split(user, _FIRST):
        raise ValueError("the first message is written otherwise where others follow")
    # Where a message ends: the text of conversations that ask for no answer, if they are written alike.
    user_end = _split(render(_said(("user", _FIRST)), False), _FIRST)[1]
    if not (between.startswith(user_end) and tail.startswith(user_end)):
        user_end = _common_start(between, tail)
    answer_end = _split(render(_said(("user", _FIRST), ("assistant", _SECOND)), False), _SECOND)[1]
    before_user = after_assistant.removeprefix(answer_end)
    if not (after_assistant.startswith(answer_end) and head.endswith(before_user)):
        before_user = _common_end(head, after_assistant)
        answer_end = after_assistant[: len(after_assistant) - len(before_user)]
    before_answer, asked = between[len(user_end) :], tail[len(user_end) :]
    roles: dict[str, dict[str, Any]] = {
        "user": {"before": before_user, "after": user_end},
        "assistant": {"before": before_answer, "after": answer_end},
    }
    without_system = head[: len(head) - len(before_user)]
    try:
        system_head, rest = _split(render(_said(("system", _SECOND), ("user", _FIRST))), _SECOND)
        system_end, rest = _split(rest, _FIRST)
        if not system_end.endswith(before_user) or rest != tail:
            raise ValueError("a system message changes the first one")
        roles["system"] = {"before": system_head, "after": system_end[: len(system_end) - len(before_user)]}
    except (WeftError, ValueError):
        pass  # a template without system messages, or one that makes them part of the user's
    for role, about in roles.items():
        about["trim"] = f" {_FIRST} " not in render(_around(role, f" {_FIRST} "))
    return {"without_system": without_system, "answer": asked, "roles": roles}


def _split(text: str, mark: str) -> tuple[str, str]:
    if text.count(mark) != 1:
        raise ValueError("a message is written twice, or not at all, or changed")
    before, _, after = text.partition(mark)
    return before, after


def _around(role: str, content: str) -> Messages:
    """A conversation in which a message of `role` has this content."""
    if role == "assistant":
        return _said(("user", "a"), ("assistant", content), ("user", "b"))
    return _said(("user", content)) if role == "user" else _said((role, content), ("user", "b"))


def _common_end(first: str, second: str) -> str:
    return _common_start(first[::-1], second[::-1])[::-1]


def _common_start(first: str, second: str) -> str:
    size = 0
    while size < min(len(first), len(second)) and first[size] == second[size]:
        size += 1
    return first[:size]


def _conversations(pieces: Mapping[str, Any], contents: Sequence[str]) -> Iterator[Messages]:
    """Conversations in the order that every template knows: system first, then user and assistant in turn."""
    system = "system" in pieces["roles"]
    for index, content in enumerate(contents):
        other = contents[index - 1] or "x"
        long = [("user", other), ("assistant", content), ("user", "b"), ("assistant", other), ("user", "c")]
        yield _said(("user", content))
        yield _said(*long)
        if system:
            yield _said(("system", other), ("user", content))
            yield _said(("system", content), *long)


def _unordered(pieces: Mapping[str, Any]) -> Iterator[Messages]:
    """Conversations in which nobody keeps to their turn; the last message is the user's."""
    yield _said(("user", "a"), ("user", "b"))
    yield _said(("assistant", "a"), ("user", "b"))
    yield _said(("user", "a"), ("assistant", "b"), ("assistant", "c"), ("user", "d"), ("user", "e"))
    if "system" in pieces["roles"]:
        yield _said(("system", "s"), ("assistant", "a"), ("user", "b"), ("user", "c"))


def _special(template: str, render: Render, pieces: Mapping[str, Any], role: str) -> list[str]:
    """The strings of the template that change a message of `role` otherwise than by the text around it."""
    found = []
    for text in _literals(template):
        tried = [text, f"a{text}b", f"{text}b", f"a{text}", f"{text}b{text}c"]
        if not all(_same(render, pieces, _around(role, content)) for content in tried):
            found.append(text)
    return found


def _literals(template: str) -> list[str]:
    """Every string in the template's expressions, but for white space, which `trim` is about."""
    found: set[str] = set()
    for match in _LITERAL.finditer(" ".join(re.findall(r"\{[%{](.*?)[%}]\}", template, re.DOTALL))):
        text = next(group for group in match.groups() if group is not None)
        text = (
            text.replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'").replace('\\"', '"').replace("\\\\", "\\")
        )
        if text.strip():
            found.update((text, text.strip()))
    return sorted(found)


def _same(render: Render, pieces: Mapping[str, Any], said: Messages) -> bool:
    try:
        return render(said) == written(pieces, said)
    except WeftError:
        return False
