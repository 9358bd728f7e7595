"""Vectors of texts and pictures in one request, by a model with both towers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from weft.errors import WeftError
from weft.serve.http.faults import invalid
from weft.serve.pictures.reading import Sent, check_source, read_picture, unreadable
from weft.serve.work.embedding import (
    Asked,
    Vectors,
    check_count,
    check_tokens,
    cut_to,
    embed_inputs,
    shortened,
    text_ids,
    timed,
)
from weft.serve.work.generating import lease_embedder

if TYPE_CHECKING:
    import numpy as np

    from weft.pictures import Patches
    from weft.serve.http.routes import Context
    from weft.serve.models.embedder import EmbedRunner

GROUP_TOKENS = 1024  # of pictures that are read before they are computed


async def embed_items(context: Context, model: str, items: Sequence[str | Sent], asked: Asked) -> Vectors:
    """Vectors of texts and pictures, in the order given. Prompts and truncation are for the texts."""
    seen = [i for i, item in enumerate(items) if isinstance(item, Sent)]
    read = [i for i, item in enumerate(items) if isinstance(item, str)]
    if not seen:
        return await embed_inputs(context, model, cast("list[str]", list(items)), asked)
    check_count(context, len(items), asked.param)
    pictures = [cast("Sent", items[i]) for i in seen]
    for one in pictures:
        check_source(context, one)
    runner, adapter = await lease_embedder(context, model)
    if not runner.embedder.sees:
        what = f"is a picture; the model {model!r:.80} embeds texts only"
        raise invalid(what, pictures[0].where, code="no_images")
    if asked.adapter is not None or adapter is not None:
        what = "names an adapter, which is for texts; pictures are embedded without one"
        raise invalid(what, "adapter" if asked.adapter is not None else "model")
    cut = cut_to(runner, asked.dimensions)
    found = await text_ids(context, runner, model, [cast("str", items[i]) for i in read], asked) if read else None
    ids, most = [] if found is None else found.ids, runner.embedder.sight.most_tokens
    check_tokens(context, sum(map(len, ids)) + most * len(pictures), asked.param)

    async def compute() -> tuple[np.ndarray, float, int]:
        import numpy as np

        texts, waited = await runner.vectors(ids)
        parts, more, tokens = await _vectors(context, runner, pictures, max(1, GROUP_TOKENS // most))
        vectors = np.empty((len(items), texts.shape[1]), np.float32)
        vectors[read], vectors[seen] = texts, np.concatenate(parts)
        return vectors, waited + more, tokens + sum(map(len, ids))

    vectors, tokens = await timed(context, model, compute)
    dropped = [0] * len(items)
    for i, count in zip(read, [] if found is None else found.dropped):
        dropped[i] = count
    return Vectors(shortened(vectors, cut), tokens, dropped, runner, context.call, cut.fingerprint).with_header()


async def _vectors(
    context: Context, runner: EmbedRunner, pictures: Sequence[Sent], size: int
) -> tuple[list[np.ndarray], float, int]:
    """The vectors of pictures in groups, the seconds that they waited, and their tokens. While a group is computed the
    next one is read."""
    groups = [pictures[at : at + size] for at in range(0, len(pictures), size)]
    parts: list[np.ndarray] = []
    waited, tokens = 0.0, 0
    reading = asyncio.ensure_future(_read(context, runner, groups[0]))
    try:
        for following in [*groups[1:], None]:
            patches = await reading
            if following is not None:
                reading = asyncio.ensure_future(_read(context, runner, following))
            part, seconds = await runner.picture_vectors(patches)
            parts.append(part)
            waited, tokens = waited + seconds, tokens + sum(map(runner.embedder.sight.tower.tokens, patches))
    finally:
        reading.cancel()
    return parts, waited, tokens


async def _read(context: Context, runner: EmbedRunner, pictures: Sequence[Sent]) -> list[Patches]:
    limits, made = context.serving.settings.limits.of_pictures, []
    for one in pictures:
        file = await read_picture(context, one)
        try:
            made.append(await runner.patches(file, limits))
        except WeftError as error:
            raise (unreadable(error, one.where) if error.field == "picture" else error) from None
    return made
