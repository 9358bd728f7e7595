"""Who drafts for requests that decode, and how many tokens: as many as pay, by measured costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from weft.errors import InputError, UnsupportedError
from weft.generate.choice.costs import StepCosts
from weft.generate.choice.draft_head import DraftHead, WithHead
from weft.generate.choice.draft_model import TRY, Drafter, DraftModel
from weft.generate.choice.drafts import MAX_DRAFT, AcceptanceByDepth, draft_length, recurrent_draft_length
from weft.generate.decoder import Decoder
from weft.generate.sequence import Sequence


class Drafting:
    """The drafts of one engine, whose lock the caller holds. `given` is the engine's option `draft`."""

    def __init__(self, given: Decoder | str | None, decoder: Decoder, costs: StepCosts, *, speculate: bool) -> None:
        self._costs = costs
        self._speculate = speculate
        self._recurrent = decoder.slots is not None
        self._length = recurrent_draft_length if self._recurrent else draft_length
        self._drafter = _drafter(given, decoder)
        self.head = self._drafter if isinstance(self._drafter, DraftHead) and speculate else None

    def enter(self, sequence: Sequence) -> None:
        """A new request: its drafts are expected to be as good as those of others."""
        if self._drafter is not None:
            sequence.model_acceptance = AcceptanceByDepth(self._drafter.acceptance)

    def by_head(self, sequence: Sequence) -> bool:
        """Whether the model's own head drafts for it: not where pictures change what its tokens are rotated by."""
        pictures = sequence.request.pictures
        return sequence.request.speculate is not False and all(one.grid is None for one in pictures)

    def preempted(self, sequence: Sequence) -> None:
        if self._drafter is not None:
            self._drafter.preempted(sequence.key)

    def ended(self, sequence: Sequence) -> None:
        if self._drafter is not None:
            self._drafter.forget(sequence.key)

    def draft(self, sequences: Mapping[int, Sequence]) -> list[tuple[Sequence, Exception]]:
        """Draft tokens for the requests that decode, as many as pay; returns the errors of their grammars."""
        free = [s for s in sequences.values() if s.choosing is None]
        decoding = [s for s in free if s.decodes and s.request.speculate is not False]
        if not self._speculate:  # drafts that a grammar forces cost nothing to make
            decoding = [s for s in decoding if s.matcher is not None]
        share = self._costs.marginal_share(len(decoding)) if self._speculate else 1.0
        failed: list[tuple[Sequence, Exception]] = []
        for sequence in decoding:
            try:
                sequence.propose(self._length([sequence.acceptance.rate] * MAX_DRAFT, share, MAX_DRAFT))
            except Exception as error:  # from its grammar
                failed.append((sequence, error))
        if self._drafter is not None and self._speculate:
            wrong = {sequence.key for sequence, _ in failed}
            others = [s for s in decoding if not s.drafts and s.key not in wrong]
            self._by_drafter(self._drafter, [s for s in others if self.by_head(s)] if self.head else others)
        return failed

    def _by_drafter(self, drafter: Drafter, sequences: list[Sequence]) -> None:
        share = self._costs.marginal_share(max(1, len(sequences)), drafter.seconds)
        most = MAX_DRAFT if drafter.seconds else TRY
        lengths = {s.key: self._length(s.model_acceptance.rates, share, most) for s in sequences}
        if not any(lengths.values()):  # it did not pay: try again from time to time
            checking_s = TRY * self._costs.cost.row * (2 if self._recurrent else 1)
            again = [
                s.key for s in sequences if drafter.may_try(s.key, s.tokens, s.model_acceptance.rates[0], checking_s)
            ]
            lengths.update(dict.fromkeys(again[:1], TRY))
        drafts = drafter.draft({s.key: s.wanted(lengths[s.key]) for s in sequences})
        for sequence in sequences:
            if sequence.key in drafts:
                sequence.take_drafts(drafts[sequence.key])


def _drafter(given: Decoder | str | None, decoder: Decoder) -> Drafter | None:
    if isinstance(given, str) and given not in ("mtp", "none"):
        advice = "load the draft model with weft.load and give that"
        raise InputError("engine", 'must be a model, "mtp" or "none"', field="draft", given=given, advice=advice)
    if given is None or isinstance(given, str):
        has_head = getattr(decoder, "has_draft_head", False)
        if given == "mtp" and not has_head:
            what = "the model has no head for multi-token prediction, or was loaded without it"
            raise UnsupportedError("engine", what, field="draft")
        return DraftHead(cast(WithHead, decoder)) if has_head and given != "none" else None
    return DraftModel(given, decoder.vocab_size)
