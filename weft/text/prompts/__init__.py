"""Prompts that no chat template writes: tools as plain text, and texts to fill in."""
