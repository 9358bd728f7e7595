"""sentence-transformers' interface over weft: change the import and keep the code.

    from weft.compat import SentenceTransformer

Vectors are the same; texts that are too long lose their end, as there, and the first time that happens it is logged.
What needs torch (`convert_to_tensor`) and what trains is refused by name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.embed import Embedder
from weft.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from weft.text import Tokenizer

log = logging.getLogger("weft.embed")

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


class SentenceTransformer:
    """`encode`, `encode_query`, `encode_document`, `similarity` with sentence-transformers' arguments.

    `batch_size` is taken and not used: weft packs by tokens. `options` are `weft.Embedder`'s, such as `compute`.
    """

    def __init__(
        self,
        model_name_or_path: str,
        *,
        device: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        local_files_only: bool = False,
        **options: Any,
    ) -> None:
        if device not in (None, "cpu"):
            raise UnsupportedError(f"[compat] device is {device!r}; weft embeds on the CPU")
        offline = True if local_files_only else None
        self.embedder = Embedder(
            model_name_or_path, truncate="head", dimensions=truncate_dim, offline=offline, **options
        )
        self.prompts = {**self.embedder.prompts, **(prompts or {})}
        self.default_prompt_name = default_prompt_name or self.embedder.recipe.default_prompt
        self.similarity_fn_name = similarity_fn_name or self.embedder.similarity_name
        self._told = False

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def tokenizer(self) -> Tokenizer:
        return self.embedder.tokenizer

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

    def encode(
        self,
        sentences: str | Sequence[str],
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
    ) -> Any:
        """Vectors [len(sentences), dimension], or [dimension] of one text; a list of them without `convert_to_numpy`.

        `output_value="token_embeddings"` gives the last hidden states, one array [tokens, hidden] for each text.
        """
        self._check(precision, convert_to_tensor, output_value, device)
        single = isinstance(sentences, str)
        texts = [str(sentences)] if single else list(sentences)
        before = self._prompt(prompt_name, prompt)
        if output_value == "token_embeddings":
            ids = self.embedder.token_ids(texts, prompt=before).ids
            states = [self.embedder.hidden_states(one.tolist()) for one in ids]
            return states[0] if single else states
        made = self.embedder.embed(texts, prompt=before, progress=show_progress_bar)
        if made.dropped.any() and not self._told:
            self._told = True
            log.warning(
                "%d of %d texts were cut at %d tokens", (made.dropped > 0).sum(), len(texts), self.max_seq_length
            )
        vectors = _unit(made.vectors) if normalize_embeddings else made.vectors
        found = quantised(vectors, precision)
        if single:
            return found[0]
        return found if convert_to_numpy else list(found)

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """`encode` with the prompt for queries, where there is one."""
        return self.encode(sentences, **{"prompt_name": "query" if "query" in self.prompts else None, **options})

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """`encode` with the prompt for documents, where there is one."""
        name = next((name for name in ("document", "passage", "corpus") if name in self.prompts), None)
        return self.encode(sentences, **{"prompt_name": name, **options})

    def similarity(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """Of each vector to each other, [len(embeddings1), len(embeddings2)]."""
        return self.embedder.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """Of each vector to that of the same place, [len(embeddings1)]."""
        import numpy as np

        pairs = zip(np.atleast_2d(embeddings1), np.atleast_2d(embeddings2))
        return np.array([self.embedder.similarity(a, b)[0, 0] for a, b in pairs], np.float32)

    def _prompt(self, name: str | None, text: str | None) -> str:
        if text is not None:
            return text
        if name is not None and name not in self.prompts:
            raise InputError(f"[compat] no prompt is called {name!r}; there are {', '.join(self.prompts) or 'none'}")
        return self.prompts.get(name or self.default_prompt_name or "", "")

    def _check(self, precision: str, tensor: bool, value: str | None, device: str | None) -> None:
        if tensor:
            raise UnsupportedError("[compat] convert_to_tensor needs torch; take torch.from_numpy of the result")
        if precision not in PRECISIONS:
            raise InputError(f"[compat] precision is {precision!r}; one of {', '.join(PRECISIONS)}")
        if value not in ("sentence_embedding", "token_embeddings"):
            raise UnsupportedError(f"[compat] output_value {value!r}; sentence_embedding or token_embeddings")
        if device not in (None, "cpu"):
            raise UnsupportedError(f"[compat] device is {device!r}; weft embeds on the CPU")


def quantised(vectors: np.ndarray, precision: str) -> np.ndarray:
    """Vectors as sentence-transformers' `precision` has them: int8 and uint8 by the range of each number over these
    vectors, binary as bits v > 0, of which "binary" counts from -128. (weft's own are in weft/embed/outputs.py.)"""
    import numpy as np

    if precision == "float32":
        return vectors
    if precision in ("binary", "ubinary"):
        bits = np.packbits(vectors > 0, axis=1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    steps = (high - low) / 255
    codes = (vectors - low) / np.where(steps > 0, steps, 1)
    return codes.astype(np.uint8) if precision == "uint8" else (codes - 128).astype(np.int8)


def _unit(vectors: np.ndarray) -> np.ndarray:
    import numpy as np

    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
