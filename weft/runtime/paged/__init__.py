"""The paged state of decoders: which pages are whose, what they hold, and pages on disk."""
