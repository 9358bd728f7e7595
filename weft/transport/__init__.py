"""Optimal transport between sets of points.

weft.transport.sinkhorn(x, y, epsilon=0.05)     # .cost, .plan, .converged, .gradients()
weft.transport.divergence(x, y)                 # 0 where both sets are the same
weft.transport.sliced(x, y)                     # quick: exact distances along random lines
weft.transport.estimate(x, y)                   # mini-batches, for millions of points
"""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.transport.barycentres import Barycentre as Barycentre
    from weft.transport.barycentres import barycentre as barycentre
    from weft.transport.barycentres import free_barycentre as free_barycentre
    from weft.transport.batches import Estimate as Estimate
    from weft.transport.batches import estimate as estimate
    from weft.transport.debiased import Divergence as Divergence
    from weft.transport.debiased import divergence as divergence
    from weft.transport.lines import Sliced as Sliced
    from weft.transport.lines import on_a_line as on_a_line
    from weft.transport.lines import sliced as sliced
    from weft.transport.plan import Plan as Plan
    from weft.transport.plan import SparsePlan as SparsePlan
    from weft.transport.results import Gradients as Gradients
    from weft.transport.results import Result as Result
    from weft.transport.solver import Scaling as Scaling
    from weft.transport.solver import sinkhorn as sinkhorn

_HOMES = {
    "Barycentre": "barycentres",
    "Divergence": "debiased",
    "Estimate": "batches",
    "Gradients": "results",
    "Plan": "plan",
    "Result": "results",
    "Scaling": "solver",
    "Sliced": "lines",
    "SparsePlan": "plan",
    "barycentre": "barycentres",
    "divergence": "debiased",
    "estimate": "batches",
    "free_barycentre": "barycentres",
    "on_a_line": "lines",
    "sinkhorn": "solver",
    "sliced": "lines",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
