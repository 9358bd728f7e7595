"""Ctrl-C inside blocks that hold it back, one in another, and what is left behind."""

import signal
import threading
from collections.abc import Callable

from weft.generate.interrupts import InterruptsHeld


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def reached(block: Callable[[list[str]], None]) -> list[str]:
    """What `block` notes until it is interrupted, with "interrupted" where it is; the handler is back afterwards."""
    before, notes = signal.getsignal(signal.SIGINT), []
    try:
        block(notes)
    except KeyboardInterrupt:
        notes.append("interrupted")
    assert signal.getsignal(signal.SIGINT) is before
    return notes


def test_what_comes_inside_is_raised_at_the_end():
    def block(notes: list[str]) -> None:
        with InterruptsHeld():
            interrupt()
            notes.append("end")
        notes.append("after")

    assert reached(block) == ["end", "interrupted"]


def test_a_released_part_is_interrupted_at_once():
    def block(notes: list[str]) -> None:
        with InterruptsHeld() as held, held.released():
            interrupt()
            notes.append("not reached")

    assert reached(block) == ["interrupted"]


def test_a_block_inside_a_released_part_holds_back_until_it_ends():
    def block(notes: list[str]) -> None:
        with InterruptsHeld() as outer, outer.released():
            with InterruptsHeld():
                interrupt()
                notes.append("inner end")
            notes.append("not reached")

    assert reached(block) == ["inner end", "interrupted"]


def test_a_part_released_inside_it_is_interrupted_at_once():
    def block(notes: list[str]) -> None:
        with InterruptsHeld() as outer, outer.released():
            with InterruptsHeld() as inner:
                try:
                    with inner.released():
                        interrupt()
                        notes.append("not reached")
                except KeyboardInterrupt:
                    notes.append("released")
                interrupt()
                notes.append("inner end")
            notes.append("not reached")

    assert reached(block) == ["released", "inner end", "interrupted"]


def test_a_block_inside_a_held_one_leaves_it_to_the_outer_end():
    def block(notes: list[str]) -> None:
        with InterruptsHeld():
            with InterruptsHeld():
                interrupt()
            notes.append("outer end")

    assert reached(block) == ["outer end", "interrupted"]


def test_other_threads_are_left_alone():
    found = []

    def work() -> None:
        with InterruptsHeld() as held, held.released():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with InterruptsHeld() as held, held.released():
            interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
