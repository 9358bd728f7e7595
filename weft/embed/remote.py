"""A remote embedder: any endpoint with OpenAI's `/embeddings`, behind the interface of the local one.

Requests that fail for a transient reason (429, 5xx, a broken connection) are retried with exponential backoff and
jitter, never before the server's Retry-After. Answers are checked: a vector for every text, all of one length, no NaN;
and a weft server's fingerprint must stay the same. If one request fails for good, or on Ctrl-C, the others are ended at
once, and the vectors received until then are kept.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from hashlib import sha256
from math import isfinite
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from weft import flags
from weft.embed.base import BaseEmbedder
from weft.embed.cache import Stored, key_of, open_cache
from weft.embed.inputs import STREAM_TEXTS, How, Limits
from weft.embed.posting import Answer, Line, Pace, Poster, Requests, retry_after_s
from weft.embed.recipe import SIMILARITIES
from weft.embed.results import Embedded, EmbedInterrupted
from weft.errors import (
    BackendError,
    BusyError,
    DownloadError,
    InputError,
    NotFoundError,
    OfflineError,
    TooLongError,
    UnsupportedError,
)
from weft.frozen import frozen
from weft.progress import shown

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger("weft.embed")

BATCH_CHARACTERS = 60_000  # of a request: a weft server accepts 65,536 tokens, OpenAI's more
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0
LOGGED_FROM_S = 1.0  # a longer wait is logged: otherwise the call would seem to hang
OPENAI = "https://api.openai.com/v1"


class Part(NamedTuple):
    """The texts of one request, and the index of the first of them in the call."""

    first: int
    texts: list[str]


@frozen
class Server:
    """A server that the caller allows weft to connect to: its address and API key."""

    base_url: str
    api_key: str | None = None

    def ask_for(self, model: str, **options: Any) -> RemoteEmbedder:
        return RemoteEmbedder(model, self.base_url, self.api_key, **options)


def allowed(server: Server | None, url: str, model: str) -> Server:
    """The server at `url`, an address read from a file. A file must not make weft connect anywhere, so the caller must
    name the server too."""
    if server is None:
        what = f"must be given: the model {model} is served by {url}, and weft connects only to servers that you name"
        raise InputError("remote", what, field="base_url", advice=f"give --base-url {url}")
    if server.base_url.rstrip("/") != url:
        what = f"must be {url}, the server of the model {model}"
        raise InputError("remote", what, given=server.base_url, field="base_url", advice=f"give --base-url {url}")
    return server


class RemoteEmbedder(BaseEmbedder):
    """The embedding model `model` of the server at `base_url` (`https://…/v1`).

    `base_url` defaults to OPENAI_BASE_URL, else OpenAI's own; `api_key` to OPENAI_API_KEY, which is sent to that
    address only. `prompts` are put before texts by role, as with a local model. `dimensions` is sent if it is given. At
    most `concurrency` requests of `batch_texts` texts each run at once, and at most `requests_per_minute` are started.
    The server refuses or cuts texts that are too long: only truncate="error" is supported, and tokens are not counted
    (`Embedded.tokens` is 0).

    `fingerprint` is the digest of server, model, prompts and a weft server's own fingerprint (`server_fingerprint`), so
    that no cache or store mixes two models; it requests one vector if no request was made before. A request that fails
    for good ends the call. The vectors received until then are in the cache, or, without a cache, in the error:
    `error.done` holds those of the first texts, as in EmbedInterrupted.
    """

    concurrent = True  # several threads may call it at once
    cuts = False

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        dimensions: int | None = None,
        prompts: Mapping[str, str] | None = None,
        similarity: str = "cosine",
        batch_texts: int = 128,
        concurrency: int = 4,
        requests_per_minute: float | None = None,
        retries: int = 6,
        timeout_s: float = 60.0,
        cache: Any = None,
        limits: Limits | None = None,
    ) -> None:
        url, key = _server(base_url, api_key)
        if reason := flags.offline_reason():
            raise OfflineError(
                "remote", f"{url} cannot be used: {reason} is set", advice="unset it, or use a local model"
            )
        if not isinstance(model, str) or not model:
            raise InputError("remote", "must be the model's name on the server", given=model, field="model")
        if similarity not in SIMILARITIES:
            raise InputError(
                "remote", f"must be one of {', '.join(SIMILARITIES)}", given=similarity, field="similarity"
            )
        if limits is not None and not isinstance(limits, Limits):
            raise InputError("remote", "must be a weft.embed.Limits", given=limits, field="limits")
        self.model = model
        self.base_url = url
        self.server_fingerprint: str | None = None
        self.limits = limits or Limits()
        self._poster = Poster(url, "/embeddings", key, _number("timeout_s", timeout_s))
        self._dimensions = self._length = None if dimensions is None else _whole("dimensions", dimensions, 1)
        self._answered = False
        self._prompts = _checked_prompts(prompts)
        self._similarity = similarity
        self._batch_texts = _whole("batch_texts", batch_texts, 1)
        self._concurrency = _whole("concurrency", concurrency, 1)
        self._retries = _whole("retries", retries, 0)
        rate = requests_per_minute
        self._pace = Pace(None if rate is None else _number("requests_per_minute", rate))
        self._lock, self._silent_until = Lock(), 0.0
        self._wait, self._random = Line.wait, random.random
        self.cache = open_cache(cache)

    def at(self, dimensions: int | None) -> RemoteEmbedder:
        """The same model with vectors of `dimensions` numbers, None for its full length; cache and rate are shared."""
        other = copy(self)
        other._dimensions = other._length = None if dimensions is None else _whole("dimensions", dimensions, 1)
        other._answered, other.server_fingerprint, other._lock = False, None, Lock()
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        what = "this embedder cannot be pickled, since it holds a server's key and connections"
        raise UnsupportedError("remote", what, advice="create it in each process")

    @property
    def dimension(self) -> int:
        """Length of a vector; requests one if it is not known yet."""
        if self._length is None:
            self._meet()
        return self._length or 0

    @property
    def asked_dimensions(self) -> int | None:
        """The `dimensions` sent to the server; None if it is not sent."""
        return self._dimensions

    @property
    def prompts(self) -> Mapping[str, str]:
        return self._prompts

    @property
    def similarity_name(self) -> str:
        return self._similarity

    @property
    def fingerprint(self) -> str:
        """The digest of server, model, dimensions, prompts, and the server's own fingerprint if it sends one."""
        self._meet()
        parts = [self.base_url, self.model, self._dimensions, sorted(self._prompts.items())]
        own = [] if self.server_fingerprint is None else [self.server_fingerprint]
        return f"weft1:{sha256(json.dumps(['remote', *parts, *own]).encode()).hexdigest()}"

    def _identity(self, how: How) -> str:
        self._meet(how.stop)
        return self.fingerprint

    def _meet(self, stop: Event | None = None) -> None:
        """Request one vector if there was no answer yet, to learn its length and the server's fingerprint."""
        if not self._answered:
            try:
                self._make(["dimension"], How(stop=stop))
            except EmbedInterrupted as error:
                raise EmbedInterrupted(error.done.first(0)) from None  # the text is not the caller's

    def __repr__(self) -> str:
        return f"<weft.RemoteEmbedder {self.model} of {self.base_url}>"

    @property
    def info(self) -> dict[str, Any]:
        """How vectors are made, as far as it is known on this side."""
        return {
            "model": self.model,
            "source": self.base_url,
            "dimension": self.dimension,
            "prompts": dict(self._prompts),
            "similarity": self._similarity,
            "fingerprint": self.fingerprint,
            "server_fingerprint": self.server_fingerprint,
        }

    def _portion_texts(self) -> int:
        return max(STREAM_TEXTS, 2 * self._batch_texts * self._concurrency)  # enough that all connections stay busy

    def _make(self, texts: list[str], how: How) -> Embedded:
        if how.truncate != "error":
            what = "must be 'error', since a server truncates in its own way and windows need a local model"
            raise UnsupportedError("remote", what, given=how.truncate, field="truncate")
        ranges = list(request_ranges(texts, self._batch_texts))
        parts = [Part(first, [how.prompt + text for text in texts[first:last]]) for first, last in ranges]
        requests = Requests(self._poster, parts, self._ask, self._concurrency)
        try:
            requests.start()
            steps = enumerate(shown(ranges, len(texts), how.progress))
            return self._embedded([requests.result(place, how.stop) for place, _ in steps] or [self._no_vector])
        except BaseException as error:
            done = requests.stop()
            first = next(place for place in range(len(parts) + 1) if place not in done)
            made = self._embedded([done[place] for place in range(first)])
            if self.cache is not None:
                for place, vectors in done.items():
                    self._keep(texts[slice(*ranges[place])], vectors, how)
            if isinstance(error, KeyboardInterrupt):
                raise EmbedInterrupted(made) from None
            if self.cache is None:
                error.done = made  # type: ignore[attr-defined]
            raise

    @property
    def _no_vector(self) -> np.ndarray:
        import numpy as np

        return np.empty((0, self.dimension), np.float32)

    def _embedded(self, parts: Sequence[np.ndarray]) -> Embedded:
        import numpy as np

        vectors = np.concatenate(parts) if parts else np.empty((0, self._length or 0), np.float32)
        none = np.zeros(len(vectors), np.int32)  # the server counts tokens of all texts together, not of each
        return Embedded(vectors, none, none, np.ones(len(vectors), np.int32), lambda: self.fingerprint)

    def _keep(self, texts: Sequence[str], vectors: np.ndarray, how: How) -> None:
        """Store vectors of a call that ends early in the cache, for the next one."""
        assert self.cache is not None
        keys = (key_of(self.fingerprint, text, prompt=how.prompt, truncate=how.truncate) for text in texts)
        stored = (Stored(vector.copy(), 0, 0, 1) for vector in vectors)
        self.cache.put(self.fingerprint, list(zip(keys, stored)))

    def _ask(self, line: Line, part: Part) -> np.ndarray:
        """The vectors of one request, with retries."""
        body: dict[str, Any] = {"model": self.model, "input": part.texts, "encoding_format": "base64"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        for attempt in range(self._retries + 1):
            if turn := self._pace.turn_s():
                self._wait(line, turn)
            try:
                answer = line.post(body)
            except DownloadError as error:
                if attempt == self._retries:
                    raise
                self._wait_for(line, self._wait_s(attempt, 0.0), str(error))
                continue
            if answer.status == 200:
                vectors = read_vectors(answer.body, len(part.texts))
                self._check(answer, vectors.shape[1])
                return vectors
            after = retry_after_s(answer.headers.get("retry-after"), time.time())
            if answer.status not in TRANSIENT or attempt == self._retries or after > LONGEST_WAIT_S:
                raise _refused(answer, self.base_url, part)
            why = f"[remote] {self.base_url} answered {answer.status}: {answer.message()}"
            self._wait_for(line, self._wait_s(attempt, after), why)
        raise AssertionError("the last attempt raises")

    def _wait_for(self, line: Line, seconds: float, why: str) -> None:
        """Wait before a retry; log it, unless the wait is short or another one was just logged."""
        now = time.monotonic()
        with self._lock:
            silent = seconds < LOGGED_FROM_S or now < self._silent_until
            self._silent_until = self._silent_until if silent else now + seconds
        if not silent:
            log.warning("%s; retrying in %.0f s", why, seconds)
        self._wait(line, seconds)

    def _wait_s(self, attempt: int, after: float) -> float:
        longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt)
        return max(after, longest * (0.5 + 0.5 * self._random()))

    def _check(self, answer: Answer, length: int) -> None:
        """Refuse vectors of another length than requested, or of another model than earlier answers."""
        sent = answer.headers.get("weft-fingerprint")
        with self._lock:
            seen = self.server_fingerprint
            if self._dimensions not in (None, length):
                raise BackendError(
                    "remote",
                    f"{self.base_url} ignores dimensions={self._dimensions} for {self.model!r}: its vectors have "
                    f"{length} numbers",
                    advice="leave dimensions out",
                )
            if self._length not in (None, length) or (self._answered and seen != sent):
                was, now = (f"{n} numbers, fingerprint {f}" for n, f in ((self._length, seen), (length, sent)))
                raise BackendError(
                    "remote",
                    f"the model {self.model!r} of {self.base_url} has changed since the first answer: {was}, now {now}",
                    advice="make a new RemoteEmbedder, and do not mix its vectors with earlier ones",
                )
            self._length, self.server_fingerprint, self._answered = length, sent, True


