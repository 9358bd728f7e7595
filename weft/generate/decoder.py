"""What the engine asks of its neighbours: a model that runs steps, a tokenizer that turns ids into text."""

from typing import Any, Protocol

import numpy as np

from weft.nn.step import Step
from weft.runtime.paged.pages import PagePool
from weft.runtime.paged.slots import SlotPool


class Decoder(Protocol):
    """A causal model over paged state; the runtime makes these.

    Running the same tokens at the same positions again is allowed and leaves the same state: a step that was
    interrupted, and a request that was preempted, are simply run once more. Recurrent state is read from one slot and
    written to another (Step.slots), so this holds for it too.
    """

    vocab_size: int
    max_context: int  # positions that the model knows
    max_pages: int  # width of the page table
    eos_ids: frozenset[int]
    adapters: Any  # weft.runtime.Adapters, or None for a decoder without

    @property
    def pages(self) -> PagePool:
        """Which pages of the state are whose."""

    @property
    def slots(self) -> SlotPool | None:
        """Which slots of the recurrent state are whose; None for models without."""

    def run(self, step: Step) -> np.ndarray:
        """Logits [L, vocab_size] (float32) of `step.rows`; L may be 0. The arrays of the step are int32."""

    @property
    def page_bytes(self) -> int:
        """The size of a page, all layers together."""

    @property
    def state_fingerprint(self) -> str:
        """Everything but the tokens that decides the bits of a page."""

    def read_page(self, page: int) -> bytes: ...

    def write_page(self, page: int, data: bytes) -> None: ...


class TextStream(Protocol):
    """Turns the ids of one sequence into text as they come; bytes of an unfinished character wait inside."""

    def add(self, token: int) -> str:
        """The text that became certain with `token`, perhaps none."""

    def finish(self) -> str:
        """What is left when no more tokens come."""


class Detokenizer(Protocol):
    """The part of a tokenizer that the engine uses."""

    @property
    def vocab_size(self) -> int:
        """Ids from here on have no text: many models pad their vocabulary to a round number."""

    def stream(self, *, skip_special: bool) -> TextStream:
        """A new stream, for one sequence."""

    def id(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it."""
