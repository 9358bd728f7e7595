"""A model opened for inspection: config, recipe and program, without reading weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.frozen import frozen

if TYPE_CHECKING:
    from weft.embed.recipe import Recipe
    from weft.graph import Program
    from weft.runtime import Checkpoint
    from weft.weights.sources import Located


@frozen
class Outline:
    """`memory` is in bytes by purpose; `recipe` is set for embedders, `method` for rerankers."""

    located: Located
    checkpoint: Checkpoint
    kind: str  # "encoder" or "decoder"
    config: Any
    info: dict[str, Any]
    program: Program
    memory: dict[str, int]
    recipe: Recipe | None = None
    method: str | None = None

    @property
    def sees(self) -> bool:
        """Whether it reads pictures beside texts."""
        from weft.embed.seeing import sees
        from weft.runtime.projector import reads_pictures

        return sees(self.checkpoint) if self.recipe else reads_pictures(self.checkpoint)

    @property
    def chat_template(self) -> str | None:
        """The chat template for a conversation without tools."""
        from weft.text import choose_template

        entry = self.located.entry
        template = self.checkpoint.chat_template or (entry.chat_template if entry else None)
        return choose_template(template) if template else None


def open_outline(model: str, *, context: int | None = None, pooling: str | None = None) -> Outline:
    """The outline of a model, which is downloaded if it is not on this machine."""
    from weft.embed.recipe import embeds
    from weft.embed.seeing import model_folder, recipe_of, sees
    from weft.embed.service import BATCH_TOKENS
    from weft.pictures import PictureLimits
    from weft.rerank.reranker import scorer_of, stated_method
    from weft.runtime import open_checkpoint
    from weft.runtime.programs import model_module
    from weft.runtime.projector import reads_pictures, with_projector
    from weft.weights.sources import locate

    located = locate(model)
    checkpoint = with_projector(open_checkpoint(model_folder(located.path)), None)
    kind: str = model_module(checkpoint.model_type).KIND
    method = stated_method(checkpoint, located) if pooling is None else None
    if method is not None:
        scorer: Any = scorer_of(checkpoint, method)
        made = scorer.encoder
        memory = made.memory_plan(BATCH_TOKENS)
        return Outline(located, checkpoint, kind, made.config, scorer.info, made.program(), memory, method=method)
    if not sees(checkpoint) and not embeds(checkpoint, located.entry) and pooling is None:
        from weft.runtime import Decoder

        decoder = Decoder(checkpoint, context=context, bind=False)
        memory = decoder.memory_plan()
        memory["work"] += PictureLimits().work_bytes if reads_pictures(checkpoint) else 0
        return Outline(located, checkpoint, kind, decoder.config, decoder.info, decoder.program, memory)
    from weft.runtime import Encoder

    recipe = recipe_of(checkpoint, located.entry, pooling, located.path)
    encoder = Encoder(recipe.with_dense(checkpoint), recipe.head(recipe.normalise))
    memory = encoder.memory_plan(BATCH_TOKENS)
    memory["work"] += PictureLimits().work_bytes if sees(checkpoint) else 0
    return Outline(located, checkpoint, kind, encoder.config, encoder.info, encoder.program(), memory, recipe)
