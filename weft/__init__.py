"""weft: a local inference engine for transformer models.

    emb = weft.Embedder("all-MiniLM-L6-v2")
    vectors = emb.encode(["a cat", "a dog"])
    model = weft.load("smollm2-135m-instruct")
    print(model.chat([{"role": "user", "content": "Hello!"}]).text)

Nothing happens at import: no thread, no file, no socket. The names below are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.classify import Classifier as Classifier
    from weft.embed import BaseEmbedder as BaseEmbedder
    from weft.embed import Embedder as Embedder
    from weft.embed import EmbedInterrupted as EmbedInterrupted
    from weft.embed import RemoteEmbedder as RemoteEmbedder
    from weft.embed.index import Hit as Hit
    from weft.embed.index import Index as Index
    from weft.embed.verification import verify as verify
    from weft.errors import WeftError as WeftError
    from weft.generate import AsyncEngine as AsyncEngine
    from weft.generate import Engine as Engine
    from weft.generate import Generation as Generation
    from weft.generate import Grammar as Grammar
    from weft.generate import Model as Model
    from weft.generate import Piece as Piece
    from weft.generate import Request as Request
    from weft.generate import Sampling as Sampling
    from weft.generate import Session as Session
    from weft.generate import load as load
    from weft.rerank import Reranker as Reranker
    from weft.text import Tokenizer as Tokenizer
    from weft.weights.sources import pull as pull

__version__ = "0.1.0"

_HOMES = {
    "AsyncEngine": "weft.generate",
    "BaseEmbedder": "weft.embed",
    "Classifier": "weft.classify",
    "EmbedInterrupted": "weft.embed",
    "Embedder": "weft.embed",
    "Engine": "weft.generate",
    "Generation": "weft.generate",
    "Grammar": "weft.generate",
    "Hit": "weft.embed.index",
    "Index": "weft.embed.index",
    "Model": "weft.generate",
    "Piece": "weft.generate",
    "RemoteEmbedder": "weft.embed",
    "Request": "weft.generate",
    "Reranker": "weft.rerank",
    "Sampling": "weft.generate",
    "Session": "weft.generate",
    "Tokenizer": "weft.text",
    "WeftError": "weft.errors",
    "load": "weft.generate",
    "pull": "weft.weights.sources",
    "verify": "weft.embed.verification",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "vectors":
        return import_module("weft.vectors")
    if name not in _HOMES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "vectors"])
