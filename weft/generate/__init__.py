"""Text generation: the engine and what goes into and out of it."""

from weft.generate.call import generate, make_request, stream
from weft.generate.decoder import Decoder, Detokenizer, TextStream
from weft.generate.engine import Engine, Handle
from weft.generate.request import Request
from weft.generate.result import FinishReason, Generation, Piece, Timings, Usage
from weft.generate.sampling import Sampling

__all__ = [
    "Decoder",
    "Detokenizer",
    "Engine",
    "FinishReason",
    "Generation",
    "Handle",
    "Piece",
    "Request",
    "Sampling",
    "TextStream",
    "Timings",
    "Usage",
    "generate",
    "make_request",
    "stream",
]
