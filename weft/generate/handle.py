"""Handle, which `Engine.submit` returns and which gives a request's pieces and result; calls that submit and wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as ListOf
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.generate.choice.sampling import Sampling
from weft.generate.interrupts import InterruptsHeld
from weft.generate.request import Request
from weft.generate.result import Generation, Piece
from weft.generate.sequence import Sequence
from weft.generate.sight.prompt import Prompt

if TYPE_CHECKING:
    from weft.generate.engine import Engine

_SAMPLING = frozenset(f.name for f in fields(Sampling))
_REQUEST = frozenset(f.name for f in fields(Request)) - {"prompt", "sampling"}


class Handle:
    """One submitted request. Iterate over it for pieces, or call `result`; both drive the engine.

    Leaving the iteration early, also by an exception or Ctrl-C, cancels the request. A program that drives the engine
    itself fetches pieces with `drain`.
    """

    def __init__(self, engine: Engine, sequences: list[Sequence]) -> None:
        self._engine = engine
        self._sequences = sequences

    @property
    def key(self) -> int:
        """The number by which errors name the request: how many answers were asked for before it."""
        return self._sequences[0].key

    @property
    def finished(self) -> bool:
        """Whether all its answers have ended, successfully or not; there may still be pieces to fetch."""
        return all(sequence.finished for sequence in self._sequences)

    @property
    def has_pieces(self) -> bool:
        """Whether there are pieces to fetch."""
        return any(sequence.pieces for sequence in self._sequences)

    def __iter__(self) -> Iterator[Piece]:
        try:
            while True:
                finished = self.finished  # read before draining, so that no last piece is missed
                yield from self.drain()
                if finished:
                    break
                self._engine.step()
        finally:
            self.cancel()
        self.check()

    def drain(self) -> Iterator[Piece]:
        """The pieces that are ready and not yet fetched; does not drive the engine."""
        for sequence in self._sequences:
            while sequence.pieces:
                yield sequence.pieces.popleft()

    def check(self) -> None:
        """Raise the error of an answer that has failed."""
        for sequence in self._sequences:
            if sequence.error is not None:
                raise sequence.error

    def cancel(self) -> None:
        """End the request with the text so far, at the latest when the running step ends."""
        for sequence in self._sequences:
            if not sequence.finished:
                self._engine._cancel(sequence)

    def result(self) -> Generation:
        """Drive the engine until all `n` answers have ended; the first result. Raises the error of one that failed."""
        return self.results()[0]

    def results(self) -> list[Generation]:
        """As `result`, for all `n` answers."""
        with InterruptsHeld() as held, held.released():  # one change of the signal handler for all steps
            for _ in self:
                pass
        found = [sequence.result for sequence in self._sequences]
        assert None not in found, "the iteration ended before the request"
        return [result for result in found if result is not None]


def make_request(prompt_ids: ListOf[int], **options: Any) -> Request:
    """A Request from flat options: the fields of Sampling and of Request, all by name."""
    unknown = sorted(options.keys() - _SAMPLING - _REQUEST)
    if unknown:
        known = ", ".join(sorted(_SAMPLING | _REQUEST))
        raise InputError("generate", f"unknown option {', '.join(unknown)}", advice=f"options are {known}")
    sampling = Sampling(**{name: options.pop(name) for name in options.keys() & _SAMPLING})
    pictures = prompt_ids.pictures if isinstance(prompt_ids, Prompt) else ()
    return Request(tuple(prompt_ids), sampling, **{"pictures": pictures, **options})


def generate(engine: Engine, prompt_ids: ListOf[int], **options: Any) -> Generation:
    """Continue `prompt_ids` to the end."""
    return engine.submit(make_request(prompt_ids, **options)).result()


def generate_all(engine: Engine, requests: Iterable[Request]) -> Iterator[list[Generation]]:
    """The answers to each of many requests, in order; the engine runs as many at once as it can.

    Requests are taken from the iterable only as the queue has room, so there may be any number. Leaving the loop, also
    by an error, cancels the requests that are under way.
    """
    handles: list[Handle] = []
    coming = iter(requests)
    more = True
    try:
        while more or handles:
            while more and engine.has_room:
                request = next(coming, None)
                more = request is not None
                if request is not None:
                    handles.append(engine.submit(request))
            with InterruptsHeld() as held, held.released():
                while handles and not handles[0].finished and not (more and engine.has_room):
                    engine.step()
            while handles and handles[0].finished:
                yield handles.pop(0).results()
    finally:
        for handle in handles:
            handle.cancel()


def stream(engine: Engine, prompt_ids: ListOf[int], **options: Any) -> Iterator[Piece]:
    """Continue `prompt_ids` piece by piece. Errors in the options are raised here; dropping the iterator cancels."""
    return iter(engine.submit(make_request(prompt_ids, **options)))
