"""sentence-transformers' interface over weft: change the import and keep the code.

    from weft.compat import CrossEncoder, SentenceTransformer

Vectors and scores are the same, as numpy arrays. As there, texts that are too long lose their end, or their beginning
if the tokenizer's file says so; the first time this is logged. Two things differ: vectors shortened by `truncate_dim`
are normalised again if the model's are, and `encode_document` uses a model's prompt "passage" or "corpus" if it has
none called "document". Arguments that make no difference here are ignored. Those that would, or that need torch
(`convert_to_tensor`) or other processes, and methods that train or save, are refused by name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from weft.embed import Embedder
from weft.embed.inputs import check_count, many_texts, similarities
from weft.errors import MISSING, InputError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from weft.rerank.pairs import Pairs
    from weft.text import Tokenizer

log = logging.getLogger("weft.embed")
T = TypeVar("T", bound="_Model")

PAIRS = 4096  # compared at a time
FEW_VECTORS = 100  # below this the ranges of codes are logged as unreliable, as there
ACTIVATIONS = ("identity", "sigmoid")
PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
MEASURES = ("cosine", "dot", "euclidean", "manhattan")
# Accepted and ignored: weft runs no code of models, writes no model cards, batches by tokens and has its own threads.
HARMLESS = ("trust_remote_code", "model_card_data", "batch_size", "chunk_size", "show_progress_bar")
HARMLESS_KEYS = ("attn_implementation", "device_map", "padding_side")  # of model_kwargs and tokenizer_kwargs
# What to do instead of giving an argument that weft does not support.
INSTEAD = {
    "modules": "give the model's folder or name",
    "cache_folder": "set HF_HOME in the environment",
    "token": "set HF_TOKEN in the environment",
    "use_auth_token": "set HF_TOKEN in the environment",
    "backend": "leave it out: weft is the backend",
    "model_kwargs": "set the arithmetic with compute=: f32, f16, bf16, bf16x3 or int8",
    "tokenizer_kwargs": "set max_seq_length, or max_length of a CrossEncoder",
    "processor_kwargs": "set max_seq_length, or max_length of a CrossEncoder",
    "config_kwargs": "leave it out: the configuration is read from the model's files",
    "convert_to_tensor": "use torch.from_numpy on the result",
    "pool": "leave it out: weft uses all processors in one process",
    "prompt": "put it before the query yourself",
    "prompt_name": "put the prompt before the query yourself",
}


def without_foreign(given: Mapping[str, Any], kind: type | None = None) -> dict[str, Any]:
    """The arguments in `given` that are `kind`'s own; sentence-transformers' are removed, or refused by name."""
    from inspect import signature

    own = {}
    for name, value in given.items():
        asked = {key: value[key] for key in value if key not in HARMLESS_KEYS} if isinstance(value, Mapping) else value
        if name == "device":
            check_device(value)
        elif name in INSTEAD:
            if asked not in (None, False, {}, "torch") and not (asked is True and "token" in name):
                shown = MISSING if "token" in name else asked  # a secret
                raise UnsupportedError("compat", "is not supported", given=shown, field=name, advice=INSTEAD[name])
        elif name not in HARMLESS:
            own[name] = value
    known = () if kind is None else tuple(signature(kind).parameters)
    if unknown := [name for name in own if name not in known]:
        raise InputError("compat", "is not an argument of this class", field=unknown[0])
    return own


def check_device(device: Any) -> None:
    if device is not None and str(device) not in ("cpu", "cpu:0"):
        what = "must be 'cpu', where weft computes"
        raise UnsupportedError("compat", what, given=device, field="device", advice="leave it out")


def named(model: str, revision: str | None, owner: str) -> str:
    """The model as name@revision. A folder has no revisions; a bare name is one of `owner`'s, as there."""
    if revision is None or os.path.exists(os.path.expanduser(model)):
        return model
    return f"{model if '/' in model else f'{owner}/{model}'}@{revision}"


def _refused(name: str, instead: str) -> Any:
    def refuse(self: Any, *given: Any, **options: Any) -> None:
        raise UnsupportedError("compat", f"{name}() is not supported", advice=instead)

    return refuse


class _Model:
    """Methods that both classes have because torch modules have them."""

    @property
    def device(self) -> str:
        return "cpu"

    def to(self: T, device: Any = None) -> T:
        """Returns itself: the model stays on the CPU."""
        check_device(device)
        return self

    def eval(self: T) -> T:
        """Returns itself: there is no training mode."""
        return self

    fit = _refused("fit", "train with sentence-transformers, and give weft the folder that it saves")
    save = _refused("save", "copy the model's folder: its files are unchanged")
    save_pretrained = _refused("save_pretrained", "copy the model's folder: its files are unchanged")
    start_multi_process_pool = _refused("start_multi_process_pool", INSTEAD["pool"])
    encode_multi_process = _refused("encode_multi_process", "encode uses all processors in one process")


