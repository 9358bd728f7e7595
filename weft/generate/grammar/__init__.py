"""Grammars: what a generated text must match, and which tokens may come next."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.generate.grammar.matcher import Compiled as Compiled
    from weft.generate.grammar.matcher import Matcher as Matcher
    from weft.generate.grammar.spec import Grammar as Grammar
    from weft.generate.grammar.vocabulary import Vocabulary as Vocabulary

_HOMES = {"Compiled": "matcher", "Grammar": "spec", "Matcher": "matcher", "Vocabulary": "vocabulary"}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
