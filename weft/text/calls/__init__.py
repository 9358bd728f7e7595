"""Tool calls in the text of a model, found while it is generated."""
