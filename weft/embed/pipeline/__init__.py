"""Files of texts to files of vectors, in bounded memory; a stopped run can be resumed."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.embed.pipeline.folder import Chunking as Chunking
    from weft.embed.pipeline.formats import open_source as open_source
    from weft.embed.pipeline.run import Report as Report
    from weft.embed.pipeline.run import embed_file as embed_file
    from weft.embed.pipeline.walking import Selection as Selection

_HOMES = {
    "Chunking": "folder",
    "Report": "run",
    "Selection": "walking",
    "embed_file": "run",
    "open_source": "formats",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
