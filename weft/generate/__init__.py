"""Text generation: the engine, its requests and its results."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.generate.aio import AsyncEngine as AsyncEngine
    from weft.generate.choice.sampling import Sampling as Sampling
    from weft.generate.decoder import Decoder as Decoder
    from weft.generate.decoder import Detokenizer as Detokenizer
    from weft.generate.decoder import TextStream as TextStream
    from weft.generate.engine import Engine as Engine
    from weft.generate.grammar import Grammar as Grammar
    from weft.generate.handle import Handle as Handle
    from weft.generate.handle import generate as generate
    from weft.generate.handle import generate_all as generate_all
    from weft.generate.handle import make_request as make_request
    from weft.generate.handle import stream as stream
    from weft.generate.model import Model as Model
    from weft.generate.model import load as load
    from weft.generate.request import Request as Request
    from weft.generate.result import FinishReason as FinishReason
    from weft.generate.result import Generation as Generation
    from weft.generate.result import Piece as Piece
    from weft.generate.result import Stats as Stats
    from weft.generate.result import Timings as Timings
    from weft.generate.result import TokenLogprob as TokenLogprob
    from weft.generate.result import Usage as Usage
    from weft.generate.session import Session as Session
    from weft.generate.sight.prompt import Prompt as Prompt
    from weft.generate.sight.prompt import Seen as Seen

_HOMES = {
    "AsyncEngine": "aio",
    "Decoder": "decoder",
    "Detokenizer": "decoder",
    "Engine": "engine",
    "FinishReason": "result",
    "Generation": "result",
    "Grammar": "grammar",
    "Handle": "handle",
    "Model": "model",
    "Piece": "result",
    "Prompt": "sight.prompt",
    "Request": "request",
    "Session": "session",
    "Sampling": "choice.sampling",
    "Seen": "sight.prompt",
    "Stats": "result",
    "TextStream": "decoder",
    "Timings": "result",
    "TokenLogprob": "result",
    "Usage": "result",
    "generate": "handle",
    "generate_all": "handle",
    "load": "model",
    "make_request": "handle",
    "stream": "handle",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
