"""The step of the work that `schedule` has planned."""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from typing import NamedTuple

import numpy as np

from weft.generate.choice.ahead import Mask
from weft.generate.schedule import Work
from weft.generate.sequence import Sequence
from weft.generate.sight.prompt import step_vectors
from weft.nn.step import Step
from weft.runtime.paged.holding import slots_of
from weft.runtime.steps import build_step

MOST_ASIDE = 4096  # ids: of more, whole rows are read


def step_of(work: ListOf[Work], sequences: ListOf[Sequence]) -> tuple[Step, list[int]]:
    """The step that computes `work`, and the number of rows of logits for each item."""
    ids: list[list[int]] = []
    asked: list[int] = []
    for item, sequence in zip(work, sequences):
        known, prompt_too = len(sequence.tokens), sequence.request.prompt_logprobs is not None
        tokens = sequence.tokens[item.start : item.stop]
        ids.append(tokens + sequence.drafts[: item.stop - known] if item.stop > known else tokens)
        first = max(item.start, min(sequence.request.prompt_logprobs_from, known) - 1 if prompt_too else known - 1)
        asked.append(max(0, item.stop - first))
    holdings = [sequence.holding for sequence in sequences]
    adapted = any(sequence.adapter is not None for sequence in sequences)
    step = build_step(
        ids,
        starts=[item.start for item in work],
        asked=asked,
        pages=[holding.row for holding in holdings],
        slots=slots_of(holdings),
        adapters=[0 if s.adapter is None else s.adapter.index for s in sequences] if adapted else None,
        **step_vectors([(item.start, item.stop, s.request.pictures) for item, s in zip(work, sequences)]),
    )
    return step, asked


class Deciding(NamedTuple):
    """The logits that decide the next tokens: so many of the `largest` of each row that its mask allows, and those of
    the ids `aside`, which penalties and biases change. With `temperatures` they and the masses of all logits nearly
    always decide."""

    largest: int
    masks: list[Mask | None] | None
    aside: list[np.ndarray] | None
    temperatures: list[float] | None


def decided_by(sequences: ListOf[Sequence], rows: ListOf[int], most: int) -> Deciding | None:
    """What decides the next tokens in each of the `rows` of these, with at most `most` of the largest; None where one
    needs all logits."""
    asking = [(sequence, count) for sequence, count in zip(sequences, rows) if count]
    counts = [_decided_by(sequence, most) if _unscored(sequence) else 0 for sequence, _ in asking]
    masks = [_masks(sequence, count) for sequence, count in asking]
    if not counts or not all(0 < count <= most for count in counts) or any(len(found) == 0 for found in masks):
        return None
    flat = [mask for found in masks for mask in found]
    aside = None
    if any(sequence.sampler.changes for sequence, _ in asking):
        aside = [_aside(sequence, count) for sequence, count in asking for _ in range(count)]
        if max(map(len, aside)) > MOST_ASIDE:
            return None
    temperatures = None
    if any(sequence.sampler.masses for sequence, _ in asking):
        temperatures = [_temperature(sequence) for sequence, count in asking for _ in range(count)]
    return Deciding(max(counts), None if all(mask is None for mask in flat) else flat, aside, temperatures)


def _decided_by(sequence: Sequence, most: int) -> int:
    """As the sampler says. Where masses decide, a whole row may be read before the next step, in which a text with a
    grammar may not have been chosen from yet."""
    sampler = sequence.sampler
    return most if sampler.masses and sequence.matcher is None else sampler.decided_by


def _temperature(sequence: Sequence) -> float:
    return sequence.sampler.rules.temperature if sequence.sampler.masses else 1.0


def _aside(sequence: Sequence, rows: int) -> np.ndarray:
    """The ids whose logits penalties and biases may change, in the order in which the sampler has them, or will have
    them in rows after drafts, which are seen by then."""
    changed = sequence.sampler.changed
    drafts = sequence.drafts[: rows - 1] if sequence.sampler.changes else []
    known = set(changed.tolist()) if drafts else ()
    more = [id for id in dict.fromkeys(drafts) if id not in known]
    return np.concatenate([changed, np.array(more, np.int64)]) if more else changed


def _unscored(sequence: Sequence) -> bool:
    """Whether no log probability is asked for, and the text may end."""
    asked = sequence.request
    return asked.logprobs is None and asked.prompt_logprobs is None and sequence.generated >= asked.min_tokens


def _masks(sequence: Sequence, rows: int) -> ListOf[Mask | None]:
    """The tokens that a sequence's grammar allows after each token of its step; empty where that is not known yet."""
    if sequence.matcher is None:
        return [None] * rows
    ahead = sequence.ahead
    known = ahead is not None and ahead.fits(len(sequence.tokens), sequence.drafts[: rows - 1])
    return ahead.masks[:rows] if ahead is not None and known else []
