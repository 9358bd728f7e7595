"""Conversations to learn from: the ids of a whole one, and which of them the assistant wrote.

A template may mark the assistant's text with {% generation %}. For others the conversation is rendered up to each
answer and up to its end, and both must begin the whole text: a template that writes an earlier answer otherwise once
the conversation has gone on (without its reasoning, say) is refused, since it is not what the model would have seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from weft.errors import InputError
from weft.text.chat import Guard, Message, Template, choose_template, encode_inside, guarded, render
from weft.text.tokenizer import Tokenizer

TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
Span = tuple[int, int]


def encode_answers(
    tokenizer: Tokenizer,
    template: Template,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    skip: int = 0,
    **variables: Any,
) -> tuple[list[int], list[bool]]:
    """The ids of a conversation that has ended, as `encode_chat` makes them, and which of them are the assistant's
    words, its control tokens included, but for its first `skip` messages.

    A line break that the template writes after an answer's last control token is not the assistant's.
    """
    chosen = choose_template(template, tools)
    guard = guarded(tokenizer, chosen, messages, tools)
    variables = {**variables, "tools": guard.tools, "add_generation_prompt": False}
    text = render(chosen, guard.messages, **variables)
    answers = [number for number, message in enumerate(guard.messages) if message["role"] == "assistant"]
    if TAG.search(chosen):
        spans = _marked(chosen, guard, text, variables)
        if len(spans) == len(answers):
            spans = spans[skip:]
        elif skip:
            what = f"marks {len(spans)} texts of the assistant in a conversation that has {len(answers)} answers"
            raise InputError("chat template", what, advice="train on all answers: --loss assistant")
    else:
        spans = [_between(chosen, guard, number, text, variables) for number in answers[skip:]]
    ends = tuple(token for token, _, special in tokenizer.added_tokens if special)
    trimmed = [_without_break(text, span, ends) for span in spans]
    ids: list[int] = []
    words: list[bool] = []
    for id, start, end in _located(tokenizer, guard, text):
        ids.append(id)
        words.append(any(begin <= start and end <= stop and start < stop for begin, stop in trimmed))
    return ids, words


def _marked(template: str, guard: Guard, text: str, variables: Mapping[str, Any]) -> list[Span]:
    """The spans of the text that {% generation %} marks."""
    from weft.text.sandbox import answer_marks

    before, after = guard.free_characters(2)
    token = answer_marks.set((before, after))
    try:
        marked = render(template, guard.messages, **variables)
    finally:
        answer_marks.reset(token)
    if marked.replace(before, "").replace(after, "") != text:
        raise InputError("chat template", "changes the text that its generation tags hold", advice="use --loss all")
    spans, at, start = [], 0, 0
    for piece in re.split(f"([{before}{after}])", marked):
        if piece == before:
            start = at
        elif piece == after:
            spans.append((start, at))
        else:
            at += len(piece)
    return spans


def _between(template: str, guard: Guard, number: int, text: str, variables: Mapping[str, Any]) -> Span:
    """Where message `number`, an answer, begins and ends in the text of the whole conversation."""
    if number == 0:
        what = "messages[0] is the assistant's, and an answer needs a message before it"
        raise InputError("chat", what, advice="begin with the user's message")
    before = render(template, guard.messages[:number], **{**variables, "add_generation_prompt": True})
    after = text if number + 1 == len(guard.messages) else render(template, guard.messages[: number + 1], **variables)
    if not (text.startswith(before) and text.startswith(after) and len(before) < len(after)):
        raise InputError(
            "chat template",
            f"messages[{number}], an answer, is not written as when it was the last one, so that its tokens cannot be "
            "told from the others",
            advice="learn from the last answer alone (--loss completion) or from all tokens (--loss all), or use a "
            "template with generation tags",
        )
    return len(before), len(after)


def _without_break(text: str, span: Span, ends: tuple[str, ...]) -> Span:
    stripped = text[span[0] : span[1]].rstrip()
    return (span[0], span[0] + len(stripped)) if stripped.endswith(ends) else span


def _located(tokenizer: Tokenizer, guard: Guard, text: str) -> Iterator[tuple[int, int, int]]:
    """Every id of the rendered text, with its start and end there."""
    at = 0
    for piece, is_text in guard.pieces(text):
        if is_text:  # one stand-in: the text of a control token
            encode = partial(tokenizer.encode, add_special=False, parse_special=True, parse_added=False)
            for id in encode_inside(encode, piece) if at else encode(piece):
                yield id, at, at + 1
            at += 1
            continue
        ids, offsets = _inside(tokenizer, piece) if at else _plain(tokenizer, piece)
        for id, (start, end) in zip(ids, offsets):
            yield id, at + start, at + end
        at += len(piece)


def _plain(tokenizer: Tokenizer, piece: str) -> tuple[list[int], list[Span]]:
    located = tokenizer.encode_offsets(piece, add_special=False, parse_special=True)
    return located.ids, [(start, end) for start, end in located.offsets.tolist()]


def _inside(tokenizer: Tokenizer, piece: str) -> tuple[list[int], list[Span]]:
    """As `chat.encode_inside`: without the space that some tokenizers put before a text."""
    line, _ = _plain(tokenizer, "\n")
    if _plain(tokenizer, "\na")[0][len(line) :] != _plain(tokenizer, "a")[0]:
        ids, offsets = _plain(tokenizer, "\n" + piece)
        if ids[: len(line)] == line:
            return ids[len(line) :], [(start - 1, end - 1) for start, end in offsets[len(line) :]]
    return _plain(tokenizer, piece)
