"""Drift: have vectors moved enough to matter?

weft.transport.drift.compare(old, new)           # distance, p-value, effect, displacement per item
weft.transport.drift.Detector(reference)         # vectors one by one, at a chosen rate of false alarms
weft.transport.drift.align(old, new)             # a map between two models' vectors, with its recall
"""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.transport.drift.aligning import Alignment as Alignment
    from weft.transport.drift.aligning import align as align
    from weft.transport.drift.comparing import Comparison as Comparison
    from weft.transport.drift.comparing import Item as Item
    from weft.transport.drift.comparing import compare as compare
    from weft.transport.drift.nulls import Verdict as Verdict
    from weft.transport.drift.watching import Detector as Detector
    from weft.transport.drift.watching import Signal as Signal

_HOMES = {
    "Alignment": "aligning",
    "Comparison": "comparing",
    "Detector": "watching",
    "Item": "comparing",
    "Signal": "watching",
    "Verdict": "nulls",
    "align": "aligning",
    "compare": "comparing",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
