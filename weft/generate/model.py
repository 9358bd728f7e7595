"""The public model: `weft.load` gives one. Every call goes through its one engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, UnsupportedError
from weft.runtime.checkpoint import open_checkpoint
from weft.runtime.decoder import Decoder
from weft.weights.sources import locate

if TYPE_CHECKING:
    import numpy as np

    from weft.generate.result import Generation, Piece
    from weft.graph import Program
    from weft.text import Template, Tokenizer
    from weft.weights.sources import Located

Messages = Sequence[Mapping[str, Any]]
Variables = Mapping[str, Any] | None
_NOT_VARIABLES = ("tokenizer", "template", "messages", "tools")


def load(
    model: str,
    *,
    context: int | None = None,
    kv_dtype: str | None = None,
    kv_tokens: int | None = None,
    kv_bytes: int | None = None,
    compute: str | None = None,
    threads: int | None = None,
    offline: bool | None = None,
    progress: bool | None = None,
) -> Model:
    """Load a text generator: a catalogue name, `org/name[:QUANT][@revision]`, a folder or a file.

    `context` is the longest sequence in tokens (default: the model's, at most 8192). `compute` says what
    activations are rounded to before products: "int8" beside quantised weights (their default), "bf16" beside others,
    "f32" nothing. `kv_dtype` is how keys and values are kept: "f32", "f16" (the default beside rounded weights), "bf16"
    or "int8", with a scale for each token and head, which takes half the memory. All sequences together have room for
    `kv_tokens` tokens, or as many as `kv_bytes` hold (default: 16 contexts, or a quarter of the memory that the model
    leaves free where that is less); `Model.info` says how many and why. `threads` overrides what `weft doctor`
    explains.
    """
    located = locate(str(model), offline=offline, progress=progress)
    checkpoint = open_checkpoint(located.path)
    state: dict[str, Any] = {"kv_dtype": kv_dtype, "kv_tokens": kv_tokens, "kv_bytes": kv_bytes}
    decoder = Decoder(checkpoint, context=context, compute=compute, threads=threads, **state)
    loaded = Model(decoder, located)
    decoder.ready()  # what Model imports is read while the weights are packed
    return loaded


class Model:
    """A loaded text generator. Not for several threads at once: calls take turns."""

    def __init__(self, decoder: Decoder, located: Located) -> None:
        self.decoder = decoder
        self._located = located
        from weft.generate.engine import Engine

        tokenizer = decoder.tokenizer if decoder.checkpoint.make_tokenizer else None
        self.engine = Engine(decoder, tokenizer)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; NotFoundError for a checkpoint without one."""
        return self.decoder.tokenizer

    @property
    def info(self) -> dict[str, Any]:
        """What was loaded, from where, and how it is computed."""
        return {"model": self._located.spec, "source": self._located.source, **self.decoder.info}

    @property
    def program(self) -> Program:
        """The planned program of one step."""
        return self.decoder.program

    def generate(self, prompt: str | Sequence[int], *, parse_special: bool = False, **options: Any) -> Generation:
        """Continue `prompt` (text or ids).

        Options: max_tokens, temperature (0: greedy, the default), top_k, top_p, min_p, repetition_penalty, seed, stop
        (strings), stop_ids, ignore_eos, truncate ("left", "right", "middle": cut an over-long prompt, do not raise).
        Special tokens in the text are text unless `parse_special` is set.
        """
        from weft.generate.call import generate

        return generate(self.engine, self._ids(prompt, parse_special), **options)

    def stream(self, prompt: str | Sequence[int], *, parse_special: bool = False, **options: Any) -> Iterator[Piece]:
        """As `generate`, piece by piece as it is made. Leaving the loop cancels the rest."""
        from weft.generate.call import stream

        return stream(self.engine, self._ids(prompt, parse_special), **options)

    def chat(
        self, messages: Messages, *, tools: list[Any] | None = None, variables: Variables = None, **options: Any
    ) -> Generation:
        """The answer to a conversation: messages are {"role", "content"} objects, the last one usually the user's.

        `variables` are the template's own: {"enable_thinking": False}, {"continue_final_message": True}.
        """
        from weft.generate.call import generate

        return generate(self.engine, self.chat_ids(messages, tools=tools, variables=variables), **options)

    def chat_stream(
        self, messages: Messages, *, tools: list[Any] | None = None, variables: Variables = None, **options: Any
    ) -> Iterator[Piece]:
        """As `chat`, piece by piece."""
        from weft.generate.call import stream

        return stream(self.engine, self.chat_ids(messages, tools=tools, variables=variables), **options)

    def chat_ids(self, messages: Messages, *, tools: list[Any] | None = None, variables: Variables = None) -> list[int]:
        """The prompt of a conversation as ids. What a message says stays text, special tokens in it included."""
        from weft.text.chat import encode_chat

        tokenizer = self.tokenizer
        ends = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}  # templates write them by these names
        names = {name: tokenizer.token(id) or "" for name, id in ends.items() if id is not None}
        given = {**names, **(variables or {})}
        wrong = next((name for name in given if not isinstance(name, str) or name in _NOT_VARIABLES), None)
        if wrong is not None:
            raise InputError(f"[chat] not a variable of a template: {wrong!r:.80}; messages and tools go by themselves")
        return encode_chat(tokenizer, self.chat_template, list(messages), tools=tools, **given)

    @cached_property
    def chat_template(self) -> Template:
        """The model's template, or its templates by name."""
        entry = self._located.entry
        template = self.decoder.checkpoint.chat_template or (entry.chat_template if entry else None)
        if template is None:
            raise UnsupportedError(
                f"[chat] {self._located.spec} has no chat template; use generate, or a model made for chat"
            )
        return template

    def logits(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Logits after every token of `ids`, float32 [len(ids), vocab]."""
        return self.decoder.logits(ids)

    def _ids(self, prompt: str | Sequence[int], parse_special: bool) -> Sequence[int]:
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special=True, parse_special=parse_special)
            if not ids:
                raise InputError(
                    "[generate] the prompt is empty and the model has no token to begin with; give some text"
                )
            return ids
        return prompt

    def __repr__(self) -> str:
        kind, context = self.decoder.checkpoint.model_type, self.decoder.max_context
        return f"<weft.Model {self._located.spec}: {kind}, {context} tokens>"
