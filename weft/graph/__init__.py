"""Models become programs: trace one (trace), rewrite it (passes), plan its memory (plan), give it to a backend."""

from weft.graph.program import Program
from weft.graph.tensor import B, Dim, L, T, Tensor, named
from weft.graph.trace import Trace

__all__ = ["B", "Dim", "L", "Program", "T", "Tensor", "Trace", "named"]
