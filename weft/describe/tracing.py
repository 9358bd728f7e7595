"""The ops and weights of a model as its file writes them, before any pass; for looking at, not for running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.models import model_module
from weft.nn import Scope, read_config
from weft.nn.step import TracedStep
from weft.weights.rotation import turned_of

if TYPE_CHECKING:
    from weft.graph import Trace
    from weft.runtime import Checkpoint


def traced(trace: Trace, checkpoint: Checkpoint) -> Trace:
    """The trace after the checkpoint's model has been recorded in it."""
    module: Any = model_module(checkpoint.model_type)
    decodes = module.KIND == "decoder"
    w = Scope(trace, checkpoint.stored)
    trace.turned = turned_of(checkpoint.config)
    with checkpoint.naming():
        cfg = read_config(module.Config, checkpoint.config)
        if decodes and getattr(cfg, "causal", True):
            trace.output("logits", module.forward(w, cfg, TracedStep(trace, max_pages=1)))
        else:
            trunk = w / "model" if decodes else w
            trace.output("hidden", module.hidden_states(trunk, cfg, TracedStep(trace)))
    return trace
