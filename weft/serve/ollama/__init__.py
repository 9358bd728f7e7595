"""Ollama's API: chat, generate, embed, and what is there."""
