"""What steps cost: a model of their seconds, fitted to the steps that have run."""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from typing import TYPE_CHECKING, NamedTuple

from weft.generate.schedule import Cost, Work

if TYPE_CHECKING:
    from weft.generate.sequence import Sequence

CREDIBLE = 3.0  # a step that takes more than this many times what was expected counts as this many times
_DECAY = 0.97  # of what earlier steps with prompt tokens have told, at each new one
_FAITH = 0.02  # in the guess, as a share of one step's evidence
# Before anything is known: a decoding row costs a third of what every step costs, a prompt token a tenth of a step
# that decodes one row, the tokens it attends to a prompt token more per 3,000, its logits half a prompt token.
_ROW, _TOKEN, _CONTEXT, _SCORED = 1 / 3, 1 / 10, 1 / 3_000, 1 / 2


class Parts(NamedTuple):
    """What a step consists of."""

    decoding: int = 0  # tokens of requests that decode, with their drafts
    prompt: int = 0  # prompt tokens
    attended: float = 0.0  # tokens that these attend to, all together
    scored: int = 0  # prompt tokens whose logits are wanted


def parts_of(work: ListOf[Work], sequences: ListOf[Sequence]) -> Parts:
    """The parts of a step, before it runs."""
    decoding, prompt, attended, scored = 0, 0, 0.0, 0
    for item, sequence in zip(work, sequences):
        count = item.stop - item.start
        if sequence.decodes:
            decoding += count
            continue
        prompt += count
        attended += count * (item.start + item.stop) / 2
        scored += count if sequence.request.prompt_logprobs is not None else 0
    return Parts(decoding, prompt, attended, scored)


class StepCosts:
    """Predicts the time of a step from what is in it; recent steps weigh most, and single slow ones little.

    Steps that only decode give a line: what every step costs, and each token. Steps with prompt tokens give the rest:
    what they took beyond that line, by prompt tokens, by the tokens these attend to, and by rows of prompt logits. The
    two are learnt apart, so that an hour of decoding does not make a prompt's cost forgotten.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # of decoding steps, weighted: 1, tokens, tokens², seconds, tokens * seconds
        self._weights = [0.0] * 3  # seconds by prompt token, by token attended to, by row of logits
        self._gram = [[0.0] * 3 for _ in range(3)]  # of the normal equations, relative to what was expected
        self._moments = [0.0] * 3

    def note(self, parts: Parts, seconds: float) -> None:
        """Record a step that took `seconds`."""
        if parts.prompt:
            self._note_prompts(parts, seconds)
            return
        tokens = parts.decoding
        step, row = self._line()
        seconds = min(seconds, CREDIBLE * (step + row * tokens)) if step else seconds
        new = (1.0, tokens, tokens * tokens, seconds, tokens * seconds)
        self._sums = [0.99 * old + value for old, value in zip(self._sums, new)]

    def _note_prompts(self, parts: Parts, seconds: float) -> None:
        decoding, tokens, attended, scored = parts
        seen = (float(tokens), attended, float(scored))
        if not self._sums[0]:  # nothing has decoded yet: guess what every step costs
            prompt = _TOKEN * (1 + _ROW) * (tokens + _CONTEXT * attended + _SCORED * scored)
            self._guess(seconds / (1 + _ROW * decoding + prompt))
        step, row = self._line()
        beside = step + row * decoding
        if not any(self._weights):
            self._weights = self._guessed()
        expected = beside + sum(w * x for w, x in zip(self._weights, seen))
        seconds = min(seconds, CREDIBLE * expected)
        relative = [x / expected for x in seen]
        rest = max(seconds - beside, 0.1 * seconds) / expected
        for i, x in enumerate(relative):
            self._moments[i] = _DECAY * self._moments[i] + x * rest
            self._gram[i] = [_DECAY * old + x * other for old, other in zip(self._gram[i], relative)]
        self._fit()

    def _fit(self) -> None:
        """Improve the weights one after another, twice; none becomes negative, and one without evidence stays near the
        token's in the proportion of the guess."""
        for _ in range(2):
            token = max(self._weights[0], 1e-12)
            for i, guess in enumerate((token, _CONTEXT * token, _SCORED * token)):
                ridge = _FAITH / (guess * guess)
                others = sum(self._gram[i][j] * self._weights[j] for j in range(3) if j != i)
                found = (self._moments[i] - others + ridge * guess) / (self._gram[i][i] + ridge)
                self._weights[i] = max(found, 0.05 * guess)

    def _guess(self, step: float) -> None:
        """Count as one decoding step what a step with prompt tokens suggests; the first real ones outweigh it."""
        self._sums = [0.01 * value for value in (1.0, 1.0, 1.0, step * (1 + _ROW), step * (1 + _ROW))]

    def _guessed(self) -> list[float]:
        """The weights before a step with prompt tokens has run."""
        token = _TOKEN * sum(self._line())
        return [token, _CONTEXT * token, _SCORED * token]

    def _line(self) -> tuple[float, float]:
        """Seconds of every step, and of each token that decodes; zeros before anything is known."""
        ones, x, xx, y, xy = self._sums
        if not ones:
            return 0.0, 0.0
        spread, mean = ones * xx - x * x, x / ones
        if spread <= 1e-3 * ones * ones:  # all steps had the same size: a guess, which later steps correct
            step = y / ones / (1 + _ROW * mean)
            return step, _ROW * step
        row = max((ones * xy - x * y) / spread, 0.0)
        return max(y / ones - row * mean, 0.0), row

    def marginal_share(self, tokens: int, drafting: float = 0.0) -> float:
        """The cost of one more token as a share of what one token costs now, in a step of `tokens` tokens.

        `drafting` is the time that drafting the token takes, in seconds.
        """
        step, row = self._line() if self._sums[0] else (1.0, _ROW)
        whole = step + row * tokens
        return min(max(tokens * (row + drafting) / whole, 0.02), 1.0) if whole > 0 else 1.0

    @property
    def cost(self) -> Cost:
        """The prices of the next step."""
        step, row = self._line()
        return Cost(step, row, *(self._weights if any(self._weights) else self._guessed()))
