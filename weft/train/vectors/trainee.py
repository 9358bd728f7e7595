"""A model whose result is one row per text or pair: what it makes of texts, and how it is written to disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.runtime import Encoder, open_checkpoint
from weft.runtime.checkpoint import Checkpoint
from weft.weights.sources import locate

if TYPE_CHECKING:
    from weft.embed.recipe import Recipe
    from weft.train.vectors.examples import Examples
    from weft.train.vectors.head import NewHead

Sequences = list[tuple[Any, ...]]  # of each example: ids or Tokens, one sequence for each of its vectors


@frozen(eq=False)
class Trainee:
    """A model to train: `sequences` turns examples into tokens, and counts texts that were cut."""

    name: str
    checkpoint: Checkpoint
    encoder: Encoder
    limit: int  # tokens of a sequence
    sequences: Callable[[Examples], tuple[Sequences, int]]
    recipe: Recipe | None = None  # of an embedder
    head: NewHead | None = None  # of a reranker whose base has no classifier

    def adaptable(self, weights: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Those that an adapter may change: not the dense layers after the pooling, which PEFT does not see."""
        dense = tuple(f"{layer.folder.name}." for layer in self.recipe.dense) if self.recipe else ()
        return {name: shape for name, shape in weights.items() if not (dense and name.startswith(dense))}


def open_embedder(model: str | os.PathLike[str], max_length: int, prompts: bool, **machine: Any) -> Trainee:
    """An embedder, with the pooling, the dense layers and the prompts of its files."""
    from weft.embed.cutting import Cutter
    from weft.embed.recipe import entry_of, read_recipe
    from weft.embed.seeing import sees

    located = locate(os.fspath(model))
    checkpoint = open_checkpoint(located.path)
    if sees(checkpoint):
        what = f"models of texts and pictures ({checkpoint.model_type}) cannot be trained"
        raise UnsupportedError("train", what, advice="train an embedder of texts, or a classifier on these vectors")
    recipe = read_recipe(checkpoint, entry_of(located))
    checkpoint = recipe.with_dense(checkpoint)
    encoder = Encoder(checkpoint, recipe.head(recipe.normalise), **machine)
    limit = _limit(max_length, min(recipe.max_tokens, encoder.max_tokens))
    cutter = Cutter(lambda: encoder.tokenizer, limit, prompt_pooled=recipe.include_prompt, lower=recipe.lower)

    def sequences(examples: Examples) -> tuple[Sequences, int]:
        """The first text of a query and its documents has the query's prompt; others have what texts alone have."""
        roles = ["query", *["document"] * (examples.width - 1)] if examples.asked else [None] * examples.width
        columns, cut = [], 0
        for at, role in enumerate(roles):
            before = recipe.prompt(role) or recipe.prompt(None) if prompts else ""
            found, dropped = _encoded(cutter, [texts[at] for texts in examples.texts], before, recipe.keeps)
            columns.append(found)
            cut += dropped
        return list(zip(*columns)), cut

    return Trainee(os.fspath(model), checkpoint, encoder, limit, sequences, recipe)


def _encoded(cutter: Any, texts: Sequence[str], before: str, keeps: str) -> tuple[list[Any], int]:
    """The ids of each text, the same object for the same text, and how many were cut."""
    different = list(dict.fromkeys(texts))
    found = cutter.token_ids(different, before, keeps)
    known = dict(zip(different, zip(found.ids, found.dropped)))
    return [known[text][0] for text in texts], sum(known[text][1] > 0 for text in texts)


def open_reranker(model: str | os.PathLike[str], max_length: int, seed: int, **machine: Any) -> Trainee:
    """A cross-encoder with one label; an encoder without a classifier gets one drawn from `seed`."""
    from weft.rerank.classifier import Labels, is_classifier
    from weft.train.vectors.head import with_new_head

    located = locate(os.fspath(model))
    checkpoint, head = open_checkpoint(located.path), None
    if not is_classifier(checkpoint):
        checkpoint, head = with_new_head(checkpoint, seed)
    labels = Labels(checkpoint, **machine)
    if labels.count != 1:
        what = f"has {labels.count} labels, and a reranker that learns has one"
        raise InputError("train", what, field="model", given=os.fspath(model), advice="choose a cross-encoder of one")
    labels.max_tokens = limit = _limit(max_length, labels.max_tokens)

    def sequences(examples: Examples) -> tuple[Sequences, int]:
        found = [labels.tokens((texts[0], texts[1]), "head") for texts in examples.texts]
        return [(tokens,) for tokens, _ in found], sum(dropped > 0 for _, dropped in found)

    return Trainee(os.fspath(model), checkpoint, labels.encoder, limit, sequences, head=head)


def _limit(asked: int, most: int) -> int:
    if asked > most:
        raise InputError("train", f"must be at most {most}, what the model takes", field="max_length", given=asked)
    return asked or most
