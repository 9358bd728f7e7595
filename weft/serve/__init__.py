"""Models over HTTP: OpenAI's, Anthropic's, Ollama's and TEI's routes on one port. Needs `weft-engine[serve]`."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.serve.app import App as App
    from weft.serve.http.server import BackgroundServer as BackgroundServer
    from weft.serve.http.server import run as run
    from weft.serve.settings import Limits as Limits
    from weft.serve.settings import ModelSpec as ModelSpec
    from weft.serve.settings import Settings as Settings

_HOMES = {
    "App": "app",
    "BackgroundServer": "http.server",
    "Limits": "settings",
    "ModelSpec": "settings",
    "Settings": "settings",
    "run": "http.server",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
