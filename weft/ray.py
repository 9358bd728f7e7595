"""Ray Data: `dataset.map_batches(EmbedBatches, fn_constructor_kwargs={"model": …}, concurrency=2)`.

Each worker loads the model once and embeds batches of rows; it uses as many threads as Ray assigns it CPUs
(`num_cpus`), unless `threads` is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from weft.errors import InputError

if TYPE_CHECKING:
    import numpy as np


class EmbedBatches:
    """Adds to a batch the column `output`: vectors, float32 [rows, dimension], of the texts in `column`.

    Batches are numpy's or pandas'. `role` is "query", "document" or None; texts that are too long are embedded in
    windows unless `truncate` is given. Other options are `weft.Embedder`'s.
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
            raise InputError("ray", "must be 'query', 'document' or None", given=role, field="role")
        given = {"truncate": "chunk", "progress": False, **options}
        try:
            signature(Embedder).bind(model, **given)
        except TypeError as error:
            advice = "the options are column, output, role and those of weft.Embedder"
            raise InputError("ray", str(error), advice=advice) from None
        self.embedder = Embedder(model, threads=threads or _granted(), **given)
        self._column, self._output = column, output
        self._prompt_name = self.embedder.document_prompt_name if role == "document" else role

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not hasattr(batch, "keys"):
            what = f"must be a dictionary of columns, not {type(batch).__name__}"
            raise InputError("ray", what, field="batch", advice="give map_batches batch_format='numpy'")
        if self._column not in batch:
            what = f"must be a column of the batch ({', '.join(batch)})"
            raise InputError("ray", what, given=self._column, field="column")
        if self._output in batch:
            what = "must be a new column; the batch already has it"
            raise InputError("ray", what, given=self._output, field="output")
        texts = self._texts(batch[self._column])
        return {**batch, self._output: self.embedder.encode(texts, prompt_name=self._prompt_name, progress=False)}

    def _texts(self, values: Iterable[Any]) -> list[str]:
        texts = list(values)
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(
                    "ray",
                    f"of the batch must have a string in the column {self._column!r}",
                    given=text,
                    field="row",
                    index=row,
                    advice="remove such rows with filter, or convert them with map",
                )
        return texts


def _granted() -> int | None:
    """The number of CPUs that Ray has assigned to this worker, None outside a worker."""
    try:
        import ray
    except ImportError:
        return None
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if getattr(getattr(context, "worker", None), "mode", None) != ray.WORKER_MODE:
        return None  # a driver, such as a notebook, has no CPUs assigned
    granted = context.get_assigned_resources().get("CPU", 0)
    return max(1, int(granted)) if granted else None
