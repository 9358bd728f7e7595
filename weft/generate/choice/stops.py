"""Stop strings, matched across token boundaries. Text that may still become a stop string is held back."""

from collections.abc import Sequence


class _Prefix:
    """The longest suffix of a text that is a prefix of one stop string (Knuth, Morris and Pratt)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0  # characters at the end of the text that are stop[:length]
        self._shorter = [0] * len(stop)  # the longest proper prefix of stop[: i + 1] that is also its suffix
        for i in range(1, len(stop)):
            self._shorter[i] = self._extend(self._shorter[i - 1], stop[i])

    def _extend(self, length: int, character: str) -> int:
        while length and self.stop[length] != character:
            length = self._shorter[length - 1]
        return length + (self.stop[length] == character)

    def add(self, character: str) -> bool:
        """Whether `character` completes the stop string, after which nothing may be added."""
        self.length = self._extend(self.length, character)
        return self.length == len(self.stop)


class StopText:
    """A text up to the first stop string, which is not part of it; how the text is cut into parts does not matter.

    The first stop string is the one that ends first; of two that end together, the longer. Only the longest suffix of
    the text that is a proper prefix of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.found: str | None = None  # the stop string that ended the text
        self._prefixes = [_Prefix(stop) for stop in stops]
        self._held = ""

    def add(self, text: str) -> str:
        """Append `text`; returns the text that can now be released, possibly empty."""
        if not self._prefixes:
            return text
        if self.found is not None:
            return ""
        text = self._held + text
        for end in range(len(self._held), len(text)):
            complete = [p.stop for p in self._prefixes if p.add(text[end])]
            if complete:
                self.found, self._held = max(complete, key=len), ""
                return text[: end + 1 - len(self.found)]
        held = max(p.length for p in self._prefixes)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    @property
    def stopped(self) -> bool:
        return self.found is not None

    def finish(self) -> str:
        """The text still held back, once no more text comes; empty after a stop string."""
        held, self._held = self._held, ""
        return held
