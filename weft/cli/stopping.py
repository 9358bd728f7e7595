"""SIGTERM as Ctrl-C: what is done is kept, and the exit code says which of the two it was."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

TERMINATED = 128 + signal.SIGTERM


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM in here does what Ctrl-C does, and the command then exits with TERMINATED. Also a decorator."""
    if threading.current_thread() is not threading.main_thread():  # no other thread may set a handler
        yield
        return
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        interrupt = signal.getsignal(signal.SIGINT)  # now: whoever holds Ctrl-C back for a moment holds this back too
        assert callable(interrupt), "SIGINT has a handler in here"
        interrupt(signal.SIGINT, frame)

    def ignore(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if not callable(signal.getsignal(signal.SIGINT)):  # a shell has what it starts in the background ignore SIGINT
        before[signal.SIGINT] = signal.signal(signal.SIGINT, ignore)
    try:
        yield
    except KeyboardInterrupt:
        if asked:
            raise click.exceptions.Exit(TERMINATED) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
