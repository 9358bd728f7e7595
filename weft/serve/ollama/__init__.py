"""Ollama's API: chat, generate, embed, and the list of models."""
