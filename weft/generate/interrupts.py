"""Ctrl-C at the right moment: bookkeeping is not cut in two, computing is."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar


class InterruptsHeld:
    """`with InterruptsHeld() as held:` keeps SIGINT back until the block ends, then hands it to its handler.

    Inside, `with held.released():` marks a part that may be interrupted, in which again a block may hold them: changing
    the handler takes two calls of the system, which a loop of steps then makes once. Only the main thread runs signal
    handlers, so in any other thread this does nothing.
    """

    _outermost: "ClassVar[InterruptsHeld | None]" = None  # whose handler is in place

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None  # the one to go back to
        self._arrived: tuple[int, FrameType | None] | None = None
        self._released = False
        self._around: tuple[InterruptsHeld, bool] | None = None  # the outermost block, and whether it was released

    def __enter__(self) -> "InterruptsHeld":
        if threading.current_thread() is not threading.main_thread():
            return self
        outermost = InterruptsHeld._outermost
        if outermost is not None:
            self._around = outermost, outermost._released
            outermost._released = False
            return outermost
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):  # else it is ignored, deadly, or not Python's: nothing would be raised here
            self._handler = handler
            InterruptsHeld._outermost = self
            signal.signal(signal.SIGINT, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        if self._around:
            outermost, released = self._around
            outermost._released = released
            if released:
                outermost._deliver()
        elif self._handler:
            signal.signal(signal.SIGINT, self._handler)
            InterruptsHeld._outermost = None
            self._deliver()

    @contextmanager
    def released(self) -> Iterator[None]:
        """What came so far, and what comes during this block, is delivered at once."""
        before, self._released = self._released, True
        try:
            self._deliver()
            yield
        finally:
            self._released = before

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._arrived = (number, frame)
        if self._released:
            self._deliver()

    def _deliver(self) -> None:
        arrived, self._arrived = self._arrived, None
        if arrived and self._handler:
            self._handler(*arrived)
