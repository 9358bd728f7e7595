"""Modules: what networks are built from, and the first values of their parameters."""
