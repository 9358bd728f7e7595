"""The index that a build is about to replace: whether it may, and which of its vectors the build takes over.

The header of an index says what it was built from. A program that changes rows of the index removes that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.pipeline.sources import Source
from weft.embed.pipeline.spool import DIGEST_BYTES, Known, text_digest
from weft.errors import FormatError, InputError, NotFoundError

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.index import Index
    from weft.embed.index.files import Saved
    from weft.embed.pipeline.targets import About

HOW = ("prompt_name", "truncate")  # beside the fingerprint, what decides the vector of a text
ADVICE = "write to another folder with --output, or replace the index with --replace"


def built_from(source: Source, how: Mapping[str, Any]) -> dict[str, Any]:
    """What the header of an index says about its build from `source`, whose texts were embedded as `how` says."""
    return {"source": str(source.path.resolve()), **{name: how[name] for name in HOW}}


class Earlier:
    """The index in a folder that is there already, opened for reading."""

    def __init__(self, folder: Path, saved: Saved) -> None:
        self._folder, self._about, self._files = folder, saved.about, saved.files
        built = saved.about.get("built")
        self._built: dict[str, Any] = built if isinstance(built, dict) else {}
        self._opened: Index | None = None

    @classmethod
    def found(cls, folder: Path) -> Earlier | None:
        """The index in `folder`; None if there is none, or none that this weft reads, which a build may replace."""
        from weft.embed.index.files import read_header

        try:
            return cls(folder, read_header(folder))
        except (NotFoundError, FormatError):
            return None

    @property
    def has_graph(self) -> bool:
        return "graph" in self._files

    def check(self, source: Source, about: About, model: str | None, model_before: str | None) -> None:
        """Refuse to replace an index of another source or another model, or one that no build made."""
        name, now = self._folder.name, str(source.path.resolve())
        if "source" not in self._built:
            raise InputError(
                "embed",
                f"{name} exists, and does not say what it was built from: a program made or changed it, or an earlier "
                "weft",
                advice=ADVICE,
            )
        if self._built["source"] != now:
            raise InputError(
                "embed", f"{name} was built from {self._built['source']}, and this build reads {now}", advice=ADVICE
            )
        if self._about.get("fingerprint") != about.fingerprint:
            raise InputError("embed", f"{name} {self._other_model(about, model, model_before)}", advice=ADVICE)

    def _other_model(self, about: About, model: str | None, before: str | None) -> str:
        """How the models differ: by name, by dimension, or by their files or settings."""
        if None not in (before, model) and before != model:
            return f"was built with the model {before}, and this build uses {model}"
        size = self._about.get("dimension")
        if size != about.dimension:
            return f"has vectors of {size} numbers, and this build makes vectors of {about.dimension}"
        return f"was built with other files or settings of the model {model or 'of this build'}"

    def known(self, about: About, how: Mapping[str, Any]) -> Known | None:
        """The vectors that are those of the same texts in a new build; None if all must be made anew."""
        import numpy as np

        from weft.embed.index import Index

        same = (self._about.get("fingerprint"), self._about.get("storage")) == (about.fingerprint, about.output_dtype)
        if not same or any(self._built.get(name, ...) != how[name] for name in HOW):
            return None
        try:
            opened = Index.open(self._folder, mapped=True, verify=True)
        except FormatError:
            return None  # damaged: everything is embedded again
        self._opened = opened
        texts = (opened._records[row].text or "" for row in range(len(opened)))
        digests = np.frombuffer(b"".join(map(text_digest, texts)), np.uint8)
        return Known(digests.reshape(-1, DIGEST_BYTES), self._read)

    def _read(self, rows: np.ndarray) -> np.ndarray:
        import numpy as np

        assert self._opened is not None
        vectors = self._opened._rows.vectors[rows]
        records = np.empty(len(rows), [("vector", vectors.dtype, vectors.shape[1:])])
        records["vector"] = vectors
        return records

    def gone(self, index: Index) -> int:
        """How many of its rows `index`, the new one, does not have."""
        if self._opened is None:
            return 0
        return sum(id not in index for id in self._opened.ids)

    def equals(self, index: Index) -> bool:
        """Whether its rows are those of `index`: ids, vectors, metadata and texts, in the same order."""
        import numpy as np

        old = self._opened
        if old is None or len(old) != len(index) or old.metric != index.metric:
            return False
        same = np.array_equal(old._rows.vectors, index._rows.vectors)
        return same and all(old._records[row] == index._records[row] for row in range(len(old)))
