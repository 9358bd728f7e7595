"""SentenceTransformer, over `weft.Embedder`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compat.arguments import Model, check_batch_size, named, warn_once, without_foreign
from weft.compat.precision import check_precision, quantize_embeddings
from weft.compat.similarity import SimilarityFunction, check_truncate_dim
from weft.compat.similarity import normalize_embeddings as unit
from weft.compat.similarity import truncate_embeddings as shortened
from weft.embed import Embedder
from weft.embed.inputs import many_texts, similarities
from weft.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from weft.text import Tokenizer

PAIRS = 4096  # compared at a time
MEASURES = tuple(SimilarityFunction.possible_values())


class SentenceTransformer(Model):
    """`encode`, `encode_query`, `encode_document`, `similarity` with sentence-transformers' arguments.

    `options` are `weft.Embedder`'s, such as `compute`. `truncate_dim` keeps the first numbers of each vector and does
    not normalise them again, as there; `embedder` is the model with vectors of their own length. Special tokens in
    texts are read as such, as there, unless `parse_special` is False.
    """

    def __init__(
        self,
        model_name_or_path: str,
        *,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **options: Any,
    ) -> None:
        given = {
            "truncate": "head",
            "parse_special": True,
            "offline": local_files_only or None,
            "prompts": prompts,
        }
        own = without_foreign(options, Embedder)
        self.embedder = Embedder(named(model_name_or_path, revision, "sentence-transformers"), **{**given, **own})
        self.embedder.truncate = own.get("truncate", self.embedder.recipe.keeps)
        own_length, stated = self._whole.dimension, self.embedder.dimension  # the latter by the model's files
        self.truncate_dim = stated if stated < own_length else None
        if truncate_dim is not None:
            self.truncate_dim = check_truncate_dim(truncate_dim)
        self.prompts = {"query": "", **self.embedder.prompts}
        if not any(name in self.prompts for name in ("document", "passage", "corpus")):
            self.prompts["document"] = ""
        self.default_prompt_name = default_prompt_name or self.embedder.recipe.default_prompt
        self._prompt(self.default_prompt_name, None)
        self.similarity_fn_name = similarity_fn_name or self.embedder.similarity_name
        self._has_warned = False

    @property
    def _whole(self) -> Embedder:
        """The model with vectors of their own length."""
        return self.embedder.at(None)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.embedder.tokenizer

    @property
    def similarity_fn_name(self) -> str:
        """The measure of `similarity`: cosine, dot, euclidean or manhattan; may be set."""
        return self._measure

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: str | None) -> None:
        measure = getattr(name, "value", name) or "cosine"  # SimilarityFunction is an enumeration
        if measure not in MEASURES:
            what = f"must be one of {', '.join(MEASURES)}"
            raise InputError("compat", what, given=measure, field="similarity_fn_name")
        self._measure: str = measure

    @property
    def max_seq_length(self) -> int:
        """The longest text in tokens; may be set."""
        return self.embedder.max_tokens

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        self.embedder.max_tokens = tokens

    def get_max_seq_length(self) -> int:
        return self.max_seq_length

    def get_sentence_embedding_dimension(self) -> int:
        """The length of a vector."""
        whole = self._whole.dimension
        return whole if self.truncate_dim is None else min(whole, self.truncate_dim)

    get_embedding_dimension = get_sentence_embedding_dimension

    def tokenize(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """`input_ids` and `attention_mask`, int64 [len(texts), longest], padded at the end; without a prompt."""
        ids = self.embedder.token_ids(list(many_texts(texts)), prompt="").ids
        shape = len(ids), max(map(len, ids), default=0)
        made, mask = np.full(shape, self.tokenizer.pad_id or 0, np.int64), np.zeros(shape, np.int64)
        for i, one in enumerate(ids):
            made[i, : len(one)], mask[i, : len(one)] = one, 1
        return {"input_ids": made, "attention_mask": mask}

    def encode(
        self,
        sentences: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: Any = None,
        chunk_size: int | None = None,
        *,
        inputs: str | Sequence[str] | None = None,
    ) -> Any:
        """Vectors [len(sentences), dimension], or [dimension] of one text; a list without `convert_to_numpy`.

        `output_value="token_embeddings"` gives the last hidden states, one array [tokens, hidden] for each text.
        `inputs` is the newer name of `sentences`.
        """
        without_foreign({"convert_to_tensor": convert_to_tensor, "device": device, "pool": pool})
        check_precision(precision)
        check_batch_size(batch_size)
        if output_value not in ("sentence_embedding", "token_embeddings"):
            what = "must be 'sentence_embedding' or 'token_embeddings'"
            advice = "call encode once for each, and tokenize for the ids"
            raise UnsupportedError("compat", what, given=output_value, field="output_value", advice=advice)
        given: Any = sentences if inputs is None else inputs
        single = isinstance(given, str)
        texts = [given] if single else _texts(given)
        before = self._prompt(prompt_name, prompt)
        if output_value == "token_embeddings":
            ids = self.embedder.token_ids(texts, prompt=before).ids
            states = [self.embedder.hidden_states(one.tolist()) for one in ids]
            return states[0] if single else states
        if not texts:  # as there, where numpy makes an array of an empty list
            return np.asarray([]) if convert_to_numpy else []
        made = self._whole.embed(texts, prompt=before, progress=show_progress_bar)
        self._has_warned |= warn_once(self._has_warned, (made.dropped > 0).sum(), len(texts), self.max_seq_length)
        wanted = self.truncate_dim if truncate_dim is None else check_truncate_dim(truncate_dim)
        vectors = shortened(made.vectors, wanted)
        vectors = unit(vectors) if normalize_embeddings else vectors
        found = quantised(vectors, precision)
        if single:
            return found[0]
        return found if convert_to_numpy else list(found)

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Inside the block vectors have `truncate_dim` numbers."""
        before, self.truncate_dim = self.truncate_dim, check_truncate_dim(truncate_dim)
        try:
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings  # its older name

    def encode_query(
        self,
        sentences: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *others: Any,
        **options: Any,
    ) -> Any:
        """`encode` with the prompt for queries, if there is one."""
        return self.encode(sentences, self._role(("query",), prompt_name, prompt), prompt, *others, **options)

    def encode_document(
        self,
        sentences: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *others: Any,
        **options: Any,
    ) -> Any:
        """`encode` with the prompt for documents, if there is one."""
        names = ("document", "passage", "corpus")
        return self.encode(sentences, self._role(names, prompt_name, prompt), prompt, *others, **options)

    def _role(self, names: Sequence[str], name: str | None, prompt: str | None) -> str | None:
        """The caller's prompt name, else the first of `names` that the model has."""
        if name is not None or prompt is not None:
            return name
        return next((known for known in names if known in self.prompts), None)

    def similarity(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """The similarity of each vector to each other, [len(embeddings1), len(embeddings2)]."""
        a, b = _numbers(embeddings1), _numbers(embeddings2)
        return similarities(a, b, self.similarity_fn_name, self.get_sentence_embedding_dimension)

    def similarity_pairwise(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """The similarity of each vector to the other of the same index, [len(embeddings1)]."""
        a, b = np.atleast_2d(_numbers(embeddings1)), np.atleast_2d(_numbers(embeddings2))
        if len(a) != len(b):
            what = f"{len(a)} and {len(b)} vectors do not form pairs"
            raise InputError("compat", what, advice="use similarity to compare all with all")
        if a.shape != b.shape or not a.shape[1]:
            raise InputError("compat", f"vectors of {a.shape[1]} and {b.shape[1]} numbers cannot be compared")
        parts = [pairwise(a[i : i + PAIRS], b[i : i + PAIRS], self.similarity_fn_name) for i in range(0, len(a), PAIRS)]
        return np.concatenate([*parts, np.empty(0)]).astype(np.float32)

    def _prompt(self, name: str | None, text: str | None) -> str:
        if text is not None:
            return text
        if name is not None and name not in self.prompts:
            what = f"must be one of the model's prompts ({', '.join(self.prompts)})"
            raise InputError("compat", what, given=name, field="prompt_name")
        return self.prompts.get(name or self.default_prompt_name or "", "")


def _texts(given: Any) -> list[str]:
    """The texts of a call; what is no list of strings is refused."""
    texts = list(many_texts(given, "sentences"))
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            what = f"must be a string, not {type(text).__name__}: pairs, conversations and images are not supported"
            raise InputError("compat", what, field="sentence", index=i, advice="score pairs with CrossEncoder")
    return texts


def quantised(vectors: np.ndarray, precision: str) -> np.ndarray:
    """The vectors of a call in `precision`, with the ranges of these vectors."""
    if precision in ("int8", "uint8") and len(vectors) == 1:
        raise InputError(
            "compat",
            "needs two or more texts, since it takes the range of each number from the vectors of the call",
            given=precision,
            field="precision",
            advice='encode all texts together, or use model.embedder.encode(text, output_dtype="int8")',
        )
    return quantize_embeddings(vectors, precision)


def pairwise(a: np.ndarray, b: np.ndarray, measure: str) -> np.ndarray:
    """The measure of each row of `a` and the row of `b` with the same index; distances are negative."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if measure == "manhattan":
        return -np.abs(a - b).sum(axis=1)
    if measure == "euclidean":
        return -np.linalg.norm(a - b, axis=1)
    dots = np.einsum("nd,nd->n", a, b)
    if measure == "dot":
        return dots
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    if not norms.all():
        what = "has a vector of zeros, which has no cosine"
        raise InputError("compat", what, field="pair", index=int(np.argmin(norms)))
    return np.clip(dots / norms, -1, 1)


def _numbers(vectors: Any) -> np.ndarray:
    """Vectors as an array; codes of another `precision` than float32 are refused, as there."""
    if isinstance(vectors, np.ndarray) and vectors.dtype.kind in "iu":
        what = f"codes of {vectors.dtype} cannot be compared"
        raise InputError("compat", what, advice="use vectors of precision='float32'")
    return np.asarray(vectors)
