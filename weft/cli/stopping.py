"""SIGTERM handled like Ctrl-C, so that commands keep the work done so far; the exit code tells the two apart."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

TERMINATED = 128 + signal.SIGTERM


@contextmanager
def terminable() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C inside the block, and exit with TERMINATED. Also a decorator."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
        yield
        return
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        interrupt = signal.getsignal(signal.SIGINT)  # looked up now: code that defers Ctrl-C also defers this
        assert callable(interrupt), "SIGINT has a handler in here"
        interrupt(signal.SIGINT, frame)

    def ignore(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if not callable(signal.getsignal(signal.SIGINT)):  # background jobs of a shell start with SIGINT ignored
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
