"""Prompts with pictures: which tokens are vectors, and how messages with pictures become such prompts."""
