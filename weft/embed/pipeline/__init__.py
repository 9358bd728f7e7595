"""Files of texts to files of vectors, in bounded memory, going on where a run was stopped."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.embed.pipeline.folder import Chunking as Chunking
    from weft.embed.pipeline.run import Report as Report
    from weft.embed.pipeline.run import embed_file as embed_file
    from weft.embed.pipeline.sources import open_source as open_source

_HOMES = {"Chunking": "folder", "Report": "run", "embed_file": "run", "open_source": "sources"}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
