"""From a checkpoint to something that runs: load, executables, pages, threads and memory."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.runtime.adapters import Adapter as Adapter
    from weft.runtime.adapters import Adapters as Adapters
    from weft.runtime.checkpoint import Checkpoint as Checkpoint
    from weft.runtime.checkpoint import member as member
    from weft.runtime.checkpoint import open_checkpoint as open_checkpoint
    from weft.runtime.checkpoint import read_object as read_object
    from weft.runtime.decoder import Decoder as Decoder
    from weft.runtime.encoder import DenseLayer as DenseLayer
    from weft.runtime.encoder import Encoder as Encoder
    from weft.runtime.encoder import Head as Head
    from weft.runtime.encoder import Tokens as Tokens
    from weft.runtime.encoder import token_ranges as token_ranges
    from weft.runtime.paged.pages import PAGE_TOKENS as PAGE_TOKENS
    from weft.runtime.paged.pages import PagePool as PagePool
    from weft.runtime.paged.pages import pages_for as pages_for
    from weft.runtime.steps import Step as Step
    from weft.runtime.threads import ThreadPlan as ThreadPlan
    from weft.runtime.threads import plan_threads as plan_threads
    from weft.runtime.tower import Tower as Tower
    from weft.runtime.tower import open_tower as open_tower

_HOMES = {
    "PAGE_TOKENS": "paged.pages",
    "Adapter": "adapters",
    "Adapters": "adapters",
    "Checkpoint": "checkpoint",
    "Decoder": "decoder",
    "DenseLayer": "encoder",
    "Encoder": "encoder",
    "Head": "encoder",
    "PagePool": "paged.pages",
    "Step": "steps",
    "ThreadPlan": "threads",
    "Tokens": "encoder",
    "Tower": "tower",
    "member": "checkpoint",
    "open_checkpoint": "checkpoint",
    "open_tower": "tower",
    "pages_for": "paged.pages",
    "plan_threads": "threads",
    "read_object": "checkpoint",
    "token_ranges": "encoder",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
