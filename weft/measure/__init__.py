"""What a model, or a smaller file of it, is worth: perplexity, two models beside each other, correlation of vectors.

weft.measure.perplexity_of("model-q4.gguf", Path("text.txt"))      # a Surprise: .perplexity, .error, .bits_per_byte
weft.measure.compare("model-f16.gguf", "model-q4.gguf", Path("text.txt"))      # a Compared: divergences, layers, speed
"""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.measure.comparison import Compared as Compared
    from weft.measure.comparison import Comparison as Comparison
    from weft.measure.comparison import compare as compare
    from weft.measure.perplexity import Perplexity as Perplexity
    from weft.measure.perplexity import Surprise as Surprise
    from weft.measure.perplexity import perplexity_of as perplexity_of
    from weft.measure.perplexity import summed as summed
    from weft.measure.sts import Pairs as Pairs
    from weft.measure.sts import Sts as Sts
    from weft.measure.sts import read_pairs as read_pairs

_HOMES = {
    **dict.fromkeys(("Perplexity", "Surprise", "perplexity_of", "summed"), "perplexity"),
    **dict.fromkeys(("Compared", "Comparison", "compare"), "comparison"),
    **dict.fromkeys(("Pairs", "Sts", "read_pairs"), "sts"),
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
