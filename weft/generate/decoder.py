"""The interfaces that the engine needs: a model that runs steps, a tokenizer that turns ids into text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from weft.nn.step import Step
from weft.runtime.paged.pages import PagePool
from weft.runtime.paged.slots import SlotPool

if TYPE_CHECKING:
    from weft.runtime.decoder import TopRows


class Decoder(Protocol):
    """A causal model over a paged KV cache; `runtime` implements it.

    Running the same tokens at the same positions again must leave the same state: a step that was interrupted and a
    request that was preempted are run once more. Recurrent state is read from one slot and written to another
    (Step.slots), so this holds for it too.
    """

    vocab_size: int
    max_pages: int  # width of the page table
    eos_ids: frozenset[int]
    adapters: Any  # weft.runtime.Adapters, or None for a decoder without

    @property
    def max_context(self) -> int:
        """The most positions of a sequence."""

    @property
    def pages(self) -> PagePool:
        """The allocator of KV cache pages."""

    @property
    def slots(self) -> SlotPool | None:
        """The allocator of recurrent state slots; None for models without recurrent state."""

    def run(self, step: Step) -> np.ndarray:
        """Logits [L, vocab_size] (float32) of `step.rows`; L may be 0. The arrays of the step are int32."""

    @property
    def top(self) -> int:
        """How many of the largest logits `run_top` finds at most; 0 where it cannot be used."""

    def run_top(
        self,
        step: Step,
        count: int,
        masks: Sequence[np.ndarray | None] | None = None,
        aside: Sequence[np.ndarray] | None = None,
        temperatures: Sequence[float] | None = None,
        /,
    ) -> TopRows:
        """Of each row of `run` the largest logits, `count` or more, larger first, lower ids first among equals. `masks`
        has for each row the tokens that may be chosen, a bit each, uint32 [ceil(vocab / 32)], or None for all.
        `aside` has for each row ids whose logits come back, too, and are not among the largest.
        With `temperatures`, one for each row, the rows have masses and can be read whole until the next step."""

    @property
    def page_bytes(self) -> int:
        """The size of a page over all layers."""

    @property
    def state_fingerprint(self) -> str:
        """A digest of everything except the tokens that decides the bits of a page."""

    @property
    def slot_bytes(self) -> int:
        """The size of a slot of recurrent state over all layers; 0 without one."""

    @property
    def expert_counts(self) -> Mapping[str, int]:
        """Where not all experts of a mixture stay in memory: "hits", "misses" and "bytes" of their matrices."""

    def read_page(self, page: int) -> bytes: ...

    def write_page(self, page: int, data: bytes) -> None: ...

    def read_slot(self, slot: int) -> bytes: ...

    def write_slot(self, slot: int, data: bytes) -> None: ...


class TextStream(Protocol):
    """Turns the ids of one sequence into text as they come; holds back the bytes of an unfinished character."""

    def add(self, token: int) -> str:
        """Append `token`; returns the text that is now complete, possibly empty."""

    def finish(self) -> str:
        """The text still held back, once no more tokens come."""


class Detokenizer(Protocol):
    """The part of a tokenizer that the engine uses."""

    @property
    def vocab_size(self) -> int:
        """Ids at or above this have no text: many models pad their vocabulary to a round number."""

    def stream(self, *, skip_special: bool) -> TextStream:
        """A new stream, for one sequence."""

    def id(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it."""
