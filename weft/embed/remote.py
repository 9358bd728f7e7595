"""An embedder elsewhere: any endpoint that speaks OpenAI's `/embeddings`, with the interface of the local one.

Requests that failed in passing (429, 5xx, a broken connection) are made again after a wait that grows and is drawn at
random, never sooner than the server's Retry-After. Answers are checked: a vector for every text, all of one length, no
NaN; and where the server is weft's own, its fingerprint must stay the same. One request that fails, or Ctrl-C, ends the
others at once, and what was answered until then is kept.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import random
import re
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

BATCH_CHARACTERS = 60_000  # of a request: a weft server takes 65,536 tokens, OpenAI's more
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0
SAID_FROM_S = 1.0  # a longer wait looks as if nothing went on
OPENAI = "https://api.openai.com/v1"


class Part(NamedTuple):
    """What one request asks for: some of a call's texts, the place of the first of them among all."""

    first: int
    texts: list[str]


@frozen
class Server:
    """A server that the caller lets weft ask: its address, and the key for it."""

    base_url: str
    api_key: str | None = None

    def ask_for(self, model: str, **options: Any) -> RemoteEmbedder:
        return RemoteEmbedder(model, self.base_url, self.api_key, **options)


def allowed(server: Server | None, url: str, model: str) -> Server:
    """The server at `url`, which a file names. What a file says must not make anybody connect anywhere, so it is asked
    only where the caller names it as well."""
    if server is None:
        raise InputError(f"[remote] the model {model} is at {url}; give --base-url {url} to ask that server")
    if server.base_url.rstrip("/") != url:
        raise InputError(f"[remote] the model {model} is at {url}, and --base-url is {server.base_url}")
    return server


