"""What is on disk: reading, writing and packing weights, and finding models."""

from weft.weights.resolve import LocalModel, Located, list_local, locate, pull

__all__ = ["LocalModel", "Located", "list_local", "locate", "pull"]
