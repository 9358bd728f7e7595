"""Passes: pure functions from program to program, one per file, each leaving the meaning as it was."""
