"""What a writer of the cache acknowledged survives kill -9."""

import cache_soak


def test_nothing_acknowledged_is_lost() -> None:
    totals = cache_soak.soak(4)
    assert totals["there"] >= totals["acknowledged"] >= 4 * cache_soak.BATCH
