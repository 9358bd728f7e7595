"""Changing the model of a store while it is in use: the migrator, and the application's side of it."""

from weft.embed.migrate.corpus import Answer, Corpus
from weft.embed.migrate.embedding import AnyEmbedder
from weft.embed.migrate.migrator import Migrator, Progress

__all__ = ["Answer", "AnyEmbedder", "Corpus", "Migrator", "Progress"]
