"""sentence-transformers' interface over weft: change the import and keep the code.

    from weft.compat import CrossEncoder, SentenceTransformer, util

Vectors and scores are the same, as numpy arrays. As there, texts that are too long lose their end, or their beginning
if the tokenizer's file says so; the first time this is logged. One thing differs: `encode_document` uses a model's
prompt "passage" or "corpus" if it has none called "document". Arguments that make no difference here are ignored.
Those that would, or that need torch (`convert_to_tensor`) or other processes, and methods that train or save, are
refused by name. docs/howto/replace-sentence-transformers.md lists both.
"""

from weft.compat import util
from weft.compat.cross_encoder import CrossEncoder
from weft.compat.sentence_transformer import SentenceTransformer
from weft.compat.similarity import SimilarityFunction

__all__ = ["CrossEncoder", "SentenceTransformer", "SimilarityFunction", "util"]
