"""What a person types: lines with editing and history on a terminal, messages of several lines anywhere."""

import contextlib
import sys

FENCE = "```"


class Typed:
    """Messages from standard input. A backslash at the end of a line goes on to the next; so does an open ``` fence."""

    def __init__(self) -> None:
        self.watched = sys.stdin.isatty()
        if self.watched:
            with contextlib.suppress(ImportError):  # Windows has none
                import readline  # noqa: F401 (input() uses it once it is there: arrow keys, history of this session)

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
            lines = lines[1:-1]  # fences without a language only held the lines together
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
