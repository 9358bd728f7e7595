"""The paged state of decoders: which pages and slots are whose, what they hold, and pages on disk."""
