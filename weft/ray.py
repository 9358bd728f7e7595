"""Ray Data: `dataset.map_batches(EmbedBatches, fn_constructor_kwargs={"model": …}, concurrency=2)`.

Each worker loads the model once and takes batches of rows; how many threads it uses follows from the CPUs that Ray
gives it (`num_cpus`), unless `threads` says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from weft.errors import InputError

if TYPE_CHECKING:
    import numpy as np


class EmbedBatches:
    """A batch of columns with `output` added: the vectors float32 [rows, dimension] of the column `column`.

    Batches are numpy's or pandas'. `role` is "query", "document" or None for neither; texts that are too long are
    embedded in windows unless `truncate` says otherwise. Other options are `weft.Embedder`'s.
    """

    def __init__(
        self,
        model: str,
        *,
        column: str = "text",
        output: str = "embedding",
        role: str | None = "document",
        threads: int | None = None,
        **options: Any,
    ) -> None:
        from inspect import signature

        from weft.embed import Embedder

        if role not in ("query", "document", None):
            raise InputError(f"[ray] role is {role!r}; query, document or None")
        given = {"truncate": "chunk", "progress": False, **options}
        try:
            signature(Embedder).bind(model, **given)
        except TypeError as error:
            raise InputError(f"[ray] {error}; options are weft.Embedder's, column, output and role") from None
        self.embedder = Embedder(model, threads=threads or _granted(), **given)
        self._column, self._output = column, output
        self._prompt_name = self.embedder.document_prompt_name if role == "document" else role

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not hasattr(batch, "keys"):
            raise InputError(f"[ray] a batch is {type(batch).__name__}; ask map_batches for batch_format='numpy'")
        if self._column not in batch:
            raise InputError(f"[ray] the batch has no column {self._column!r}; it has {', '.join(batch)}")
        if self._output in batch:
            raise InputError(f"[ray] the batch has a column {self._output!r} already; name another with output=")
        texts = self._texts(batch[self._column])
        return {**batch, self._output: self.embedder.encode(texts, prompt_name=self._prompt_name, progress=False)}

    def _texts(self, values: Iterable[Any]) -> list[str]:
        texts = list(values)
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                kind = "None" if text is None else f"{type(text).__name__} {text!r:.40}"
                raise InputError(
                    f"[ray] the column {self._column!r} has {kind} in row {row} of a batch; texts are strings. "
                    "Leave such rows out with filter, or say what they are with map"
                )
        return texts


def _granted() -> int | None:
    """Whole CPUs that Ray has given this worker, None outside of one."""
    try:
        import ray
    except ImportError:
        return None
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if getattr(getattr(context, "worker", None), "mode", None) != ray.WORKER_MODE:
        return None  # a driver, such as a notebook: Ray has given it nothing
    granted = context.get_assigned_resources().get("CPU", 0)
    return max(1, int(granted)) if granted else None