def _server(base_url: str | None, api_key: str | None) -> tuple[str, str | None]:
    """The address and the key. OPENAI_API_KEY is used for the environment's server only, so that no other gets it."""
    if base_url is not None and not isinstance(base_url, str):
        raise InputError("remote", "must be an address such as https://host/v1", given=base_url, field="base_url")
    home = flags.get("OPENAI_BASE_URL") or OPENAI
    url = (home if base_url is None else base_url).rstrip("/")
    key = flags.get("OPENAI_API_KEY") if api_key is None and url == home else api_key
    if url == OPENAI and not key:
        raise InputError(
            "remote",
            f"is required by {OPENAI}",
            field="api_key",
            advice="give api_key or set OPENAI_API_KEY; for another server give base_url or set OPENAI_BASE_URL",
        )
    return url, key


def _whole(name: str, given: Any, least: int) -> int:
    if type(given) is not int or given < least:
        raise InputError("remote", f"must be a whole number from {least} on", given=given, field=name)
    return given


def _number(name: str, given: Any) -> float:
    if type(given) not in (int, float) or not isfinite(given) or given <= 0:
        raise InputError("remote", "must be a number above 0", given=given, field=name)
    return float(given)


def _checked_prompts(given: Mapping[str, str] | None) -> dict[str, str]:
    prompts = dict(given) if isinstance(given, Mapping) else given
    if prompts is None:
        return {}
    if not isinstance(prompts, dict) or not all(isinstance(part, str) for item in prompts.items() for part in item):
        what = "must be a dictionary of texts by role, {'query': 'query: '}"
        raise InputError("remote", what, given=given, field="prompts")
    return prompts


