"""Text in and out: tokenizers and chat templates. No model, no tensor."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.text.chat import Template as Template
    from weft.text.chat import choose_template as choose_template
    from weft.text.chat import encode_chat as encode_chat
    from weft.text.chat import render as render
    from weft.text.tokenizer import Tokenizer as Tokenizer

_HOMES = {
    "Template": "chat",
    "Tokenizer": "tokenizer",
    "choose_template": "chat",
    "encode_chat": "chat",
    "render": "chat",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
