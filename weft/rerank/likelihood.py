"""Query likelihood: how probable a generator finds the query after the document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.generate import generate_all, make_request
from weft.rerank.pairs import framed
from weft.runtime import Tokens

if TYPE_CHECKING:
    import numpy as np

    from weft.generate import Model, Request
    from weft.text import Tokenizer

BEFORE = "Passage: "
AFTER = "\nPlease write a question based on this passage.\nQuestion:"


class Likelihood:
    """Scores are minus the mean negative log probability of the query's tokens, so at most 0."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.max_tokens = model.decoder.max_context - 1  # a prompt leaves room for a token

    @property
    def info(self) -> dict[str, Any]:
        return self._model.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._model.tokenizer

    def start(self) -> None:
        """Nothing to do: loading the model has started it."""

    def memory_plan(self, tokens: int) -> dict[str, int]:
        return self._model.decoder.memory_plan()

    def tokens(self, pair: tuple[str, str], truncate: str) -> tuple[Tokens, int]:
        """The tokens of a pair; `skip` of the result is where the query starts. In a pair that is too long, the
        document is cut."""
        import numpy as np

        query, document = pair
        tokenizer = self.tokenizer
        asked = tokenizer.encode(f" {query}", add_special=False)
        if not query or not asked:
            raise InputError(
                "rerank", "must not be empty, since the score is its likelihood", given=query, field="query"
            )
        front = tokenizer.encode(BEFORE)
        before = front[:-1] if front[-1:] == [tokenizer.eos_id] else front
        middle, after = (tokenizer.encode(text, add_special=False) for text in (document, AFTER))
        ids, dropped = framed(before, middle, [*after, *asked], self.max_tokens, truncate)
        return Tokens(np.asarray(ids, np.int32), skip=len(ids) - len(asked)), dropped

    def ranges(self, tokens: Sequence[Tokens]) -> list[tuple[int, int]]:
        return [(place, place + 1) for place in range(len(tokens))]

    def scores(self, tokens: Sequence[Tokens]) -> Iterator[np.ndarray]:
        """Mean log probabilities. Only the query's tokens need logits, and the prefix cache keeps recent documents."""
        import numpy as np

        for (result,) in generate_all(self._model.engine, map(_request, tokens)):
            assert result.prompt_logprobs is not None
            found = [entry.logprob for entry in result.prompt_logprobs]
            yield np.asarray([sum(found) / len(found)], np.float32)

    def activated(self, raw: np.ndarray, activation: str | None = None) -> np.ndarray:
        return raw


def _request(text: Tokens) -> Request:
    return make_request(text.ids.tolist(), max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=text.skip)
