"""Separates the reasoning at the beginning of an answer from the answer, while it is generated."""

from weft.frozen import frozen


@frozen
class Split:
    """More of the reasoning and more of the answer."""

    reasoning: str = ""
    answer: str = ""


class ReasoningSplit:
    """Takes an answer piece by piece: the text between `opening` and `closing` at its beginning is reasoning.

    Set `inside` if the prompt already ends with `opening` (see `opened_by`). White space around both parts is dropped,
    except at the end of the answer. The result does not depend on how the text is cut into pieces.
    """

    def __init__(self, opening: str = "<think>", closing: str = "</think>", *, inside: bool = False) -> None:
        self._opening, self._closing = opening, closing
        self._part = "reasoning" if inside else "start"
        self._held = ""
        self._begun = False  # the part has had a character that is not white space

    def add(self, piece: str) -> Split:
        """What is certain after this piece."""
        reasoning, answer = "", ""
        self._held += piece
        if self._part == "start":
            self._begin()
        if self._part == "reasoning":
            reasoning = self._reason()
        if self._part == "answer":
            answer = self._answer()
        return Split(reasoning, answer)

    def finish(self) -> Split:
        """What was held back, at the end of the answer."""
        held, self._held = self._held, ""
        if self._part == "reasoning":
            return Split(reasoning=held.rstrip())
        return Split(answer=held if self._begun or self._part == "start" else held.lstrip())

    def _begin(self) -> None:
        text = self._held.lstrip()
        if text.startswith(self._opening):
            self._part, self._held = "reasoning", text[len(self._opening) :]
        elif not self._opening.startswith(text):
            self._part, self._begun = "answer", True

    def _reason(self) -> str:
        if not self._begun:
            self._held = self._held.lstrip()
        end = self._held.find(self._closing)
        if end >= 0:
            text, self._held = self._held[:end].rstrip(), self._held[end + len(self._closing) :]
            self._part, self._begun = "answer", False
            return text
        sizes = range(min(len(self._closing) - 1, len(self._held)), -1, -1)
        keep = next(size for size in sizes if self._closing.startswith(self._held[len(self._held) - size :]))
        sure = self._held[: len(self._held) - keep].rstrip()  # white space before the closing mark is dropped
        self._held = self._held[len(sure) :]
        self._begun = self._begun or bool(sure)
        return sure

    def _answer(self) -> str:
        text = self._held if self._begun else self._held.lstrip()
        self._held = ""
        self._begun = self._begun or bool(text)
        return text


def opened_by(prompt: str, opening: str = "<think>") -> bool:
    """Whether a rendered prompt ends with the opening mark, as those of some templates do."""
    return prompt.rstrip().endswith(opening)
