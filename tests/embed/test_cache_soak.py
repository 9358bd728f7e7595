"""What a writer of the cache acknowledged survives kill -9."""

import cache_soak
import pytest
from soaking import times


@pytest.mark.soak
def test_nothing_acknowledged_is_lost() -> None:
    kills = times(200, 3)
    totals = cache_soak.soak(kills)
    assert totals["there"] >= totals["acknowledged"] >= kills * cache_soak.BATCH
