"""Training started, watched and judged over HTTP."""
