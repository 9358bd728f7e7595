"""What a model, or a smaller file of it, is worth: perplexity, two models beside each other, correlation of vectors.

weft.measure.perplexity_of("model-q4.gguf", Path("text.txt"))      # a Surprise: .perplexity, .error, .bits_per_byte
"""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.measure.perplexity import Perplexity as Perplexity
    from weft.measure.perplexity import Surprise as Surprise
    from weft.measure.perplexity import perplexity_of as perplexity_of
    from weft.measure.perplexity import summed as summed

_HOMES = dict.fromkeys(("Perplexity", "Surprise", "perplexity_of", "summed"), "perplexity")

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
