"""Text generation for a call: lease a model, submit requests, yield their pieces, record metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, TooLongError, WeftError
from weft.frozen import frozen
from weft.serve.http.faults import Fault, invalid
from weft.serve.models.classifier import ClassifyRunner
from weft.serve.models.embedder import EmbedRunner
from weft.serve.models.generator import GenerateRunner
from weft.serve.models.outline import DOES
from weft.serve.models.reranker import RerankRunner
from weft.serve.settings import seconds

if TYPE_CHECKING:
    import numpy as np

    from weft.generate import Generation, Piece, Request
    from weft.generate.aio import AsyncHandle
    from weft.serve.http.routes import Context
    from weft.serve.models.pool import Entry, Runner
    from weft.serve.versions.shadowing import Compute

Numbered = list[tuple[int, "Piece"]]
LAST = -1000  # the priority of requests that are only compared
VERSION = b"x-weft-version"  # a header: which version of the registry answered


@frozen
class Names:
    """How an API names what the library names differently: `fields` of a request, and the field that `truncate`s."""

    fields: Mapping[str, str] = field(default_factory=dict)
    truncate: str = ""


@contextmanager
def in_words_of(names: Names) -> Iterator[None]:
    """Let errors of the library name the API's own fields."""
    try:
        yield
    except WeftError as error:
        changed: dict[str, Any] = {"field": names.fields.get(error.field or "", error.field)}
        if isinstance(error, TooLongError):
            changed["advice"] = f"shorten it or send {names.truncate}" if names.truncate else "shorten it"
        raise error.but(**changed) from error


async def lease(context: Context, name: str) -> tuple[Entry, str | None, Runner]:
    """The model that `name` refers to, kept loaded until the call ends, and the adapter if it names one."""
    entry, adapter = context.serving.models.find(name)
    entry = context.call.entries.setdefault(name, entry)
    context.call.model, context.call.kind = name, entry.kind
    if entry.version:
        others = (header for header in context.call.headers if header[0] != VERSION)
        context.call.headers = (*others, (VERSION, entry.reference.encode()))
    runner = await context.call.stack.enter_async_context(context.serving.models.lease(entry))
    if not isinstance(runner, GenerateRunner):
        _hold_share(context, 1)
    return entry, adapter, runner


def _hold_share(context: Context, answers: int) -> None:
    """Take this key's places in the queue of its model, where several keys share it: a request may ask for many
    answers, and a server may have many models."""
    serving, call = context.serving, context.call
    if len(serving.settings.keys) > 1:
        entry, _ = serving.models.find(call.model)
        call.stack.enter_context(serving.queues.taken(entry.name, call.tenant, answers))


def offer(context: Context, name: str, compute: Compute, *, by_angle: bool = False) -> None:
    """Offer a request that `name` has answered to the server's shadow runs, if it has any."""
    if context.serving.shadowing is not None:
        context.serving.shadowing.offer(context.call.entries.get(name), compute, by_angle=by_angle)


async def lease_generator(
    context: Context, name: str, *, to_ask: bool = False, answers: int = 1
) -> tuple[GenerateRunner, str | None]:
    """A generator, and its adapter if one is named; with `to_ask`, an error while its queue is full, or if it can never
    take so many `answers`."""
    _, adapter, runner = await lease(context, name)
    if not isinstance(runner, GenerateRunner):
        raise wrong_kind(name, runner, "generate")
    if to_ask:
        runner.check_room(answers)
    return runner, adapter


async def lease_embedder(context: Context, name: str) -> tuple[EmbedRunner, str | None]:
    _, adapter, runner = await lease(context, name)
    if not isinstance(runner, EmbedRunner):
        raise wrong_kind(name, runner, "embed")
    return runner, adapter


async def lease_scorer(context: Context, name: str) -> RerankRunner | EmbedRunner:
    """A reranker, or an embedder, which scores by similarity."""
    _, _, runner = await lease(context, name)
    if isinstance(runner, GenerateRunner | ClassifyRunner):
        raise wrong_kind(name, runner, "rerank")
    return runner


async def lease_classifier(context: Context, name: str) -> ClassifyRunner | RerankRunner:
    """A classifier, or a cross-encoder with one label."""
    _, _, runner = await lease(context, name)
    if not isinstance(runner, ClassifyRunner | RerankRunner) or runner.labels is None:
        raise wrong_kind(name, runner, "classify")
    return runner


def wrong_kind(name: str, runner: Runner, wanted: str) -> Fault:
    """The fault of a request for something that the model does not do."""
    advice = "GET /v1/models shows the kind of each model"
    if (runner.kind, wanted) == ("classify", "rerank"):
        advice = "to rank by one of its labels, the server's operator sets `label` in the --config file"
    message = f"{name} {DOES[runner.kind]} and cannot {wanted}; {advice}"
    return invalid(message, "model", code="wrong_kind_of_model")


def keep_loaded(context: Context, model: str, keep_alive: str | float | None) -> Entry:
    """Set how long the model stays loaded when idle: the time of the latest request, or else the server's."""
    entry, _ = context.serving.models.find(model)
    try:
        entry.keep_alive_s = None if keep_alive is None else seconds(keep_alive)
    except InputError as error:
        raise error.but(field="keep_alive") from None
    return entry


def isolation(context: Context, cache_salt: str | None = None) -> dict[str, str]:
    """Options that isolate tenants: keys share the engine fairly, and KV pages only within one key and salt."""
    tenant = context.call.tenant
    salt = context.serving.salts.get(tenant, tenant)
    return {"tenant": tenant, "salt": f"{salt}\0{cache_salt}" if cache_salt else salt}


