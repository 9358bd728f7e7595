"""The functions of sentence-transformers' `util` that work on vectors: `from weft.compat.util import cos_sim`."""

from weft.compat.arguments import refused
from weft.compat.precision import quantize_embeddings
from weft.compat.retrieval import (
    community_detection,
    paraphrase_mining,
    paraphrase_mining_embeddings,
    semantic_search,
)
from weft.compat.similarity import (
    SimilarityFunction,
    cos_sim,
    dot_score,
    euclidean_sim,
    manhattan_sim,
    normalize_embeddings,
    pairwise_angle_sim,
    pairwise_cos_sim,
    pairwise_dot_score,
    pairwise_euclidean_sim,
    pairwise_manhattan_sim,
    truncate_embeddings,
)

__all__ = [
    "SimilarityFunction",
    "community_detection",
    "cos_sim",
    "dot_score",
    "euclidean_sim",
    "information_retrieval",
    "manhattan_sim",
    "mine_hard_negatives",
    "normalize_embeddings",
    "pairwise_angle_sim",
    "pairwise_cos_sim",
    "pairwise_dot_score",
    "pairwise_euclidean_sim",
    "pairwise_manhattan_sim",
    "paraphrase_mining",
    "paraphrase_mining_embeddings",
    "pytorch_cos_sim",
    "quantize_embeddings",
    "semantic_search",
    "truncate_embeddings",
]

# The older names there.
pytorch_cos_sim = cos_sim
information_retrieval = semantic_search

mine_hard_negatives = refused("mine_hard_negatives", "it prepares training, which sentence-transformers does")
