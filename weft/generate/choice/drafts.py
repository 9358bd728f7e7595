"""Speculative decoding: tokens that probably come next, checked together in one step, and whether that pays.

Drafts never change the text. The step computes the logits after each drafted token, the request chooses its next token
from them as always, and a drafted token is kept only if it equals the chosen one. So the text is that of plain
decoding, greedy or sampled, for every seed; only the number of steps is smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAX_DRAFT = 8
LONGEST, SHORTEST = 4, 2  # tokens at the end of the text that must occur earlier for a proposal


class PromptLookup:
    """Proposes the tokens that followed the previous occurrence of the text's last tokens, in prompt and output.

    It stores every n-gram of SHORTEST to LONGEST tokens with the position after its last occurrence.
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens: list[int] = []
        self._places: list[dict[tuple[int, ...], int]] = [{} for _ in range(LONGEST + 1)]
        self._found = 0  # the position after the previous occurrence of the text's end, 0 for none
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        self._tokens.append(token)
        end, self._found = len(self._tokens), 0
        for length in range(LONGEST, SHORTEST - 1, -1):
            if length > end:
                continue
            places, stretch = self._places[length], tuple(self._tokens[end - length :])
            if not self._found:
                self._found = places.get(stretch, 0)
            places[stretch] = end

    def propose(self, count: int) -> list[int]:
        """At most `count` tokens."""
        return self._tokens[self._found : self._found + count] if self._found else []


class Acceptance:
    """Estimates how likely a drafted token is right, from those checked; recent ones weigh most.

    The initial estimate `expected` counts as much as `weight` tokens, and each draft `kept` times the next one.
    """

    def __init__(self, expected: float = 0.3, weight: float = 1.0, kept: float = 0.9) -> None:
        self._right, self._tried, self._kept = expected * weight, weight, kept

    def note(self, right: int, wrong: bool) -> None:
        """Record a draft: its first `right` tokens were right, then one was `wrong` or the draft ended."""
        self._right = self._kept * self._right + right
        self._tried = self._kept * self._tried + right + wrong

    @property
    def rate(self) -> float:
        return self._right / self._tried


class AcceptanceByDepth:
    """`Acceptance` for each place in a draft: the tokens further ahead are often worse.

    That of one request begins with the rates of `all`, that of all requests, and tells it what was found.
    """

    def __init__(self, all: AcceptanceByDepth | None = None) -> None:
        expected, kept = ([0.7] * MAX_DRAFT, 0.98) if all is None else (all.rates, 0.9)
        self._all = all
        self._places = [Acceptance(rate, 4.0, kept) for rate in expected]

    def note(self, right: int, wrong: bool) -> None:
        """As Acceptance.note."""
        if self._all is not None:
            self._all.note(right, wrong)
        for place in self._places[:right]:
            place.note(1, False)
        if wrong and right < len(self._places):
            self._places[right].note(0, True)

    @property
    def rates(self) -> list[float]:
        return [place.rate for place in self._places]


def draft_length(rates: Sequence[float], marginal_share: float, most: int) -> int:
    """How many tokens to draft: go on while the chance that the next one is right exceeds its share of the cost.

    `rates` are the chances of each token in a draft, if those before it are right.
    """
    count, chance = 0, 1.0
    for rate in rates[:most]:
        chance *= rate
        if chance <= marginal_share:
            break
        count += 1
    return count


def recurrent_draft_length(rates: Sequence[float], marginal_share: float, most: int) -> int:
    """`draft_length` for a model with recurrent state: after a wrong draft, the tokens before it are computed again.

    With a draft of n tokens that are right with chances p, q, ..., a step gives 1 + p + p q + ... tokens. It costs n
    tokens more, and where the draft goes wrong after i right ones, i + 1 again. Takes the best tokens per cost.
    """
    best, count, right, cost = 1.0, 0, 0.0, 0.0
    chance = 1.0  # that all so far are right
    for length, rate in enumerate(rates[:most], 1):
        cost += marginal_share * (1 + chance * (1 - rate) * length)
        chance *= rate
        right += chance
        if (1 + right) / (1 + cost) > best:
            best, count = (1 + right) / (1 + cost), length
    return count


def agreement(draft: Sequence[int], tokens: Sequence[int]) -> int:
    """How many tokens at the start of both are the same."""
    return next((i for i, (a, b) in enumerate(zip(draft, tokens)) if a != b), min(len(draft), len(tokens)))
