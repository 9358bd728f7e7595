"""Qwen3-Reranker: a chat that asks whether a document answers a query; how much more probable "yes" is than "no"."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.errors import UnsupportedError
from weft.rerank.pairs import WithEncoder, framed, sigmoid
from weft.runtime import Checkpoint, Encoder, Head, Tokens

if TYPE_CHECKING:
    import numpy as np


# The text that the model was trained with, around an instruction that describes what counts as an answer.
BEFORE = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided."
    ' Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
MOST_TOKENS = 8192


class YesNo(WithEncoder):
    """Scores are the probability of "yes" against "no" as the next token: softmax over their two logits."""

    def __init__(self, checkpoint: Checkpoint, *, instruction: str | None = None, **options: Any) -> None:
        self.instruction = INSTRUCTION if instruction is None else instruction
        tokenizer = checkpoint.tokenizer()
        yes, no = (tokenizer.id(word) for word in ("yes", "no"))
        if yes is None or no is None:
            what = "the tokenizer has no tokens 'yes' and 'no', whose probabilities are the score"
            raise UnsupportedError("rerank", what)
        checkpoint = replace(checkpoint, make_tokenizer=lambda **_: tokenizer)  # a tokenizer is expensive to make
        self.encoder = Encoder(checkpoint, Head("last", odds=(yes, no)), **options)
        self.max_tokens = min(self.encoder.max_tokens, MOST_TOKENS)
        self._before, self._after = (
            tokenizer.encode(text, add_special=False, parse_special=True) for text in (BEFORE, AFTER)
        )

    @property
    def info(self) -> dict[str, Any]:
        return {**self.encoder.info, "instruction": self.instruction}

    def tokens(self, pair: tuple[str, str], truncate: str) -> tuple[Tokens, int]:
        """The tokens of a pair, and how many were cut: of a pair that is too long, the document is cut. Special tokens
        in both texts are read as plain text."""
        import numpy as np

        query, document = pair
        asked = f"<Instruct>: {self.instruction}\n<Query>: {query}\n<Document>: "
        ids = self.tokenizer.encode(asked + document, add_special=False)
        start = min(len(self.tokenizer.encode(asked, add_special=False)), len(ids))
        kept, dropped = framed([*self._before, *ids[:start]], ids[start:], self._after, self.max_tokens, truncate)
        return Tokens(np.asarray(kept, np.int32)), dropped

    def score(self, vectors: np.ndarray) -> np.ndarray:
        odds: np.ndarray = vectors[:, 0]
        return odds

    def activated(self, raw: np.ndarray, activation: str | None = None) -> np.ndarray:
        return sigmoid(raw)
