"""The step of the work that `schedule` has planned."""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from weft.generate.schedule import Work
from weft.generate.sequence import Sequence
from weft.generate.sight.prompt import step_vectors
from weft.nn.step import Step
from weft.runtime.paged.holding import slots_of
from weft.runtime.steps import build_step


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


def decided_by(sequences: ListOf[Sequence], most: int) -> int:
    """How many of the largest logits decide the next tokens of these, at most `most`; 0 where one needs all of them."""
    counts = [sequence.sampler.decided_by if _unbound(sequence) else 0 for sequence in sequences]
    return max(counts) if counts and all(0 < count <= most for count in counts) else 0


def _unbound(sequence: Sequence) -> bool:
    """Whether all tokens are allowed, and no log probability is asked for."""
    asked = sequence.request
    scored = asked.logprobs is not None or asked.prompt_logprobs is not None
    return not scored and sequence.matcher is None and sequence.generated >= asked.min_tokens