class RemoteEmbedder(BaseEmbedder):
    """The embedding model `model` of the server at `base_url` (`https://…/v1`).

    Where they are not given, `base_url` is OPENAI_BASE_URL, else OpenAI's own, and `api_key` is OPENAI_API_KEY, which
    goes to that address and to no other. `prompts` are put before texts of a role, as with a local model. `dimensions`
    is sent where it is given. At most `concurrency` requests of `batch_texts` texts each are under way, and no more
    than `requests_per_minute` begin. Texts that are too long are the server's affair, which refuses or cuts them: only
    truncate="error" is taken, and tokens are not counted (`Embedded.tokens` is 0).

    `fingerprint` says which server, model and prompts, and what a weft server says of itself (`server_fingerprint`), so
    that no cache or store mixes two models; it asks for one vector where nothing has been asked yet. A request that
    fails for good ends the call. What was answered is in the cache then, or, where there is none, in the error:
    `error.done` is what the first texts became, as with EmbedInterrupted.
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
            raise OfflineError(f"[remote] {url} is not asked: {reason} is set")
        if not isinstance(model, str) or not model:
            raise InputError(f"[remote] model is {model!r}; give the name that the server knows it by")
        if similarity not in SIMILARITIES:
            raise InputError(f"[remote] similarity is {similarity!r}; there are {', '.join(SIMILARITIES)}")
        if limits is not None and not isinstance(limits, Limits):
            raise InputError(f"[remote] limits is {type(limits).__name__}; give weft.embed.Limits")
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
        """The same model asked for vectors of `dimensions` numbers, None for its own; cache and rate are shared."""
        other = copy(self)
        other._dimensions = other._length = None if dimensions is None else _whole("dimensions", dimensions, 1)
        other._answered, other.server_fingerprint, other._lock = False, None, Lock()
        return other

    @property
    def dimension(self) -> int:
        """Length of a vector; asks the server for one where nobody has said it."""
        if self._length is None:
            self._meet()
        return self._length or 0

    @property
    def asked_dimensions(self) -> int | None:
        """What the server is asked to cut vectors to; None where it gives them whole."""
        return self._dimensions

    @property
    def prompts(self) -> Mapping[str, str]:
        return self._prompts

    @property
    def similarity_name(self) -> str:
        return self._similarity

    @property
    def fingerprint(self) -> str:
        """Of server, model, dimensions and prompts, and of what the server says made its vectors, if it does."""
        self._meet()
        parts = [self.base_url, self.model, self._dimensions, sorted(self._prompts.items())]
        told = [] if self.server_fingerprint is None else [self.server_fingerprint]
        return f"weft1:{sha256(json.dumps(['remote', *parts, *told]).encode()).hexdigest()}"

    def _identity(self, how: How) -> str:
        self._meet(how.stop)
        return self.fingerprint

    def _meet(self, stop: Event | None = None) -> None:
        """Asks for one vector where nothing has been answered yet: how long it is, and what made it."""
        if not self._answered:
            try:
                self._make(["dimension"], How(stop=stop))
            except EmbedInterrupted as error:
                raise EmbedInterrupted(error.done.first(0)) from None  # that text is nobody's

    def __repr__(self) -> str:
        return f"<weft.RemoteEmbedder {self.model} of {self.base_url}>"

    @property
    def info(self) -> dict[str, Any]:
        """How vectors are made, as far as it is known here."""
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
        return max(STREAM_TEXTS, 2 * self._batch_texts * self._concurrency)  # no line waits for the others

    def _make(self, texts: list[str], how: How) -> Embedded:
        if how.truncate != "error":
            raise UnsupportedError(
                f"[remote] truncate is {how.truncate!r}; a server cuts texts as it likes, and windows are for local "
                "models: give truncate='error'"
            )
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
        none = np.zeros(len(vectors), np.int32)  # what the server counted it tells for all texts together
        return Embedded(vectors, none, none, np.ones(len(vectors), np.int32), lambda: self.fingerprint)

    def _keep(self, texts: Sequence[str], vectors: np.ndarray, how: How) -> None:
        """Puts vectors of a call that ends early where the next one finds them."""
        assert self.cache is not None
        keys = (key_of(self.fingerprint, text, prompt=how.prompt, truncate=how.truncate) for text in texts)
        stored = (Stored(vector.copy(), 0, 0, 1) for vector in vectors)
        self.cache.put(self.fingerprint, list(zip(keys, stored)))

    def _ask(self, line: Line, part: Part) -> np.ndarray:
        """The vectors of one request, made again as often as that may help."""
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
            said = f"[remote] {self.base_url} answered {answer.status}: {answer.said()}"
            self._wait_for(line, self._wait_s(attempt, after), said)
        raise AssertionError("the last attempt raises")

    def _wait_for(self, line: Line, seconds: float, why: str) -> None:
        """Waits until a request is made again, and says so, unless it was said just now or is over at once."""
        now = time.monotonic()
        with self._lock:
            silent = seconds < SAID_FROM_S or now < self._silent_until
            self._silent_until = self._silent_until if silent else now + seconds
        if not silent:
            log.warning("%s; asked again in %.0f s", why, seconds)
        self._wait(line, seconds)

    def _wait_s(self, attempt: int, after: float) -> float:
        longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt)
        return max(after, longest * (0.5 + 0.5 * self._random()))

    def _check(self, answer: Answer, length: int) -> None:
        """That an answer is of the model that gave the ones before it, and has the length that was asked for."""
        told = answer.headers.get("weft-fingerprint")
        with self._lock:
            seen = self.server_fingerprint
            if self._dimensions not in (None, length):
                raise BackendError(
                    f"[remote] vectors of {length} numbers where dimensions={self._dimensions} was asked for; "
                    f"{self.base_url} does not cut those of {self.model!r}: leave dimensions out"
                )
            if self._length not in (None, length) or (self._answered and seen != told):
                was, now = (f"{n} numbers, fingerprint {f}" for n, f in ((self._length, seen), (length, told)))
                raise BackendError(
                    f"[remote] {self.base_url} has another model behind {self.model!r} than before: {was}, and now "
                    f"{now}; make a new RemoteEmbedder, whose vectors do not meet the old ones"
                )
            self._length, self.server_fingerprint, self._answered = length, told, True


def _server(base_url: str | None, api_key: str | None) -> tuple[str, str | None]:
    """The address and the key. That of the environment is for the environment's server: sent to another it is lost."""
    if base_url is not None and not isinstance(base_url, str):
        raise InputError(f"[remote] base_url is {type(base_url).__name__}; give an address, as https://host/v1")
    home = flags.get("OPENAI_BASE_URL") or OPENAI
    url = (home if base_url is None else base_url).rstrip("/")
    key = flags.get("OPENAI_API_KEY") if api_key is None and url == home else api_key
    if url == OPENAI and not key:
        raise InputError(
            f"[remote] {OPENAI} wants a key: give api_key or set OPENAI_API_KEY; base_url or OPENAI_BASE_URL is for "
            "another server"
        )
    return url, key


