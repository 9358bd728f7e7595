"""An index of the pictures of a folder, which texts and pictures are searched in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.index.files import check_is_free
from weft.embed.index.index import Index
from weft.embed.pipeline.indexing import remember
from weft.errors import InputError, UnsupportedError, WeftError
from weft.frozen import frozen
from weft.pictures import picture_bytes
from weft.pictures.decoding import ENDINGS
from weft.progress import shown

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.service import Embedder

TOGETHER = 16  # pictures whose files are in memory at once


@frozen
class PicturesIndexed:
    """How many pictures the index has, how many of them an earlier one had, and which files could not be read."""

    pictures: int
    kept: int
    unreadable: tuple[str, ...]


def pictures_in(folder: Path) -> Iterator[Path]:
    """The pictures of a folder and those below it, in the order of their names; hidden ones are left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and name.lower().endswith(ENDINGS):
                yield Path(place, name)


def index_pictures(
    folder: Path, output: Path, embedder: Embedder, *, half: bool = False, progress: bool | None = None
) -> PicturesIndexed:
    """Make or update an index of the pictures of a folder; rows have the paths of files, relative to it.

    Pictures that an index at `output` has already, by their content and of the same model, are not embedded again.
    Files that cannot be read as pictures are left out.
    """
    if not getattr(embedder, "sees", False):
        raise UnsupportedError("index", "this model embeds texts only", advice="give a CLIP, SigLIP or SigLIP 2 model")
    check_is_free(output)
    files = list(pictures_in(folder))
    if not files:
        what = f"no picture was found in {folder}"
        raise InputError("index", what, advice=f"pictures end in {', '.join(ENDINGS)}")
    index = Index.from_embedder(embedder, storage="f16" if half else "f32")
    before, kept, unreadable = _known(output, embedder), 0, []
    ranges = [(first, min(first + TOGETHER, len(files))) for first in range(0, len(files), TOGETHER)]
    for first, end in shown(ranges, len(files), progress, "pictures"):
        found, missing = _vectors(files[first:end], embedder, before)
        unreadable += [str(path.relative_to(folder)) for path in missing]
        for path, (digest, vector, is_new) in found.items():
            name = path.relative_to(folder).as_posix()
            about: dict[str, Any] = {"path": name, "picture": True, "digest": digest}
            index.add([name], vector[None], metadata=[about], fingerprint=str(embedder.fingerprint))
            kept += not is_new
    index.save(output)
    remember(output, embedder)
    return PicturesIndexed(len(index), kept, tuple(unreadable))


def _known(output: Path, embedder: Embedder) -> dict[str, np.ndarray]:
    """The vectors of an index that is there, by the digests of their pictures; none of another model's."""
    if not output.exists():
        return {}
    index = Index.open(output, mapped=True)
    if index.fingerprint != str(embedder.fingerprint):
        return {}
    digests = ((id, index.get(id).metadata.get("digest")) for id in index.ids)
    return {digest: index.vector(id) for id, digest in digests if isinstance(digest, str)}


def _vectors(
    files: list[Path], embedder: Embedder, before: dict[str, np.ndarray]
) -> tuple[dict[Path, tuple[str, np.ndarray, bool]], list[Path]]:
    """Digest, vector and whether it is new, of each file; and those that cannot be read."""
    found: dict[Path, tuple[str, np.ndarray, bool]] = {}
    unreadable, new = [], {}
    for path in files:
        try:
            data = picture_bytes(path)
        except WeftError:
            unreadable.append(path)
            continue
        digest = blake2b(data, digest_size=16).hexdigest()
        if digest in before:
            found[path] = digest, before[digest], False
        else:
            new[path] = digest, data
    while new:
        try:
            vectors = embedder.embed([data for _, data in new.values()], progress=False).vectors
        except WeftError as error:  # one of them: try the others again
            if error.field != "picture" or error.index is None:
                raise
            bad = list(new)[error.index]
            unreadable.append(bad)
            del new[bad]
            continue
        found |= {path: (digest, vector, True) for (path, (digest, _)), vector in zip(new.items(), vectors)}
        break
    return {path: found[path] for path in files if path in found}, unreadable
