"""Requests to a teacher's server: several at once, at a given pace, with retries, each reserved before it is sent.

Only a request whose worst case fits below the cap is sent. A refusal that servers do not charge (4xx, 503, 529) gives
the reservation back; a reply is charged by its own counts; everything else keeps the reservation, and is asked again.
Ctrl-C lets requests under way end, since they are paid; a second one gives them up.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from weft.distill.dialects import Dialect, Message, UnreadableError
from weft.distill.ledger import LOST, PAID, REFUSED, UNREADABLE, Ledger
from weft.distill.prices import Price, Worst, bill, shown
from weft.embed.posting import Answer, Line, Pace, Poster, StoppedError, retry_after_s
from weft.errors import BackendError, BudgetError, BusyError, DownloadError, InputError, NotFoundError
from weft.frozen import frozen

log = logging.getLogger("weft.distill")

FREE = (429, 503, 529)  # too many requests, overloaded: sent back unread
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0
LONGEST_SILENCE_S = 900.0  # a server that wants a longer one is asked another time, by another run
LOGGED_FROM_S = 5.0
FAILED_IN_A_ROW = 20  # requests that failed for good, without one that did not: something else is wrong
POLL_S = 0.2


@frozen
class Limits:
    """How requests are sent. `timeout_s` is the longest silence of a server, `deadline_s` the longest whole request."""

    concurrency: int = 4
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    retries: int = 6
    timeout_s: float = 120.0
    deadline_s: float = 600.0

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("retries", 0)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                what = f"must be a whole number from {least} on"
                raise InputError("distill", what, field=name, given=getattr(self, name))
        for name in ("requests_per_minute", "tokens_per_minute", "timeout_s", "deadline_s"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < 1e12):
                raise InputError("distill", "must be a number above 0", field=name, given=value)


@frozen
class Ask:
    """One request: the key that its reply is kept under, what is sent, and the most that it can cost."""

    key: str
    messages: Sequence[Message]
    data: bytes
    worst: Worst


@frozen
class Asked:
    """What became of a list of requests: the failures by key, and whether it was stopped before its end."""

    failed: dict[str, str]
    stopped: bool


class Asker:
    """Sends requests to one server and keeps their replies in the ledger; `cap` is the most that the ledger may say."""

    def __init__(
        self, poster: Poster, dialect: Dialect, ledger: Ledger, limits: Limits, price: Price, cap: int | None
    ) -> None:
        self._poster, self._dialect, self._ledger = poster, dialect, ledger
        self._limits, self._price, self._cap = limits, price, cap
        self._requests, self._tokens = Pace(limits.requests_per_minute), Pace(limits.tokens_per_minute)
        self._changed = threading.Condition()
        self._draining, self._stopped = threading.Event(), threading.Event()
        self._quiet_until = self._logged_until = 0.0
        self._under_way = 0
        self._failed: dict[str, str] = {}
        self._in_a_row = 0
        self._finished = 0
        self._error: Exception | None = None

    def run(self, asks: Sequence[Ask], tell: Callable[[int, int], None]) -> Asked:
        """Ask for all; `tell` gets the number of replies and what was spent. Raises the first error that ends all."""
        places = iter(asks)
        lines = [Line(self._poster, self._stopped) for _ in range(min(self._limits.concurrency, len(asks)))]
        threads = [
            threading.Thread(target=self._work, args=(line, places), name="weft-teacher", daemon=True) for line in lines
        ]
        try:
            for thread in threads:
                thread.start()
            self._watch(threads, tell)
        except KeyboardInterrupt:
            self._drain(threads, lines, tell)
        if self._error is not None:
            raise self._error
        return Asked(dict(self._failed), self._draining.is_set())

    def _watch(self, threads: list[threading.Thread], tell: Callable[[int, int], None]) -> None:
        while any(thread.is_alive() for thread in threads):
            with self._changed:
                self._changed.wait(POLL_S)
                done = self._finished
            tell(done, self._ledger.cost)

    def _drain(self, threads: list[threading.Thread], lines: list[Line], tell: Callable[[int, int], None]) -> None:
        """Begin no request, and wait for those under way; a second Ctrl-C ends them."""
        self._draining.set()
        with self._changed:
            self._changed.notify_all()
            left = self._under_way
        if left:
            log.warning("waiting for %d paid replies; Ctrl-C again gives them up", left)
        try:
            self._watch(threads, tell)
        except KeyboardInterrupt:
            self._stopped.set()
            for line in lines:
                line.shut()
            for thread in threads:
                thread.join(2 * POLL_S)

    def _work(self, line: Line, places: Any) -> None:
        try:
            while (ask := self._next(places)) is not None:
                self._finish(ask, self._one(line, ask))
        except StoppedError:
            pass
        except Exception as error:
            with self._changed:
                self._error = self._error or error
                self._draining.set()
                self._changed.notify_all()
        finally:
            line.close()

    def _next(self, places: Any) -> Ask | None:
        with self._changed:
            return None if self._draining.is_set() else next(places, None)

    def _finish(self, ask: Ask, failure: str | None) -> None:
        with self._changed:
            self._finished += 1
            self._in_a_row = 0 if failure is None else self._in_a_row + 1
            if failure is not None:
                self._failed[ask.key] = failure
            many = self._in_a_row == FAILED_IN_A_ROW
            self._changed.notify_all()
        if many:
            what = f"{FAILED_IN_A_ROW} requests one after the other failed, the last with: {failure}"
            raise BackendError("distill", what, advice="what was paid is kept; mend it and run the same command again")

    def _one(self, line: Line, ask: Ask) -> str | None:
        """Ask until there is a reply, and keep it: None. Or why there is none."""
        failure = ""
        for attempt in range(self._limits.retries + 1):
            if attempt:
                self._wait(self._backoff_s(attempt - 1), failure)
            self._turn(ask)
            try:
                line.open()
            except DownloadError:  # nothing was sent
                if attempt == self._limits.retries:
                    raise
                failure = f"{self._poster.place} cannot be reached"
                continue
            number = self._reserved(ask)
            try:
                found = self._sent(line, ask, number)
            finally:
                with self._changed:
                    self._under_way -= 1
                    self._changed.notify_all()
            if found is None:
                return None
            failure, again = found
            if not again:
                break
        return failure

    def _sent(self, line: Line, ask: Ask, number: int) -> tuple[str, bool] | None:
        """Send it once. None if the reply is kept, else why not, and whether to ask again."""
        try:
            answer = line.once(ask.data, self._limits.deadline_s)
        except StoppedError:
            self._ledger.settle(number, LOST, note="given up before the reply")
            raise
        except DownloadError as error:
            self._ledger.settle(number, LOST, note=str(error))
            return str(error), True
        if answer.status == 200:
            return self._received(ask, number, answer)
        what = f"{self._poster.place} answered {answer.status}: {answer.message()}"
        charged = answer.status >= 500 and answer.status not in FREE
        self._ledger.settle(
            number, LOST if charged else REFUSED, None if charged else 0, status=answer.status, note=what
        )
        if answer.status in (401, 403, 404) or answer.status < 400:
            raise _wrong_server(answer, what, self._dialect)
        if answer.status in (*FREE, 408) or charged:
            self._be_quiet(retry_after_s(answer.headers.get("retry-after"), time.time()), what)
            return what, True
        return what, False

    def _received(self, ask: Ask, number: int, answer: Answer) -> tuple[str, bool] | None:
        """Put a reply on disk, whatever is in it, with what it costs."""
        about: dict[str, Any] = {"status": answer.status, "body": answer.body}
        try:
            length = answer.headers.get("content-length")
            if length is not None and length.isdecimal() and int(length) != len(answer.body):
                raise UnreadableError(f"the reply ends after {len(answer.body)} of {length} bytes")
            reply = self._dialect.read(answer.body)
            found = bill(reply, ask.messages, ask.worst, self._price)
        except Exception as error:  # even a bug of weft must not lose a paid reply
            what = f"{self._poster.place} sent a reply that cannot be read: {error}"
            self._ledger.settle(number, UNREADABLE, note=what, **about)
            if not isinstance(error, UnreadableError):
                raise
            return what, True
        counts = (found.input_tokens, found.output_tokens)
        note = None if found.believed else "the counts of tokens cannot be true"
        self._ledger.settle(number, PAID, found.cost, tokens=counts, note=note, **about)
        if found.overrun:
            what = (
                f"{self._poster.place} counts {counts[0]} tokens in and {counts[1]} out, more than the most that this "
                f"request can have ({ask.worst.input_tokens} and {ask.worst.output_tokens})"
            )
            raise BackendError("distill", what, advice="nothing more was sent; see what the server charges")
        return None

    def _reserved(self, ask: Ask) -> int:
        """A reservation for this request; waits while one that is under way may give some of its own back."""
        while True:
            with self._changed:
                if self._draining.is_set():
                    raise StoppedError
                number = self._ledger.reserve(ask.key, ask.worst.cost, self._cap)
                if number is not None:
                    self._under_way += 1
                    return number
                if not self._under_way:
                    break
                self._changed.wait(POLL_S)
        assert self._cap is not None
        raise BudgetError(
            "distill",
            f"the next request may cost {shown(ask.worst.cost)}, and {shown(self._ledger.cost)} of "
            f"{shown(self._cap)} are spent",
            field="max_cost",
            advice="replies so far are kept; give a higher --max-cost or fewer --max-tokens to go on",
        )

    def _turn(self, ask: Ask) -> None:
        """Wait for this request's turn: no server's Retry-After, no limit a minute forbids it."""
        tokens = ask.worst.input_tokens + ask.worst.output_tokens
        self._sleep(max(self._requests.turn_s(), self._tokens.turn_s(tokens)))
        while (left := self._quiet_until - time.monotonic()) > 0:
            self._sleep(left)

    def _be_quiet(self, seconds: float, why: str) -> None:
        """No request before a server's Retry-After is over."""
        if seconds > LONGEST_SILENCE_S:
            what = f"{why}; it wants no request for {seconds:,.0f} s"
            raise BusyError("distill", what, advice="run the same command again then; what was paid is kept")
        with self._changed:
            self._quiet_until = max(self._quiet_until, time.monotonic() + seconds)

    def _wait(self, seconds: float, why: str) -> None:
        now = time.monotonic()
        with self._changed:
            silent = seconds < LOGGED_FROM_S or now < self._logged_until
            self._logged_until = self._logged_until if silent else now + seconds
        if not silent:
            log.warning("%s; asking again in %.0f s", why, seconds)
        self._sleep(seconds)

    def _sleep(self, seconds: float) -> None:
        if self._draining.wait(seconds) if seconds > 0 else self._draining.is_set():
            raise StoppedError

    @staticmethod
    def _backoff_s(attempt: int) -> float:
        return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**attempt) * (0.5 + 0.5 * random.random())


def _wrong_server(answer: Answer, what: str, dialect: Dialect) -> Exception:
    """The error of an answer that every other request would get, too."""
    if answer.status == 404:
        return NotFoundError("distill", what, advice="see that the address and the model's name are right")
    if answer.status < 400:
        return BackendError("distill", what, advice="weft follows no redirection; give the address itself")
    return BackendError("distill", what, advice=f"set {dialect.key_flag} to a key that this server takes")
