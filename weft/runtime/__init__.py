"""From a checkpoint to something that runs: load, executables, pages, threads and memory."""

from weft.nn import DenseLayer, Head, Step
from weft.runtime.checkpoint import Checkpoint, member, open_checkpoint, read_object
from weft.runtime.decoder import Decoder
from weft.runtime.encoder import Encoder
from weft.runtime.pages import PAGE_TOKENS, PagePool, pages_for
from weft.runtime.threads import ThreadPlan, plan_threads

__all__ = [
    "PAGE_TOKENS",
    "Checkpoint",
    "Decoder",
    "DenseLayer",
    "Encoder",
    "Head",
    "PagePool",
    "Step",
    "ThreadPlan",
    "member",
    "open_checkpoint",
    "pages_for",
    "plan_threads",
    "read_object",
]
