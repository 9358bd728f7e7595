"""Data sets to learn from: split, without duplicates, without what they are judged by, and described."""

from weft.data.contamination import Checked, Finding, check
from weft.data.duplicates import Deduped, dedupe
from weft.data.page import write_page
from weft.data.splitting import Split, part_of, split
from weft.data.statistics import Statistics, stats

__all__ = [
    "Checked",
    "Deduped",
    "Finding",
    "Split",
    "Statistics",
    "check",
    "dedupe",
    "part_of",
    "split",
    "stats",
    "write_page",
]
