"""Which tokens a grammar allows next, found before the step whose logits are chosen from: a device chooses then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.errors import GrammarError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.generate.grammar import Matcher

Mask: TypeAlias = "np.ndarray[Any, Any]"  # a bit for each token, uint32 [ceil(vocab / 32)]


@frozen(eq=False)
class Ahead:
    """The masks after a text of `known` tokens, and after each of the `drafts` that follow it; None allows all."""

    known: int
    drafts: tuple[int, ...]
    masks: list[Mask | None]

    def __len__(self) -> int:
        return len(self.masks)

    def fits(self, known: int, drafts: Sequence[int]) -> bool:
        """Whether they are those of a step after so many tokens with these drafts."""
        return self.known == known and tuple(drafts) == self.drafts[: len(drafts)] and len(drafts) < len(self.masks)


def look_ahead(matcher: Matcher | None, known: int, drafts: Sequence[int]) -> Ahead | None:
    """For the next step of a text whose grammar has `matcher`, or lets it be as it likes; None where the grammar fails,
    which the step itself reports."""
    if matcher is None:
        return Ahead(known, (), [None])
    try:
        masks: list[Mask | None] = [matcher.mask()]
    except GrammarError:
        return None
    after = matcher.fork() if drafts else matcher
    for token in drafts:
        try:
            after.advance(token)
            masks.append(after.mask())
        except GrammarError:  # the grammar forces a text, and drafts are but one way to write it
            break
    return Ahead(known, tuple(drafts), masks)
