"""Delays Ctrl-C during bookkeeping and delivers it during computing."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar


class InterruptsHeld:
    """`with InterruptsHeld() as held:` holds SIGINT back until the block ends, then calls its handler.

    Inside, `with held.released():` marks a part that may be interrupted, and blocks nest: changing the handler takes
    two system calls, and with an outer block a loop of steps makes them once. Only the main thread runs signal
    handlers, so in any other thread this does nothing.
    """

    _outermost: "ClassVar[InterruptsHeld | None]" = None  # the block whose handler is installed

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None  # the handler to restore
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
        if callable(handler):  # else SIGINT is ignored, ends the process, or has a handler outside Python
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
        """Deliver held interrupts now, and those that arrive during this block at once."""
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
