"""Training of models whose result is one row per text: embedders and rerankers."""
