"""Kept streams over HTTP: the header that asks for one, and the answers that rejoin it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.serve.http.faults import invalid
from weft.serve.http.routes import Answer, Context, Send, Stream

if TYPE_CHECKING:
    from weft.serve.work.kept import Kept
    from weft.serve.work.tracking import Call

ASKING = b"x-weft-rejoin"  # the header of a request whose stream may be rejoined; in seconds
NAMING = b"x-weft-stream"  # the header of the answer, with the stream's id
LAST = b"last-event-id"
_COUNTS = ("model", "kind", "prompt_tokens", "output_tokens", "cached_tokens", "finish_reason", "began")


class Rejoined:
    """Sends a kept stream to one client, from the event after number `after`."""

    def __init__(self, kept: Kept, after: int = -1) -> None:
        kept.check(after)
        self._kept = kept
        self._after = after

    async def send(self, send: Send, call: Call) -> None:
        stream = self._kept.stream
        headers = ((b"x-accel-buffering", b"no"), (NAMING, self._kept.id.encode()))
        try:
            with self._kept.reading(self._after) as chunks:
                await Stream(chunks, stream.error, stream.media_type, headers).send(send, call)
        finally:
            for name in _COUNTS:  # for the client's line in the log
                setattr(call, name, getattr(self._kept.call, name))


def kept_if_asked(context: Context, answer: Answer) -> Answer:
    """The answer of a request; if it is a stream and the request asks for it, one that can be rejoined."""
    given = context.headers.get(ASKING)
    if given is None or not isinstance(answer, Stream):
        return answer
    most = context.serving.settings.limits.rejoin_s
    if not given.isdigit() or len(given) > 9 or not 1 <= int(given) <= most:
        raise invalid(f"must be 1 to {most:g} seconds", ASKING.decode())
    return Rejoined(keep(context, answer, float(given)))


def keep(context: Context, stream: Stream, grace_s: float | None, id: str | None = None) -> Kept:
    """Generate a stream on its own; what the generation counts belongs to the stream from here on."""
    kept = context.serving.kept.keep(context.call, stream, grace_s, id)
    context.call.model = ""  # listed once
    context.call = kept.call
    return kept


def last_seen(context: Context) -> int:
    """The number of the last event that the client has: `starting_after` of the query, else Last-Event-ID, else -1."""
    given = context.query.get("starting_after")
    where = "starting_after" if given is not None else "Last-Event-ID"
    text = given if given is not None else context.headers.get(LAST, b"").decode("latin-1")
    if not text:
        return -1
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise invalid("must be the number of an event", where)
    return int(text)
