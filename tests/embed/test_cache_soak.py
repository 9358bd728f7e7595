"""What a writer of the cache acknowledged survives kill -9."""

import importlib.util
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("cache_soak", Path(__file__).parent / "soak.py")
assert SPEC is not None and SPEC.loader is not None
soak = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(soak)


def test_nothing_acknowledged_is_lost() -> None:
    totals = soak.soak(4)
    assert totals["there"] >= totals["acknowledged"] >= 4 * soak.BATCH
