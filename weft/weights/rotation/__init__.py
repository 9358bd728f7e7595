"""Rotated weights: the same model in another basis, in which no channel stands out and few bits lose less (QuaRot).

The residual stream x becomes Q x, the values of a head P v, what the output projection reads U x over the heads, and
what the down projection reads V x over all its columns:

    embedding  E Qᵀ          queries, keys, gate, up, head  W diag(g) Qᵀ      values  P W diag(g) Qᵀ
    output     Q W Pᵀ Uᵀ     down                           Q W Vᵀ            gains g of norms: 1

U and V are turns that the model makes while it runs, by the op `hadamard`; all else costs nothing. Each is Walsh's
matrix, times a small orthogonal one where a width is not a power of two, Q and P after random signs. Norms commute with
Q since they divide by a length and have no gain left. The gains are kept, for adapters.
"""

from weft.weights.rotation.mark import GAIN, MARK, MODEL_TYPE, as_it_was, refuse_rotated, rotation_of, turned_of
from weft.weights.rotation.turns import EMBEDDING, HEAD, Rotation

__all__ = [
    "EMBEDDING",
    "GAIN",
    "HEAD",
    "MARK",
    "MODEL_TYPE",
    "Rotation",
    "as_it_was",
    "refuse_rotated",
    "rotation_of",
    "turned_of",
]
