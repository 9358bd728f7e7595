"""Vocabularies, written for files of other kinds."""
