"""Text in and out: tokenizers, chat templates, tool calls. No model, no tensor."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.text.calls.formats import formats_of as formats_of
    from weft.text.calls.parser import ToolParser as ToolParser
    from weft.text.chat import Template as Template
    from weft.text.chat import choose_template as choose_template
    from weft.text.chat import encode_chat as encode_chat
    from weft.text.chat import render as render
    from weft.text.reasoning import ReasoningSplit as ReasoningSplit
    from weft.text.tokenizer import Tokenizer as Tokenizer

_HOMES = {
    "ReasoningSplit": "reasoning",
    "Template": "chat",
    "Tokenizer": "tokenizer",
    "ToolParser": "calls.parser",
    "choose_template": "chat",
    "encode_chat": "chat",
    "formats_of": "calls.formats",
    "render": "chat",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