def read_vectors(body: bytes, count: int) -> np.ndarray:
    """The vectors of an answer, float32 [count, n], in the order of the request; base64 or lists of numbers."""
    import numpy as np

    try:
        data = json.loads(body)["data"]
        places = [item["index"] for item in data]
        rows = [_vector(item["embedding"]) for item in sorted(data, key=lambda item: item["index"])]
        if sorted(places) != list(range(count)):
            raise ValueError(f"{len(places)} vectors for {count} texts")
        vectors = np.stack(rows)
        if vectors.ndim != 2 or not vectors.size:
            raise ValueError(f"vectors that are arrays of shape {vectors.shape[1:]}")
        if not np.isfinite(vectors).all():
            raise ValueError("numbers that are not finite")
        return vectors
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, binascii.Error) as error:
        what = f"the answer does not have the form of OpenAI's: {type(error).__name__} {error}"
        raise BackendError("remote", what, advice="see that base_url is the address of an embeddings API") from None


def _vector(given: Any) -> np.ndarray:
    import numpy as np

    if isinstance(given, str):
        return np.frombuffer(base64.b64decode(given, validate=True), "<f4").astype(np.float32)
    return np.asarray(given, np.float32)


def request_ranges(texts: Sequence[str], most: int) -> Iterator[tuple[int, int]]:
    """Ranges (first, last) of texts, one per request: at most `most` texts and BATCH_CHARACTERS, or one longer text."""
    first = size = 0
    for i, text in enumerate(texts):
        if i > first and (i - first == most or size + len(text) > BATCH_CHARACTERS):
            yield first, i
            first, size = i, 0
        size += len(text)
    if texts:
        yield first, len(texts)


