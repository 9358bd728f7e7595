"""An embedding model in a server: requests share steps, and each gets vectors of the length it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, TooLongError, UnsupportedError
from weft.serve.models.steps import StepRunner

if TYPE_CHECKING:
    import numpy as np

    from weft.embed import Embedder
    from weft.embed.cutting import TokenIds
    from weft.pictures import Patches, PictureLimits
    from weft.runtime import Adapters

PICTURES = "\0pictures"  # the place of an adapter's name in steps of the other tower; no adapter is called so


class EmbedRunner(StepRunner):
    """One loaded embedder. Steps compute full vectors: requests that share a step may ask for different lengths."""

    kind = "embed"

    def __init__(self, embedder: Embedder, *, waiting: int) -> None:
        self.embedder = embedder
        self._whole = whole = embedder.at(None)
        super().__init__(embedder, self._made, width=whole.dimension, waiting=waiting)
        # One thread: decoding takes the memory of one picture, however many requests have some.
        self._pictures = ThreadPoolExecutor(1, "weft-pictures") if embedder.sees else None

    def _made(self, sequences: list[Any], adapter: str | None) -> np.ndarray:
        if adapter == PICTURES:
            return self._whole.sight.tower.vectors(sequences)
        return self._whole.encode_ids(sequences, adapter=adapter)

    async def patches(self, file: bytes, limits: PictureLimits) -> Patches:
        """The patches of a picture, decoded by another thread."""
        if self._pictures is None:
            raise UnsupportedError("embed", "this model embeds texts only")
        work = partial(self._whole.sight.patches, file, limits)
        return await asyncio.get_running_loop().run_in_executor(self._pictures, work)

    async def picture_vectors(self, pictures: Sequence[Patches]) -> tuple[np.ndarray, float]:
        """As `vectors`, of pictures."""
        return await self._steps.rows(pictures, PICTURES)

    async def close(self) -> None:
        await super().close()
        if self._pictures is not None:
            self._pictures.shutdown()

    @property
    def adapters(self) -> Adapters:
        return self.embedder.adapters

    async def token_ids(self, texts: Sequence[str], **how: Any) -> TokenIds:
        """The token ids of texts, computed by another thread."""
        return await self.tokenized(lambda: self.embedder.token_ids(texts, **how))

    def given_ids(self, inputs: Sequence[Sequence[int]]) -> TokenIds:
        """Token ids that a client sent, checked here because the kernels do not."""
        import numpy as np

        from weft.embed.cutting import TokenIds

        vocabulary = self.embedder.vocab_size
        for i, ids in enumerate(inputs):
            if not ids or min(ids) < 0 or max(ids) >= vocabulary:
                wanted = f"must be one or more token ids from 0 to {vocabulary - 1}"
                raise InputError("embed", wanted, field="input", index=i)
            if len(ids) > self.max_tokens:
                raise TooLongError(
                    "embed",
                    f"has {len(ids)} tokens, the model takes {self.max_tokens}",
                    field="input",
                    length=len(ids),
                    limit=self.max_tokens,
                    index=i,
                )
        return TokenIds([np.asarray(ids, np.int32) for ids in inputs], [0] * len(inputs))

    def at(self, dimensions: int | None) -> Embedder:
        """The embedder with vectors of `dimensions` numbers; None for its own dimension."""
        return self.embedder if dimensions is None else self._whole.at(dimensions)

    async def vectors(self, ids: Sequence[np.ndarray], adapter: str | None = None) -> tuple[np.ndarray, float]:
        """Full vectors of `ids`, float32 [len(ids), the model's own dimension], and the seconds spent waiting."""
        if adapter is not None:
            self.embedder.adapters.get(adapter)
        return await self._steps.rows(ids, adapter)

    @property
    def channels(self) -> int:
        """The length of a token's hidden state."""
        return self.embedder.hidden_size

    async def hidden_states(self, ids: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The last hidden state of every token, float32 [tokens, channels] for each of `ids`; one at a time, so that
        other requests take turns."""
        return [await self._steps.between(partial(self.embedder.hidden_states, one.tolist())) for one in ids]
