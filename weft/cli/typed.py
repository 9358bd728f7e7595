"""Messages that a person types: with line editing and history on a terminal, of one or several lines."""

import contextlib
import sys

FENCE = "```"


class Typed:
    """Messages from standard input. A message continues after a line that ends with a backslash, and in ``` fences."""

    def __init__(self) -> None:
        self.watched = sys.stdin.isatty()
        if self.watched:
            with contextlib.suppress(ImportError):  # Windows has no readline
                import readline  # noqa: F401 (input() uses it when imported: arrow keys, history of this session)

    def message(self) -> str | None:
        """The next message, or None at the end of the input."""
        line = self._line("> ")
        if line is None:
            return None
        lines, fenced = [line.removesuffix("\\")], _opens(line, False)
        while fenced or line.endswith("\\"):
            line = self._line(". ")
            if line is None:
                break
            fenced = _opens(line, fenced)
            lines.append(line if fenced else line.removesuffix("\\"))
        if len(lines) > 1 and lines[0].strip() == lines[-1].strip() == FENCE:
            lines = lines[1:-1]  # fences without a language only mark where the message begins and ends
        return "\n".join(lines)

    def _line(self, prompt: str) -> str | None:
        if self.watched:
            try:
                return input(prompt)
            except EOFError:
                print()
                return None
        line = sys.stdin.buffer.readline().decode("utf-8", errors="replace")
        return line.removesuffix("\n").removesuffix("\r") if line else None


def _opens(line: str, fenced: bool) -> bool:
    """Whether a fence is open after `line`."""
    return fenced ^ (line.count(FENCE) % 2 == 1)
