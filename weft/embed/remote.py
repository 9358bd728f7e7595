"""An embedder elsewhere: any endpoint that speaks OpenAI's `/embeddings`, with the interface of the local one.

Requests that failed in passing (429, 5xx, a broken connection) are made again after a wait that grows and is drawn at
random, never sooner than the server's Retry-After. Answers are checked: a vector for every text, all of one length, no
NaN; and where the server is weft's own, its fingerprint must stay the same.
"""

from __future__ import annotations

import base64
import binascii
import json
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any

from weft import flags
from weft.embed.base import BaseEmbedder, How, Limits
from weft.embed.cache import open_cache
from weft.embed.posting import Answer, Poster, retry_after_s
from weft.embed.results import Embedded, EmbedInterrupted
from weft.errors import (
    BackendError,
    BusyError,
    DownloadError,
    InputError,
    NotFoundError,
    OfflineError,
    UnsupportedError,
)

if TYPE_CHECKING:
    import numpy as np

TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0


class RemoteEmbedder(BaseEmbedder):
    """The embedding model `model` of the server at `base_url` (`https://…/v1`).

    `prompts` are put before texts of a role, as with a local model. `dimensions` is sent where it is given. At most
    `concurrency` requests of `batch_texts` texts each are under way, and no more than `requests_per_minute` begin.
    Texts that are too long are the server's affair, which refuses or cuts them: `truncate` is not sent, and "chunk" is
    an error. `fingerprint` says which server, model and prompts; `server_fingerprint` is what a weft server says of
    itself.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
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
        if reason := flags.offline_reason():
            raise OfflineError(f"[remote] {base_url} is not asked: {reason} is set")
        if min(batch_texts, concurrency) < 1 or retries < 0 or (requests_per_minute or 1) <= 0:
            raise InputError(
                "[remote] batch_texts and concurrency are at least 1, retries 0, requests_per_minute above 0"
            )
        self.model = model
        self.base_url = base_url.rstrip("/")
        self.server_fingerprint: str | None = None
        self.limits = limits or Limits()
        self._poster = Poster(f"{self.base_url}/embeddings", api_key, timeout_s)
        self._dimensions = dimensions
        self._prompts = dict(prompts or {})
        self._similarity = similarity
        self._batch_texts, self._concurrency, self._retries = batch_texts, concurrency, retries
        self._gap_s = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._lock, self._next = Lock(), 0.0
        self._sleep, self._random = time.sleep, random.random
        self.cache = open_cache(cache)

    @cached_property
    def dimension(self) -> int:
        """Length of a vector; asks the server for one where nobody has said it."""
        return self._dimensions or self._make(["dimension"], How()).vectors.shape[1]

    @property
    def prompts(self) -> Mapping[str, str]:
        return self._prompts

    @property
    def similarity_name(self) -> str:
        return self._similarity

    @property
    def fingerprint(self) -> str:
        """Of server, model, dimensions and prompts: what can be known from here."""
        parts = [self.base_url, self.model, self._dimensions, sorted(self._prompts.items())]
        return f"weft1:{sha256(json.dumps(['remote', *parts]).encode()).hexdigest()}"

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

    def _make(self, texts: list[str], how: How) -> Embedded:
        import numpy as np

        if how.truncate == "chunk":
            raise UnsupportedError("[remote] windows are for local models; give truncate='error'")
        parts = [texts[i : i + self._batch_texts] for i in range(0, len(texts), self._batch_texts)]
        done: list[np.ndarray] = []
        interrupted = False
        with ThreadPoolExecutor(self._concurrency, "weft-remote") as threads:
            waiting: list[Future[np.ndarray]] = [threads.submit(self._ask, part, how.prompt) for part in parts]
            try:
                done.extend(future.result() for future in waiting)
            except KeyboardInterrupt:
                interrupted = True
            finally:
                for future in waiting:
                    future.cancel()
        if len({part.shape[1] for part in done}) > 1:
            raise BackendError("[remote] vectors of several lengths in one answer; the server is at fault")
        vectors = np.concatenate(done) if done else np.empty((0, self._dimensions or 0), np.float32)
        none = np.zeros(len(vectors), np.int32)  # what the server counted it tells for all texts together
        made = Embedded(vectors, none, none, np.ones(len(vectors), np.int32), lambda: self.fingerprint)
        if interrupted:
            raise EmbedInterrupted(made)
        return made

    def _ask(self, texts: Sequence[str], prompt: str) -> np.ndarray:
        """The vectors of one request, made again as often as that may help."""
        body: dict[str, Any] = {"model": self.model, "input": [prompt + text for text in texts]}
        body["encoding_format"] = "base64"
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        for attempt in range(self._retries + 1):
            self._wait_for_turn()
            try:
                answer = self._poster.post(body)
            except DownloadError:
                if attempt == self._retries:
                    raise
                self._sleep(self._wait_s(attempt, 0.0))
                continue
            if answer.status == 200:
                self._check_server(answer)
                return read_vectors(answer.body, len(texts))
            after = retry_after_s(answer.headers.get("retry-after"), time.time())
            if answer.status not in TRANSIENT or attempt == self._retries or after > LONGEST_WAIT_S:
                raise _refused(answer, self.base_url)
            self._sleep(self._wait_s(attempt, after))
        raise AssertionError("the last attempt raises")

    def _wait_s(self, attempt: int, after: float) -> float:
        longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt)
        return max(after, longest * (0.5 + 0.5 * self._random()))

    def _wait_for_turn(self) -> None:
        if not self._gap_s:
            return
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._gap_s
        if turn > now:
            self._sleep(turn - now)

    def _check_server(self, answer: Answer) -> None:
        told = answer.headers.get("weft-fingerprint")
        with self._lock:
            if self.server_fingerprint not in (None, told):
                raise BackendError(f"[remote] {self.base_url} has another model behind {self.model!r} than before")
            self.server_fingerprint = told


def read_vectors(body: bytes, count: int) -> np.ndarray:
    """The vectors float32 [count, n] of an answer, in the order asked for; base64 or numbers."""
    import numpy as np

    try:
        data = json.loads(body)["data"]
        places = [item["index"] for item in data]
        rows = [_vector(item["embedding"]) for item in sorted(data, key=lambda item: item["index"])]
        if sorted(places) != list(range(count)):
            raise ValueError(f"{len(places)} vectors for {count} texts")
        vectors = np.stack(rows) if rows else np.empty((0, 0), np.float32)
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


def _refused(answer: Answer, base_url: str) -> Exception:
    """The error that an answer of this status is."""
    said = answer.said()
    message = f"[remote] {base_url} answered {answer.status}: {said}"
    if answer.status in (400, 413, 422):
        return InputError(message)
    if answer.status == 404:
        return NotFoundError(message)
    if answer.status == 429:
        return BusyError(f"{message}; ask less often (requests_per_minute)")
    hint = "; give the right api_key" if answer.status in (401, 403) else ""
    return BackendError(message + hint)
