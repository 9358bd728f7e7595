"""A token budget for reasoning: when it is used up, `</think>` is inserted."""

from collections.abc import Iterable


class Reasoning:
    """Counts the tokens of a request's reasoning; `open` and `close` are the ids of `<think>` and `</think>`."""

    def __init__(self, budget: float, open: int, close: int, prompt: Iterable[int]) -> None:
        self.close = close
        self._budget = budget
        self._open = open
        self.inside = False
        self._count = 0
        for token in prompt:  # templates often open the reasoning themselves
            if token in (open, close):
                self.inside = token == open

    @property
    def used_up(self) -> bool:
        return self.inside and self._count >= self._budget

    def note(self, token: int) -> None:
        if token in (self._open, self.close):
            self.inside = token == self._open
        elif self.inside:
            self._count += 1
