"""The public model, which `weft.load` returns. Every call goes through its one engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, overload

from weft.errors import InputError, UnsupportedError
from weft.runtime.checkpoint import open_checkpoint
from weft.runtime.decoder import Decoder
from weft.runtime.projector import with_projector
from weft.weights.sources import locate

if TYPE_CHECKING:
    import numpy as np

    from weft.generate.choice.defaults import Defaults
    from weft.generate.engine import Engine
    from weft.generate.result import Generation, Piece
    from weft.generate.session import Session
    from weft.generate.sight.eyes import Eyes
    from weft.graph import Program
    from weft.runtime.adapters import Adapters
    from weft.text import Template, Tokenizer
    from weft.text.reply import ReplyReader
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
    expert_bytes: int | None = None,
    compute: str | None = None,
    threads: int | None = None,
    backend: str | None = None,
    device: str | None = None,
    draft: str | None = None,
    mmproj: str | None = None,
    offline: bool | None = None,
    progress: bool | None = None,
) -> Model:
    """Load a text generator: a catalogue name, `org/name[:QUANT][@revision]`, a folder, a file, or
    `registry:NAME@WHICH`. An adapter of the registry is loaded with its base, and used wherever none is named.

    `context` is the longest sequence in tokens (default: WEFT_CONTEXT, else all that the model reads, as far as half of
    the memory that the model leaves free holds it; `info["context_reason"]` says). `compute` is the type to which
    activations are rounded before matrix products: "int8" with quantised weights (their default), "bf16" with others
    (the default of f16 and bf16 weights where the CPU has a matrix unit for it), "f32" for no rounding. `kv_dtype` is
    the type of the KV cache: "f32", "f16", "bf16" (the default where activations are rounded; else that of the weights,
    f16 or f32), "int8" or "int4", with a scale for each token and head, which take a half and a quarter of the memory;
    "int8-plain" does without the rotation of rows that makes them lose less. The KV cache holds
    `kv_tokens` tokens of all sequences together, or as many as fit in `kv_bytes` (default: 16 contexts, counted as
    8,192 tokens where they are longer, or a quarter of the memory that the model leaves free if that is less);
    `Model.info` says how many and why. `expert_bytes` is the memory for the experts of a mixture (default:
    WEFT_EXPERT_MEMORY, else all of them, or what memory has room for): those used last stay in it, the others are read
    from the file when a step needs them; the text is the same. `threads` overrides the number that `weft doctor`
    explains. `backend` "cpu" (the default, unless WEFT_BACKEND is set) uses the compiled kernels, "reference" numpy in
    float64: slow, and what every other backend is tested against. `device` says the same in the words of the commands:
    "cpu", "gpu", "gpu:1" for the second one, or "auto", a GPU if there is one.

    `draft` says what drafts tokens, which are checked several at a time where that is faster; the text is the same:
    "mtp", the model's own head for multi-token prediction, which is the default where it has one; "none"; or a smaller
    model with the same vocabulary, named as `model` is. `mmproj` is the file with the picture tower of a GGUF file; one
    that lies beside it is found.
    """
    backend = backend if device is None else device
    located = locate(str(model), offline=offline, progress=progress)
    checkpoint = with_projector(open_checkpoint(located.path), mmproj)
    state: dict[str, Any] = {"kv_dtype": kv_dtype, "kv_tokens": kv_tokens, "kv_bytes": kv_bytes}
    state["expert_bytes"] = expert_bytes
    own = draft in (None, "mtp")
    options: dict[str, Any] = {"compute": compute, "threads": threads, "backend": backend, "draft_head": own}
    decoder = Decoder(checkpoint, context=context, **options, **state)
    if own or draft == "none":
        loaded = Model(decoder, located, draft=draft)
    else:
        sources: dict[str, Any] = {"threads": threads, "backend": backend, "offline": offline, "progress": progress}
        drafter = load(str(draft), draft="none", **sources)
        loaded = Model(decoder, located, draft=drafter)
    if located.adapter is not None:
        decoder.own_adapter = decoder.adapters.load(located.source, located.adapter).name
    decoder.ready()  # the imports of Model overlap with packing the weights
    return loaded


class Model:
    """A loaded text generator. Not for several threads at once: calls take turns."""

    def __init__(self, decoder: Decoder, located: Located, *, draft: Model | str | None = None) -> None:
        self.decoder = decoder
        self._located = located
        from weft.generate.engine import Engine

        tokenizer = decoder.tokenizer if decoder.checkpoint.make_tokenizer else None
        self.engine = Engine(decoder, tokenizer, draft=draft)

    def use_engine(self, engine: Engine) -> None:
        """Route all calls of this model through `engine` from now on. Cancels the requests of the old engine."""
        if engine is self.engine:
            return
        if not engine.runs(self.decoder):
            raise InputError(
                "engine", "the engine was made for another model", advice="make one with weft.Engine(model)"
            )
        self.engine.close()
        self.engine = engine

    @property
    def adapters(self) -> Adapters:
        """The LoRA adapters that requests may name: load, replace, blend and unload them, also while requests run."""
        return self.decoder.adapters

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; NotFoundError for a checkpoint without one."""
        return self.decoder.tokenizer

    @property
    def info(self) -> dict[str, Any]:
        """What was loaded, from where, and how it is computed."""
        stated = {"sampling": dict(self.defaults.options), "sampling_source": self.defaults.source}
        named = {"model": self._located.spec, "source": self._located.source, "tool_format": self.tool_format}
        return {**named, **self.decoder.info, **stated}

    @property
    def tool_format(self) -> str | None:
        """How the model writes tool calls: a format of weft/text/calls, "generic" where its template has none of them;
        None without a chat template."""
        from weft.text.calls.formats import formats_of

        try:
            return formats_of(self.chat_template).tools or "generic"
        except UnsupportedError:
            return None

    @cached_property
    def defaults(self) -> Defaults:
        """The sampling settings of a chat that leaves them unset: those of the model's makers, else weft's own."""
        from weft.generate.choice.defaults import model_defaults

        return model_defaults(self.decoder.checkpoint.generation, self._located.entry)

    @property
    def program(self) -> Program:
        """The planned program of one step."""
        return self.decoder.program

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        suffix: str | None = ...,
        parse_special: bool = ...,
        images: Sequence[Any] = ...,
        **options: Any,
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[int]],
        *,
        suffix: str | None = ...,
        parse_special: bool = ...,
        **options: Any,
    ) -> list[Generation]: ...

    def generate(
        self,
        prompt: Any,
        *,
        suffix: str | None = None,
        parse_special: bool = True,
        images: Sequence[Any] = (),
        **options: Any,
    ) -> Any:
        """Continue `prompt` (text or ids), or each of a list of prompts, many at once: then the results are a list.

        Options: max_tokens, min_tokens, temperature (0: greedy, the default), top_k, top_p, min_p, typical_p,
        repetition_penalty, presence_penalty, frequency_penalty, logit_bias, seed, n, stop (strings), stop_ids,
        ignore_eos, logprobs, prompt_logprobs, prompt_logprobs_from, grammar, adapter, reasoning_budget, speculate,
        truncate ("left", "right", "middle": cut an over-long prompt, do not raise); weft.Request says what they
        mean. With n above 1 the result of a prompt is a list.

        Special tokens written in the prompt are read as such unless `parse_special` is False; for a message that
        somebody typed use `chat`, in which they are always text. With a `suffix` the result is the text between prompt
        and suffix, from a model that can fill in the middle; both are then plain text. `images` are pictures (`chat`
        says of which kinds), for a model that sees and one prompt: they take the places of the model's mark in it
        (<image>), or come first where it has none.
        """
        from weft.generate.handle import generate_all, make_request

        many = not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], str | Sequence)
        prompts = prompt if many and not images else [prompt]
        options = self.with_ends(suffix, options)
        requests = (make_request(self.prompt_ids(one, suffix, parse_special, images), **options) for one in prompts)
        found = list(generate_all(self.engine, requests))
        results = [several if options.get("n", 1) != 1 else several[0] for several in found]
        return results if many else results[0]

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        suffix: str | None = None,
        parse_special: bool = True,
        images: Sequence[Any] = (),
        **options: Any,
    ) -> Iterator[Piece]:
        """As `generate`, piece by piece as it is made. Leaving the loop cancels the rest."""
        from weft.generate.handle import stream

        ids = self.prompt_ids(prompt, suffix, parse_special, images)
        return stream(self.engine, ids, **self.with_ends(suffix, options))

    def session(self, **options: Any) -> Session:
        """A new Session: a text that grows. `options` are the defaults of its calls; `Session.load` reads a file."""
        from weft.generate.session import Session

        return Session(self, **options)

    def chat(
        self,
        messages: Messages,
        *,
        tools: list[Any] | None = None,
        tool_choice: str = "auto",
        variables: Variables = None,
        **options: Any,
    ) -> Any:
        """The answer to a conversation: messages are {"role", "content"} objects, the last one usually the user's.

        For a model that sees, content may be a list of parts, pictures among texts, in any order:
        [{"type": "image", "image": picture}, {"type": "text", "text": "What is this?"}]. A picture is a path (a string
        or a Path), bytes of a file, a data: URL, a PIL image or an array uint8 [rows, cols, 3]; {"type": "image_url",
        "image_url": {"url": ...}} is read too. Strings are paths of this machine: a server passes bytes. `chat_ids`
        makes a `Prompt` of such messages: a list of ids that has its pictures with it, for `make_request`, `Request`.

        The model may call the `tools`, must call one ("required", or the name of one) or is not told of them ("none"):
        `tool_choice`. A grammar holds calls to the model's own format and to the tools' schemas. `variables` are set in
        the template: {"enable_thinking": False}, {"continue_final_message": True}. The result has reasoning and calls
        in fields of their own. Options as for `generate`, except that temperature, top_p, top_k, min_p and
        repetition_penalty default to what the model's makers recommend, else to temperature 0.7 and top_p 0.9
        (`info["sampling"]`). With n above 1 the result is a list.
        """
        ids, options, reader = self._asked(messages, tools, tool_choice, variables, options)
        found = self.generate(ids, **options)
        results = [_taken_apart(result, reader()) for result in (found if isinstance(found, list) else [found])]
        return results if isinstance(found, list) else results[0]

    def chat_stream(
        self,
        messages: Messages,
        *,
        tools: list[Any] | None = None,
        tool_choice: str = "auto",
        variables: Variables = None,
        **options: Any,
    ) -> Iterator[Piece]:
        """As `chat`, piece by piece."""
        ids, options, reader = self._asked(messages, tools, tool_choice, variables, options)
        return _apart(self.stream(ids, **options), reader)

    def _asked(
        self,
        messages: Messages,
        tools: list[Any] | None,
        tool_choice: str,
        variables: Variables,
        options: dict[str, Any],
    ) -> tuple[list[int], dict[str, Any], Callable[[], ReplyReader]]:
        """The prompt of a chat, its options, and what reads its answers."""
        from weft.generate.grammar import Grammar
        from weft.generate.tools.hold import hold, hold_answer
        from weft.text.reasoning import opened_by
        from weft.text.reply import ReplyReader

        named = None if tool_choice in ("auto", "none", "required") else tool_choice
        tools = tools if tool_choice != "none" else None
        if tool_choice not in ("auto", "none") and not tools:
            raise InputError("chat", "needs tools", field="tool_choice", given=tool_choice)
        ids = self.chat_ids(messages, tools=tools, variables=variables)
        held = hold(tools or (), self.chat_template, self.tokenizer, choice=tool_choice, named=named)
        options = {"grammar": held.grammar, **self.defaults.options, "show_special": True, **options}
        options["stop_ids"] = (*options.get("stop_ids", ()), *self.answer_ends)
        wanted, goes_on = options["grammar"], (variables or {}).get("continue_final_message")
        if isinstance(wanted, Grammar) and wanted is not held.grammar and not goes_on:
            options["grammar"] = hold_answer(wanted, self.chat_template, self.tokenizer)
        inside = opened_by(self.tokenizer.decode(ids[-8:], skip_special=False))
        return ids, options, lambda: ReplyReader(self.chat_template, tools=tools, inside=inside, form=held.form)

    @cached_property
    def answer_ends(self) -> tuple[int, ...]:
        """Tokens that end an answer in the model's format, whatever its files say."""
        from weft.text.calls.formats import formats_of

        ids = (self.tokenizer.id(token) for token in formats_of(self.chat_template).ends)
        return tuple(id for id in ids if id is not None and id in self.tokenizer.special_ids)

    def chat_ids(self, messages: Messages, *, tools: list[Any] | None = None, variables: Variables = None) -> list[int]:
        """The prompt of a conversation as ids. Special tokens written in a message are plain text.

        Where the chat template has no way to write tools, they are described in the system message, and calls and
        results are written as text: `needs_generic_tools`.
        """
        from weft.generate.sight.parts import as_parts, taken_out
        from weft.text.calls.formats import formats_of
        from weft.text.calls.history import fitted
        from weft.text.chat import choose_template, encode_chat
        from weft.text.prompts.generic_tools import needs_generic_tools, with_generic_tools

        tokenizer = self.tokenizer
        ends = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}  # templates use these names
        names = {name: tokenizer.token(id) or "" for name, id in ends.items() if id is not None}
        given = {**names, **(variables or {})}
        wrong = next((name for name in given if not isinstance(name, str) or name in _NOT_VARIABLES), None)
        if wrong is not None:
            what, advice = "cannot be set as a template variable", "pass messages= and tools= to chat() instead"
            raise InputError("chat", what, field=repr(wrong)[:80], advice=advice)
        template = self.chat_template
        messages, pictures = taken_out(messages)
        looks = self._eyes_for(pictures).look(pictures) if pictures else []

        def encode(written: Messages, tools: list[Any] | None = None) -> list[int]:
            if self.eyes is None:
                return encode_chat(tokenizer, template, written, tools=tools, **given)
            expanded = partial(self.eyes.expanded, looks=looks) if looks else None
            parts = as_parts(written, choose_template(template, tools))
            ids = encode_chat(tokenizer, template, parts, tools=tools, rewrite=expanded, **given)
            return self.eyes.prompt(ids, looks) if looks else ids

        if not needs_generic_tools(template, messages, tools):
            return encode(fitted(messages, formats_of(template).tools), tools)
        try:
            return encode(with_generic_tools(messages, tools))
        except InputError:  # a template may refuse a system message that the caller did not write
            if not tools or any(message["role"] == "system" for message in messages):
                raise
            return encode(with_generic_tools(messages, tools, system=False))

    @cached_property
    def eyes(self) -> Eyes | None:
        """What reads pictures; None for a model that does not see."""
        from weft.generate.sight.eyes import eyes_of

        return eyes_of(self.decoder)

    def prepare_images(self, images: Sequence[Any], progress: bool | None = False) -> None:
        """Read pictures as `chat` will: an error if one cannot be read, or the model does not see. `progress` says
        whether a bar is drawn from now on while pictures are computed; None: on a terminal, where it takes long."""
        eyes = self._eyes_for(images)
        eyes.progress = progress
        eyes.look(images)

    def _eyes_for(self, pictures: Sequence[Any]) -> Eyes:
        if self.eyes is None:
            what = f"{self._located.spec} does not see, and there are {len(pictures)} pictures"
            advice = "use a model that reads pictures, such as SmolVLM; for a GGUF file, give its mmproj file too"
            raise UnsupportedError("chat", what, field="pictures", advice=advice)
        return self.eyes

    @cached_property
    def chat_template(self) -> Template:
        """The model's chat template, or its templates by name."""
        entry = self._located.entry
        template = self.decoder.checkpoint.chat_template or (entry.chat_template if entry else None)
        if template is None:
            what = f"{self._located.spec} has no chat template"
            raise UnsupportedError("chat", what, advice="use generate, or a model made for chat")
        return template

    def logits(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Logits after every token of `ids`, float32 [len(ids), vocab]."""
        if self.decoder.own_adapter is not None:
            what = "logits are computed without adapters, and this model has one of its own"
            raise UnsupportedError("generate", what, advice="use generate with prompt_logprobs, or `weft merge`")
        if getattr(ids, "pictures", ()):
            what = "logits are computed of ids, and this prompt has pictures"
            raise UnsupportedError("generate", what, advice="use generate with prompt_logprobs")
        return self.decoder.logits(ids)

    def prompt_ids(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        parse_special: bool = True,
        images: Sequence[Any] = (),
    ) -> Sequence[int]:
        """The ids of a raw prompt; with a `suffix`, of the text to fill in between the two; with `images`, a Prompt."""
        if images:
            if not isinstance(prompt, str) or suffix is not None:
                raise InputError("generate", "must be one text, without a suffix, if there are images", field="prompt")
            return self._eyes_for(images).prompt_ids(prompt, images, self.tokenizer)
        if suffix is not None:
            from weft.text.prompts.infill import infill_ids

            if not isinstance(prompt, str):
                raise InputError("generate", "must be text if there is a suffix", field="prompt", given=prompt)
            return infill_ids(self.tokenizer, prompt, suffix)
        if not isinstance(prompt, str):
            return prompt
        ids = self.tokenizer.encode_prompt(prompt, parse_special=parse_special)
        if not ids:
            what = "is empty, and the model has no token to begin a text with"
            raise InputError("generate", what, field="prompt", advice="give some text")
        return ids

    def with_ends(self, suffix: str | None, options: dict[str, Any]) -> dict[str, Any]:
        """The options; a text that is filled in also ends at the tokens that models end such texts with."""
        if suffix is None:
            return options
        from weft.text.prompts.infill import infill_tokens

        return {**options, "stop_ids": (*options.get("stop_ids", ()), *infill_tokens(self.tokenizer).ends)}

    def __repr__(self) -> str:
        kind, context = self.decoder.checkpoint.model_type, self.decoder.max_context
        return f"<weft.Model {self._located.spec}: {kind}, {context} tokens>"


def _apart(pieces: Iterator[Piece], reader: Callable[[], ReplyReader]) -> Iterator[Piece]:
    readers: dict[int, ReplyReader] = {}
    for piece in pieces:
        own = readers.setdefault(piece.index, reader())
        said = own.add(piece.text)
        if piece.finish_reason is not None:
            said += own.finish()
        yield replace(piece, text=said.text, reasoning=said.reasoning, events=said.events)


def _taken_apart(result: Generation, reader: ReplyReader) -> Generation:
    reader.add(result.text)
    reader.finish()
    return replace(result, text=reader.text, reasoning=reader.reasoning, tool_calls=reader.tool_calls)