def _whole(name: str, given: Any, least: int) -> int:
    if type(given) is not int or given < least:
        raise InputError(f"[remote] {name} is {given!r}; a whole number from {least} on is wanted")
    return given


def _number(name: str, given: Any) -> float:
    if type(given) not in (int, float) or not isfinite(given) or given <= 0:
        raise InputError(f"[remote] {name} is {given!r}; a number above 0 is wanted")
    return float(given)


def _checked_prompts(given: Mapping[str, str] | None) -> dict[str, str]:
    prompts = dict(given) if isinstance(given, Mapping) else given
    if prompts is None:
        return {}
    if not isinstance(prompts, dict) or not all(isinstance(part, str) for item in prompts.items() for part in item):
        raise InputError("[remote] prompts are texts by the names of roles, as {'query': 'query: '}")
    return prompts


def read_vectors(body: bytes, count: int) -> np.ndarray:
    """The vectors float32 [count, n] of an answer, in the order asked for; base64 or numbers."""
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
        raise BackendError(
            f"[remote] the answer is not what OpenAI's would be: {type(error).__name__} {error}"
        ) from None


def _vector(given: Any) -> np.ndarray:
    import numpy as np

    if isinstance(given, str):
        return np.frombuffer(base64.b64decode(given, validate=True), "<f4").astype(np.float32)
    return np.asarray(given, np.float32)


def request_ranges(texts: Sequence[str], most: int) -> Iterator[tuple[int, int]]:
    """Which texts (first, last) go together: `most`, and no more characters than servers take; a longer text alone."""
    first = size = 0
    for i, text in enumerate(texts):
        if i > first and (i - first == most or size + len(text) > BATCH_CHARACTERS):
            yield first, i
            first, size = i, 0
        size += len(text)
    if texts:
        yield first, len(texts)


def _too_long(said: str, base_url: str, part: Part) -> InputError | None:
    """Which text of the call it is: a weft server says its place in the request; one that was sent alone is it."""
    found = re.search(r"\b(?:text|input) (\d+) has (\d+) tokens, the model takes (\d+)", said)
    place, length, limit = map(int, found.groups()) if found else (0, 0, 0)
    if found is None and len(part.texts) > 1:
        return None
    numbers = f"has {length} tokens, the model takes {limit}" if found else "is too long"
    message = f"[remote] text {part.first + place} {numbers}; shorten it, {base_url} does not cut it"
    return TooLongError(message, length=length, limit=limit, index=part.first + place)


def _refused(answer: Answer, base_url: str, part: Part) -> Exception:
    """The error that an answer of this status is."""
    said, count = answer.said(), len(part.texts)
    message = f"[remote] {base_url} answered {answer.status}: {said}"
    if answer.status in (400, 413, 422):
        too_long = _too_long(said, base_url, part) if answer.code == "context_length_exceeded" else None
        asked = f"text {part.first}" if count == 1 else f"texts {part.first} to {part.first + count - 1}"
        return too_long or InputError(f"{message} (asked for {asked})")
    if answer.status == 404:
        bare = base_url.count("/") == 2  # a scheme and a host
        return NotFoundError(message + ("; most servers want /v1 at the end of base_url" if bare else ""))
    if answer.status == 429:
        return BusyError(f"{message}; ask less often (requests_per_minute)")
    hint = "; give the right api_key (OPENAI_API_KEY is sent to OPENAI_BASE_URL only)"
    return BackendError(message + (hint if answer.status in (401, 403) else ""))
