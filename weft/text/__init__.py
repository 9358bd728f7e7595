"""Text in and out: tokenizers and chat templates. No model, no tensor."""

from weft.text.chat import encode_chat, render
from weft.text.tokenizer import Tokenizer

__all__ = ["Tokenizer", "encode_chat", "render"]
