"""CrossEncoder, over `weft.Reranker`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compat.arguments import Model, check_batch_size, named, warn_once, without_foreign
from weft.embed.inputs import check_count, many_texts
from weft.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from weft.rerank.pairs import Pairs
    from weft.text import Tokenizer

ACTIVATIONS = ("identity", "sigmoid")


class CrossEncoder(Model):
    """`predict` and `rank` with sentence-transformers' arguments, over `weft.Reranker`; `options` are that one's.

    `label` chooses the score of a model with several labels. `max_length` truncates pairs to fewer tokens than the
    model's files do. `activation_fn` is torch's Sigmoid or Identity, or one of these names; None is the model's own.
    Special tokens in texts are read as such, as there, unless `parse_special` is False.
    """

    def __init__(
        self,
        model_name_or_path: str,
        *,
        num_labels: int | None = None,
        max_length: int | None = None,
        activation_fn: Any = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **options: Any,
    ) -> None:
        from weft.rerank import Reranker

        if num_labels not in (None, 1):
            advice = "leave it out, and choose a label with label="
            raise UnsupportedError("compat", "must be 1", given=num_labels, field="num_labels", advice=advice)
        given = {"truncate": "head", "offline": local_files_only or None, **without_foreign(options, Reranker)}
        self.reranker = Reranker(named(model_name_or_path, revision, "cross-encoder"), **given)
        if self.reranker.method == "classifier" and options.get("parse_special") is None:
            self.reranker.parse_special = True
        self.max_length = self.reranker.max_tokens if max_length is None else max_length
        self.activation_fn = activation_fn
        self._label = options.get("label")
        self._has_warned = False

    @property
    def tokenizer(self) -> Tokenizer:
        return self.reranker.tokenizer

    def predict(
        self,
        inputs: Any = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Any = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        *,
        sentences: Any = None,
        **others: Any,
    ) -> Any:
        """A score for each pair of a query and a document, float32 [n], or one for one pair.

        `sentences` is the older name of the pairs. `apply_softmax` changes nothing for a model with one label.
        """
        without_foreign({"convert_to_tensor": convert_to_tensor, **others})
        check_batch_size(batch_size)
        if apply_softmax and self._label is not None:
            what = "needs the scores of all labels, and one label was chosen"
            raise UnsupportedError("compat", what, field="apply_softmax", advice="leave it out")
        given = inputs if sentences is None else sentences
        listed = given.tolist() if hasattr(given, "tolist") else given
        single = isinstance(listed, (list, tuple)) and len(listed) > 0 and isinstance(listed[0], str)
        pairs = self._pairs([listed] if single else list(many_texts(listed, "inputs")))
        raw = self.reranker.raw_scores(pairs, progress=show_progress_bar)
        scores = self.reranker.activated(raw, _activation(activation_fn or self.activation_fn))
        if single:
            return scores[0]
        return scores if convert_to_numpy else list(scores)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *others: Any,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """The documents by descending score: `corpus_id`, `score`, and `text` with `return_documents`.

        Further arguments are those of `predict`.
        """
        check_count(top_k, "top_k")
        texts = list(many_texts(documents, "documents"))
        scores = self.predict([(query, text) for text in texts], *others, **options)
        found: list[dict[str, Any]] = [{"corpus_id": i, "score": float(score)} for i, score in enumerate(scores)]
        if return_documents:
            found = [{**one, "text": text} for one, text in zip(found, texts)]
        return sorted(found, key=lambda one: one["score"], reverse=True)[:top_k]

    def _pairs(self, given: list[Any]) -> Pairs:
        """The tokens of pairs; in pairs of more than `max_length` tokens the longer text is cut."""
        if type(self.max_length) is not int:
            raise InputError("compat", "must be a whole number", given=self.max_length, field="max_length")
        if self.max_length < self.reranker.max_tokens and self.reranker.method != "classifier":
            what = f"must be {self.reranker.max_tokens} or more, since only cross-encoders can truncate to fewer tokens"
            raise UnsupportedError("compat", what, given=self.max_length, field="max_length")
        pairs = self.reranker.token_pairs(given)
        for i, tokens in enumerate(pairs.tokens):
            if len(tokens) > self.max_length:
                parses = self.reranker.parse_special
                fitted = self.tokenizer.encode_within(self.max_length, *given[i], parse_special=parses)
                most = 0 if tokens.types is None else tokens.types.max()  # RoBERTa has one token type
                types = np.minimum(np.asarray(fitted.types, np.int32), most)
                pairs.tokens[i] = type(tokens)(np.asarray(fitted.ids, np.int32), types)
                pairs.dropped[i] = sum(fitted.dropped)
        cut = sum(dropped > 0 for dropped in pairs.dropped)
        self._has_warned |= warn_once(self._has_warned, cut, len(given), self.max_length)
        return pairs


def _activation(function: Any) -> str | None:
    """The name of an activation function; None for the model's own."""
    if function is None:
        return None
    name = function if isinstance(function, str) else getattr(function, "__name__", type(function).__name__)
    if name.lower() not in ACTIVATIONS:
        what = f"must be one of {', '.join(ACTIVATIONS)}"
        raise UnsupportedError("compat", what, given=name, field="activation_fn")
    return name.lower()
