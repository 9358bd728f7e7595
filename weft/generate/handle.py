"""What `Engine.submit` returns: the way to a request's pieces and result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.generate.result import Generation, Piece
from weft.generate.sequence import Sequence

if TYPE_CHECKING:
    from weft.generate.engine import Engine


class Handle:
    """One submitted request. Iterate over it for pieces, or ask for the result; both drive the engine.

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
        """Whether all its answers have ended, well or with an error; pieces may still be there to fetch."""
        return all(sequence.finished for sequence in self._sequences)

    def __iter__(self) -> Iterator[Piece]:
        try:
            while True:
                finished = self.finished  # asked first: what comes after it is the rest
                yield from self.drain()
                if finished:
                    break
                self._engine.step()
        finally:
            self.cancel()
        self.check()

    def drain(self) -> Iterator[Piece]:
        """The pieces that are there and were not fetched yet; drives nothing."""
        for sequence in self._sequences:
            while sequence.pieces:
                yield sequence.pieces.popleft()

    def check(self) -> None:
        """Raise what ended an answer, where that was an error."""
        for sequence in self._sequences:
            if sequence.error is not None:
                raise sequence.error

    def cancel(self) -> None:
        """End the request with what it has, at the latest when the running step ends; nothing if it has ended."""
        for sequence in self._sequences:
            if not sequence.finished:
                self._engine._cancel(sequence)

    def result(self) -> Generation:
        """The result, or the first of `n`, when all have ended; raises what ended it where that was an error."""
        return self.results()[0]

    def results(self) -> list[Generation]:
        """The results of all `n` answers."""
        for _ in self:
            pass
        found = [sequence.result for sequence in self._sequences]
        assert None not in found, "the iteration ended before the request"
        return [result for result in found if result is not None]
