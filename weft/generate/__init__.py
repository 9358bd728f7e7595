"""Text generation: the engine and what goes into and out of it."""

from weft.generate.call import generate, make_request, stream
from weft.generate.decoder import Decoder, Detokenizer, TextStream
from weft.generate.engine import Engine, Handle
from weft.generate.model import Model, load
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
    "Model",
    "Piece",
    "Request",
    "Sampling",
    "TextStream",
    "Timings",
    "Usage",
    "generate",
    "load",
    "make_request",
    "stream",
]
