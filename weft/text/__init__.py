"""Text in and out: tokenizers and chat templates. No model, no tensor."""

from weft.text.chat import Template, choose_template, encode_chat, render
from weft.text.tokenizer import Tokenizer

__all__ = ["Template", "Tokenizer", "choose_template", "encode_chat", "render"]
