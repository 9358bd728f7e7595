"""How often a test repeats its claim: a few times in `make test`, many times in `make soak` (WEFT_SOAK=1).

A test that asks carries the mark `soak`, so that `make soak` finds it.
"""

import os

SOAK = os.environ.get("WEFT_SOAK", "0") not in ("", "0")


def times(many: int, few: int) -> int:
    """`many` in a soak run, else `few`."""
    return many if SOAK else few
