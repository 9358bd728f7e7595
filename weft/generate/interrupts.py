"""Ctrl-C at the right moment: bookkeeping is not cut in two, computing is."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold SIGINT back until the block ends, then hand it to the handler that was there.

    Only the main thread runs signal handlers, so in any other thread this does nothing. For blocks of microseconds:
    a step of the model does not belong in one.
    """
    arrived: list[tuple[int, FrameType | None]] = []
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # ignored, deadly, or not Python's: nothing would be raised here
        yield
        return
    try:
        signal.signal(signal.SIGINT, lambda *event: arrived.append(event))
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(*arrived[-1])
