"""A text generator in a server: an engine on a thread of its own, and its tokens as text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from weft.errors import BusyError, InputError, WeftError
from weft.generate import AsyncEngine, Engine
from weft.generate.grammar.turns import COMPILING
from weft.text.prompts.infill import infill_ids

if TYPE_CHECKING:
    from weft.generate import Model, Request, Stats
    from weft.generate.aio import AsyncHandle
    from weft.pictures import PictureLimits
    from weft.runtime import Adapters
    from weft.text import Template, Tokenizer

T = TypeVar("T")

PREPARING = 4  # threads that render templates and split texts into tokens
MAX_VARIABLES = 32
MAX_VARIABLE = 256  # characters
_OURS = ("bos_token", "eos_token", "add_generation_prompt", "continue_final_message", "documents", "tokenize")


class GenerateRunner:
    """One loaded generator."""

    kind = "generate"

    def __init__(
        self,
        model: Model,
        *,
        running: int,
        waiting: int,
        kept: Mapping[str, Any] | None = None,
        pictures: PictureLimits | None = None,
    ) -> None:
        """`kept` are the engine's options for a prefix cache on disk, `pictures` the limits of each picture."""
        self.model = model
        if model.eyes is not None:
            model.eyes.limits = pictures or model.eyes.limits
            with suppress(WeftError):  # of a folder with the text part only; pictures are refused when they come
                _ = model.eyes.tower  # loaded here, where no request waits
        engine = Engine(model, max_running=running, max_waiting=running + waiting, responsive=True, **(kept or {}))
        model.use_engine(engine)
        self.engine = AsyncEngine(engine)
        self._most = running + waiting
        self._preparing = ThreadPoolExecutor(PREPARING, "weft-prepare")

    async def start(self) -> GenerateRunner:
        await self.engine.__aenter__()
        return self

    @property
    def sees(self) -> bool:
        """Whether the model reads pictures."""
        return self.model.eyes is not None

    @property
    def info(self) -> dict[str, Any]:
        return self.model.info

    @property
    def context(self) -> int:
        return self.model.decoder.max_context

    @property
    def max_tokens(self) -> int:
        return self.context

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @property
    def adapters(self) -> Adapters:
        return self.model.adapters

    @property
    def template(self) -> Template:
        return self.model.chat_template

    @property
    def stats(self) -> Stats:
        return self.engine.engine.stats()

    @property
    def waiting(self) -> int:
        return self.engine.engine.waiting

    @property
    def failure(self) -> BaseException | None:
        return self.engine.failure

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """What a request that leaves sampling fields unset gets."""
        return dict(self.model.defaults.options)

    def check_room(self, answers: int = 1) -> None:
        """Check before any work is done for a request: InputError if the queue can never take all its answers,
        BusyError while it is full."""
        if answers > self._most:
            limit = f"with n asks for {answers} answers; the model's queue has {self._most} places"
            advice = "send fewer prompts in one request, or a smaller n"
            raise InputError("engine", limit, field="prompt", advice=advice)
        under_way = self.engine.engine.running + self.waiting
        if under_way >= self._most:
            raise BusyError("engine", f"the model's queue is full with {under_way} requests", advice="try again later")

    async def in_thread(self, work: Callable[[], T], grammar_of: str | None = None) -> T:
        """Run CPU-bound work in another thread: templates, tokenising.

        Work that makes a grammar may take seconds. It names its tenant in `grammar_of` and has threads of its own, one
        for each tenant, so that requests without a grammar do not wait for it.
        """
        if grammar_of is not None:
            return await asyncio.wrap_future(COMPILING.submit(grammar_of, work))
        return await asyncio.get_running_loop().run_in_executor(self._preparing, work)

    async def submit(self, request: Request) -> AsyncHandle:
        return await self.engine.submit(request)

    def chat_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: list[Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        **ours: Any,
    ) -> list[int]:
        """The prompt of a conversation. `variables` are a client's, `ours` the server's own."""
        self._check_variables(variables or {})
        return self.model.chat_ids(messages, tools=tools, variables={**(variables or {}), **ours})

    def _check_variables(self, variables: Mapping[str, Any]) -> None:
        """Refuse variables that hold a control token: a template may write them unescaped."""
        if len(variables) > MAX_VARIABLES:
            limit = f"has {len(variables)} variables; at most {MAX_VARIABLES} are allowed"
            raise InputError("chat", limit, field="chat_template_kwargs")
        for name, value in variables.items():
            if name in _OURS or not name.isidentifier():
                raise InputError("chat", f"cannot set {name!r:.80}", field="chat_template_kwargs")
            if value is not None and not isinstance(value, bool | int | float | str):
                raise InputError(
                    "chat", "must be a string, a number or a boolean", field=f"chat_template_kwargs.{name}"
                )
            if isinstance(value, str) and (len(value) > MAX_VARIABLE or any(t in value for t in self._control_tokens)):
                limit = f"must be at most {MAX_VARIABLE} characters without control tokens"
                raise InputError("chat", limit, field=f"chat_template_kwargs.{name}")

    @cached_property
    def _control_tokens(self) -> list[str]:
        return [text for text, _, _ in self.tokenizer.added_tokens if text.strip()]

    def text_ids(
        self, text: str, *, suffix: str | None = None, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """The ids of a raw prompt; with a `suffix`, of the text to fill in between the two."""
        if suffix is not None:
            return infill_ids(self.tokenizer, text, suffix)
        ids = self.tokenizer.encode_prompt(text, add_special=add_special, parse_special=parse_special)
        if not ids:
            raise InputError(
                "request", "is empty, and the model has no start token", field="prompt", advice="give some text"
            )
        return ids

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        return self.tokenizer.token_bytes()

    def know_tokens(self) -> None:
        """Compute the bytes of all tokens, which takes a while for a large vocabulary; call it in a thread."""
        _ = self._token_bytes

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token adds to a text; for a special token, its name."""
        found = self._token_bytes[id] if id < len(self._token_bytes) else b""
        return found or (self.tokenizer.token(id) or "").encode()

    async def close(self) -> None:
        await self.engine.__aexit__()
        await asyncio.to_thread(self.engine.engine.close)
        self._preparing.shutdown(wait=False)