class Running:
    """The requests of one call in a model's engine; those still running are cancelled when the call ends."""

    def __init__(self, context: Context, handles: list[AsyncHandle], requests: Sequence[Request]) -> None:
        self._context = context
        self._handles = handles
        self._last: dict[tuple[int, int], float] = {}
        self.requests = requests

    @classmethod
    async def submit(cls, context: Context, runner: GenerateRunner, requests: Sequence[Request]) -> Running:
        """Queue all requests, or none."""
        _hold_share(context, sum(request.n for request in requests))
        handles = []
        for request in requests:
            handles.append(await context.call.stack.enter_async_context(await runner.submit(request)))
        context.call.prompt_tokens = sum(len(request.prompt) for request in requests)
        return cls(context, handles, requests)

    async def pieces(self) -> AsyncIterator[Numbered]:
        """Pieces as they are generated, each with the number of its request."""
        if len(self._handles) == 1:
            async for pieces in self._handles[0].batches():
                yield self._noted([(0, piece) for piece in pieces])
            return
        queue: asyncio.Queue[Numbered | BaseException | None] = asyncio.Queue()
        pumps = [asyncio.ensure_future(self._pump(i, queue)) for i in range(len(self._handles))]
        try:
            for _ in pumps:
                while (found := await queue.get()) is not None:
                    if isinstance(found, BaseException):
                        raise found
                    yield self._noted(found)
        finally:
            for pump in pumps:
                pump.cancel()

    async def _pump(self, number: int, queue: asyncio.Queue[Numbered | BaseException | None]) -> None:
        try:
            async for pieces in self._handles[number].batches():
                queue.put_nowait([(number, piece) for piece in pieces])
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    def _noted(self, pieces: Numbered) -> Numbered:
        """Record the pieces; the latency of a token is its share of the time between two steps."""
        call, metrics, now = self._context.call, self._context.serving.metrics, time.monotonic()
        if call.began is None:
            call.began = now
            metrics.observe("time_to_first_token_seconds", now - call.started, model=call.model)
        for number, piece in pieces:
            key, count = (number, piece.index), len(piece.tokens)
            call.output_tokens += count
            self._context.serving.tracking.note_tokens(count)
            if key in self._last and count:
                gap = (now - self._last[key]) / count
                metrics.observe("inter_token_latency_seconds", gap, model=call.model)
            if count:
                self._last[key] = now
        return pieces

    def cancel(self) -> None:
        """Stop generating; the results so far stay available."""
        for handle in self._handles:
            handle.cancel()

    async def generations(self) -> list[list[Generation]]:
        """The results of all requests, once they have ended; records their metrics."""
        found = [await handle.results() for handle in self._handles]
        call, metrics = self._context.call, self._context.serving.metrics
        model = call.model
        for several in found:
            call.cached_tokens += several[0].usage.cached_tokens
            for one in several:
                timings, reason = one.timings, one.finish_reason
                call.finish_reason = reason
                metrics.count("request_success_total", model=model, finished_reason=reason)
                metrics.observe("request_prompt_tokens", one.usage.prompt_tokens, model=model)
                metrics.observe("request_generation_tokens", one.usage.completion_tokens, model=model)
                queued = max(0.0, timings.first_token_ms - timings.prompt_ms) / 1000
                metrics.observe("request_queue_time_seconds", queued, model=model)
                metrics.observe("request_prefill_time_seconds", timings.prompt_ms / 1000, model=model)
                metrics.observe("request_decode_time_seconds", timings.predicted_ms / 1000, model=model)
                metrics.observe("e2e_request_latency_seconds", call.age_s, model=model)
        call.prompt_tokens = sum(several[0].usage.prompt_tokens for several in found)
        self._offer(found)
        return found

    def _offer(self, found: list[list[Generation]]) -> None:
        """Let a shadow run compare what two versions think of the tokens of these answers, which may have been drawn:
        the most probable token at each place, and the log-probability of the one that was taken."""
        asked = [
            (request.prompt, one.tokens)
            for request, several in zip(self.requests, found)
            for one in several
            if request.adapter is None and one.tokens
        ]

        async def compute(runner: GenerateRunner) -> tuple[np.ndarray, np.ndarray]:
            import numpy as np

            from weft.generate import make_request

            first, probable = [], []
            for prompt, tokens in asked:
                options = {"max_tokens": 0, "prompt_logprobs": 1, "priority": LAST, "prefix_cache": False}
                request = make_request((*prompt, *tokens), prompt_logprobs_from=len(prompt), **options)
                async with await runner.submit(request) as handle:
                    (result,) = await handle.results()
                for place in result.prompt_logprobs or ():
                    first.append(place.top[0][0])
                    probable.append(place.logprob)
            return np.asarray(first), np.asarray(probable)

        if asked:
            offer(self._context, self._context.call.model, compute)


def timings_of(one: Generation) -> dict[str, Any]:
    """Timings in llama-server's form."""
    usage, times = one.usage, one.timings
    computed = usage.prompt_tokens - usage.cached_tokens
    made = usage.completion_tokens
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": round(times.prompt_ms, 3),
        "prompt_per_token_ms": round(times.prompt_ms / computed, 3) if computed else 0.0,
        "prompt_per_second": round(times.prompt_per_second, 3),
        "predicted_n": made,
        "predicted_ms": round(times.predicted_ms, 3),
        "predicted_per_token_ms": round(times.predicted_ms / made, 3) if made else 0.0,
        "predicted_per_second": round(times.predicted_per_second, 3),
    }
