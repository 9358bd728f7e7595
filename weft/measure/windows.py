"""Which tokens of a text are scored, and what the model has read before each of them."""

from __future__ import annotations

from weft.errors import InputError
from weft.frozen import frozen

WINDOW, STRIDE = 512, 256


@frozen
class Window:
    """The model reads the tokens `first` to `last` (without it) and is scored on those from `scored` on."""

    first: int
    scored: int
    last: int

    @property
    def targets(self) -> int:
        return self.last - self.scored


def sliding(count: int, window: int = WINDOW, stride: int = STRIDE) -> list[Window]:
    """Windows over `count` tokens: of the first all tokens but the very first are scored, of each later one only those
    that no window before it had. The last one ends with the text."""
    if not 1 <= stride < window:
        raise InputError("eval", f"must be 1 to {window - 1}, below the window", field="stride", given=stride)
    found, scored = [], 1
    for first in range(0, count, stride):
        last = min(first + window, count)
        if last > scored:
            found.append(Window(first, scored, last))
        if last == count:
            break
        scored = last
    return found


def halves(count: int, window: int = WINDOW) -> list[Window]:
    """llama.cpp's chunks: windows side by side, of which the second half is scored; what is left over is not read."""
    return [
        Window(first, first + window // 2 + 1, first + window)
        for first in range(0, count - window + 1, window)
        if window > window // 2 + 1
    ]