class SentenceTransformer(_Model):
    """`encode`, `encode_query`, `encode_document`, `similarity` with sentence-transformers' arguments.

    `options` are `weft.Embedder`'s, such as `compute`; `matryoshka=True` allows `truncate_dim` for a model whose files
    do not say that it was trained for shorter vectors.
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
            "dimensions": truncate_dim,
            "offline": local_files_only or None,
            "prompts": prompts,
        }
        own = without_foreign(options, Embedder)
        self.embedder = Embedder(named(model_name_or_path, revision, "sentence-transformers"), **{**given, **own})
        self.embedder.truncate = own.get("truncate", self.embedder.recipe.keeps)
        self.prompts = {"query": "", **self.embedder.prompts}
        if not any(name in self.prompts for name in ("document", "passage", "corpus")):
            self.prompts["document"] = ""
        self.default_prompt_name = default_prompt_name or self.embedder.recipe.default_prompt
        self._prompt(self.default_prompt_name, None)
        self.similarity_fn_name = similarity_fn_name or self.embedder.similarity_name
        self._has_warned = False

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
        return self.embedder.dimension

    get_embedding_dimension = get_sentence_embedding_dimension

    def tokenize(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """`input_ids` and `attention_mask`, int64 [len(texts), longest], padded at the end; without a prompt."""
        import numpy as np

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
        if precision not in PRECISIONS:
            raise InputError("compat", f"must be one of {', '.join(PRECISIONS)}", given=precision, field="precision")
        if output_value not in ("sentence_embedding", "token_embeddings"):
            what = "must be 'sentence_embedding' or 'token_embeddings'"
            raise UnsupportedError("compat", what, given=output_value, field="output_value")
        given: Any = sentences if inputs is None else inputs
        single = isinstance(given, str)
        texts = [given] if single else list(many_texts(given, "sentences"))
        before = self._prompt(prompt_name, prompt)
        if output_value == "token_embeddings":
            ids = self.embedder.token_ids(texts, prompt=before).ids
            states = [self.embedder.hidden_states(one.tolist()) for one in ids]
            return states[0] if single else states
        embedder = self.embedder if truncate_dim is None else self.embedder.at(truncate_dim)
        made = embedder.embed(texts, prompt=before, progress=show_progress_bar)
        self._has_warned |= _warn_once(self._has_warned, (made.dropped > 0).sum(), len(texts), self.max_seq_length)
        vectors = _unit(made.vectors) if normalize_embeddings else made.vectors
        found = quantised(vectors, precision)
        if single:
            return found[0]
        return found if convert_to_numpy else list(found)

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
        return similarities(a, b, self.similarity_fn_name, lambda: self.embedder.dimension)

    def similarity_pairwise(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """The similarity of each vector to the other of the same index, [len(embeddings1)]."""
        import numpy as np

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


class CrossEncoder(_Model):
    """`predict` and `rank` with sentence-transformers' arguments, over `weft.Reranker`; `options` are that one's.

    `label` chooses the score of a model with several labels. `max_length` truncates pairs to fewer tokens than the
    model's files do. `activation_fn` is torch's Sigmoid or Identity, or one of these names; None is the model's own.
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
        import numpy as np

        if type(self.max_length) is not int:
            raise InputError("compat", "must be a whole number", given=self.max_length, field="max_length")
        if self.max_length < self.reranker.max_tokens and self.reranker.method != "classifier":
            what = f"must be {self.reranker.max_tokens} or more, since only cross-encoders can truncate to fewer tokens"
            raise UnsupportedError("compat", what, given=self.max_length, field="max_length")
        pairs = self.reranker.token_pairs(given)
        for i, tokens in enumerate(pairs.tokens):
            if len(tokens) > self.max_length:
                fitted = self.tokenizer.encode_within(self.max_length, *given[i])
                most = 0 if tokens.types is None else tokens.types.max()  # RoBERTa has one token type
                types = np.minimum(np.asarray(fitted.types, np.int32), most)
                pairs.tokens[i] = type(tokens)(np.asarray(fitted.ids, np.int32), types)
                pairs.dropped[i] = sum(fitted.dropped)
        cut = sum(dropped > 0 for dropped in pairs.dropped)
        self._has_warned |= _warn_once(self._has_warned, cut, len(given), self.max_length)
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


def pairwise(a: np.ndarray, b: np.ndarray, measure: str) -> np.ndarray:
    """The measure of each row of `a` and the row of `b` with the same index; distances are negative."""
    import numpy as np

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


def quantised(vectors: np.ndarray, precision: str) -> np.ndarray:
    """Vectors in sentence-transformers' `precision`: int8 and uint8 by the range of each number over these vectors,
    binary as bits v > 0; "binary" subtracts 128 from each byte. (weft's own types are in weft/embed/outputs.py.)"""
    import numpy as np

    if precision == "float32":
        return vectors
    if precision in ("binary", "ubinary"):
        bits = np.packbits(vectors > 0, axis=1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    if len(vectors) < 2:
        if not len(vectors):
            return vectors.astype(precision)
        raise InputError(
            "compat",
            "needs two or more texts, since it takes the range of each number from the vectors of the call",
            given=precision,
            field="precision",
            advice='encode all texts together, or use model.embedder.encode(text, output_dtype="int8")',
        )
    if len(vectors) < FEW_VECTORS:
        log.warning("the ranges of precision=%r come from only %d vectors", precision, len(vectors))
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    steps = (high - low) / 255
    codes = (vectors - low) / np.where(steps > 0, steps, 1)
    return codes.astype(np.uint8) if precision == "uint8" else (codes - 128).astype(np.int8)


def _numbers(vectors: Any) -> np.ndarray:
    """Vectors as an array; codes of another `precision` than float32 are refused, as there."""
    import numpy as np

    if isinstance(vectors, np.ndarray) and vectors.dtype.kind in "iu":
        what = f"codes of {vectors.dtype} cannot be compared"
        raise InputError("compat", what, advice="use vectors of precision='float32'")
    return np.asarray(vectors)


def _unit(vectors: np.ndarray) -> np.ndarray:
    import numpy as np

    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _warn_once(has_warned: bool, cut: int, count: int, limit: int) -> bool:
    """Log a warning that texts were cut, unless one was logged before; returns whether texts were cut."""
    if cut and not has_warned:
        log.warning("%d of %d texts were cut to %d tokens", cut, count, limit)
    return bool(cut)
