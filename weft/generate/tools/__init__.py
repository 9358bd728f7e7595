"""Tool calls that a grammar holds to their format and to their schemas."""