def _too_long(answer: Answer, base_url: str, part: Part) -> InputError | None:
    """The error of the text that is too long; None if the answer does not say which of several it is."""
    numbers: list[Any] = [answer.details.get(name) for name in ("index", "length", "limit")]
    known = all(type(number) is int for number in numbers)
    if not known and len(part.texts) > 1:
        return None
    place, length, limit = numbers if known else (0, 0, 0)
    return TooLongError(
        "remote",
        f"has {length} tokens, the model takes {limit}" if known else "is too long for the model",
        field="text",
        index=part.first + place,
        advice=f"shorten it: {base_url} does not truncate texts",
        length=length,
        limit=limit,
    )


def _refused(answer: Answer, base_url: str, part: Part) -> Exception:
    """The error for an answer of this status."""
    count = len(part.texts)
    what = f"{base_url} answered {answer.status}: {answer.message()}"
    if answer.status in (400, 413, 422):
        too_long = _too_long(answer, base_url, part) if answer.code == "context_length_exceeded" else None
        sent = f"text {part.first}" if count == 1 else f"texts {part.first} to {part.first + count - 1}"
        return too_long or InputError("remote", f"{what} (the request had {sent})")
    if answer.status == 404:
        bare = base_url.count("/") == 2  # a scheme and a host
        return NotFoundError("remote", what, advice="most servers need /v1 at the end of base_url" if bare else None)
    if answer.status == 429:
        return BusyError("remote", what, advice="send fewer requests (requests_per_minute)")
    hint = "give the right api_key (OPENAI_API_KEY is sent to OPENAI_BASE_URL only)"
    return BackendError("remote", what, advice=hint if answer.status in (401, 403) else None)
