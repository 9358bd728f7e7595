"""Rows of files to lessons: which tokens a sequence has, and which of them are learnt."""
