"""A row's ids, and which of them are learnt.

Texts and completions end with the model's end token, so that it learns to stop. A prompt and its completion are encoded
one after the other: the model will read the prompt alone, and the completion must go on from the same ids.
Conversations go through the model's chat template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from weft.errors import InputError, UnsupportedError, WeftError
from weft.frozen import frozen
from weft.text.chat import Template, encode_inside
from weft.text.tokenizer import Tokenizer
from weft.train.data.rows import Row, listed

LOSSES = ("assistant", "completion", "all")
Encoded = tuple[list[int], list[bool]]  # ids, and which of them are learnt


@frozen
class Encoder:
    """How rows become ids. `loss` None learns what the row's form is for: a text as a whole, a completion, all answers
    of a conversation."""

    tokenizer: Tokenizer
    template: Template | None = None
    end: int | None = None  # the id that ends a text
    loss: str | None = None

    def __post_init__(self) -> None:
        if self.loss not in (None, *LOSSES):
            raise InputError("train", f"must be one of {', '.join(LOSSES)}", field="loss", given=self.loss)

    def row(self, row: Row) -> Encoded:
        """The row's ids and what is learnt of them; errors name the row."""
        try:
            if "messages" in row.fields:
                return self._conversation(row, listed(row, "messages"))
            if "prompt" in row.fields and "completion" in row.fields:
                return self.completed(row, row.fields["prompt"], row.fields["completion"])
            if "text" in row.fields:
                return self._text(row)
        except WeftError as error:
            if error.where == row.file:
                raise
            raise row.blamed(error) from error
        if "chosen" in row.fields and "rejected" in row.fields:
            raise row.fault("has chosen and rejected answers", advice="train on preferences: weft train dpo")
        raise row.fault(
            f"has none of 'messages', 'prompt' with 'completion', 'text'; its fields are {row.named_fields}",
            advice="rename the fields",
        )

    def _text(self, row: Row) -> Encoded:
        text = row.fields["text"]
        if not isinstance(text, str) or not text:
            raise row.fault("must have a text that is not empty in the field 'text'", given=text)
        if self.loss in ("assistant", "completion"):
            raise row.fault(f"is a text, which has no {self.loss}", advice="use --loss all")
        ids = self._ended(self.tokenizer.encode_prompt(text))
        return ids, [True] * len(ids)

    def completed(self, row: Row, prompt: Any, completion: Any, *, name: str = "completion") -> Encoded:
        """A prompt and what follows it, both texts or both lists of messages."""
        if isinstance(prompt, list) and isinstance(completion, list):
            return self.conversation([*prompt, *completion], row.fields.get("tools"), first=len(prompt))
        for field, value in (("prompt", prompt), (name, completion)):
            if not isinstance(value, str):
                what = f"must have text in the field {field!r}, or messages in both 'prompt' and {name!r}"
                raise row.fault(what, given=value)
        if not completion:
            raise row.fault(f"has an empty {name}", advice="remove the row")
        if self.loss == "assistant":
            advice = "use --loss completion, or write the rows as messages"
            raise row.fault("has a prompt and a completion, which are no conversation", advice=advice)
        before = self.tokenizer.encode_prompt(prompt)
        encode = partial(self.tokenizer.encode, add_special=False, parse_special=True)
        after = self._ended(encode_inside(encode, completion) if before else encode(completion))
        return before + after, [self.loss == "all"] * len(before) + [True] * len(after)

    def _ended(self, ids: list[int]) -> list[int]:
        return ids if self.end is None or ids[-1:] == [self.end] else [*ids, self.end]

    def _conversation(self, row: Row, messages: list[Any]) -> Encoded:
        tools = listed(row, "tools") if row.fields.get("tools") not in (None, "", []) else None
        roles = [message.get("role") if isinstance(message, Mapping) else None for message in messages]
        if self.loss != "all" and "assistant" not in roles:
            raise row.fault("has no message of the assistant to learn", advice="add one, remove the row, or --loss all")
        if self.loss == "completion" and roles[-1] != "assistant":
            raise row.fault("does not end with a message of the assistant", given=roles[-1])
        return self.conversation(messages, tools, first=len(messages) - 1 if self.loss == "completion" else 0)

    def conversation(self, messages: Sequence[Any], tools: Sequence[Any] | None, *, first: int) -> Encoded:
        """A conversation; what the assistant says in message `first` and later ones is learnt."""
        from weft.text.calls.formats import formats_of
        from weft.text.calls.history import fitted
        from weft.text.chat import encode_chat
        from weft.text.prompts.answers import encode_answers
        from weft.text.prompts.generic_tools import needs_generic_tools, with_generic_tools

        if self.template is None:
            advice = "give rows with a text, or with a prompt and a completion"
            raise UnsupportedError("chat", "the model has no chat template for messages", advice=advice)
        ends = {"bos_token": self.tokenizer.bos_id, "eos_token": self.tokenizer.eos_id}
        names: dict[str, Any] = {name: self.tokenizer.token(id) or "" for name, id in ends.items() if id is not None}
        generic = needs_generic_tools(self.template, messages, tools)
        form = formats_of(self.template).tools

        def write(several: Sequence[Any]) -> list[Any]:
            return with_generic_tools(several, tools) if generic else fitted(several, form)

        written, shown = write(messages), None if generic else tools
        if self.loss == "all":
            whole = encode_chat(
                self.tokenizer, self.template, written, tools=shown, add_generation_prompt=False, **names
            )
            return whole, [True] * len(whole)
        skip = sum(message.get("role") == "assistant" for message in write(messages[:first])) if first else 0
        return encode_answers(self.tokenizer, self.template, written, tools=shown, skip=skip, **names)
