"""Long documents in chunks: each is stored, embedded and found on its own, with its place in the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from weft.embed.stores.values import Chunk, Content
from weft.errors import InputError

if TYPE_CHECKING:
    from weft.embed.pipeline.folder import Chunking
    from weft.text import Tokenizer


def in_chunks(contents: Mapping[str, Content], embedder: Any, chunking: Chunking) -> dict[str, Content]:
    """The documents, those of more than `chunking.tokens` tokens in chunks: `id#0`, `id#1` and so on.

    Chunks are cut between words by the embedder's tokenizer, and together they hold the whole text.
    """
    tokenizer = getattr(embedder, "tokenizer", None)
    if tokenizer is None:
        raise InputError(
            "corpus",
            "documents are cut into chunks of tokens, and this embedder has no tokenizer",
            advice="use a model on this machine, or cut the documents yourself",
        )
    fitting = chunking.fitting(getattr(embedder, "max_tokens", 1 << 30))
    made: dict[str, Content] = {}
    for name, content in contents.items():
        places = [] if content.chunk is not None else list(_places(content.text, tokenizer, fitting))
        if len(places) < 2:
            made[name] = content
            continue
        for number, (start, end) in enumerate(places):
            part = f"{name}#{number}"
            if part in contents:
                what = f"is also the id of a chunk of the document {name[:80]!r}"
                raise InputError("corpus", what, field="id", given=part, advice="give the document another id")
            made[part] = Content(content.text[start:end], content.fields, Chunk(name, start, end))
    return made


def _places(text: str, tokenizer: Tokenizer, chunking: Chunking) -> Iterator[tuple[int, int]]:
    """Start and end of each chunk; white space between two chunks belongs to the second."""
    from weft.embed.pipeline.folder import spans

    found = list(spans(text, tokenizer, chunking))
    covered = 0
    for number, (start, end) in enumerate(found):
        last = len(text) if number == len(found) - 1 else end
        yield min(start, covered), last
        covered = last
